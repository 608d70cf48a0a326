-- What a page shows of the past: events and a time series, both bounded for each model.
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
