import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.experiments.output.figures import (
    LOOKS,
    SERIES,
    _spread,
    band,
    in_style,
    label_ends,
    log_scale,
    log_ticks,
    panels,
)
from fedbandit.experiments.output.svg import inline_svg, to_svg


def draw() -> str:
    with in_style():
        figure, (axis,) = panels(1, 1)
        x = np.array([1.0, 10.0, 100.0])
        band(axis, x, [x, 2 * x, 3 * x], SERIES[0], marker=True)
        axis.set(title="Regret", xlabel="round")
        log_scale(axis, "x")
        label_ends(axis, [("FedLinUCB", 200.0, SERIES[0]), ("other", 201.0, SERIES[1])])
    return to_svg(figure, title="a question", study="some", spec_ids=["first-1", "second-2", "third-3"])


def test_the_same_data_gives_the_same_file_without_a_date():
    assert draw() == draw()
    assert "<dc:date>" not in draw()


def test_a_figure_carries_all_its_spec_ids():
    assert "specs first-1 second-2 third-3" in draw()


def test_a_figure_inside_a_page_has_ids_of_its_own_and_follows_the_theme():
    inside = inline_svg(draw(), "fig")
    assert "var(--ink" in inside
    ids = set(re.findall(r'\bid="([^"]+)"', inside))
    assert all(name.startswith("fig-") for name in ids)
    assert set(re.findall(r"url\(#([^)]+)\)", inside)) <= ids
    assert set(re.findall(r'href="#([^"]+)"', inside)) <= ids
    assert "http" not in inside


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.08))
def test_labels_never_overlap_and_keep_their_order(places, gap):
    moved = _spread(places, gap)
    inorder = np.sort(moved)
    assert np.all(np.diff(inorder) >= gap - 1e-9)
    assert np.all(np.diff(np.array(moved)[np.argsort(places, kind="stable")]) > 0)
    assert inorder[0] >= -1e-9


@given(st.floats(1e-6, 1e6), st.floats(1.05, 1e6))
def test_a_logarithmic_axis_has_a_few_ticks_inside(low, factor):
    ticks = log_ticks(low, low * factor)
    assert 1 <= len(ticks) <= 9
    assert all(low * 0.99 <= tick <= low * factor * 1.01 for tick in ticks)


def luminance(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize("looks", [tuple(LOOKS.values()), SERIES])
def test_every_series_differs_in_colour_line_and_marker(looks):
    assert len({look.colour for look in looks}) == len(looks)
    assert len({str(look.line) for look in looks}) == len(looks)
    assert len({look.marker for look in looks}) == len(looks)
    assert all(luminance(look.colour) < 0.75 for look in looks)  # visible on white
