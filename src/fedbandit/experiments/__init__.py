"""Experiments: specs that name runs, sweeps that make them, studies that read them (the `lab` extra)."""
