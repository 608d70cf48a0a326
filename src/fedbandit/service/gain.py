"""The gain of a model over control as data and in words, for the API, the dashboard and the command line."""

from __future__ import annotations

from typing import Any

from fedbandit.core.gain import LEAST, LEVEL, Gain, gain_over_control
from fedbandit.errors import InvalidParameter
from fedbandit.service.formatting import count, number, percent
from fedbandit.service.model import Model


def measured(model: Model, *, level: float = LEVEL) -> Gain:
    """The gain over control; `InvalidParameter` for a model without a control group."""
    share = model.settings.control
    if not share:
        name = model.settings.name
        raise InvalidParameter(f"model {name!r} has no control group; create it with control, for example 0.05")
    return gain_over_control(model.groups, control=share, level=level)


def gain_of(model: Model, *, level: float = LEVEL) -> dict[str, Any]:
    """Plain values for the API."""
    found = measured(model, level=level)
    return {
        "model": model.settings.name,
        "version": model.version,
        "control": model.settings.control,
        **found.to_dict(),
        "words": words_of(found),
    }


def words_of(found: Gain) -> str:
    """What the numbers say, in one or two sentences."""
    sure = percent(1.0 - found.level, 0)
    if found.low is None or found.high is None:
        more = "" if found.n_more is None else f", about {count(found.n_more)} observations more"
        return f"Too few rewards to compare: {LEAST} in each group are needed{more}."
    interval = f"between {number(found.low)} and {number(found.high)} per decision, at {sure} at all times together"
    if found.state == "better":
        return f"Better than control: the gain is {interval}."
    if found.state == "worse":
        return f"Worse than control: the gain is {interval}."
    if found.n_more is None:
        return f"Undecided: the gain is {interval}; at the present difference no number of observations would decide."
    more = f"about {count(found.n_more)} observations more decide"
    return f"Undecided: the gain is {interval}; if it stays as it is, {more}."
