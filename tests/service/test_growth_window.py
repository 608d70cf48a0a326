"""The window of recent growth: what it still holds, and what it has dropped."""

import numpy as np

from fedbandit.service.model import GROWTH_BLOCK, NO_GROWTH


def test_the_window_holds_the_largest_of_at_least_512_and_at_most_1024_uploads():
    growths = np.random.default_rng(0).pareto(1.0, 5 * GROWTH_BLOCK)
    window = NO_GROWTH
    for i, growth in enumerate(growths.tolist()):
        window = window.add(growth)
        least, most = growths[max(i + 1 - GROWTH_BLOCK, 0) : i + 1], growths[max(i + 1 - 2 * GROWTH_BLOCK, 0) : i + 1]
        assert least.max() <= window.recent <= most.max()
        assert window.most == growths[: i + 1].max()


def test_one_large_growth_is_recent_for_a_while_and_then_is_not():
    window = NO_GROWTH.add(9.0)
    recent = []
    for _ in range(2 * GROWTH_BLOCK):
        window = window.add(0.1)
        recent.append(window.recent)
    assert recent[: GROWTH_BLOCK - 1] == [9.0] * (GROWTH_BLOCK - 1)
    assert recent[-1] == 0.1 and window.most == 9.0
