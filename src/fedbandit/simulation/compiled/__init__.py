"""The loops of runner.py as machine code (numba): same traces, many times the speed. Needs `fedbandit[lab]`."""

from fedbandit.simulation.compiled.engine import NotCompiled, has_kernel, run_compiled

__all__ = ["NotCompiled", "has_kernel", "run_compiled"]
