"""Simulation in memory: worlds, participation patterns, and the loop of Algorithm 1."""
