"""A short fault-injection run for each store; `make chaos` and `make chaos LONG=1` are longer ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.run import Run, Size

SEED = 11  # has every kind of fault within the short phase, for both stores
SHORT = Size(seconds=20.0, phase_s=20.0, gap_s=0.5, n_agents=4, pace_s=0.05)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_nothing_is_lost_or_counted_twice_under_faults(store: str, tmp_path: Path) -> None:
    summary = Run(tmp_path, store, seed=SEED, size=SHORT).go()
    assert summary["violations"] == [], json.dumps(summary, indent=1)
    assert summary["actions"]["kill_agent"] and summary["actions"]["kill_server"]  # faults were injected
    assert summary["uploads"] > summary["agents"]
    for model in ("pods", "shop", "moving"):  # each with agents that enrolled themselves
        assert summary["fleet"][f"enrolled_{model}"] >= 2 and summary["fleet"][f"agents_at_work_{model}"] >= 2
