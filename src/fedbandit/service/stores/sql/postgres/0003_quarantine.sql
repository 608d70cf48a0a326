-- Agents whose contribution is kept apart, how often data were taken out or put back, and the age of retired incarnations.
-- In tables of their own: columns added to models and agents would stand behind their sums, which nobody reads on the way.
CREATE TABLE quarantined (
    agent_id BIGINT PRIMARY KEY REFERENCES agents (id) ON DELETE CASCADE,
    at DOUBLE PRECISION NOT NULL
);

CREATE TABLE generations (
    model_id BIGINT PRIMARY KEY REFERENCES models (id) ON DELETE CASCADE,
    generation BIGINT NOT NULL
);

ALTER TABLE retired ADD COLUMN at DOUBLE PRECISION NOT NULL DEFAULT 0;
CREATE INDEX retired_by_age ON retired (agent_id, at);
