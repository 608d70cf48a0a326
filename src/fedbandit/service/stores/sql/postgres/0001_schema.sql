-- Models, agents and tokens. Sums are not compressed: their bits are close to random.
CREATE TABLE models (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE,
    uid TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    version BIGINT NOT NULL DEFAULT 0,
    generation BIGINT NOT NULL DEFAULT 0, -- changes other than merged uploads
    n_agents BIGINT NOT NULL DEFAULT 0, -- at work: without those retired
    n_retired BIGINT NOT NULL DEFAULT 0,
    epoch BIGINT NOT NULL DEFAULT 0, -- restarts
    clock BIGINT NOT NULL DEFAULT 0, -- observations merged, over all epochs
    n_discarded BIGINT NOT NULL DEFAULT 0,
    n_rewards BIGINT NOT NULL DEFAULT 0, -- kept for their owners
    n_answered BIGINT NOT NULL DEFAULT 0, -- rewards that are remembered
    token_secret BYTEA NOT NULL DEFAULT (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
    n_uploads BIGINT NOT NULL DEFAULT 0,
    n_bytes BIGINT NOT NULL DEFAULT 0,
    n_obs BIGINT NOT NULL DEFAULT 0,
    reward_sum DOUBLE PRECISION NOT NULL DEFAULT 0,
    reward_sq_sum DOUBLE PRECISION NOT NULL DEFAULT 0,
    growth_n BIGINT NOT NULL DEFAULT 0,
    growth_block DOUBLE PRECISION NOT NULL DEFAULT 0,
    growth_previous DOUBLE PRECISION NOT NULL DEFAULT 0,
    growth_most DOUBLE PRECISION NOT NULL DEFAULT 0,
    reward_groups BYTEA NOT NULL DEFAULT '', -- n, sum and sum of squares of rewards, control and treatment
    state BYTEA NOT NULL,
    detector BYTEA -- blocks that are tested for a change
);

CREATE TABLE agents (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    token_hash BYTEA NOT NULL UNIQUE,
    old_token_hash BYTEA, -- valid until then, after the token was renewed
    old_token_until DOUBLE PRECISION,
    revoked BOOLEAN NOT NULL DEFAULT FALSE,
    quarantined BOOLEAN NOT NULL DEFAULT FALSE,
    created DOUBLE PRECISION NOT NULL,
    last_seen DOUBLE PRECISION,
    incarnation TEXT NOT NULL DEFAULT '',
    sequence BIGINT NOT NULL DEFAULT 0,
    digest BYTEA NOT NULL DEFAULT '',
    n_uploads BIGINT NOT NULL DEFAULT 0,
    n_obs BIGINT NOT NULL DEFAULT 0,
    reward_sum DOUBLE PRECISION NOT NULL DEFAULT 0,
    n_bytes BIGINT NOT NULL DEFAULT 0,
    growth DOUBLE PRECISION NOT NULL DEFAULT 0,
    growth_most DOUBLE PRECISION NOT NULL DEFAULT 0,
    unsent BIGINT NOT NULL DEFAULT 0,
    model_version BIGINT NOT NULL DEFAULT 0,
    retired DOUBLE PRECISION, -- when, NULL while at work
    enrolment TEXT NOT NULL DEFAULT '', -- by which it came
    enrol_key BYTEA, -- hash of the nonce that it came with
    session TEXT NOT NULL DEFAULT '', -- number and id of the last start of an enrolled agent
    reward_groups BYTEA NOT NULL DEFAULT '',
    n_discarded BIGINT NOT NULL DEFAULT 0,
    epoch BIGINT NOT NULL DEFAULT 0, -- of total
    stamp BIGINT NOT NULL DEFAULT 0, -- of total: the clock as of which it is discounted
    total BYTEA,
    UNIQUE (model_id, name)
);

CREATE UNIQUE INDEX agents_by_enrol_key ON agents (model_id, enrol_key) WHERE enrol_key IS NOT NULL;
CREATE INDEX agents_at_work ON agents (model_id) WHERE retired IS NULL;

-- Secrets by which machines enrol themselves, as hashes.
CREATE TABLE enrolments (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    secret_hash BYTEA NOT NULL UNIQUE,
    name_prefix TEXT NOT NULL,
    max_uses BIGINT, -- NULL for any number
    n_used BIGINT NOT NULL DEFAULT 0,
    created DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION, -- NULL for never
    revoked BOOLEAN NOT NULL DEFAULT FALSE,
    UNIQUE (model_id, name)
);

-- Names of retired agents whose sums were folded into one row, and whose names nobody may get again.
CREATE TABLE folded (
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name_hash BYTEA NOT NULL,
    PRIMARY KEY (model_id, name_hash)
);

CREATE INDEX agents_by_old_token ON agents (old_token_hash) WHERE old_token_hash IS NOT NULL;

CREATE TABLE retired (
    agent_id BIGINT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    incarnation TEXT NOT NULL,
    reason TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (agent_id, incarnation)
);
CREATE INDEX retired_by_age ON retired (agent_id, at);

CREATE TABLE tokens (
    name TEXT COLLATE "C" PRIMARY KEY,
    role TEXT NOT NULL,
    token_hash BYTEA NOT NULL UNIQUE,
    created DOUBLE PRECISION NOT NULL
);

ALTER TABLE models ALTER COLUMN state SET STORAGE EXTERNAL;
ALTER TABLE agents ALTER COLUMN total SET STORAGE EXTERNAL;

-- Events and a time series, both bounded for each model.
CREATE TABLE events (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    at DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    agent TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX events_by_model ON events (model_id, id);

CREATE TABLE samples (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    at DOUBLE PRECISION NOT NULL,
    version BIGINT NOT NULL,
    n_obs BIGINT NOT NULL,
    reward_sum DOUBLE PRECISION NOT NULL,
    n_uploads BIGINT NOT NULL,
    n_bytes BIGINT NOT NULL,
    log_det DOUBLE PRECISION NOT NULL,
    growth DOUBLE PRECISION NOT NULL
);
CREATE INDEX samples_by_model ON samples (model_id, id);

-- A few earlier states of each model, to test for a change over time.
CREATE TABLE checkpoints (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    at DOUBLE PRECISION NOT NULL,
    version BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    n_obs BIGINT NOT NULL,
    state BYTEA NOT NULL
);
ALTER TABLE checkpoints ALTER COLUMN state SET STORAGE EXTERNAL;
CREATE INDEX checkpoints_by_model ON checkpoints (model_id, id);

-- Rewards by the ids of their decisions, until their owners have booked them and for a while after.
CREATE TABLE rewards (
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    decision TEXT COLLATE "C" NOT NULL,
    prefix TEXT COLLATE "C" NOT NULL,
    reward DOUBLE PRECISION NOT NULL,
    outcome TEXT NOT NULL, -- empty while it waits
    until DOUBLE PRECISION NOT NULL, -- then it is removed
    PRIMARY KEY (model_id, decision)
);
CREATE INDEX rewards_waiting ON rewards (model_id, prefix, until) WHERE outcome = '';
CREATE INDEX rewards_by_end ON rewards (model_id, until);

-- Which agent made the decisions whose ids have this prefix.
CREATE TABLE owners (
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    prefix TEXT COLLATE "C" NOT NULL,
    agent TEXT COLLATE "C" NOT NULL,
    forgotten BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (model_id, prefix)
);
CREATE INDEX owners_by_agent ON owners (model_id, agent);
