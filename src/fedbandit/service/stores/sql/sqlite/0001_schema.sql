-- Models, agents and tokens. Blobs are the last columns: the others are read without their overflow pages.
CREATE TABLE models (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    uid TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,
    created REAL NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0, -- changes other than merged uploads
    n_agents INTEGER NOT NULL DEFAULT 0,
    n_uploads INTEGER NOT NULL DEFAULT 0,
    n_bytes INTEGER NOT NULL DEFAULT 0,
    n_obs INTEGER NOT NULL DEFAULT 0,
    reward_sum REAL NOT NULL DEFAULT 0,
    reward_sq_sum REAL NOT NULL DEFAULT 0,
    growth_n INTEGER NOT NULL DEFAULT 0,
    growth_block REAL NOT NULL DEFAULT 0,
    growth_previous REAL NOT NULL DEFAULT 0,
    growth_most REAL NOT NULL DEFAULT 0,
    state BLOB NOT NULL
) STRICT;

CREATE TABLE agents (
    id INTEGER PRIMARY KEY,
    model_id INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    token_hash BLOB NOT NULL UNIQUE,
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
    total BLOB,
    UNIQUE (model_id, name)
) STRICT;

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
