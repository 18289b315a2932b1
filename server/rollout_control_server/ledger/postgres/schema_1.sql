-- Version 1 of the ledger's schema. {schema} stands for the quoted name of the PostgreSQL schema.
--
-- Free text may hold U+0000, which PostgreSQL's text and json cannot: it is kept as bytea, in UTF-8. Free text may also
-- be longer than an index entry: indexes hold its SHA-256. Rollout ids are ASCII of at most 255 characters.

CREATE TABLE {schema}.schema_version (version integer NOT NULL);

-- A rollout id that has rows or is fenced. Without a fence there is a generation, and it has at least one row.
-- A generation is one life of an id, from its first row to its removal. Numbers are never used twice, so what purges
-- an old generation cannot reach a new one.
CREATE TABLE {schema}.rollout (
  rollout_id text COLLATE "C" PRIMARY KEY,
  generation bigint,
  fenced_at timestamptz,
  CHECK (generation IS NOT NULL OR fenced_at IS NOT NULL)
);

CREATE SEQUENCE {schema}.generation AS bigint;

-- The calls of a generation; seq is the commit order, from 1.
-- The staging chain is that of the row parent_seq (0: empty) and then this call's staging key, or where parent_seq is
-- null, the JSON array staging_chain. chain_digest is what rows.py makes of the whole chain.
-- A staging key that is null is the usual one, the rollout's id, a slash and the call's id.
CREATE TABLE {schema}.call_record (
  generation bigint NOT NULL,
  seq bigint NOT NULL,
  parent_seq bigint,
  context_len bigint,
  fingerprint_version bigint NOT NULL,
  chain_digest bytea NOT NULL,
  model_call_id bytea NOT NULL,
  staging_key bytea,
  staging_chain bytea,
  fingerprint bytea,
  context_digest bytea,
  record_json bytea NOT NULL,
  PRIMARY KEY (generation, seq)
);
CREATE UNIQUE INDEX call_record_call ON {schema}.call_record (generation, sha256(model_call_id));
CREATE INDEX call_record_fingerprint ON {schema}.call_record (generation, sha256(fingerprint), fingerprint_version)
  WHERE fingerprint IS NOT NULL;

CREATE TABLE {schema}.call_failure (
  generation bigint NOT NULL,
  seq bigint NOT NULL,
  model_call_id bytea NOT NULL,
  reason bytea NOT NULL,
  failure_json bytea NOT NULL,
  PRIMARY KEY (generation, seq)
);
CREATE UNIQUE INDEX call_failure_reason ON {schema}.call_failure (generation, sha256(model_call_id), sha256(reason));

-- Generations whose rows are to be deleted. No row is added to a generation once it is here.
CREATE TABLE {schema}.purge_queue (generation bigint PRIMARY KEY)
  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- A write is attempted again when its connection was lost, and the lost attempt may still arrive, late. It must not
-- happen after a later attempt has: others may have removed since what it writes, or written what it removes.
-- Removals are few. Each notes its operation's id with what it removed; an attempt that finds the note does nothing, and
-- returns that.
CREATE TABLE {schema}.removal (
  operation_id uuid PRIMARY KEY,
  removed text[] NOT NULL DEFAULT '{}',
  removed_at timestamptz NOT NULL DEFAULT now()
);
-- Records are many, and few of them are attempted twice. The later attempt notes the ids of the earlier ones here.
-- Both tables are cleared of what is older than an hour.
CREATE TABLE {schema}.superseded_attempt (
  attempt_id uuid PRIMARY KEY,
  superseded_at timestamptz NOT NULL DEFAULT now()
);

-- Isolation. Every function that writes is VOLATILE and runs in READ COMMITTED: each of its statements takes a new
-- snapshot, so a statement that follows a lock sees all that was committed before the lock was granted. Whoever adds a
-- row to a generation holds its rollout's row lock from before until its commit, and so does whoever fences or deletes
-- the rollout. A write that races a removal is therefore committed before the removal changes the state (and its
-- generation is purged), or it finds the fence, or no rollout.
--
-- Locks are taken in the order of rollout ids, and waits are short: nothing deadlocks, and a lock that is stuck stalls
-- nobody for longer than lock_timeout. It is set for each function because no session state survives a PgBouncer in
-- transaction mode. The plans are index look-ups whatever the statistics say.

CREATE FUNCTION {schema}.begin_write() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'rollout-control needs READ COMMITTED: remove default_transaction_isolation of this role and database'
      USING ERRCODE = 'invalid_transaction_state';
  END IF;
  -- An acknowledged write is durable, whatever the role's or the database's default is.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- Adds rows, which come in the order of their rollout ids. A row with a failure_json is a failure row.
-- A row that cannot be added for now holds up those of its rollout that follow.
-- Returns for each row what became of it, as the enumeration Outcome of rows.py numbers it.
CREATE FUNCTION {schema}.record_rows(
  attempt uuid, earlier_attempts uuid[], wait_for_locks boolean, rollout_ids text[], model_call_ids bytea[], reasons bytea[], failure_jsons bytea[],
  record_jsons bytea[], parent_call_ids bytea[], parent_digests bytea[], chain_digests bytea[], staging_keys bytea[],
  staging_chains bytea[], fingerprint_versions bigint[], fingerprints bytea[], context_lens bigint[],
  context_digests bytea[]
) RETURNS smallint[] LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  kept CONSTANT smallint := 0;
  discarded CONSTANT smallint := 1;
  holds_another CONSTANT smallint := 2;
  has_failed CONSTANT smallint := 3;
  busy CONSTANT smallint := 4;
  needs_chain CONSTANT smallint := 5;
  not_yet CONSTANT smallint := 6;
  outcomes smallint[] := '{}';
  outcome smallint;
  given record;
  existing record;
  rollout text;
  rollout_exists boolean;
  rollout_busy boolean;
  held_up boolean;
  fenced boolean;
  current_generation bigint;
  last_seq bigint;
  has_failures boolean;
  parent bigint;
BEGIN
  PERFORM {schema}.begin_write();
  IF cardinality(earlier_attempts) > 0 THEN
    INSERT INTO {schema}.superseded_attempt SELECT unnest(earlier_attempts) ON CONFLICT DO NOTHING;
  END IF;
  IF NOT wait_for_locks THEN
    -- SKIP LOCKED waits for no row that is there, but a row that is only just being inserted is waited for.
    PERFORM set_config('lock_timeout', '2ms', true);
  END IF;
  FOR given IN SELECT * FROM unnest(
    rollout_ids, model_call_ids, reasons, failure_jsons, record_jsons, parent_call_ids, parent_digests, chain_digests,
    staging_keys, staging_chains, fingerprint_versions, fingerprints, context_lens, context_digests
  ) AS t(
    rollout_id, model_call_id, reason, failure_json, record_json, parent_call_id, parent_digest, chain_digest,
    staging_key, staging_chain, fingerprint_version, fingerprint, context_len, context_digest
  ) LOOP
    IF given.rollout_id IS DISTINCT FROM rollout THEN
      rollout := given.rollout_id;
      held_up := false;
      IF wait_for_locks THEN
        SELECT r.generation, r.fenced_at IS NOT NULL INTO current_generation, fenced
          FROM {schema}.rollout r WHERE r.rollout_id = rollout FOR NO KEY UPDATE;
      ELSE
        SELECT r.generation, r.fenced_at IS NOT NULL INTO current_generation, fenced
          FROM {schema}.rollout r WHERE r.rollout_id = rollout FOR NO KEY UPDATE SKIP LOCKED;
      END IF;
      rollout_exists := FOUND;
      IF rollout_exists THEN
        rollout_busy := false;
        SELECT
          coalesce((SELECT max(c.seq) FROM {schema}.call_record c WHERE c.generation = current_generation), 0),
          EXISTS (SELECT FROM {schema}.call_failure f WHERE f.generation = current_generation)
        INTO last_seq, has_failures;
      ELSE
        rollout_busy := EXISTS (SELECT FROM {schema}.rollout r WHERE r.rollout_id = rollout);
      END IF;
    END IF;

    IF held_up THEN
      outcomes := outcomes || not_yet;
      CONTINUE;
    ELSIF NOT rollout_exists AND NOT rollout_busy THEN
      IF given.parent_call_id IS NOT NULL AND given.staging_chain IS NULL THEN
        held_up := true;
        outcomes := outcomes || needs_chain;
        CONTINUE;
      END IF;
      BEGIN
        INSERT INTO {schema}.rollout (rollout_id, generation) VALUES (rollout, nextval('{schema}.generation'))
          ON CONFLICT DO NOTHING RETURNING generation INTO current_generation;
        rollout_exists := FOUND;
      EXCEPTION WHEN lock_not_available THEN
        -- Someone else has made the rollout, and has not committed yet.
        rollout_exists := false;
      END;
      rollout_busy := NOT rollout_exists;
      fenced := false;
      last_seq := 0;
      has_failures := false;
    END IF;

    IF rollout_busy THEN
      outcomes := outcomes || busy;
      CONTINUE;
    ELSIF fenced THEN
      outcomes := outcomes || discarded;
      CONTINUE;
    ELSIF given.failure_json IS NOT NULL THEN
      INSERT INTO {schema}.call_failure (generation, seq, model_call_id, reason, failure_json)
        VALUES (
          current_generation,
          (SELECT coalesce(max(f.seq), 0) + 1 FROM {schema}.call_failure f WHERE f.generation = current_generation),
          given.model_call_id, given.reason, given.failure_json
        )
        ON CONFLICT DO NOTHING;
      has_failures := true;
      outcomes := outcomes || kept;
      CONTINUE;
    END IF;

    outcome := kept;
    parent := NULL;
    IF given.staging_chain IS NULL THEN
      IF given.parent_call_id IS NULL THEN
        parent := 0;
      ELSE
        SELECT c.seq INTO parent FROM {schema}.call_record c
          WHERE c.generation = current_generation AND sha256(c.model_call_id) = sha256(given.parent_call_id)
            AND c.chain_digest = given.parent_digest;
        IF NOT FOUND THEN
          held_up := true;
          outcomes := outcomes || needs_chain;
          CONTINUE;
        END IF;
      END IF;
    END IF;
    IF has_failures AND EXISTS (
      SELECT FROM {schema}.call_failure f
        WHERE f.generation = current_generation AND sha256(f.model_call_id) = sha256(given.model_call_id)
    ) THEN
      outcome := has_failed;
    ELSE
      INSERT INTO {schema}.call_record (
        generation, seq, parent_seq, context_len, fingerprint_version, chain_digest, model_call_id, staging_key,
        staging_chain, fingerprint, context_digest, record_json
      ) VALUES (
        current_generation, last_seq + 1, parent, given.context_len, given.fingerprint_version, given.chain_digest,
        given.model_call_id, given.staging_key, given.staging_chain, given.fingerprint, given.context_digest,
        given.record_json
      ) ON CONFLICT DO NOTHING;
      IF FOUND THEN
        last_seq := last_seq + 1;
      ELSE
        outcome := holds_another;
      END IF;
    END IF;
    IF outcome <> kept THEN
      -- The call has a row already; the same commit again is kept.
      SELECT * INTO existing FROM {schema}.call_record c
        WHERE c.generation = current_generation AND sha256(c.model_call_id) = sha256(given.model_call_id);
      IF FOUND THEN
        outcome := CASE
          WHEN existing.record_json = given.record_json AND existing.chain_digest = given.chain_digest
            AND (existing.fingerprint, existing.context_len, existing.context_digest)
              IS NOT DISTINCT FROM (given.fingerprint, given.context_len, given.context_digest)
          THEN kept ELSE holds_another END;
      END IF;
    END IF;
    outcomes := outcomes || outcome;
  END LOOP;
  -- Now that all locks are held, no later attempt can do anything to these rollouts before this one's commit: either
  -- it has superseded this one, which is undone, or it comes after it.
  IF EXISTS (SELECT FROM {schema}.superseded_attempt s WHERE s.attempt_id = attempt) THEN
    RAISE EXCEPTION 'this attempt was lost, and made again since' USING ERRCODE = 'serialization_failure';
  END IF;
  RETURN outcomes;
END $$;

-- Fences rollouts, all or none. Returns the ids that were not fenced and had rows.
CREATE FUNCTION {schema}.retire(operation uuid, rollout_ids text[]) RETURNS text[] LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  with_rows text[];
BEGIN
  PERFORM {schema}.begin_write();
  INSERT INTO {schema}.removal (operation_id) VALUES (operation) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN (SELECT r.removed FROM {schema}.removal r WHERE r.operation_id = operation);
  END IF;
  -- DO UPDATE locks the newest version of each row, waits for whoever holds it, and judges what it finds then.
  WITH fenced AS (
    INSERT INTO {schema}.rollout AS r (rollout_id, fenced_at)
      SELECT i.rollout_id, clock_timestamp() FROM unnest(rollout_ids) AS i(rollout_id)
        ORDER BY i.rollout_id COLLATE "C"
      ON CONFLICT (rollout_id) DO UPDATE SET fenced_at = excluded.fenced_at WHERE r.fenced_at IS NULL
      RETURNING r.rollout_id, r.generation
  ), queued AS (
    INSERT INTO {schema}.purge_queue SELECT f.generation FROM fenced f WHERE f.generation IS NOT NULL
  )
  SELECT coalesce(array_agg(f.rollout_id), '{}') INTO with_rows FROM fenced f WHERE f.generation IS NOT NULL;
  UPDATE {schema}.removal SET removed = with_rows WHERE operation_id = operation;
  RETURN with_rows;
END $$;

-- Removes rows and fences of rollouts, all or none. Returns the ids that were not fenced and had rows.
CREATE FUNCTION {schema}.delete(operation uuid, rollout_ids text[]) RETURNS text[] LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  locked text[];
  with_rows text[];
BEGIN
  PERFORM {schema}.begin_write();
  INSERT INTO {schema}.removal (operation_id) VALUES (operation) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN (SELECT r.removed FROM {schema}.removal r WHERE r.operation_id = operation);
  END IF;
  -- DELETE takes its locks in no certain order: they are taken before. What is locked changes no more.
  SELECT array_agg(l.rollout_id) INTO locked FROM (
    SELECT r.rollout_id FROM {schema}.rollout r WHERE r.rollout_id = ANY (rollout_ids)
      ORDER BY r.rollout_id FOR UPDATE
  ) l;
  WITH gone AS (
    DELETE FROM {schema}.rollout r WHERE r.rollout_id = ANY (locked)
      RETURNING r.rollout_id, r.generation, r.fenced_at
  ), queued AS (
    INSERT INTO {schema}.purge_queue SELECT g.generation FROM gone g WHERE g.fenced_at IS NULL
  )
  SELECT coalesce(array_agg(g.rollout_id), '{}') INTO with_rows FROM gone g WHERE g.fenced_at IS NULL;
  UPDATE {schema}.removal SET removed = with_rows WHERE operation_id = operation;
  RETURN with_rows;
END $$;

-- Deletes up to max_rows rows of removed rollouts. Several may run at once: each takes generations of its own.
-- Returns whether it found any generation to purge.
CREATE FUNCTION {schema}.purge(max_rows integer) RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  taken bigint[];
  records integer;
  failures integer;
BEGIN
  SELECT array_agg(q.generation) INTO taken FROM (
    SELECT p.generation FROM {schema}.purge_queue p ORDER BY p.generation LIMIT max_rows / 10 FOR UPDATE SKIP LOCKED
  ) q;
  IF taken IS NULL THEN
    DELETE FROM {schema}.removal WHERE removed_at < now() - interval '1 hour';
    DELETE FROM {schema}.superseded_attempt WHERE superseded_at < now() - interval '1 hour';
    RETURN false;
  END IF;
  DELETE FROM {schema}.call_record c USING (
    SELECT d.generation, d.seq FROM {schema}.call_record d WHERE d.generation = ANY (taken) LIMIT max_rows
  ) d WHERE c.generation = d.generation AND c.seq = d.seq;
  GET DIAGNOSTICS records = ROW_COUNT;
  DELETE FROM {schema}.call_failure c USING (
    SELECT d.generation, d.seq FROM {schema}.call_failure d WHERE d.generation = ANY (taken) LIMIT max_rows
  ) d WHERE c.generation = d.generation AND c.seq = d.seq;
  GET DIAGNOSTICS failures = ROW_COUNT;
  IF records < max_rows AND failures < max_rows THEN
    DELETE FROM {schema}.purge_queue p WHERE p.generation = ANY (taken);
  ELSE
    DELETE FROM {schema}.purge_queue p WHERE p.generation = ANY (taken)
      AND NOT EXISTS (SELECT FROM {schema}.call_record c WHERE c.generation = p.generation)
      AND NOT EXISTS (SELECT FROM {schema}.call_failure f WHERE f.generation = p.generation);
  END IF;
  RETURN true;
END $$;

-- Looks at the next max_rows rollouts after an id, forgets the fences among them that are old enough, and counts.
-- last_id is null when there were no more rollouts.
CREATE FUNCTION {schema}.forget_fences(
  after_id text, older_than interval, max_rows integer,
  OUT last_id text, OUT forgotten bigint, OUT kept bigint, OUT kept_bytes bigint
) LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  old_ids text[];
BEGIN
  PERFORM {schema}.begin_write();
  SELECT
    max(s.rollout_id), count(*) FILTER (WHERE s.fenced AND NOT s.old),
    -- A heap tuple with its item pointer, and an index entry with its own, at the usual two thirds of a page.
    coalesce(sum(48 + (24 + 2 * length(s.rollout_id)) * 3 / 2) FILTER (WHERE s.fenced AND NOT s.old), 0),
    array_agg(s.rollout_id) FILTER (WHERE s.old)
  INTO last_id, kept, kept_bytes, old_ids
  FROM (
    SELECT r.rollout_id, r.fenced_at IS NOT NULL AS fenced,
        coalesce(r.fenced_at < clock_timestamp() - older_than, false) AS old
      FROM {schema}.rollout r WHERE r.rollout_id > after_id ORDER BY r.rollout_id LIMIT max_rows
  ) s;
  SELECT array_agg(l.rollout_id) INTO old_ids FROM (
    SELECT r.rollout_id FROM {schema}.rollout r WHERE r.rollout_id = ANY (old_ids) ORDER BY r.rollout_id FOR UPDATE
  ) l;
  DELETE FROM {schema}.rollout r WHERE r.rollout_id = ANY (old_ids)
    AND r.fenced_at < clock_timestamp() - older_than;
  GET DIAGNOSTICS forgotten = ROW_COUNT;
END $$;

-- Reading. These functions are STABLE: all their statements read the one snapshot of the calling statement.

-- Raises what a write would where there can be none.
CREATE FUNCTION {schema}.check_ready() RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF current_setting('transaction_read_only') <> 'off' THEN
    RAISE EXCEPTION 'cannot write in a read-only transaction' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  IF NOT has_table_privilege('{schema}.rollout', 'INSERT, UPDATE, DELETE')
    OR NOT has_table_privilege('{schema}.call_record', 'INSERT')
    OR NOT has_table_privilege('{schema}.call_failure', 'INSERT')
    OR NOT has_table_privilege('{schema}.purge_queue', 'INSERT')
  THEN
    RAISE EXCEPTION 'permission denied for the tables of a ledger' USING ERRCODE = 'insufficient_privilege';
  END IF;
END $$;

-- Returns whether a rollout is fenced; null when it has neither rows nor a fence.
CREATE FUNCTION {schema}.is_fenced(wanted text) RETURNS boolean LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
  RETURN (SELECT r.fenced_at IS NOT NULL FROM {schema}.rollout r WHERE r.rollout_id = wanted);
END $$;

-- Returns the rows of a rollout as they stand in its manifest; one row with nulls for a fenced one.
CREATE FUNCTION {schema}.manifest(wanted text, OUT failed boolean, OUT row_json bytea)
RETURNS SETOF record LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  state record;
BEGIN
  SELECT r.generation, r.fenced_at INTO state FROM {schema}.rollout r WHERE r.rollout_id = wanted;
  IF NOT FOUND THEN
    RETURN;
  ELSIF state.fenced_at IS NOT NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;
  RETURN QUERY SELECT false, c.record_json FROM {schema}.call_record c
    WHERE c.generation = state.generation ORDER BY c.seq;
  RETURN QUERY SELECT true, f.failure_json FROM {schema}.call_failure f
    WHERE f.generation = state.generation ORDER BY f.seq;
END $$;

-- Returns the rows of many rollouts, whose place in the array is given, until they come to max_bytes: of a fenced one
-- a row with failed null, of another one with row_json null and then its rows. The first rollout is never too large.
CREATE FUNCTION {schema}.manifests(
  wanted text[], max_bytes bigint, OUT place integer, OUT failed boolean, OUT row_json bytea
) RETURNS SETOF record LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  id text;
  state record;
  size bigint := 0;
BEGIN
  place := 0;
  FOREACH id IN ARRAY wanted LOOP
    place := place + 1;
    row_json := NULL;
    SELECT r.generation, r.fenced_at INTO state FROM {schema}.rollout r WHERE r.rollout_id = id;
    failed := CASE WHEN state.fenced_at IS NULL THEN false END;
    IF failed IS NOT NULL THEN
      size := size + 64 + length(id) + (
        SELECT coalesce(sum(octet_length(c.record_json) + 1), 0) FROM {schema}.call_record c
          WHERE c.generation = state.generation
      ) + (
        SELECT coalesce(sum(octet_length(f.failure_json) + 1), 0) FROM {schema}.call_failure f
          WHERE f.generation = state.generation
      );
      EXIT WHEN size > max_bytes AND place > 1;
    END IF;
    RETURN NEXT;
    RETURN QUERY SELECT place, false, c.record_json FROM {schema}.call_record c
      WHERE failed IS NOT NULL AND c.generation = state.generation ORDER BY c.seq;
    RETURN QUERY SELECT place, true, f.failure_json FROM {schema}.call_failure f
      WHERE failed IS NOT NULL AND f.generation = state.generation ORDER BY f.seq;
  END LOOP;
END $$;

-- Returns the only call with a fingerprint; nothing when there is none, or several; record_json null when fenced.
-- The staging chain is the array chain_head, followed by the staging keys chain_tail.
CREATE FUNCTION {schema}.find_parent(
  wanted text, wanted_digest bytea, wanted_version bigint,
  OUT record_json bytea, OUT context_len bigint, OUT context_digest bytea,
  OUT chain_head bytea, OUT chain_tail bytea[]
) RETURNS SETOF record LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  state record;
  found_seqs bigint[];
BEGIN
  SELECT r.generation, r.fenced_at INTO state FROM {schema}.rollout r WHERE r.rollout_id = wanted;
  IF NOT FOUND THEN
    RETURN;
  ELSIF state.fenced_at IS NOT NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;
  SELECT array_agg(l.seq) INTO found_seqs FROM (
    SELECT c.seq FROM {schema}.call_record c
      WHERE c.generation = state.generation AND sha256(c.fingerprint) = wanted_digest
        AND c.fingerprint_version = wanted_version AND c.fingerprint IS NOT NULL
      LIMIT 2
  ) l;
  IF found_seqs IS NULL OR cardinality(found_seqs) > 1 THEN
    RETURN;
  END IF;
  SELECT c.record_json, c.context_len, c.context_digest INTO record_json, context_len, context_digest
    FROM {schema}.call_record c WHERE c.generation = state.generation AND c.seq = found_seqs[1];
  WITH RECURSIVE link AS (
    SELECT c.seq, c.parent_seq, c.staging_key, c.staging_chain, c.model_call_id
      FROM {schema}.call_record c WHERE c.generation = state.generation AND c.seq = found_seqs[1]
    UNION ALL
    SELECT c.seq, c.parent_seq, c.staging_key, c.staging_chain, c.model_call_id
      FROM link JOIN {schema}.call_record c ON c.generation = state.generation AND c.seq = link.parent_seq
  )
  SELECT
    (array_agg(l.staging_chain) FILTER (WHERE l.parent_seq IS NULL))[1],
    array_agg(coalesce(l.staging_key, convert_to(wanted || '/', 'UTF8') || l.model_call_id) ORDER BY l.seq)
      FILTER (WHERE l.parent_seq IS NOT NULL)
  INTO chain_head, chain_tail FROM link l;
  RETURN NEXT;
END $$;
