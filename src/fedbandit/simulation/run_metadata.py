"""The description of a run as plain values: rule, world, participation, sizes and seed, for traces and file names."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import FunctionType
from typing import Any

import numpy as np

MOST_ITEMS = 1000  # of a list that is written out; a longer one is described by its hash
NAMELESS = ("fedbandit", "engine")  # do not change the run


@functools.cache
def installed_version() -> str:
    """The version of fedbandit."""
    try:
        return version("fedbandit")
    except PackageNotFoundError:  # run from sources that were never installed
        return "unknown"


def describe(thing: Any) -> dict[str, Any]:
    """A world or a participation pattern by its name and fields; of arrays, shape and hash.

    A field that came later is marked by `LATER` and left out while it is None: what was run before keeps its name.
    """
    if isinstance(thing, FunctionType):
        return {"function": f"{thing.__module__}.{thing.__qualname__}"}
    plain = {"name": str(getattr(thing, "name", type(thing).__qualname__))}
    if dataclasses.is_dataclass(thing):
        values = {field: getattr(thing, field.name) for field in dataclasses.fields(thing) if field.init}
        shown = {
            field.name: value for field, value in values.items() if value is not None or "later" not in field.metadata
        }
        return {**plain, **{name: _plain(value) for name, value in shown.items()}}
    return {**plain, "class": f"{type(thing).__module__}.{type(thing).__qualname__}"}


def run_id(description: Mapping[str, Any]) -> str:
    """Twelve hex digits of a hash of the description; the version and the engine are no part of it."""
    identity = {key: value for key, value in description.items() if key not in NAMELESS}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same as JSON can write it: infinity as text, arrays by their hash."""
    return {str(key): _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "sha256": _digest(np.ascontiguousarray(value).tobytes())}
    if isinstance(value, Mapping):
        return plain_values(value)
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return (
            items if len(items) <= MOST_ITEMS else {"length": len(items), "sha256": _digest(json.dumps(items).encode())}
        )
    return describe(value)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
