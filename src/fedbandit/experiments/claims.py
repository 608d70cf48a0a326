"""The rules by which studies make statements: a claim is made only where an interval implies it.

A mean below a limit is no reason to write "less than": the seeds may not decide it. Every rule here takes intervals and
returns either a claim that holds for each value inside them, or a text that leaves the question open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedbandit.experiments.compare import Interval
from fedbandit.experiments.output.tables import number, span

OPEN = "not decided by these seeds"
BELOW, ABOVE, UNDECIDED = "below", "above", "undecided"


def side(value: Interval, limit: float) -> str:
    """On which side of a limit the whole interval lies: below, above, or undecided.

    >>> side(Interval(0.91, 0.57, 1.45, 2), 1.1), side(Interval(0.91, 0.85, 0.97, 8), 1.1)
    ('undecided', 'below')
    """
    if value.high < limit:
        return BELOW
    return ABOVE if value.low > limit else UNDECIDED


def shown_prefix(values: Mapping[int, Interval], limit: float) -> int | None:
    """The largest key up to which, without a gap, every interval lies below the limit."""
    reached = None
    for key in sorted(values):
        if side(values[key], limit) != BELOW:
            break
        reached = key
    return reached


def says_delay(times: Mapping[int, Interval], *, percent: int = 10) -> str:
    """What a delay costs, from the regret at each delay relative to no delay."""
    limit = 1 + percent / 100
    harmless = shown_prefix(times, limit)
    if harmless is not None:
        return f"a delay up to {harmless:,} rounds costs less than {percent} %"
    if all(side(value, limit) == ABOVE for value in times.values()):
        return f"a delay of every length tried costs more than {percent} %"
    first = min(times)
    return f"whether a delay of {first:,} rounds costs less than {percent} % is {OPEN} ({span(times[first])} times)"


def says_change(ratio: Interval, *, up: str = "grows", down: str = "falls") -> str:
    """A verb for a change that is known as a ratio; a neutral one where the interval holds 1."""
    return {ABOVE: up, BELOW: down, UNDECIDED: "goes (the direction is " + OPEN + ")"}[side(ratio, 1.0)]


def says_gain(gap: Interval) -> str:
    """What there is to gain by sharing everything, as a difference of mean rewards per round."""
    if not math.isfinite(gap.half):
        return f"whether sharing gains anything is {OPEN}"
    ends = f"[{gap.low:.3f}, {gap.high:.3f}]"
    if side(gap, 0.0) == ABOVE:
        return f"sharing gains {gap.mean:.3f} {ends}"
    if side(gap, 0.0) == BELOW:
        return f"sharing loses {-gap.mean:.3f} [{-gap.high:.3f}, {-gap.low:.3f}]"
    return f"whether sharing gains anything is {OPEN} ({gap.mean:.3f} {ends})"


def says_part(part: Interval, wanted: float) -> str:
    """Which part of a gain is reached, and whether that is as much as was wanted."""
    if not math.isfinite(part.half):
        return f"reaches a part of it that is {OPEN}"
    text = f"reaches {part.mean:.0%} [{part.low:.0%}, {part.high:.0%}] of it"
    if side(part, wanted) == BELOW:
        return f"{text}, less than {wanted:.0%}"
    return text if side(part, wanted) == ABOVE else f"{text}; whether that is {wanted:.0%} or more is {OPEN}"


def says_truth(value: Interval, truth: float) -> str:
    """Whether an estimate is biased against a known truth, or by how much it can be off at most."""
    if not value.contains(truth):
        return "is biased"
    if not math.isfinite(value.half):
        return f"is biased or not: {OPEN}"
    return f"is at most {number(max(value.high - truth, truth - value.low))} off"


def says_rate(measured: Interval, promised: float, *, slack: float = 0.02) -> str:
    """Whether a fitted exponent is above that of a rate, within it, or undecided."""
    return {ABOVE: ABOVE, BELOW: "within", UNDECIDED: UNDECIDED}[side(measured, promised + slack)]


def says_few(relative: Sequence[Interval], *, percent: int = 5) -> str:
    """Whether any of some settings beats a base by more than some per cent, from ratios to the base."""
    limit = 1 - percent / 100
    sides = [side(value, limit) for value in relative]
    better, unclear = sides.count(BELOW), sides.count(UNDECIDED)
    best = min(relative, key=lambda value: value.mean)
    if better:
        text = f"{better} of {len(sides)} settings are better than independent learners by more than {percent} %"
    elif unclear:
        text = f"none of {len(sides)} settings is shown to beat independent learners by more than {percent} %"
    else:
        return f"none of {len(sides)} settings beats independent learners by more than {percent} % (best {span(best)})"
    return f"{text} ({unclear} {OPEN})" if unclear else text


def says_coverage(held: Interval, promised: float) -> str:
    """Whether a radius fails, from the share of runs in which it held."""
    return "fails as expected" if side(held, promised) == BELOW else "is not shown to fail"


def says_order(steps: Sequence[Interval]) -> str:
    """Whether an order holds, from each member's difference to the one that follows it (negative: in order)."""
    sides = [side(step, 0.0) for step in steps]
    if all(each == BELOW for each in sides):
        return "holds"
    return "does not hold" if ABOVE in sides else f"is {OPEN}"
