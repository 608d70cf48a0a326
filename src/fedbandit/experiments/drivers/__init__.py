"""Drivers, which run a spec: the simulator's loop, or a variant of it."""
