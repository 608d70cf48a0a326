"""The studies, one file per question. `STUDIES` lists them in the order of the report."""

from __future__ import annotations

from fedbandit.errors import InvalidParameter
from fedbandit.experiments.studies import (
    articles,
    asynchrony,
    authors,
    bias,
    confidence,
    delay,
    drift,
    lemmas,
    lower_bound,
    real,
    scaling,
    systems,
    table1,
    tradeoff,
)
from fedbandit.experiments.study import Study

_IN_ORDER = (
    table1,
    authors,
    articles,
    tradeoff,
    lower_bound,
    bias,
    confidence,
    asynchrony,
    delay,
    scaling,
    lemmas,
    systems,
    drift,
    real,
)
STUDIES: dict[str, Study] = {module.STUDY.name: module.STUDY for module in _IN_ORDER}


def chosen(name: str) -> list[Study]:
    """The study of this name, or all of them."""
    if name == "all":
        return list(STUDIES.values())
    if name not in STUDIES:
        raise InvalidParameter(f"expected a study among {', '.join(STUDIES)} or 'all', got {name!r}")
    return [STUDIES[name]]
