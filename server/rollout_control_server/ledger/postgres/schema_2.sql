-- Version 2: times of recording, fields that only an export gives back, checksums, and what a listing shows.
--
-- A function of version 1 that waited for these changes reads the column fenced_at, which is gone: it fails, and its
-- transaction with it. So a program of version 1 can add no row that the new columns do not count.

-- Times are Unix seconds, as they are imported and exported.
ALTER TABLE {schema}.rollout RENAME COLUMN fenced_at TO retired_at;
ALTER TABLE {schema}.rollout
  ALTER COLUMN retired_at TYPE double precision USING extract(epoch FROM retired_at)::double precision,
  -- What a live rollout has; meaningless where it is fenced. A row's seq is unique among records and failures together,
  -- in the order of their writing, so calls + failures is the last one.
  ADD COLUMN calls bigint NOT NULL DEFAULT 0,
  ADD COLUMN failures bigint NOT NULL DEFAULT 0,
  -- When its first and its last row was recorded; null: not known.
  ADD COLUMN first_recorded_at double precision,
  ADD COLUMN last_recorded_at double precision,
  -- When a row was recorded, or the rollout was fenced or imported; null: not known.
  ADD COLUMN changed_at double precision,
  -- The 256 seconds of changed_at; the last there are where it is not known, since such a rollout may have changed at
  -- any time. An index of changed_at itself would get a new entry with each record, and every other index as well.
  ADD COLUMN changed_period bigint NOT NULL DEFAULT 9223372036854775807;
-- Room for new versions of a row in its own page, which need no new entry in an index.
ALTER TABLE {schema}.rollout SET (fillfactor = 80);

ALTER TABLE {schema}.call_record
  ADD COLUMN recorded_at double precision,
  -- The CRC-32 of record_json; null for rows of version 1.
  ADD COLUMN json_crc bigint,
  ADD COLUMN unserved_json bytea;
ALTER TABLE {schema}.call_failure
  ADD COLUMN recorded_at double precision,
  ADD COLUMN json_crc bigint,
  ADD COLUMN unserved_json bytea;

UPDATE {schema}.rollout r SET
  calls = (SELECT count(*) FROM {schema}.call_record c WHERE c.generation = r.generation),
  failures = (SELECT count(*) FROM {schema}.call_failure f WHERE f.generation = r.generation)
WHERE r.retired_at IS NULL;

-- In version 1 failures had numbers of their own. How they stood among the records is not known; they follow them,
-- since a record that follows a failure of its call would be a conflict. By way of negative numbers, so that no two
-- rows have the same number in between.
UPDATE {schema}.call_failure f SET seq = -(f.seq + (
  SELECT coalesce(max(c.seq), 0) FROM {schema}.call_record c WHERE c.generation = f.generation
));
UPDATE {schema}.call_failure SET seq = -seq;

ALTER TABLE {schema}.purge_queue ADD COLUMN waiting_rows bigint NOT NULL DEFAULT 0;
UPDATE {schema}.purge_queue q SET waiting_rows =
  (SELECT count(*) FROM {schema}.call_record c WHERE c.generation = q.generation)
  + (SELECT count(*) FROM {schema}.call_failure f WHERE f.generation = q.generation);

-- A retirement of idle rollouts notes here which were active.
ALTER TABLE {schema}.removal ADD COLUMN active text[] NOT NULL DEFAULT '{}';

CREATE INDEX rollout_live ON {schema}.rollout (rollout_id) WHERE retired_at IS NULL;
CREATE INDEX rollout_retired ON {schema}.rollout (rollout_id) WHERE retired_at IS NOT NULL;
CREATE INDEX rollout_with_failures ON {schema}.rollout (rollout_id) WHERE retired_at IS NULL AND failures > 0;
CREATE INDEX rollout_changed ON {schema}.rollout (changed_period);
CREATE INDEX removal_age ON {schema}.removal (removed_at);
CREATE INDEX superseded_attempt_age ON {schema}.superseded_attempt (superseded_at);

-- The highest timeline that any handle has seen of a database cluster. A promotion begins a new timeline. A handle that
-- meets a server on a lower one notes the higher one there, so that other handles refuse that server too.
CREATE TABLE {schema}.timeline (system_identifier bigint PRIMARY KEY, timeline bigint NOT NULL);
