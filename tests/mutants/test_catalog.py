"""The list of defects is valid: every quoted text occurs once, and the changed file is still Python."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants.catalog import ROOT, defects

LAYERS = {"core", "algorithms", "wire", "sdk", "service"}
ALL = defects()


def test_there_are_enough_defects_in_every_layer():
    assert len(ALL) >= 120
    assert {defect.layer for defect in ALL} >= LAYERS
    assert [name for name, n in Counter(defect.name for defect in ALL).items() if n > 1] == []


@pytest.mark.parametrize("defect", ALL, ids=[defect.name for defect in ALL])
def test_a_defect_can_be_planted(defect):
    planted = defect.planted()
    ast.parse(planted)
    assert defect.tests
    for test in defect.tests:
        path, *names = test.split("::")
        assert (ROOT / path).exists()
        for name in names:
            assert name.split("[")[0] in (ROOT / path).read_text(encoding="utf-8")
