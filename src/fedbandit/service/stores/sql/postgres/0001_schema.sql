-- Models, agents and tokens. Sums are not compressed: their bits are close to random.
CREATE TABLE models (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE,
    uid TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    version BIGINT NOT NULL DEFAULT 0,
    generation BIGINT NOT NULL DEFAULT 0, -- changes other than merged uploads
    n_agents BIGINT NOT NULL DEFAULT 0,
    n_uploads BIGINT NOT NULL DEFAULT 0,
    n_bytes BIGINT NOT NULL DEFAULT 0,
    n_obs BIGINT NOT NULL DEFAULT 0,
    reward_sum DOUBLE PRECISION NOT NULL DEFAULT 0,
    reward_sq_sum DOUBLE PRECISION NOT NULL DEFAULT 0,
    growth_n BIGINT NOT NULL DEFAULT 0,
    growth_block DOUBLE PRECISION NOT NULL DEFAULT 0,
    growth_previous DOUBLE PRECISION NOT NULL DEFAULT 0,
    growth_most DOUBLE PRECISION NOT NULL DEFAULT 0,
    state BYTEA NOT NULL
);

CREATE TABLE agents (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id BIGINT NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    token_hash BYTEA NOT NULL UNIQUE,
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
    total BYTEA,
    UNIQUE (model_id, name)
);

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
