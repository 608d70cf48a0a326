"""Numbers and sizes as people read them, on the dashboard and in explanations."""

from __future__ import annotations

import math

NOTHING = "–"
STAYS = "\u00a0"  # a space at which no line is broken
UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")


def count(n: float) -> str:
    """A whole number with separators.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{n:,.0f}"


def number(x: float | None, digits: int = 3) -> str:
    """A decimal with about this many significant digits, never in exponents people must decode unless it is extreme.

    >>> number(0.123456), number(12.3456), number(-1234.5), number(None), number(2.5e9)
    ('0.123', '12.3', '−1,234', '–', '2.5e9')
    """
    if x is None or not math.isfinite(x):
        return NOTHING
    if x == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(x)))
    if magnitude >= 7 or magnitude < -5:
        mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
        return _minus(f"{float(mantissa):g}e{int(exponent)}")
    return _minus(f"{x:,.{max(digits - 1 - magnitude, 0)}f}")


def setting(x: float) -> str:
    """A number that somebody chose, as they would write it.

    >>> setting(1.0), setting(0.05)
    ('1', '0.05')
    """
    return _minus(f"{x:g}")


def _minus(text: str) -> str:
    return text.replace("-", "−", 1) if text.startswith("-") else text


def percent(share: float, digits: int = 1) -> str:
    """A share of one.

    >>> percent(0.0321), percent(0.00001)
    ('3.2\\xa0%', '<0.1\\xa0%')
    """
    smallest = 10.0**-digits
    if 0 < 100 * share < smallest:
        return f"<{smallest:g}{STAYS}%"
    return f"{_minus(f'{100 * share:.{digits}f}')}{STAYS}%"


def size(n_bytes: float) -> str:
    """Bytes in a unit that fits.

    >>> size(999), size(123456), size(2.5e9)
    ('999 bytes', '123 KB', '2.5 GB')
    """
    step = 0
    while n_bytes >= 1000 and step < len(UNITS) - 1:
        n_bytes /= 1000
        step += 1
    digits = 0 if step == 0 or n_bytes >= 100 else 1
    return f"{n_bytes:,.{digits}f} {UNITS[step]}"


def plural(n: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> plural(1, "agent"), plural(3, "agent"), plural(2, "story", "stories")
    ('1 agent', '3 agents', '2 stories')
    """
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A length of time in one unit.

    >>> duration(3.2), duration(90), duration(5400), duration(200_000)
    ('3 s', '90 s', '90 min', '2 days')
    """
    for unit, per_unit, most in (("s", 1.0, 120.0), ("min", 60.0, 7_200.0), ("h", 3_600.0, 172_800.0)):
        if seconds < most:
            return f"{seconds / per_unit:.0f} {unit}"
    return f"{count(seconds / 86_400.0)} days"


def pace(per_s: float) -> str:
    """How often something happens, in a unit in which it happens at least once.

    >>> pace(3.4), pace(0.05), pace(1 / 7200), pace(1e-6)
    ('about 3 per second', 'about 3 per minute', 'about 12 per day', 'less than 1 per day')
    """
    for unit, seconds in (("second", 1.0), ("minute", 60.0), ("hour", 3_600.0), ("day", 86_400.0)):
        if per_s * seconds >= 1.0:
            return f"about {count(per_s * seconds)} per {unit}"
    return "less than 1 per day"
