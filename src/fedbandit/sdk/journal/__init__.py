"""The journal of a live agent: snapshot, observation log and pending decisions on disk."""
