"""The same run by both engines, and what makes two traces the same."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedbandit as fb


def both_engines(rule: Any, world: Any, **run: Any) -> tuple[fb.Trace, fb.Trace]:
    """The trace of the reference and the trace of the compiled engine."""
    run = {"record": "all", **run}
    reference = fb.simulate(rule, world, engine="reference", **run)
    return reference, fb.simulate(rule, world, engine="compiled", **run)


def assert_same_trace(reference: fb.Trace, other: fb.Trace) -> None:
    """The same choices and messages at the same rounds; numbers within 1e-9."""
    for name in ("rounds", "messages_up", "messages_down", "switches", "scalars", "bytes", "agents", "choices"):
        np.testing.assert_array_equal(getattr(other, name), getattr(reference, name), err_msg=name)
    for name in ("regret", "reward"):
        np.testing.assert_allclose(getattr(other, name), getattr(reference, name), rtol=1e-9, atol=1e-9, err_msg=name)
