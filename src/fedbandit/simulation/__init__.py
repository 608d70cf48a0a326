"""A world in memory: decision sets, rewards, who is active, and the loop of Algorithm 1."""
