"""When the next upload of an agent is expected, from its own history."""

from itertools import pairwise

import pytest

from fedbandit.service.rhythm import NOT_KNOWN, Rhythm, rhythm_of
from fedbandit.service.stores.base import Sample


def sample(at, n_obs):
    return Sample(at=at, version=1, n_obs=n_obs, reward_sum=0.0, n_uploads=1, n_bytes=1, log_det=0.0, growth=0.0)


def mature(share=0.1, per_s=1.0, n_uploads=12, start=1000.0):
    """An agent alone in its model, whose every upload needs a share of all that there is: gaps grow with time."""
    at, own = start, 100.0
    steps, samples = [], []
    for _ in range(n_uploads):
        steps.append((at, own, 0.0))
        samples.append(sample(at, int(own)))
        more = share * own
        at, own = at + more / per_s, own + more
    return steps, samples


def test_the_expected_gap_grows_with_the_model():
    steps, samples = mature()
    found = rhythm_of(steps, samples)
    gaps = [after[0] - before[0] for before, after in pairwise(steps)]
    assert gaps[-1] > 2.5 * gaps[0]
    assert found.typical_s == pytest.approx(1.1 * gaps[-1], rel=0.05)
    assert found.within_s == pytest.approx(2.0 * found.typical_s, rel=0.1)
    assert found.share == pytest.approx(0.1, rel=0.1) and found.per_s == pytest.approx(1.0)


def test_a_mature_agent_is_not_overdue_after_a_gap_as_long_as_all_before():
    steps, samples = mature()
    found = rhythm_of(steps, samples)
    last, longest = steps[-1][0], max(after[0] - before[0] for before, after in pairwise(steps))
    assert not found.is_overdue(last + longest)
    assert found.words(last).startswith("expected within")
    assert found.is_overdue(last + 10 * longest) and found.words(last + 10 * longest).startswith("overdue for")


def test_an_irregular_agent_gets_as_much_time_as_it_took_before():
    steps, samples = mature(n_uploads=10)
    slow = steps[-1][0] + 50 * (steps[-1][0] - steps[-2][0])
    steps.append((slow, 1.1 * steps[-1][1], 0.0))
    samples.append(sample(slow, int(steps[-1][1])))
    found = rhythm_of(steps, samples)
    assert found.within_s > 5 * found.typical_s


def test_of_a_short_history_nothing_is_expected():
    steps, samples = mature(n_uploads=3)
    for known in (rhythm_of([], samples), rhythm_of(steps, samples), rhythm_of(steps, [])):
        assert known.expected_by is None and known.words(1e9) == NOT_KNOWN and not known.is_overdue(1e12)
    assert rhythm_of(steps, samples).last_upload == steps[-1][0]
    assert Rhythm().reason(100) == ""


def test_a_limit_of_silence_bounds_the_expected_gap():
    steps, samples = mature(n_uploads=24, per_s=0.01)
    assert rhythm_of(steps, samples).typical_s > 1000.0
    assert rhythm_of(steps, samples, max_silence_s=60.0).typical_s == pytest.approx(160.0)
