-- The functions of the newest version. They are dropped and made anew when a schema is migrated.

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

-- Returns the ledger's time, in Unix seconds.
CREATE FUNCTION {schema}.unix_time() RETURNS double precision LANGUAGE sql VOLATILE AS $$
  SELECT extract(epoch FROM clock_timestamp())::double precision
$$;

-- Returns the value of changed_period for a time. Times that an import brings are finite, but may be any.
CREATE FUNCTION {schema}.period_of(at double precision) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT floor(least(greatest(at, 0), 1e15) / 256)::bigint
$$;

-- Notes an operation that removes. Returns whether no earlier attempt has, or a late one's successor.
CREATE FUNCTION {schema}.begin_operation(operation uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO {schema}.removal (operation_id) VALUES (operation) ON CONFLICT DO NOTHING;
  IF FOUND THEN
    RETURN true;
  END IF;
  -- Written anew, since a transaction that writes nothing would not wait for a synchronous standby.
  UPDATE {schema}.removal SET removed_at = removed_at WHERE operation_id = operation;
  RETURN false;
END $$;

-- Adds rows, which come in the order of their rollout ids. A row with a failure_json is a failure row.
-- A row that cannot be added for now holds up those of its rollout that follow.
-- The staging chain of a record with a parent_digest is that of its parent, if the parent's chain has that digest, and
-- this call's key. Otherwise it is staging_chain, which may be null where a parent_digest is given.
-- Returns the outcome of each; the numbers are rows.Outcome's.
CREATE FUNCTION {schema}.record_rows(
  attempt uuid, earlier_attempts uuid[], wait_for_locks boolean,
  rollout_ids text[], model_call_ids bytea[], reasons bytea[], failure_jsons bytea[],
  record_jsons bytea[], parent_call_ids bytea[], parent_digests bytea[], chain_digests bytea[], staging_keys bytea[],
  staging_chains bytea[], fingerprint_versions bigint[], fingerprints bytea[], context_lens bigint[],
  context_digests bytea[], json_crcs bigint[], unserved_jsons bytea[]
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
  moment double precision;
  parent bigint;
  added_ids text[] := '{}';
  added_failed boolean[] := '{}';
  added_at double precision[] := '{}';
  added record;
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
    staging_keys, staging_chains, fingerprint_versions, fingerprints, context_lens, context_digests, json_crcs,
    unserved_jsons
  ) AS t(
    rollout_id, model_call_id, reason, failure_json, record_json, parent_call_id, parent_digest, chain_digest,
    staging_key, staging_chain, fingerprint_version, fingerprint, context_len, context_digest, json_crc, unserved_json
  ) LOOP
    IF given.rollout_id IS DISTINCT FROM rollout THEN
      rollout := given.rollout_id;
      held_up := false;
      IF wait_for_locks THEN
        SELECT r.generation, r.retired_at IS NOT NULL, r.calls + r.failures, r.failures > 0
          INTO current_generation, fenced, last_seq, has_failures
          FROM {schema}.rollout r WHERE r.rollout_id = rollout FOR NO KEY UPDATE;
      ELSE
        SELECT r.generation, r.retired_at IS NOT NULL, r.calls + r.failures, r.failures > 0
          INTO current_generation, fenced, last_seq, has_failures
          FROM {schema}.rollout r WHERE r.rollout_id = rollout FOR NO KEY UPDATE SKIP LOCKED;
      END IF;
      rollout_exists := FOUND;
      rollout_busy := NOT rollout_exists AND EXISTS (SELECT FROM {schema}.rollout r WHERE r.rollout_id = rollout);
      -- After the lock: a later row of a rollout has a later time, as far as the clock goes.
      moment := {schema}.unix_time();
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
      INSERT INTO {schema}.call_failure (
        generation, seq, model_call_id, reason, failure_json, recorded_at, json_crc, unserved_json
      ) VALUES (
        current_generation, last_seq + 1, given.model_call_id, given.reason, given.failure_json, moment, given.json_crc,
        given.unserved_json
      ) ON CONFLICT (generation, sha256(model_call_id), sha256(reason)) DO NOTHING;
      IF FOUND THEN
        last_seq := last_seq + 1;
        has_failures := true;
        added_ids := added_ids || rollout;
        added_failed := added_failed || true;
        added_at := added_at || moment;
      ELSE
        added_ids := added_ids || rollout;
        added_failed := added_failed || NULL::boolean;
        added_at := added_at || NULL::double precision;
      END IF;
      outcomes := outcomes || kept;
      CONTINUE;
    END IF;

    outcome := kept;
    parent := NULL;
    IF given.parent_digest IS NOT NULL THEN
      IF given.parent_call_id IS NULL THEN
        parent := 0;
      ELSE
        SELECT c.seq INTO parent FROM {schema}.call_record c
          WHERE c.generation = current_generation AND sha256(c.model_call_id) = sha256(given.parent_call_id)
            AND c.chain_digest = given.parent_digest;
        IF NOT FOUND AND given.staging_chain IS NULL THEN
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
        staging_chain, fingerprint, context_digest, record_json, recorded_at, json_crc, unserved_json
      ) VALUES (
        current_generation, last_seq + 1, parent, given.context_len, given.fingerprint_version, given.chain_digest,
        given.model_call_id, given.staging_key, CASE WHEN parent IS NULL THEN given.staging_chain END,
        given.fingerprint, given.context_digest, given.record_json, moment, given.json_crc, given.unserved_json
      ) ON CONFLICT (generation, sha256(model_call_id)) DO NOTHING;
      IF FOUND THEN
        last_seq := last_seq + 1;
        added_ids := added_ids || rollout;
        added_failed := added_failed || false;
        added_at := added_at || moment;
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
        IF outcome = kept THEN
          added_ids := added_ids || rollout;
          added_failed := added_failed || NULL::boolean;
          added_at := added_at || NULL::double precision;
        END IF;
      END IF;
    END IF;
    outcomes := outcomes || outcome;
  END LOOP;
  -- A rollout whose row was there before is written as well: a transaction that writes nothing would not wait for a
  -- synchronous standby, and would acknowledge a row whose own transaction may not have reached it.
  FOR added IN
    SELECT a.id, count(*) FILTER (WHERE NOT a.failed) AS calls, count(*) FILTER (WHERE a.failed) AS failures,
        min(a.at) AS at
      FROM unnest(added_ids, added_failed, added_at) AS a(id, failed, at) GROUP BY a.id
  LOOP
    UPDATE {schema}.rollout r SET
      calls = r.calls + added.calls,
      failures = r.failures + added.failures,
      first_recorded_at = CASE WHEN r.calls + r.failures = 0 THEN added.at ELSE r.first_recorded_at END,
      last_recorded_at = CASE WHEN added.at IS NULL THEN r.last_recorded_at ELSE added.at END,
      changed_at = CASE WHEN added.at IS NULL THEN r.changed_at ELSE added.at END,
      changed_period = CASE WHEN added.at IS NULL THEN r.changed_period ELSE {schema}.period_of(added.at) END
    WHERE r.rollout_id = added.id;
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
  IF NOT {schema}.begin_operation(operation) THEN
    RETURN (SELECT r.removed FROM {schema}.removal r WHERE r.operation_id = operation);
  END IF;
  -- DO UPDATE locks the newest version of each row, waits for whoever holds it, and judges what it finds then.
  WITH fenced AS (
    INSERT INTO {schema}.rollout AS r (rollout_id, retired_at, changed_at, changed_period)
      SELECT i.rollout_id, t.now, t.now, {schema}.period_of(t.now)
        FROM unnest(rollout_ids) AS i(rollout_id), {schema}.unix_time() AS t(now)
        ORDER BY i.rollout_id COLLATE "C"
      ON CONFLICT (rollout_id) DO UPDATE SET
        retired_at = excluded.retired_at, changed_at = excluded.changed_at, changed_period = excluded.changed_period
        WHERE r.retired_at IS NULL
      RETURNING r.rollout_id, r.generation, r.calls + r.failures AS rows
  ), queued AS (
    INSERT INTO {schema}.purge_queue (generation, waiting_rows)
      SELECT f.generation, f.rows FROM fenced f WHERE f.generation IS NOT NULL
  )
  SELECT coalesce(array_agg(f.rollout_id), '{}') INTO with_rows FROM fenced f WHERE f.generation IS NOT NULL;
  UPDATE {schema}.removal SET removed = with_rows WHERE operation_id = operation;
  RETURN with_rows;
END $$;

-- Fences those of the rollouts whose last row is at least idle_for_s old, as all or none. Returns their ids, and those
-- of the other ones that are not fenced and have rows.
CREATE FUNCTION {schema}.retire_idle(
  operation uuid, rollout_ids text[], idle_for_s double precision, OUT idle_ids text[], OUT active_ids text[]
) LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  moment double precision;
BEGIN
  PERFORM {schema}.begin_write();
  IF NOT {schema}.begin_operation(operation) THEN
    SELECT r.removed, r.active INTO idle_ids, active_ids
      FROM {schema}.removal r WHERE r.operation_id = operation;
    RETURN;
  END IF;
  -- What is locked changes no more, and is the newest version of its row.
  WITH locked AS (
    SELECT r.rollout_id, r.last_recorded_at FROM {schema}.rollout r
      WHERE r.rollout_id = ANY (rollout_ids) AND r.retired_at IS NULL ORDER BY r.rollout_id FOR UPDATE
  )
  SELECT
    coalesce(array_agg(l.rollout_id) FILTER (WHERE l.last_recorded_at <= t.now - idle_for_s), '{}'),
    coalesce(array_agg(l.rollout_id) FILTER (WHERE (l.last_recorded_at <= t.now - idle_for_s) IS NOT TRUE), '{}'),
    max(t.now)
  INTO idle_ids, active_ids, moment FROM locked l, {schema}.unix_time() AS t(now);
  WITH fenced AS (
    UPDATE {schema}.rollout r SET
      retired_at = moment, changed_at = moment, changed_period = {schema}.period_of(moment)
      WHERE r.rollout_id = ANY (idle_ids)
      RETURNING r.generation, r.calls + r.failures AS rows
  )
  INSERT INTO {schema}.purge_queue (generation, waiting_rows) SELECT f.generation, f.rows FROM fenced f;
  UPDATE {schema}.removal r SET removed = idle_ids, active = active_ids
    WHERE r.operation_id = operation;
END $$;

-- Removes rows and fences of rollouts, all or none. Returns the ids that were not fenced and had rows.
CREATE FUNCTION {schema}.delete(operation uuid, rollout_ids text[]) RETURNS text[] LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  locked text[];
  with_rows text[];
BEGIN
  PERFORM {schema}.begin_write();
  IF NOT {schema}.begin_operation(operation) THEN
    RETURN (SELECT r.removed FROM {schema}.removal r WHERE r.operation_id = operation);
  END IF;
  -- DELETE takes its locks in no certain order: they are taken before. What is locked changes no more.
  SELECT array_agg(l.rollout_id) INTO locked FROM (
    SELECT r.rollout_id FROM {schema}.rollout r WHERE r.rollout_id = ANY (rollout_ids)
      ORDER BY r.rollout_id FOR UPDATE
  ) l;
  WITH gone AS (
    DELETE FROM {schema}.rollout r WHERE r.rollout_id = ANY (locked)
      RETURNING r.rollout_id, r.generation, r.retired_at, r.calls + r.failures AS rows
  ), queued AS (
    INSERT INTO {schema}.purge_queue (generation, waiting_rows)
      SELECT g.generation, g.rows FROM gone g WHERE g.retired_at IS NULL
  )
  SELECT coalesce(array_agg(g.rollout_id), '{}') INTO with_rows FROM gone g WHERE g.retired_at IS NULL;
  UPDATE {schema}.removal SET removed = with_rows WHERE operation_id = operation;
  RETURN with_rows;
END $$;

-- Puts rollouts in the place of what there is, all or none. Ids come in their order, and rows likewise, numbered in
-- each rollout from 1. A row's parent_seq is as in call_record. retired_ats is null where a rollout is not fenced.
CREATE FUNCTION {schema}.import_rollouts(
  operation uuid, wanted_ids text[], retired_ats double precision[],
  rollout_ids text[], model_call_ids bytea[], reasons bytea[], failure_jsons bytea[],
  record_jsons bytea[], chain_digests bytea[], staging_keys bytea[], staging_chains bytea[],
  fingerprint_versions bigint[], fingerprints bytea[], context_lens bigint[], context_digests bytea[],
  json_crcs bigint[], unserved_jsons bytea[], seqs bigint[], parent_seqs bigint[], recorded_ats double precision[]
) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  generations bigint[] := '{}';
  new_generation bigint;
  next_row integer := 1;
  first_row integer;
  last_row integer;
  failed integer;
  now double precision;
BEGIN
  PERFORM {schema}.begin_write();
  IF NOT {schema}.begin_operation(operation) THEN
    -- An earlier attempt, or a late one whose successor has done the work.
    RETURN;
  END IF;
  -- DO UPDATE locks what there is, in the order of ids, and keeps it as it is for the moment.
  WITH locked AS (
    INSERT INTO {schema}.rollout AS r (rollout_id, retired_at)
      SELECT i.rollout_id, 0 FROM unnest(wanted_ids) AS i(rollout_id) ORDER BY i.rollout_id COLLATE "C"
      ON CONFLICT (rollout_id) DO UPDATE SET rollout_id = r.rollout_id
      RETURNING r.generation, r.retired_at, r.calls + r.failures AS rows
  )
  INSERT INTO {schema}.purge_queue (generation, waiting_rows)
    SELECT l.generation, l.rows FROM locked l WHERE l.retired_at IS NULL;
  now := {schema}.unix_time();
  FOR place IN 1 .. cardinality(wanted_ids) LOOP
    first_row := next_row;
    failed := 0;
    WHILE next_row <= cardinality(rollout_ids) AND rollout_ids[next_row] = wanted_ids[place] LOOP
      failed := failed + (failure_jsons[next_row] IS NOT NULL)::integer;
      next_row := next_row + 1;
    END LOOP;
    last_row := next_row - 1;
    new_generation := CASE WHEN last_row >= first_row THEN nextval('{schema}.generation') END;
    generations := generations || new_generation;
    IF new_generation IS NULL AND retired_ats[place] IS NULL THEN
      DELETE FROM {schema}.rollout r WHERE r.rollout_id = wanted_ids[place];
    ELSE
      UPDATE {schema}.rollout r SET
        generation = new_generation,
        retired_at = retired_ats[place],
        calls = last_row - first_row + 1 - failed,
        failures = failed,
        first_recorded_at = CASE WHEN new_generation IS NOT NULL THEN recorded_ats[first_row] END,
        last_recorded_at = CASE WHEN new_generation IS NOT NULL THEN recorded_ats[last_row] END,
        changed_at = now,
        changed_period = {schema}.period_of(now)
      WHERE r.rollout_id = wanted_ids[place];
    END IF;
  END LOOP;
  INSERT INTO {schema}.call_record (
    generation, seq, parent_seq, context_len, fingerprint_version, chain_digest, model_call_id, staging_key,
    staging_chain, fingerprint, context_digest, record_json, recorded_at, json_crc, unserved_json
  )
  SELECT g.generation, t.seq, t.parent_seq, t.context_len, t.fingerprint_version, t.chain_digest, t.model_call_id,
      t.staging_key, t.staging_chain, t.fingerprint, t.context_digest, t.record_json, t.recorded_at, t.json_crc,
      t.unserved_json
    FROM unnest(
      rollout_ids, model_call_ids, record_jsons, chain_digests, staging_keys, staging_chains, fingerprint_versions,
      fingerprints, context_lens, context_digests, json_crcs, unserved_jsons, seqs, parent_seqs, recorded_ats
    ) AS t(
      rollout_id, model_call_id, record_json, chain_digest, staging_key, staging_chain, fingerprint_version,
      fingerprint, context_len, context_digest, json_crc, unserved_json, seq, parent_seq, recorded_at
    ) JOIN unnest(wanted_ids, generations) AS g(rollout_id, generation) USING (rollout_id)
    WHERE t.record_json IS NOT NULL;
  INSERT INTO {schema}.call_failure (
    generation, seq, model_call_id, reason, failure_json, recorded_at, json_crc, unserved_json
  )
  SELECT g.generation, t.seq, t.model_call_id, t.reason, t.failure_json, t.recorded_at, t.json_crc, t.unserved_json
    FROM unnest(
      rollout_ids, model_call_ids, reasons, failure_jsons, json_crcs, unserved_jsons, seqs, recorded_ats
    ) AS t(
      rollout_id, model_call_id, reason, failure_json, json_crc, unserved_json, seq, recorded_at
    ) JOIN unnest(wanted_ids, generations) AS g(rollout_id, generation) USING (rollout_id)
    WHERE t.failure_json IS NOT NULL;
END $$;

-- Deletes up to max_rows rows of removed rollouts. Several may run at once: each takes generations of its own.
-- Returns whether it found any generation to purge.
CREATE FUNCTION {schema}.purge(max_rows integer) RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  taken bigint[];
  records integer;
  failures integer;
  purged record;
BEGIN
  SELECT array_agg(q.generation) INTO taken FROM (
    SELECT p.generation FROM {schema}.purge_queue p ORDER BY p.generation LIMIT max_rows / 10 FOR UPDATE SKIP LOCKED
  ) q;
  IF taken IS NULL THEN
    RETURN false;
  END IF;
  WITH gone AS (
    DELETE FROM {schema}.call_record c USING (
      SELECT d.generation, d.seq FROM {schema}.call_record d WHERE d.generation = ANY (taken) LIMIT max_rows
    ) d WHERE c.generation = d.generation AND c.seq = d.seq RETURNING c.generation
  ), counted AS (
    SELECT g.generation, count(*) AS rows FROM gone g GROUP BY g.generation
  ), updated AS (
    UPDATE {schema}.purge_queue p SET waiting_rows = p.waiting_rows - c.rows
      FROM counted c WHERE p.generation = c.generation
  )
  SELECT coalesce(sum(c.rows), 0) INTO records FROM counted c;
  WITH gone AS (
    DELETE FROM {schema}.call_failure c USING (
      SELECT d.generation, d.seq FROM {schema}.call_failure d WHERE d.generation = ANY (taken) LIMIT max_rows
    ) d WHERE c.generation = d.generation AND c.seq = d.seq RETURNING c.generation
  ), counted AS (
    SELECT g.generation, count(*) AS rows FROM gone g GROUP BY g.generation
  ), updated AS (
    UPDATE {schema}.purge_queue p SET waiting_rows = p.waiting_rows - c.rows
      FROM counted c WHERE p.generation = c.generation
  )
  SELECT coalesce(sum(c.rows), 0) INTO failures FROM counted c;
  IF records < max_rows AND failures < max_rows THEN
    DELETE FROM {schema}.purge_queue p WHERE p.generation = ANY (taken);
  ELSE
    DELETE FROM {schema}.purge_queue p WHERE p.generation = ANY (taken)
      AND NOT EXISTS (SELECT FROM {schema}.call_record c WHERE c.generation = p.generation)
      AND NOT EXISTS (SELECT FROM {schema}.call_failure f WHERE f.generation = p.generation);
  END IF;
  RETURN true;
END $$;

-- Deletes the notes of attempts that are too old to arrive late.
CREATE FUNCTION {schema}.forget_attempts() RETURNS void LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
BEGIN
  DELETE FROM {schema}.removal WHERE removed_at < now() - interval '1 hour';
  DELETE FROM {schema}.superseded_attempt WHERE superseded_at < now() - interval '1 hour';
END $$;

-- Looks at the next max_rows rollouts after an id, forgets the fences among them that are old enough, and counts.
-- last_id is null when there were no more rollouts.
CREATE FUNCTION {schema}.forget_fences(
  after_id text, older_than_s double precision, max_rows integer,
  OUT last_id text, OUT forgotten bigint, OUT kept bigint, OUT kept_bytes bigint
) LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  old_ids text[];
  before CONSTANT double precision := {schema}.unix_time() - older_than_s;
BEGIN
  PERFORM {schema}.begin_write();
  SELECT
    max(s.rollout_id), count(*) FILTER (WHERE s.fenced AND NOT s.old),
    -- A heap tuple with its item pointer, and three index entries with theirs, at the usual two thirds of a page.
    coalesce(sum((112 + 48 + 3 * length(s.rollout_id)) * 3 / 2) FILTER (WHERE s.fenced AND NOT s.old), 0),
    array_agg(s.rollout_id) FILTER (WHERE s.old)
  INTO last_id, kept, kept_bytes, old_ids
  FROM (
    SELECT r.rollout_id, r.retired_at IS NOT NULL AS fenced, coalesce(r.retired_at < before, false) AS old
      FROM {schema}.rollout r WHERE r.rollout_id > after_id ORDER BY r.rollout_id LIMIT max_rows
  ) s;
  SELECT array_agg(l.rollout_id) INTO old_ids FROM (
    SELECT r.rollout_id FROM {schema}.rollout r WHERE r.rollout_id = ANY (old_ids) ORDER BY r.rollout_id FOR UPDATE
  ) l;
  DELETE FROM {schema}.rollout r WHERE r.rollout_id = ANY (old_ids) AND r.retired_at < before;
  GET DIAGNOSTICS forgotten = ROW_COUNT;
END $$;

-- Notes a timeline of this database cluster, unless a higher one is noted. Returns the highest.
-- It does not wait for a standby: a server that others have left behind may have none.
CREATE FUNCTION {schema}.note_timeline(cluster bigint, seen bigint) RETURNS bigint LANGUAGE plpgsql
SET lock_timeout = '250ms' SET enable_seqscan = off AS $$
DECLARE
  highest bigint;
BEGIN
  SELECT t.timeline INTO highest FROM {schema}.timeline t WHERE t.system_identifier = cluster;
  IF highest >= seen THEN
    RETURN highest;
  END IF;
  PERFORM set_config('synchronous_commit', 'local', true);
  INSERT INTO {schema}.timeline AS t VALUES (cluster, seen)
    ON CONFLICT (system_identifier) DO UPDATE SET timeline = greatest(t.timeline, excluded.timeline)
    RETURNING t.timeline INTO highest;
  RETURN highest;
END $$;

-- Reading. These functions are STABLE: all their statements read the one snapshot of the calling statement.

-- Raises what a write would where there can be none: each function needs each of these privileges.
CREATE FUNCTION {schema}.check_ready() RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
  lacking text;
BEGIN
  IF current_setting('transaction_read_only') <> 'off' THEN
    RAISE EXCEPTION 'cannot write in a read-only transaction' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  SELECT string_agg(l.what, ', ' ORDER BY l.what) INTO lacking FROM (
    SELECT p.privilege || ' on table ' || c.relname AS what
      FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p(privilege)
      WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p') AND c.relname <> 'schema_version'
        AND NOT has_table_privilege(c.oid, p.privilege)
    UNION ALL
    SELECT 'USAGE on sequence ' || c.relname FROM pg_class c
      WHERE c.relnamespace = '{schema}'::regnamespace
        AND CASE WHEN c.relkind = 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END
    UNION ALL
    SELECT 'EXECUTE on function ' || f.proname FROM pg_proc f
      WHERE f.pronamespace = '{schema}'::regnamespace AND NOT has_function_privilege(f.oid, 'EXECUTE')
  ) l;
  IF lacking IS NOT NULL THEN
    RAISE EXCEPTION 'permission denied: this role lacks %', lacking USING ERRCODE = 'insufficient_privilege';
  END IF;
END $$;

-- Returns whether a rollout is fenced; null when it has neither rows nor a fence.
CREATE FUNCTION {schema}.is_fenced(wanted text) RETURNS boolean LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
  RETURN (SELECT r.retired_at IS NOT NULL FROM {schema}.rollout r WHERE r.rollout_id = wanted);
END $$;

-- Returns the rows of a rollout as they stand in its manifest, and their CRC-32; one row with nulls for a fenced one.
CREATE FUNCTION {schema}.manifest(wanted text, OUT failed boolean, OUT row_json bytea, OUT json_crc bigint)
RETURNS SETOF record LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  state record;
BEGIN
  SELECT r.generation, r.retired_at INTO state FROM {schema}.rollout r WHERE r.rollout_id = wanted;
  IF NOT FOUND THEN
    RETURN;
  ELSIF state.retired_at IS NOT NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;
  RETURN QUERY SELECT false, c.record_json, c.json_crc FROM {schema}.call_record c
    WHERE c.generation = state.generation ORDER BY c.seq;
  RETURN QUERY SELECT true, f.failure_json, f.json_crc FROM {schema}.call_failure f
    WHERE f.generation = state.generation ORDER BY f.seq;
END $$;

-- Returns the rows of many rollouts, whose place in the array is given, until they come to max_bytes: of a fenced one
-- a row with failed null, of another one with row_json null and then its rows. The first rollout is never too large.
CREATE FUNCTION {schema}.manifests(
  wanted text[], max_bytes bigint, OUT place integer, OUT failed boolean, OUT row_json bytea, OUT json_crc bigint
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
    SELECT r.generation, r.retired_at INTO state FROM {schema}.rollout r WHERE r.rollout_id = id;
    failed := CASE WHEN state.retired_at IS NULL THEN false END;
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
    RETURN QUERY SELECT place, false, c.record_json, c.json_crc FROM {schema}.call_record c
      WHERE failed IS NOT NULL AND c.generation = state.generation ORDER BY c.seq;
    RETURN QUERY SELECT place, true, f.failure_json, f.json_crc FROM {schema}.call_failure f
      WHERE failed IS NOT NULL AND f.generation = state.generation ORDER BY f.seq;
  END LOOP;
END $$;

-- Returns the rows of a rollout in the order of their writing, with all that a record or a failure row has. The first
-- row of the answer is of the rollout: its retired_at, and nulls. No row means that there is neither rollout nor fence.
CREATE FUNCTION {schema}.export_rows(
  wanted text, OUT retired_at double precision, OUT seq bigint, OUT failed boolean, OUT model_call_id bytea,
  OUT reason bytea, OUT row_json bytea, OUT json_crc bigint, OUT unserved_json bytea,
  OUT recorded_at double precision, OUT parent_seq bigint, OUT staging_key bytea, OUT staging_chain bytea,
  OUT chain_digest bytea, OUT fingerprint bytea, OUT context_len bigint, OUT context_digest bytea
) RETURNS SETOF record LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  state record;
BEGIN
  SELECT r.generation, r.retired_at INTO state FROM {schema}.rollout r WHERE r.rollout_id = wanted;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  retired_at := state.retired_at;
  RETURN NEXT;
  IF retired_at IS NULL THEN
    RETURN QUERY
      SELECT * FROM (
        SELECT NULL::double precision, c.seq, false, c.model_call_id, NULL::bytea, c.record_json, c.json_crc,
            c.unserved_json, c.recorded_at, c.parent_seq, c.staging_key, c.staging_chain, c.chain_digest, c.fingerprint,
            c.context_len, c.context_digest
          FROM {schema}.call_record c WHERE c.generation = state.generation
        UNION ALL
        SELECT NULL, f.seq, true, f.model_call_id, f.reason, f.failure_json, f.json_crc, f.unserved_json, f.recorded_at,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL
          FROM {schema}.call_failure f WHERE f.generation = state.generation
      ) AS written ORDER BY 2;
  END IF;
END $$;

-- Returns up to max_rows rollouts that match, in the order of their ids, after an id. Nulls are filters not given.
-- Each filter is put into the statement only where it is given: then an index of the rollouts that it names is used.
CREATE FUNCTION {schema}.list_rollouts(
  wanted_state text, prefix text, idle_for_s double precision, changed_since double precision, with_failures boolean,
  max_rows integer, after_id text,
  OUT rollout_id text, OUT calls bigint, OUT failures bigint, OUT first_recorded_at double precision,
  OUT last_recorded_at double precision, OUT retired_at double precision, OUT changed_at double precision
) RETURNS SETOF record LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  few_changes CONSTANT integer := 5000;
  source text := '{schema}.rollout';
  filters text := '';
  since CONSTANT bigint := {schema}.period_of(changed_since);
BEGIN
  IF wanted_state = 'live' OR idle_for_s IS NOT NULL OR with_failures IS NOT NULL THEN
    filters := filters || ' AND r.retired_at IS NULL';
  END IF;
  IF wanted_state = 'retired' THEN
    filters := filters || ' AND r.retired_at IS NOT NULL';
  END IF;
  IF with_failures IS NOT NULL THEN
    filters := filters || CASE WHEN with_failures THEN ' AND r.failures > 0' ELSE ' AND r.failures = 0' END;
  END IF;
  IF idle_for_s IS NOT NULL THEN
    filters := filters || ' AND r.last_recorded_at <= $4';
  END IF;
  IF changed_since IS NOT NULL THEN
    filters := filters || ' AND coalesce(r.changed_at >= $5, true)';
    -- Few of them are looked up and sorted. Where there are many, a page of them is soon found in the order of ids.
    IF (SELECT count(*) FROM (
      SELECT FROM {schema}.rollout r WHERE r.changed_period >= since LIMIT few_changes
    ) c) < few_changes THEN
      source := '(SELECT * FROM {schema}.rollout c WHERE c.changed_period >= $6 OFFSET 0)';
    END IF;
  END IF;
  RETURN QUERY EXECUTE
    'SELECT r.rollout_id, r.calls, r.failures, r.first_recorded_at, r.last_recorded_at, r.retired_at, r.changed_at FROM '
    || source || ' AS r WHERE r.rollout_id > $1 AND r.rollout_id >= $2 AND r.rollout_id < $3' || filters
    || ' ORDER BY r.rollout_id LIMIT $7'
    USING
      after_id, prefix, prefix || chr(127), extract(epoch FROM clock_timestamp())::double precision - idle_for_s,
      changed_since, since, max_rows;
END $$;

-- Returns how much there is.
CREATE FUNCTION {schema}.summary(
  OUT live bigint, OUT retired bigint, OUT with_failures bigint, OUT live_rows bigint, OUT waiting_rows bigint,
  OUT oldest_recorded_at double precision
) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
  SELECT count(*), count(*) FILTER (WHERE r.failures > 0), coalesce(sum(r.calls + r.failures), 0),
      min(r.first_recorded_at)
    INTO live, with_failures, live_rows, oldest_recorded_at FROM {schema}.rollout r WHERE r.retired_at IS NULL;
  SELECT count(*) INTO retired FROM {schema}.rollout r WHERE r.retired_at IS NOT NULL;
  SELECT coalesce(sum(q.waiting_rows), 0) INTO waiting_rows FROM {schema}.purge_queue q;
END $$;

-- Returns the only call with a fingerprint; nothing when there is none, or several; record_json null when fenced.
-- The staging chain is the array chain_head, followed by the staging keys chain_tail.
CREATE FUNCTION {schema}.find_parent(
  wanted text, wanted_digest bytea, wanted_version bigint,
  OUT record_json bytea, OUT json_crc bigint, OUT unserved_json bytea, OUT context_len bigint, OUT context_digest bytea,
  OUT chain_digest bytea, OUT chain_head bytea, OUT chain_tail bytea[]
) RETURNS SETOF record LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  state record;
  found_seqs bigint[];
BEGIN
  SELECT r.generation, r.retired_at INTO state FROM {schema}.rollout r WHERE r.rollout_id = wanted;
  IF NOT FOUND THEN
    RETURN;
  ELSIF state.retired_at IS NOT NULL THEN
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
  SELECT c.record_json, c.json_crc, c.unserved_json, c.context_len, c.context_digest, c.chain_digest
    INTO record_json, json_crc, unserved_json, context_len, context_digest, chain_digest
    FROM {schema}.call_record c WHERE c.generation = state.generation AND c.seq = found_seqs[1];
  WITH RECURSIVE link AS (
    SELECT c.seq, c.parent_seq, c.staging_key, c.staging_chain, c.model_call_id
      FROM {schema}.call_record c WHERE c.generation = state.generation AND c.seq = found_seqs[1]
    UNION ALL
    -- A parent is always older: a damaged row cannot make this go round in circles.
    SELECT c.seq, c.parent_seq, c.staging_key, c.staging_chain, c.model_call_id
      FROM link JOIN {schema}.call_record c
        ON c.generation = state.generation AND c.seq = link.parent_seq AND c.seq < link.seq
  )
  SELECT
    (array_agg(l.staging_chain) FILTER (WHERE l.parent_seq IS NULL))[1],
    array_agg(coalesce(l.staging_key, convert_to(wanted || '/', 'UTF8') || l.model_call_id) ORDER BY l.seq)
      FILTER (WHERE l.parent_seq IS NOT NULL)
  INTO chain_head, chain_tail FROM link l;
  RETURN NEXT;
END $$;
