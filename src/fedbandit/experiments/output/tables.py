"""Small tables of numbers and intervals: as HTML for the report, and as CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedbandit.experiments.compare import Interval, interval
from fedbandit.experiments.results import Results

MEASURES = ("regret", "messages", "switches", "bytes")


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns, rows of values; a value may be a text, a number, an interval or None."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def to_html(self) -> str:
        """An HTML table; numbers are set right, intervals small behind their mean."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in self.rows)
        return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"

    def to_csv(self) -> str:
        """Comma-separated values; an interval takes three columns."""
        wide = [any(isinstance(row[i], Interval) for row in self.rows) for i in range(len(self.columns))]
        names = zip(self.columns, wide, strict=True)
        header = [part for name, is_wide in names for part in (_three(name) if is_wide else [name])]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        for row in self.rows:
            values = zip(row, wide, strict=True)
            writer.writerow([part for value, is_wide in values for part in _csv_cell(value, is_wide)])
        return out.getvalue()


def tidy(results: Results) -> Table:
    """One row for each group and measure: keys, spec id, mean, interval, number of seeds."""
    names = list(dict.fromkeys(key for group in results for key in group.keys))
    rows = []
    for group in results:
        first = next(iter(group.runs.values()))
        known = [name for name in MEASURES if name in first.columns or "messages_up" in first.columns]
        values = {name: list(group.at(name).values()) for name in known}
        values |= {name: list(group.fact(name).values()) for name in first.facts}
        keys = [group.keys.get(name) for name in names]
        rows += [[*keys, group.spec.id, name, interval(data)] for name, data in values.items()]
    return Table("Every measure at the end of the runs", [*names, "spec", "measure", "value"], rows)


def number(value: float) -> str:
    """A number with three or four significant digits, thousands separated, without trailing zeros.

    >>> number(0.01234), number(12.345), number(12345.6), number(480000)
    ('0.0123', '12.3', '12\u202f346', '480\u202f000')
    """
    if not math.isfinite(value):
        return "∞" if value > 0 else ("−∞" if value < 0 else "–")
    size = abs(value)
    if size >= 1e7:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
    if size >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f")
    if size >= 100 or (size >= 1 and float(value).is_integer()):
        return f"{value:.0f}"
    if size == 0:
        return "0"
    return f"{value:.3g}" if size >= 1e-3 else f"{value:.2g}"


def around(value: Interval) -> str:
    """Mean and half width, with digits by the width of the interval."""
    if not math.isfinite(value.half):
        return number(value.mean)
    if value.half == 0:
        return number(value.mean)
    digits = max(0, 1 - math.floor(math.log10(value.half))) if value.half < 10 else 0
    digits = min(digits, 4)
    mean, half = f"{value.mean:,.{digits}f}", f"{value.half:,.{digits}f}"
    return f"{mean} ± {half}".replace(",", "\u202f")


def span(value: Interval, digits: int = 2) -> str:
    """Mean with the interval's ends, for ratios and exponents: `0.47 [0.45, 0.49]`."""
    if not math.isfinite(value.half):
        return f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _html_cell(value: Any) -> str:
    if value is None:
        return '<td class="n">–</td>'
    if isinstance(value, Interval):
        return f'<td class="n">{_small(around(value))}</td>'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="n">{number(float(value))}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def _small(text: str) -> str:
    mean, plus_minus, half = text.partition(" ± ")
    return mean + (f"<small> ± {half}</small>" if plus_minus else "")


def _three(name: str) -> list[str]:
    return [name, f"{name} low", f"{name} high"]


def _csv_cell(value: Any, is_wide: bool) -> list[Any]:
    if isinstance(value, Interval):
        return [value.mean, value.low, value.high]
    return [value, "", ""] if is_wide else [value]
