"""Advice from a log: whether a fleet should share, with the tests, the simulation and the report."""
