"""What a fleet does about change, as settings: plain values, text, and clear errors."""

import math

import pytest

import fedbandit as fb
from fedbandit.core.drift import as_drift, from_dict, to_dict
from fedbandit.errors import InvalidParameter


@pytest.mark.parametrize("drift", [fb.drift.restart(noise_scale=0.3, n_levels=4), fb.drift.discount(horizon=3_000)])
def test_settings_survive_a_dictionary(drift):
    assert from_dict(to_dict(drift)) == drift
    assert from_dict(None) is None


def test_text_names_a_kind_and_its_number():
    assert as_drift("restart:0.3") == fb.drift.restart(noise_scale=0.3)
    assert as_drift("discount:3000") == fb.drift.discount(horizon=3_000)


@pytest.mark.parametrize("bad", ["restart", "discount:", "discount:-1", "forget:3", 3, {}, "restart:nan"])
def test_what_is_no_drift_is_a_named_error(bad):
    with pytest.raises(InvalidParameter):
        as_drift(bad)


@pytest.mark.parametrize(
    "bad",
    [{"kind": "restart"}, {"kind": "discount", "horizon": 3, "window": 4}, {"kind": "nonsense"}, {"horizon": 3}, []],
)
def test_a_bad_dictionary_is_a_named_error(bad):
    with pytest.raises(InvalidParameter):
        from_dict(bad)


def test_weights_halve_with_age_and_never_grow():
    discount = fb.drift.discount(horizon=100.0)
    assert discount.weight(100.0 * math.log(2.0)) == pytest.approx(0.5)
    assert discount.weight(-5.0) == 1.0
    assert fb.drift.discount(horizon=math.inf).weight(1e9) == 1.0


@pytest.mark.parametrize(
    "numbers", [{"noise_scale": 0.0}, {"noise_scale": 1, "false_alarm": 1}, {"noise_scale": 1, "n_levels": 31}]
)
def test_bad_numbers_are_named_errors(numbers):
    with pytest.raises(InvalidParameter):
        fb.drift.restart(**numbers)
