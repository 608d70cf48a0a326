"""Decision logs as agents write them (`fb.connect(..., decision_log=DIR)`), read as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix
from fedbandit.errors import DimensionMismatch, FeatureMismatch, FormatError, InvalidParameter
from fedbandit.experiments.advice.log import DecisionData

PATTERN = "decisions-*.jsonl"
FORMAT = 1


def read_decision_log(
    path: str | Path, *, features: Sequence[str] | None = None, ignore: Sequence[str] = ()
) -> DecisionData:
    """Decisions with their rewards, in the order in which they were made, from a file, or all files below a directory.

    A decision without a reward (still pending, expired) is left out; `log.left_out` says how many. `features` selects
    and orders columns by name, or by x0, x1, … where the model has no names; `ignore` leaves some out.
    """
    decisions, rewards, names, head = _read_all(_files(Path(path)))
    dim = head.get("dim")
    known = [line for line in decisions if line["id"] in rewards]
    if not known:
        raise FormatError(
            f"expected decisions with their rewards in {path}, got {len(decisions)} decisions and none with a reward"
        )
    try:
        x = np.array([_row(line, dim) for line in known], dtype=np.float64)
    except ValueError:
        raise DimensionMismatch(f"expected rows of one length in {path}; are there logs of several models?") from None
    columns, places = _select(names, x.shape[1], features, ignore)
    offers, chosen, sizes = _offers(known, x.shape[1])
    who, agents = np.unique(np.array([str(line["agent"]) for line in known]), return_inverse=True)
    chances = [line.get("propensity") for line in known]
    left_out = tuple((name, "not selected") for i, name in enumerate(names or _numbered(x.shape[1])) if i not in places)
    if len(known) < len(decisions):
        left_out += ((f"{len(decisions) - len(known)} of {len(decisions)} decisions", "they have no reward"),)
    return DecisionData(
        x[:, places],
        np.array([rewards[line["id"]] for line in known]),
        agents,
        tuple(who.tolist()),
        columns,
        None if any(p is None for p in chances) else np.array(chances, dtype=np.float64),
        None if offers is None else offers[:, :, places],
        chosen,
        sizes,
        arms=_arms(head, x.shape[1]) if places == list(range(x.shape[1])) else None,
        left_out=left_out,
    )


def _arms(head: dict[str, Any], dim: int) -> tuple[str, ...] | None:
    """The disjoint arms of the model, by name or number; None if it has none."""
    blocks = head.get("blocks") or 1
    if blocks < 2 or head.get("dim") != dim:
        return None
    return tuple(map(str, head.get("arms") or range(blocks)))


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FormatError(f"expected a decision log, got {path}, which does not exist")
    files = sorted(path.rglob(PATTERN)) if path.is_dir() else [path]
    if not files:
        raise FormatError(f"expected files {PATTERN} in {path}, got none; is it the directory of decision_log=…?")
    return files


def _row(line: dict[str, Any], dim: int | None) -> list[float]:
    """The row of a decision; of one by a context, the context in the columns of its block."""
    x, block = line["x"], line.get("block")
    if block is None:
        return list(x)
    if dim is None:
        raise FormatError(f"decision {line['id']} has a block, and no line says how many columns the model has")
    return [*[0.0] * (block * len(x)), *x, *[0.0] * (dim - (block + 1) * len(x))]


def _read_all(files: list[Path]) -> tuple[list[dict[str, Any]], dict[str, float], list[str] | None, dict[str, Any]]:
    """Decisions, rewards, names of the features, and the head of the last file."""
    decisions: dict[str, dict[str, Any]] = {}
    rewards: dict[str, float] = {}
    names: list[str] | None = None
    head: dict[str, Any] = {}
    for path in files:
        for number, line in _lines(path):
            if "format" in line:
                names, head = _head(path, line, names), line
            elif "reward" in line:
                rewards[str(line["id"])] = float(line["reward"])
            elif {"id", "agent", "x"} <= line.keys():
                decisions[str(line["id"])] = line
            else:
                raise FormatError(f"{path}, line {number}: expected a decision or a reward, got {sorted(line)}")
    return sorted(decisions.values(), key=lambda line: float(line.get("time", 0.0))), rewards, names, head


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield number, msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            if number < len(lines):
                raise FormatError(f"{path}, line {number} is damaged: {error}") from None
            return  # the end of a file that was being written when its process was killed


def _head(path: Path, line: dict[str, Any], names: list[str] | None) -> list[str] | None:
    if line["format"] != FORMAT:
        raise FormatError(f"{path} has format {line['format']!r}, this fedbandit reads format {FORMAT}")
    found = line.get("features")
    if found is not None and names is not None and found != names:
        raise FeatureMismatch(f"the logs have different features: {names} and, in {path}, {found}")
    return found or names


def _numbered(dim: int) -> list[str]:
    return [f"x{i}" for i in range(dim)]


def _select(
    names: list[str] | None, dim: int, features: Sequence[str] | None, ignore: Sequence[str]
) -> tuple[tuple[str, ...], list[int]]:
    known = names or _numbered(dim)
    unknown = [name for name in (*(features or ()), *ignore) if name not in known]
    if unknown:
        raise FeatureMismatch(f"expected features among {', '.join(known)}, got {', '.join(unknown)}")
    selected = [name for name in (features or known) if name not in set(ignore)]
    if not selected:
        raise InvalidParameter("expected at least one feature that is not ignored")
    return tuple(selected), [known.index(name) for name in selected]


def _offers(
    known: list[dict[str, Any]], dim: int
) -> tuple[NDArray[np.float64] | None, NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """All rows on offer, short sets filled up by their first row; None unless every decision has them."""
    if any(line.get("rows") is None or line.get("index") is None for line in known):
        return None, None, None
    sizes = np.array([len(line["rows"]) for line in known], dtype=np.int64)
    offers = np.empty((len(known), int(sizes.max()), dim))
    for i, line in enumerate(known):
        rows: Matrix = np.asarray(line["rows"], dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != dim:
            raise DimensionMismatch(f"decision {line['id']}: expected rows of {dim} numbers, got shape {rows.shape}")
        offers[i, : len(rows)], offers[i, len(rows) :] = rows, rows[0]
    return offers, np.array([int(line["index"]) for line in known], dtype=np.int64), sizes
