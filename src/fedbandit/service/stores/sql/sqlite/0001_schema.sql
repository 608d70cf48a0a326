-- Models, agents and tokens. Blobs are the last columns: the others are read without their overflow pages.
CREATE TABLE models (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    uid TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,
    created REAL NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0, -- changes other than merged uploads
    n_agents INTEGER NOT NULL DEFAULT 0, -- at work: without those retired
    n_retired INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0, -- restarts
    clock INTEGER NOT NULL DEFAULT 0, -- observations merged, over all epochs
    n_discarded INTEGER NOT NULL DEFAULT 0,
    n_rewards INTEGER NOT NULL DEFAULT 0, -- kept for their owners
    n_answered INTEGER NOT NULL DEFAULT 0, -- rewards that are remembered
    token_secret BLOB NOT NULL DEFAULT (randomblob(32)),
    n_uploads INTEGER NOT NULL DEFAULT 0,
    n_bytes INTEGER NOT NULL DEFAULT 0,
    n_obs INTEGER NOT NULL DEFAULT 0,
    reward_sum REAL NOT NULL DEFAULT 0,
    reward_sq_sum REAL NOT NULL DEFAULT 0,
    growth_n INTEGER NOT NULL DEFAULT 0,
    growth_block REAL NOT NULL DEFAULT 0,
    growth_previous REAL NOT NULL DEFAULT 0,
    growth_most REAL NOT NULL DEFAULT 0,
    reward_groups BLOB NOT NULL DEFAULT x'', -- n, sum and sum of squares of rewards, control and treatment
    state BLOB NOT NULL,
    detector BLOB -- blocks that are tested for a change
) STRICT;

CREATE TABLE agents (
    id INTEGER PRIMARY KEY,
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    token_hash BLOB NOT NULL UNIQUE,
    old_token_hash BLOB, -- valid until then, after the token was renewed
    old_token_until REAL,
    revoked INTEGER NOT NULL DEFAULT 0,
    quarantined INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    last_seen REAL,
    incarnation TEXT NOT NULL DEFAULT '',
    sequence INTEGER NOT NULL DEFAULT 0,
    digest BLOB NOT NULL DEFAULT x'',
    n_uploads INTEGER NOT NULL DEFAULT 0,
    n_obs INTEGER NOT NULL DEFAULT 0,
    reward_sum REAL NOT NULL DEFAULT 0,
    n_bytes INTEGER NOT NULL DEFAULT 0,
    growth REAL NOT NULL DEFAULT 0,
    growth_most REAL NOT NULL DEFAULT 0,
    unsent INTEGER NOT NULL DEFAULT 0,
    model_version INTEGER NOT NULL DEFAULT 0,
    retired REAL, -- when, NULL while at work
    enrolment TEXT NOT NULL DEFAULT '', -- by which it came
    enrol_key BLOB, -- hash of the nonce that it came with
    session TEXT NOT NULL DEFAULT '', -- number and id of the last start of an enrolled agent
    reward_groups BLOB NOT NULL DEFAULT x'',
    n_discarded INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0, -- of total
    stamp INTEGER NOT NULL DEFAULT 0, -- of total: the clock as of which it is discounted
    total BLOB,
    UNIQUE (model_id, name)
) STRICT;

CREATE UNIQUE INDEX agents_by_enrol_key ON agents (model_id, enrol_key) WHERE enrol_key IS NOT NULL;
CREATE INDEX agents_at_work ON agents (model_id) WHERE retired IS NULL;

-- Secrets by which machines enrol themselves, as hashes.
CREATE TABLE enrolments (
    id INTEGER PRIMARY KEY,
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    secret_hash BLOB NOT NULL UNIQUE,
    name_prefix TEXT NOT NULL,
    max_uses INTEGER, -- NULL for any number
    n_used INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    expires REAL, -- NULL for never
    revoked INTEGER NOT NULL DEFAULT 0,
    UNIQUE (model_id, name)
) STRICT;

-- Names of retired agents whose sums were folded into one row, and whose names nobody may get again.
CREATE TABLE folded (
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name_hash BLOB NOT NULL,
    PRIMARY KEY (model_id, name_hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX agents_by_old_token ON agents (old_token_hash) WHERE old_token_hash IS NOT NULL;

CREATE TABLE retired (
    agent_id INTEGER NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    incarnation TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (agent_id, incarnation)
) STRICT, WITHOUT ROWID;
CREATE INDEX retired_by_age ON retired (agent_id, at);

CREATE TABLE tokens (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    token_hash BLOB NOT NULL UNIQUE,
    created REAL NOT NULL
) STRICT;

-- Events and a time series, both bounded for each model.
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    agent TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_model ON events (model_id, id);

CREATE TABLE samples (
    id INTEGER PRIMARY KEY,
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    at REAL NOT NULL,
    version INTEGER NOT NULL,
    n_obs INTEGER NOT NULL,
    reward_sum REAL NOT NULL,
    n_uploads INTEGER NOT NULL,
    n_bytes INTEGER NOT NULL,
    log_det REAL NOT NULL,
    growth REAL NOT NULL
) STRICT;
CREATE INDEX samples_by_model ON samples (model_id, id);

-- A few earlier states of each model, to test for a change over time.
CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY,
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    at REAL NOT NULL,
    version INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    n_obs INTEGER NOT NULL,
    state BLOB NOT NULL
) STRICT;
CREATE INDEX checkpoints_by_model ON checkpoints (model_id, id);

-- Rewards by the ids of their decisions, until their owners have booked them and for a while after.
CREATE TABLE rewards (
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    decision TEXT NOT NULL,
    prefix TEXT NOT NULL,
    reward REAL NOT NULL,
    outcome TEXT NOT NULL, -- empty while it waits
    until REAL NOT NULL, -- then it is removed
    PRIMARY KEY (model_id, decision)
) STRICT, WITHOUT ROWID;
CREATE INDEX rewards_waiting ON rewards (model_id, prefix, until) WHERE outcome = '';
CREATE INDEX rewards_by_end ON rewards (model_id, until);

-- Which agent made the decisions whose ids have this prefix.
CREATE TABLE owners (
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    prefix TEXT NOT NULL,
    agent TEXT NOT NULL,
    forgotten INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (model_id, prefix)
) STRICT, WITHOUT ROWID;
CREATE INDEX owners_by_agent ON owners (model_id, agent);
