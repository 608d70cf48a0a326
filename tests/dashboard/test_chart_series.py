"""The lines of the charts use earlier observations only."""

import numpy as np

from fedbandit.dashboard.chart_series import recent_means


def test_the_line_of_late_rewards_never_looks_ahead():
    rng = np.random.default_rng(0)
    n = np.cumsum(rng.integers(1, 50, size=100)).astype(float)
    totals = list(zip(np.arange(100.0), n, np.cumsum(rng.random(100)), strict=True))
    line = recent_means(totals)
    short = recent_means(totals[:60])
    assert line.x[: len(short.x)] == short.x and line.y[: len(short.y)] == short.y


def test_the_line_of_late_rewards_begins_anew_where_the_count_falls():
    line = recent_means([(1.0, 100, 50.0), (2.0, 60, 30.0), (3.0, 100, 70.0)])
    assert line.y == [0.5, None, 1.0]
