-- What a page shows of the past: events and a time series, both bounded for each model.
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
