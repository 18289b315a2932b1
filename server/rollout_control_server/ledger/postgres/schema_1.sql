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
