"""How a spec is played: the simulator's loop, or that loop with a twist."""
