"""A short fire for each store; `make chaos` and `make chaos LONG=1` are the same for longer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.run import Run, Size

SEED = 11  # deals every kind of blow within the short storm, to either store
SHORT = Size(seconds=20.0, storm_s=20.0, gap_s=0.5, n_agents=4, pace_s=0.05)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_nothing_is_lost_or_counted_twice_under_fire(store: str, tmp_path: Path) -> None:
    summary = Run(tmp_path, store, seed=SEED, size=SHORT).go()
    assert summary["violations"] == [], json.dumps(summary, indent=1)
    assert summary["actions"]["kill_agent"] and summary["actions"]["kill_server"]  # it did burn
    assert summary["uploads"] > summary["agents"]
