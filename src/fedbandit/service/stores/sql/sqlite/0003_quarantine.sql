-- Agents whose contribution is kept apart, how often data were taken out or put back, and the age of retired incarnations.
-- In tables of their own: columns added to models and agents would stand behind their sums, which nobody reads on the way.
CREATE TABLE quarantined (
    agent_id INTEGER PRIMARY KEY REFERENCES agents (id) ON DELETE CASCADE,
    at REAL NOT NULL
) STRICT;

CREATE TABLE generations (
    model_id INTEGER PRIMARY KEY REFERENCES models (id) ON DELETE CASCADE,
    generation INTEGER NOT NULL
) STRICT;

ALTER TABLE retired ADD COLUMN at REAL NOT NULL DEFAULT 0;
CREATE INDEX retired_by_age ON retired (agent_id, at);
