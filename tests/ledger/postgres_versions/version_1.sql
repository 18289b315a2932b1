--
-- PostgreSQL database dump
--


-- Dumped from database version 15.20 (Debian 15.20-0+deb12u1)
-- Dumped by pg_dump version 15.20 (Debian 15.20-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: rollout_control; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA rollout_control;


--
-- Name: begin_write(); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.begin_write() RETURNS void
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: check_ready(); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.check_ready() RETURNS void
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
  IF current_setting('transaction_read_only') <> 'off' THEN
    RAISE EXCEPTION 'cannot write in a read-only transaction' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  IF NOT has_table_privilege('"rollout_control".rollout', 'INSERT, UPDATE, DELETE')
    OR NOT has_table_privilege('"rollout_control".call_record', 'INSERT')
    OR NOT has_table_privilege('"rollout_control".call_failure', 'INSERT')
    OR NOT has_table_privilege('"rollout_control".purge_queue', 'INSERT')
  THEN
    RAISE EXCEPTION 'permission denied for the tables of a ledger' USING ERRCODE = 'insufficient_privilege';
  END IF;
END $$;


--
-- Name: delete(uuid, text[]); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.delete(operation uuid, rollout_ids text[]) RETURNS text[]
    LANGUAGE plpgsql
    SET lock_timeout TO '250ms'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  locked text[];
  with_rows text[];
BEGIN
  PERFORM "rollout_control".begin_write();
  INSERT INTO "rollout_control".removal (operation_id) VALUES (operation) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN (SELECT r.removed FROM "rollout_control".removal r WHERE r.operation_id = operation);
  END IF;
  -- DELETE takes its locks in no certain order: they are taken before. What is locked changes no more.
  SELECT array_agg(l.rollout_id) INTO locked FROM (
    SELECT r.rollout_id FROM "rollout_control".rollout r WHERE r.rollout_id = ANY (rollout_ids)
      ORDER BY r.rollout_id FOR UPDATE
  ) l;
  WITH gone AS (
    DELETE FROM "rollout_control".rollout r WHERE r.rollout_id = ANY (locked)
      RETURNING r.rollout_id, r.generation, r.fenced_at
  ), queued AS (
    INSERT INTO "rollout_control".purge_queue SELECT g.generation FROM gone g WHERE g.fenced_at IS NULL
  )
  SELECT coalesce(array_agg(g.rollout_id), '{}') INTO with_rows FROM gone g WHERE g.fenced_at IS NULL;
  UPDATE "rollout_control".removal SET removed = with_rows WHERE operation_id = operation;
  RETURN with_rows;
END $$;


--
-- Name: find_parent(text, bytea, bigint); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.find_parent(wanted text, wanted_digest bytea, wanted_version bigint, OUT record_json bytea, OUT context_len bigint, OUT context_digest bytea, OUT chain_head bytea, OUT chain_tail bytea[]) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  state record;
  found_seqs bigint[];
BEGIN
  SELECT r.generation, r.fenced_at INTO state FROM "rollout_control".rollout r WHERE r.rollout_id = wanted;
  IF NOT FOUND THEN
    RETURN;
  ELSIF state.fenced_at IS NOT NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;
  SELECT array_agg(l.seq) INTO found_seqs FROM (
    SELECT c.seq FROM "rollout_control".call_record c
      WHERE c.generation = state.generation AND sha256(c.fingerprint) = wanted_digest
        AND c.fingerprint_version = wanted_version AND c.fingerprint IS NOT NULL
      LIMIT 2
  ) l;
  IF found_seqs IS NULL OR cardinality(found_seqs) > 1 THEN
    RETURN;
  END IF;
  SELECT c.record_json, c.context_len, c.context_digest INTO record_json, context_len, context_digest
    FROM "rollout_control".call_record c WHERE c.generation = state.generation AND c.seq = found_seqs[1];
  WITH RECURSIVE link AS (
    SELECT c.seq, c.parent_seq, c.staging_key, c.staging_chain, c.model_call_id
      FROM "rollout_control".call_record c WHERE c.generation = state.generation AND c.seq = found_seqs[1]
    UNION ALL
    SELECT c.seq, c.parent_seq, c.staging_key, c.staging_chain, c.model_call_id
      FROM link JOIN "rollout_control".call_record c ON c.generation = state.generation AND c.seq = link.parent_seq
  )
  SELECT
    (array_agg(l.staging_chain) FILTER (WHERE l.parent_seq IS NULL))[1],
    array_agg(coalesce(l.staging_key, convert_to(wanted || '/', 'UTF8') || l.model_call_id) ORDER BY l.seq)
      FILTER (WHERE l.parent_seq IS NOT NULL)
  INTO chain_head, chain_tail FROM link l;
  RETURN NEXT;
END $$;


--
-- Name: forget_fences(text, interval, integer); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.forget_fences(after_id text, older_than interval, max_rows integer, OUT last_id text, OUT forgotten bigint, OUT kept bigint, OUT kept_bytes bigint) RETURNS record
    LANGUAGE plpgsql
    SET lock_timeout TO '250ms'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  old_ids text[];
BEGIN
  PERFORM "rollout_control".begin_write();
  SELECT
    max(s.rollout_id), count(*) FILTER (WHERE s.fenced AND NOT s.old),
    -- A heap tuple with its item pointer, and an index entry with its own, at the usual two thirds of a page.
    coalesce(sum(48 + (24 + 2 * length(s.rollout_id)) * 3 / 2) FILTER (WHERE s.fenced AND NOT s.old), 0),
    array_agg(s.rollout_id) FILTER (WHERE s.old)
  INTO last_id, kept, kept_bytes, old_ids
  FROM (
    SELECT r.rollout_id, r.fenced_at IS NOT NULL AS fenced,
        coalesce(r.fenced_at < clock_timestamp() - older_than, false) AS old
      FROM "rollout_control".rollout r WHERE r.rollout_id > after_id ORDER BY r.rollout_id LIMIT max_rows
  ) s;
  SELECT array_agg(l.rollout_id) INTO old_ids FROM (
    SELECT r.rollout_id FROM "rollout_control".rollout r WHERE r.rollout_id = ANY (old_ids) ORDER BY r.rollout_id FOR UPDATE
  ) l;
  DELETE FROM "rollout_control".rollout r WHERE r.rollout_id = ANY (old_ids)
    AND r.fenced_at < clock_timestamp() - older_than;
  GET DIAGNOSTICS forgotten = ROW_COUNT;
END $$;


--
-- Name: is_fenced(text); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.is_fenced(wanted text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
  RETURN (SELECT r.fenced_at IS NOT NULL FROM "rollout_control".rollout r WHERE r.rollout_id = wanted);
END $$;


--
-- Name: manifest(text); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.manifest(wanted text, OUT failed boolean, OUT row_json bytea) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  state record;
BEGIN
  SELECT r.generation, r.fenced_at INTO state FROM "rollout_control".rollout r WHERE r.rollout_id = wanted;
  IF NOT FOUND THEN
    RETURN;
  ELSIF state.fenced_at IS NOT NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;
  RETURN QUERY SELECT false, c.record_json FROM "rollout_control".call_record c
    WHERE c.generation = state.generation ORDER BY c.seq;
  RETURN QUERY SELECT true, f.failure_json FROM "rollout_control".call_failure f
    WHERE f.generation = state.generation ORDER BY f.seq;
END $$;


--
-- Name: manifests(text[], bigint); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.manifests(wanted text[], max_bytes bigint, OUT place integer, OUT failed boolean, OUT row_json bytea) RETURNS SETOF record
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  id text;
  state record;
  size bigint := 0;
BEGIN
  place := 0;
  FOREACH id IN ARRAY wanted LOOP
    place := place + 1;
    row_json := NULL;
    SELECT r.generation, r.fenced_at INTO state FROM "rollout_control".rollout r WHERE r.rollout_id = id;
    failed := CASE WHEN state.fenced_at IS NULL THEN false END;
    IF failed IS NOT NULL THEN
      size := size + 64 + length(id) + (
        SELECT coalesce(sum(octet_length(c.record_json) + 1), 0) FROM "rollout_control".call_record c
          WHERE c.generation = state.generation
      ) + (
        SELECT coalesce(sum(octet_length(f.failure_json) + 1), 0) FROM "rollout_control".call_failure f
          WHERE f.generation = state.generation
      );
      EXIT WHEN size > max_bytes AND place > 1;
    END IF;
    RETURN NEXT;
    RETURN QUERY SELECT place, false, c.record_json FROM "rollout_control".call_record c
      WHERE failed IS NOT NULL AND c.generation = state.generation ORDER BY c.seq;
    RETURN QUERY SELECT place, true, f.failure_json FROM "rollout_control".call_failure f
      WHERE failed IS NOT NULL AND f.generation = state.generation ORDER BY f.seq;
  END LOOP;
END $$;


--
-- Name: purge(integer); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.purge(max_rows integer) RETURNS boolean
    LANGUAGE plpgsql
    SET lock_timeout TO '250ms'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  taken bigint[];
  records integer;
  failures integer;
BEGIN
  SELECT array_agg(q.generation) INTO taken FROM (
    SELECT p.generation FROM "rollout_control".purge_queue p ORDER BY p.generation LIMIT max_rows / 10 FOR UPDATE SKIP LOCKED
  ) q;
  IF taken IS NULL THEN
    DELETE FROM "rollout_control".removal WHERE removed_at < now() - interval '1 hour';
    DELETE FROM "rollout_control".superseded_attempt WHERE superseded_at < now() - interval '1 hour';
    RETURN false;
  END IF;
  DELETE FROM "rollout_control".call_record c USING (
    SELECT d.generation, d.seq FROM "rollout_control".call_record d WHERE d.generation = ANY (taken) LIMIT max_rows
  ) d WHERE c.generation = d.generation AND c.seq = d.seq;
  GET DIAGNOSTICS records = ROW_COUNT;
  DELETE FROM "rollout_control".call_failure c USING (
    SELECT d.generation, d.seq FROM "rollout_control".call_failure d WHERE d.generation = ANY (taken) LIMIT max_rows
  ) d WHERE c.generation = d.generation AND c.seq = d.seq;
  GET DIAGNOSTICS failures = ROW_COUNT;
  IF records < max_rows AND failures < max_rows THEN
    DELETE FROM "rollout_control".purge_queue p WHERE p.generation = ANY (taken);
  ELSE
    DELETE FROM "rollout_control".purge_queue p WHERE p.generation = ANY (taken)
      AND NOT EXISTS (SELECT FROM "rollout_control".call_record c WHERE c.generation = p.generation)
      AND NOT EXISTS (SELECT FROM "rollout_control".call_failure f WHERE f.generation = p.generation);
  END IF;
  RETURN true;
END $$;


--
-- Name: record_rows(uuid, uuid[], boolean, text[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[], bigint[], bytea[], bigint[], bytea[]); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.record_rows(attempt uuid, earlier_attempts uuid[], wait_for_locks boolean, rollout_ids text[], model_call_ids bytea[], reasons bytea[], failure_jsons bytea[], record_jsons bytea[], parent_call_ids bytea[], parent_digests bytea[], chain_digests bytea[], staging_keys bytea[], staging_chains bytea[], fingerprint_versions bigint[], fingerprints bytea[], context_lens bigint[], context_digests bytea[]) RETURNS smallint[]
    LANGUAGE plpgsql
    SET lock_timeout TO '250ms'
    SET enable_seqscan TO 'off'
    AS $$
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
  PERFORM "rollout_control".begin_write();
  IF cardinality(earlier_attempts) > 0 THEN
    INSERT INTO "rollout_control".superseded_attempt SELECT unnest(earlier_attempts) ON CONFLICT DO NOTHING;
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
          FROM "rollout_control".rollout r WHERE r.rollout_id = rollout FOR NO KEY UPDATE;
      ELSE
        SELECT r.generation, r.fenced_at IS NOT NULL INTO current_generation, fenced
          FROM "rollout_control".rollout r WHERE r.rollout_id = rollout FOR NO KEY UPDATE SKIP LOCKED;
      END IF;
      rollout_exists := FOUND;
      IF rollout_exists THEN
        rollout_busy := false;
        SELECT
          coalesce((SELECT max(c.seq) FROM "rollout_control".call_record c WHERE c.generation = current_generation), 0),
          EXISTS (SELECT FROM "rollout_control".call_failure f WHERE f.generation = current_generation)
        INTO last_seq, has_failures;
      ELSE
        rollout_busy := EXISTS (SELECT FROM "rollout_control".rollout r WHERE r.rollout_id = rollout);
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
        INSERT INTO "rollout_control".rollout (rollout_id, generation) VALUES (rollout, nextval('"rollout_control".generation'))
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
      INSERT INTO "rollout_control".call_failure (generation, seq, model_call_id, reason, failure_json)
        VALUES (
          current_generation,
          (SELECT coalesce(max(f.seq), 0) + 1 FROM "rollout_control".call_failure f WHERE f.generation = current_generation),
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
        SELECT c.seq INTO parent FROM "rollout_control".call_record c
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
      SELECT FROM "rollout_control".call_failure f
        WHERE f.generation = current_generation AND sha256(f.model_call_id) = sha256(given.model_call_id)
    ) THEN
      outcome := has_failed;
    ELSE
      INSERT INTO "rollout_control".call_record (
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
      SELECT * INTO existing FROM "rollout_control".call_record c
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
  IF EXISTS (SELECT FROM "rollout_control".superseded_attempt s WHERE s.attempt_id = attempt) THEN
    RAISE EXCEPTION 'this attempt was lost, and made again since' USING ERRCODE = 'serialization_failure';
  END IF;
  RETURN outcomes;
END $$;


--
-- Name: retire(uuid, text[]); Type: FUNCTION; Schema: rollout_control; Owner: -
--

CREATE FUNCTION rollout_control.retire(operation uuid, rollout_ids text[]) RETURNS text[]
    LANGUAGE plpgsql
    SET lock_timeout TO '250ms'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  with_rows text[];
BEGIN
  PERFORM "rollout_control".begin_write();
  INSERT INTO "rollout_control".removal (operation_id) VALUES (operation) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN (SELECT r.removed FROM "rollout_control".removal r WHERE r.operation_id = operation);
  END IF;
  -- DO UPDATE locks the newest version of each row, waits for whoever holds it, and judges what it finds then.
  WITH fenced AS (
    INSERT INTO "rollout_control".rollout AS r (rollout_id, fenced_at)
      SELECT i.rollout_id, clock_timestamp() FROM unnest(rollout_ids) AS i(rollout_id)
        ORDER BY i.rollout_id COLLATE "C"
      ON CONFLICT (rollout_id) DO UPDATE SET fenced_at = excluded.fenced_at WHERE r.fenced_at IS NULL
      RETURNING r.rollout_id, r.generation
  ), queued AS (
    INSERT INTO "rollout_control".purge_queue SELECT f.generation FROM fenced f WHERE f.generation IS NOT NULL
  )
  SELECT coalesce(array_agg(f.rollout_id), '{}') INTO with_rows FROM fenced f WHERE f.generation IS NOT NULL;
  UPDATE "rollout_control".removal SET removed = with_rows WHERE operation_id = operation;
  RETURN with_rows;
END $$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: call_failure; Type: TABLE; Schema: rollout_control; Owner: -
--

CREATE TABLE rollout_control.call_failure (
    generation bigint NOT NULL,
    seq bigint NOT NULL,
    model_call_id bytea NOT NULL,
    reason bytea NOT NULL,
    failure_json bytea NOT NULL
);


--
-- Name: call_record; Type: TABLE; Schema: rollout_control; Owner: -
--

CREATE TABLE rollout_control.call_record (
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
    record_json bytea NOT NULL
);


--
-- Name: generation; Type: SEQUENCE; Schema: rollout_control; Owner: -
--

CREATE SEQUENCE rollout_control.generation
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: purge_queue; Type: TABLE; Schema: rollout_control; Owner: -
--

CREATE TABLE rollout_control.purge_queue (
    generation bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');


--
-- Name: removal; Type: TABLE; Schema: rollout_control; Owner: -
--

CREATE TABLE rollout_control.removal (
    operation_id uuid NOT NULL,
    removed text[] DEFAULT '{}'::text[] NOT NULL,
    removed_at timestamp with time zone DEFAULT now() NOT NULL
);


--
-- Name: rollout; Type: TABLE; Schema: rollout_control; Owner: -
--

CREATE TABLE rollout_control.rollout (
    rollout_id text NOT NULL COLLATE pg_catalog."C",
    generation bigint,
    fenced_at timestamp with time zone,
    CONSTRAINT rollout_check CHECK (((generation IS NOT NULL) OR (fenced_at IS NOT NULL)))
);


--
-- Name: schema_version; Type: TABLE; Schema: rollout_control; Owner: -
--

CREATE TABLE rollout_control.schema_version (
    version integer NOT NULL
);


--
-- Name: superseded_attempt; Type: TABLE; Schema: rollout_control; Owner: -
--

CREATE TABLE rollout_control.superseded_attempt (
    attempt_id uuid NOT NULL,
    superseded_at timestamp with time zone DEFAULT now() NOT NULL
);


--
-- Data for Name: call_failure; Type: TABLE DATA; Schema: rollout_control; Owner: -
--

INSERT INTO rollout_control.call_failure VALUES (1, 1, '\x6661696c65642d31', '\x756e7265736f6c7665645f706172656e74', '\x7b22736368656d615f76657273696f6e223a322c226d6f64656c5f63616c6c5f6964223a226661696c65642d31222c22726561736f6e223a22756e7265736f6c7665645f706172656e74227d');
INSERT INTO rollout_control.call_failure VALUES (1, 2, '\x3033346366643230623734646437643363653832363235623232386636346434', '\x776f726b65725f636170747572655f6661696c6564', '\x7b22736368656d615f76657273696f6e223a322c226d6f64656c5f63616c6c5f6964223a223033346366643230623734646437643363653832363235623232386636346434222c22726561736f6e223a22776f726b65725f636170747572655f6661696c6564227d');
INSERT INTO rollout_control.call_failure VALUES (1, 3, '\x6661696c65642d32', '\x756e7265736f6c7665645f706172656e74', '\x7b22736368656d615f76657273696f6e223a322c226d6f64656c5f63616c6c5f6964223a226661696c65642d32222c22726561736f6e223a22756e7265736f6c7665645f706172656e74227d');
INSERT INTO rollout_control.call_failure VALUES (2, 1, '\x6600', '\xc3a900', '\x7b22736368656d615f76657273696f6e223a322c226d6f64656c5f63616c6c5f6964223a22665c7530303030222c22726561736f6e223a22c3a95c7530303030227d');
INSERT INTO rollout_control.call_failure VALUES (4, 1, '\x66', '\x78', '\x7b22736368656d615f76657273696f6e223a322c226d6f64656c5f63616c6c5f6964223a2266222c22726561736f6e223a2278227d');


--
-- Data for Name: call_record; Type: TABLE DATA; Schema: rollout_control; Owner: -
--

INSERT INTO rollout_control.call_record VALUES (1, 1, 0, 1, 2, '\xe59abfd15f68d8c96fbacb8870ad283529fafe51cd73010f10e9970a8ec6ca97', '\x6365663636643139353037343332653337333762373932633663653362303862', NULL, NULL, '\x64313464363634383437343933353535356363313332306238656463633634633832343439383963326231386331306238663734356562326434353630306631', '\x34323930636639663966323531356636613832396165376633303562376563623364303865346566633137616431326661353366393362343937333035636634', '\x7b22736368656d615f76657273696f6e223a322c226469676573745f76657273696f6e223a322c226578747261735f6469676573745f76657273696f6e223a312c226d6f64656c5f63616c6c5f6964223a226365663636643139353037343332653337333762373932633663653362303862222c22706172656e745f63616c6c5f6964223a6e756c6c2c22707265765f6c656e223a302c2264656c74615f6c656e223a34302c2263756d5f6c656e223a34302c227765696768745f76657273696f6e223a332c22646967657374223a2230616133646435666435643964306262636136646264326335646230653932343364356233633831623535323934633237333830643464386361363661366262222c226578747261735f646967657374223a2231346261356363333566646134363232396636376534326435646438663261393534623065336364343539386463326139656363363365643138333331346130222c2273746167696e675f6b6579223a22636f6e766572736174696f6e2f6365663636643139353037343332653337333762373932633663653362303862222c226d6f6465223a2274657874222c22636861696e5f68617368223a2231386133326166376232663935363066633565376630646638303638313434396337393835666535336633613738326539326266613131396535396130396336222c2263756d756c61746976655f68617368223a2233393633616334626537626166613331363065376565343662636634316631326365343937656136383864643138373133313739646266343030323365313034222c22726573706f6e73655f6964223a2263686174636d706c2d6534666563643062636636393337343761393837303665393961356661306465222c2261646d69747465645f6174223a313736343435303030302e302c226f75747075745f66696e6765727072696e74223a2261363734666161353265623566643530636231363138303437633231363633373338613838346431323230393766623636623734613562316664353032393863222c22636f6e74696e756174696f6e5f66696e6765727072696e74223a2264313464363634383437343933353535356363313332306238656463633634633832343439383963326231386331306238663734356562326434353630306631222c2266696e6765727072696e745f76657273696f6e223a327d');
INSERT INTO rollout_control.call_record VALUES (1, 2, 1, 1, 2, '\x928b24614928bcf2703ac7dc24c983bf279058fbfa27380cd704975d50c72f4d', '\x3033346366643230623734646437643363653832363235623232386636346434', NULL, NULL, '\x62373433353265656436646236313266616537623261643631626266613933393331366336313138613233326666336135363562646565386235643461613465', '\x35646132353931386166333132613061633161396237333535653464346638353565643831333732326233323239643639386337643433633463313264626131', '\x7b22736368656d615f76657273696f6e223a322c226469676573745f76657273696f6e223a322c226578747261735f6469676573745f76657273696f6e223a312c226d6f64656c5f63616c6c5f6964223a223033346366643230623734646437643363653832363235623232386636346434222c22706172656e745f63616c6c5f6964223a226365663636643139353037343332653337333762373932633663653362303862222c22707265765f6c656e223a34302c2264656c74615f6c656e223a34312c2263756d5f6c656e223a38312c227765696768745f76657273696f6e223a332c22646967657374223a2265383732353031623931653134616130393664633634646465356434623935373238666164306235623031313834356265343965343963393637333362633137222c226578747261735f646967657374223a2231346261356363333566646134363232396636376534326435646438663261393534623065336364343539386463326139656363363365643138333331346130222c2273746167696e675f6b6579223a22636f6e766572736174696f6e2f3033346366643230623734646437643363653832363235623232386636346434222c226d6f6465223a22746f6b656e5f696e222c22636861696e5f68617368223a2238333635633532336338343637393031323765373632623635326637653266313561633637373733613737376563626330623736303236633835363866313962222c2263756d756c61746976655f68617368223a2239346638393636346538313134313331663762393665626130376566613737393865346232373239646361306233343235386264306334396561616465333333222c22726573706f6e73655f6964223a2263686174636d706c2d6564346264333162323561356262363936346233653739366131623534646537222c2261646d69747465645f6174223a313736343435303030302e3632352c226f75747075745f66696e6765727072696e74223a2234633463393462643766363732316632386161663639343065333230313338633433653035306561626337633334623064373261306430636138373061616163222c22636f6e74696e756174696f6e5f66696e6765727072696e74223a2262373433353265656436646236313266616537623261643631626266613933393331366336313138613233326666336135363562646565386235643461613465222c2266696e6765727072696e745f76657273696f6e223a327d');
INSERT INTO rollout_control.call_record VALUES (1, 3, 2, 3, 2, '\xc1a664944e5cfd7859fd669edbf42f3f6a9af6f2e31eab48fe1cb8a9bd64106d', '\x3163666137336463643761326564616265643830643863373161386265613262', NULL, NULL, '\x66356137306462643030613036653266646166386462316532333264353663333933353833643034306662633233383033333037376461363966663833643361', '\x32653136373533656262343434623563383832643034643464333463643164616432623161303938343437323435653234363862323966323838376165356266', '\x7b22736368656d615f76657273696f6e223a322c226469676573745f76657273696f6e223a322c226578747261735f6469676573745f76657273696f6e223a312c226d6f64656c5f63616c6c5f6964223a223163666137336463643761326564616265643830643863373161386265613262222c22706172656e745f63616c6c5f6964223a223033346366643230623734646437643363653832363235623232386636346434222c22707265765f6c656e223a38312c2264656c74615f6c656e223a34322c2263756d5f6c656e223a3132332c227765696768745f76657273696f6e223a332c22646967657374223a2230626263623562616132643735376537343131313463333837343430363164623336643837343464613333316463333131383737373662636235623635306139222c226578747261735f646967657374223a2231346261356363333566646134363232396636376534326435646438663261393534623065336364343539386463326139656363363365643138333331346130222c2273746167696e675f6b6579223a22636f6e766572736174696f6e2f3163666137336463643761326564616265643830643863373161386265613262222c226d6f6465223a22746f6b656e5f696e222c22636861696e5f68617368223a2231626662386538363533333465316433663766666165626339376639306237393966616633343838633761646462323465633435663032663538323965343563222c2263756d756c61746976655f68617368223a2235396263336132353765313932636665333838636636313432633335656130363266393766623166306430666237353439633430353364333963356532663263222c22726573706f6e73655f6964223a2263686174636d706c2d6330363031626663336134393964653265646665383363393233653434323765222c2261646d69747465645f6174223a313736343435303030312e3236353632352c226f75747075745f66696e6765727072696e74223a2263393731346137363435623537313630333261333062343865636634666165373339366363396566326565643031646262376233633762633933383339363138222c22636f6e74696e756174696f6e5f66696e6765727072696e74223a2266356137306462643030613036653266646166386462316532333264353663333933353833643034306662633233383033333037376461363966663833643361222c2266696e6765727072696e745f76657273696f6e223a327d');
INSERT INTO rollout_control.call_record VALUES (1, 4, 3, 5, 2, '\xf6cda3fc2487dfa14bec20378f15404f937cece1facc73f127bd13db4921c0a7', '\x6265326132333533393735643236376531323833383863303137333533346263', NULL, NULL, '\x37396262646334373436653333626165326132626661656261396330396562386266333938343736663531636366396335333466653634386434323764393333', '\x66313164623065653266626466383632323931393162366233383531626664626262386465326137363136323066376331316663616231323864366263613233', '\x7b22736368656d615f76657273696f6e223a322c226469676573745f76657273696f6e223a322c226578747261735f6469676573745f76657273696f6e223a312c226d6f64656c5f63616c6c5f6964223a226265326132333533393735643236376531323833383863303137333533346263222c22706172656e745f63616c6c5f6964223a223163666137336463643761326564616265643830643863373161386265613262222c22707265765f6c656e223a3132332c2264656c74615f6c656e223a34332c2263756d5f6c656e223a3136362c227765696768745f76657273696f6e223a332c22646967657374223a2234663264386363356137333436633234336135333264353933616231393363303432393338373066386263343764353637366261356361313534356262323866222c226578747261735f646967657374223a2231346261356363333566646134363232396636376534326435646438663261393534623065336364343539386463326139656363363365643138333331346130222c2273746167696e675f6b6579223a22636f6e766572736174696f6e2f6265326132333533393735643236376531323833383863303137333533346263222c226d6f6465223a22746f6b656e5f696e222c22636861696e5f68617368223a2264623932353763616432306664303261343662323935626363313937653931656639306164353366636430376538636165643663663031646661366334653936222c2263756d756c61746976655f68617368223a2239613037393832386565383363656161343534626439666338303937663264306561633434643663343361636239633837623634333430613538313837643031222c22726573706f6e73655f6964223a2263686174636d706c2d6561333664396163656461336638663733343963393338316365663034373565222c2261646d69747465645f6174223a313736343435303030312e3932313837352c226f75747075745f66696e6765727072696e74223a2264623863306566306262613831363562373639653564386335323261376431336631623633613830353362633434383836313462646431303538393535323163222c22636f6e74696e756174696f6e5f66696e6765727072696e74223a2237396262646334373436653333626165326132626661656261396330396562386266333938343736663531636366396335333466653634386434323764393333222c2266696e6765727072696e745f76657273696f6e223a327d');
INSERT INTO rollout_control.call_record VALUES (3, 1, 0, 1, 2, '\xa2d91d79e28bef1fba4f297de535118d9b036c36885316e2bb53373403191112', '\x6300', NULL, NULL, '\x61343838326363633330316130303537346539613037353061306462633365343435386562663832323832313465656232383637363237383031626264653334', '\x65393664643535303030663065666533613964623162303436363664383536633663306465323235643632663966363064663235356264643237626132616466', '\x7b22736368656d615f76657273696f6e223a322c226469676573745f76657273696f6e223a322c226578747261735f6469676573745f76657273696f6e223a312c226d6f64656c5f63616c6c5f6964223a22635c7530303030222c22706172656e745f63616c6c5f6964223a6e756c6c2c22707265765f6c656e223a302c2264656c74615f6c656e223a35372c2263756d5f6c656e223a35372c227765696768745f76657273696f6e223a332c22646967657374223a2239646266366135363665666535346662383535323964303961383862393838633335623331396663313662336562336365326135353230393961313064313230222c226578747261735f646967657374223a2231346261356363333566646134363232396636376534326435646438663261393534623065336364343539386463326139656363363365643138333331346130222c2273746167696e675f6b6579223a2273696e676c652f635c7530303030222c226d6f6465223a2274657874222c22636861696e5f68617368223a2265623863613737393131333538363730663639393966313263313431616561613537633333623231663131656131383234326439613765353564643962336534222c2263756d756c61746976655f68617368223a2233313035616465333039313434373662663936623362663562656335366264383064623630643366353432383430613263373330376561336133633364313839222c22726573706f6e73655f6964223a2263686174636d706c2d3966346339616463366461653839653035326532643661656637346432383239222c2261646d69747465645f6174223a313736343435303030302e302c226f75747075745f66696e6765727072696e74223a2231636266663739323537383739623038633835326563613536363763316337613031336361373630653662633363333338613466656535353535363237373431222c22636f6e74696e756174696f6e5f66696e6765727072696e74223a2261343838326363633330316130303537346539613037353061306462633365343435386562663832323832313465656232383637363237383031626264653334222c2266696e6765727072696e745f76657273696f6e223a327d');
INSERT INTO rollout_control.call_record VALUES (4, 1, 0, 1, 2, '\x6f82b396e08fb97cafa5701dc163e0d52ec4c6e23e8399217a4ae65fe1bbe340', '\x63', NULL, NULL, '\x61326336323631663337346661336366386535653937356139643035346532323561643061636366313030636461636461363037393737643636343833636535', '\x33333936663766633863666132363332623236336234396537366464373137383737356532396538343666333263386434346137356466613438643064666633', '\x7b22736368656d615f76657273696f6e223a322c226469676573745f76657273696f6e223a322c226578747261735f6469676573745f76657273696f6e223a312c226d6f64656c5f63616c6c5f6964223a2263222c22706172656e745f63616c6c5f6964223a6e756c6c2c22707265765f6c656e223a302c2264656c74615f6c656e223a35372c2263756d5f6c656e223a35372c227765696768745f76657273696f6e223a332c22646967657374223a2266633134633432616263653265386130666236356165336130336164353737396236616562303431376535626566663035386436393833333130646564313431222c226578747261735f646967657374223a2231346261356363333566646134363232396636376534326435646438663261393534623065336364343539386463326139656363363365643138333331346130222c2273746167696e675f6b6579223a22726574697265642f63222c226d6f6465223a2274657874222c22636861696e5f68617368223a2231616563316535353164663666663234653934303665333234323566356238623564373634343665633337626466633163326237363030663738363733376232222c2263756d756c61746976655f68617368223a2264343363363037356161343635336261386333666237613761656537373465633238333434646633643832623837653863633935323236363766343862393563222c22726573706f6e73655f6964223a2263686174636d706c2d3162613138393765346637366137663864363934343838323239353866633763222c2261646d69747465645f6174223a313736343435303030302e302c226f75747075745f66696e6765727072696e74223a2237323966376239323665333133613366373339386263376137663865313365343133366138333263366465323763333332643036356135393863653630356230222c22636f6e74696e756174696f6e5f66696e6765727072696e74223a2261326336323631663337346661336366386535653937356139643035346532323561643061636366313030636461636461363037393737643636343833636535222c2266696e6765727072696e745f76657273696f6e223a327d');
INSERT INTO rollout_control.call_record VALUES (5, 1, 0, 1, 2, '\x1881563f3b39b64778e1c1fd383fb23a3ee637d98d30cc71da2d7f560654ca31', '\x63', NULL, NULL, '\x66613061373865633338363435333865396336346339623861616664323764633065636663383666383639313338363535333665653434343537336362616233', '\x32353362383331353131616362376561346338663131643266303861656265343239633936313737656139633236396362353130623466643065666631393234', '\x7b22736368656d615f76657273696f6e223a322c226469676573745f76657273696f6e223a322c226578747261735f6469676573745f76657273696f6e223a312c226d6f64656c5f63616c6c5f6964223a2263222c22706172656e745f63616c6c5f6964223a6e756c6c2c22707265765f6c656e223a302c2264656c74615f6c656e223a35372c2263756d5f6c656e223a35372c227765696768745f76657273696f6e223a332c22646967657374223a2232306535393532306335313533623565626463313633343831626333656230386339393163633539333566383861313938313538636432373861353138633236222c226578747261735f646967657374223a2231346261356363333566646134363232396636376534326435646438663261393534623065336364343539386463326139656363363365643138333331346130222c2273746167696e675f6b6579223a2264656c657465642f63222c226d6f6465223a2274657874222c22636861696e5f68617368223a2237393566396134313463316532386465363762313133303138646563656339353431613861386465653963663430633535376631393464393061363037343536222c2263756d756c61746976655f68617368223a2233383362353435326238333636336539633439303534386430613438643466663637376639303037386336313633323434353261336236363163343564303737222c22726573706f6e73655f6964223a2263686174636d706c2d6161333332613333363938363332623831633266646635313964386166626264222c2261646d69747465645f6174223a313736343435303030302e302c226f75747075745f66696e6765727072696e74223a2265346335343230333036346564623239633930653064613930326133313339653161623337663865376166336166316431333930396162353635356162303962222c22636f6e74696e756174696f6e5f66696e6765727072696e74223a2266613061373865633338363435333865396336346339623861616664323764633065636663383666383639313338363535333665653434343537336362616233222c2266696e6765727072696e745f76657273696f6e223a327d');


--
-- Data for Name: purge_queue; Type: TABLE DATA; Schema: rollout_control; Owner: -
--

INSERT INTO rollout_control.purge_queue VALUES (4);
INSERT INTO rollout_control.purge_queue VALUES (5);


--
-- Data for Name: removal; Type: TABLE DATA; Schema: rollout_control; Owner: -
--

INSERT INTO rollout_control.removal VALUES ('11221605-a96a-4752-967d-61383d1cecce', '{retired}', '2026-12-01 03:09:43.186556+00');
INSERT INTO rollout_control.removal VALUES ('3fe7aadd-2ba1-44cd-9a75-67c66b03a8f2', '{deleted}', '2026-12-01 03:09:43.193247+00');


--
-- Data for Name: rollout; Type: TABLE DATA; Schema: rollout_control; Owner: -
--

INSERT INTO rollout_control.rollout VALUES ('conversation', 1, NULL);
INSERT INTO rollout_control.rollout VALUES ('only-failed', 2, NULL);
INSERT INTO rollout_control.rollout VALUES ('single', 3, NULL);
INSERT INTO rollout_control.rollout VALUES ('never', NULL, '2026-12-01 03:09:43.1875+00');
INSERT INTO rollout_control.rollout VALUES ('retired', 4, '2026-12-01 03:09:43.18752+00');


--
-- Data for Name: schema_version; Type: TABLE DATA; Schema: rollout_control; Owner: -
--

INSERT INTO rollout_control.schema_version VALUES (1);


--
-- Data for Name: superseded_attempt; Type: TABLE DATA; Schema: rollout_control; Owner: -
--



--
-- Name: generation; Type: SEQUENCE SET; Schema: rollout_control; Owner: -
--

SELECT pg_catalog.setval('rollout_control.generation', 5, true);


--
-- Name: call_failure call_failure_pkey; Type: CONSTRAINT; Schema: rollout_control; Owner: -
--

ALTER TABLE ONLY rollout_control.call_failure
    ADD CONSTRAINT call_failure_pkey PRIMARY KEY (generation, seq);


--
-- Name: call_record call_record_pkey; Type: CONSTRAINT; Schema: rollout_control; Owner: -
--

ALTER TABLE ONLY rollout_control.call_record
    ADD CONSTRAINT call_record_pkey PRIMARY KEY (generation, seq);


--
-- Name: purge_queue purge_queue_pkey; Type: CONSTRAINT; Schema: rollout_control; Owner: -
--

ALTER TABLE ONLY rollout_control.purge_queue
    ADD CONSTRAINT purge_queue_pkey PRIMARY KEY (generation);


--
-- Name: removal removal_pkey; Type: CONSTRAINT; Schema: rollout_control; Owner: -
--

ALTER TABLE ONLY rollout_control.removal
    ADD CONSTRAINT removal_pkey PRIMARY KEY (operation_id);


--
-- Name: rollout rollout_pkey; Type: CONSTRAINT; Schema: rollout_control; Owner: -
--

ALTER TABLE ONLY rollout_control.rollout
    ADD CONSTRAINT rollout_pkey PRIMARY KEY (rollout_id);


--
-- Name: superseded_attempt superseded_attempt_pkey; Type: CONSTRAINT; Schema: rollout_control; Owner: -
--

ALTER TABLE ONLY rollout_control.superseded_attempt
    ADD CONSTRAINT superseded_attempt_pkey PRIMARY KEY (attempt_id);


--
-- Name: call_failure_reason; Type: INDEX; Schema: rollout_control; Owner: -
--

CREATE UNIQUE INDEX call_failure_reason ON rollout_control.call_failure USING btree (generation, sha256(model_call_id), sha256(reason));


--
-- Name: call_record_call; Type: INDEX; Schema: rollout_control; Owner: -
--

CREATE UNIQUE INDEX call_record_call ON rollout_control.call_record USING btree (generation, sha256(model_call_id));


--
-- Name: call_record_fingerprint; Type: INDEX; Schema: rollout_control; Owner: -
--

CREATE INDEX call_record_fingerprint ON rollout_control.call_record USING btree (generation, sha256(fingerprint), fingerprint_version) WHERE (fingerprint IS NOT NULL);


--
-- PostgreSQL database dump complete
--


