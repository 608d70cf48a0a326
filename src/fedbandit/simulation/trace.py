"""The trace of a run as columns: regret, the four units of communication, switches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedbandit.algorithms.messages import n_bytes, n_scalars
from fedbandit.core.arrays import Matrix, Vector, is_listing, whole_at_least
from fedbandit.errors import FormatError, InvalidParameter, UnsupportedFormat
from fedbandit.simulation.run_metadata import run_id
from fedbandit.simulation.worlds import Index

COLUMNS = ("rounds", "regret", "reward", "messages_up", "messages_down", "switches", "scalars", "bytes")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Cumulative columns at the recorded rounds. `rounds` counts from 1; the last recorded round is the end.

    With `record="all"` there are also `agents` and `choices` (row chosen, −1 where the set is infinite), one entry per
    round.
    """

    dim: int
    rounds: Index
    regret: Vector
    reward: Vector
    messages_up: Index
    messages_down: Index
    switches: Index
    scalars: Index  # numbers that travelled
    bytes: Index  # bytes of these numbers, eight each, counts included
    agents: Index | None = None
    choices: Index | None = None
    about: Mapping[str, Any] | None = None  # the run: rule, world, participation, sizes, seed, engine, version

    @property
    def id(self) -> str | None:
        """Twelve hex digits of a hash of the whole run (rule, world, participation, sizes, record, seed)."""
        return None if self.about is None else run_id(self.about)

    @property
    def n_messages(self) -> int:
        """Uploads plus downloads at the end."""
        return int(self.messages_up[-1] + self.messages_down[-1])

    @property
    def n_switches(self) -> int:
        """Policy changes, over all agents, at the end."""
        return int(self.switches[-1])

    @property
    def messages(self) -> Index:
        """Uploads plus downloads at each recorded round."""
        return self.messages_up + self.messages_down

    @property
    def n_scalars(self) -> int:
        """Numbers sent: d(d+1)/2 + d per upload or download; messages of steps count their own."""
        return int(self.scalars[-1])

    @property
    def n_bytes(self) -> int:
        """Bytes sent for these numbers."""
        return int(self.bytes[-1])

    def at(self, round_number: int) -> dict[str, Any]:
        """The columns at a recorded round."""
        found = np.flatnonzero(self.rounds == round_number)
        if len(found) == 0:
            raise InvalidParameter(f"round {round_number} was not recorded; pass record=[{round_number}, …]")
        return {name: getattr(self, name)[found[0]].item() for name in COLUMNS}

    def save(self, path: str | Path) -> None:
        """Write the columns to an .npz file, with the description of the run (`about`)."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        if self.agents is not None and self.choices is not None:
            columns |= {"agents": self.agents, "choices": self.choices}
        about = {"fedbandit_trace": 1, "dim": self.dim, "about": None if self.about is None else dict(self.about)}
        header = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        with Path(path).open("wb") as file:
            np.savez(file, header=header, **columns)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote."""
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as data:
                header = json.loads(bytes(data["header"]))
                columns: dict[str, NDArray[Any]] = {name: data[name] for name in data.files if name != "header"}
            if header["fedbandit_trace"] != 1:
                raise UnsupportedFormat(f"{path} was written by a newer version")
            dim = int(header["dim"])
            return cls(dim=dim, about=header.get("about"), **columns_of_messages(columns, dim), **columns)
        except UnsupportedFormat:
            raise
        except (KeyError, ValueError, TypeError, EOFError, BadZipFile) as error:
            raise FormatError(f"expected a trace written by Trace.save in {path}: {error}") from None


def columns_of_messages(columns: Mapping[str, NDArray[Any]], dim: int) -> dict[str, NDArray[Any]]:
    """Scalars and bytes of columns that lack them: those of traces written when every message carried statistics."""
    sizes = {"scalars": n_scalars(dim), "bytes": n_bytes(dim)}
    missing = [name for name in sizes if name not in columns]
    return {name: (columns["messages_up"] + columns["messages_down"]) * sizes[name] for name in missing}


def rounds_to_record(record: str | Sequence[int], n_rounds: int) -> Index:
    """Sorted round numbers (from 1) at which a trace keeps its columns; the last round is always among them."""
    if isinstance(record, str):
        if record == "all":
            return np.arange(1, n_rounds + 1)
        if record == "log":
            points = np.unique(np.geomspace(1, n_rounds, num=min(n_rounds, 200)).round().astype(np.int64))
            return np.union1d(points, [n_rounds])
        raise InvalidParameter(f"expected record 'log', 'all' or a list of rounds, got {record!r}")
    if not is_listing(record):
        raise InvalidParameter(f"expected record 'log', 'all' or a list of rounds, got {record!r}")
    listed = [whole_at_least(t, 1, "a round to record") for t in record]
    chosen = np.union1d(np.asarray(listed, dtype=np.int64), [n_rounds])
    if chosen[0] < 1 or chosen[-1] > n_rounds:
        raise InvalidParameter(f"expected rounds to record from 1 to {n_rounds}, got {chosen[0]} to {chosen[-1]}")
    return chosen


Totals = tuple[float, float, int, int, int, int, int]  # regret, reward, the counts of a trace in order


class Recorder:
    """Collects the columns during a run."""

    def __init__(self, dim: int, n_rounds: int, record: str | Sequence[int]) -> None:
        self.dim = dim
        self.rounds = rounds_to_record(record, n_rounds)
        self.columns = np.zeros((len(self.rounds), 2))
        self.counts = np.zeros((len(self.rounds), 5), dtype=np.int64)
        self.next = 0
        everything = record == "all" if isinstance(record, str) else False
        self.agents = np.empty(n_rounds, dtype=np.int64) if everything else None
        self.choices = np.empty(n_rounds, dtype=np.int64) if everything else None

    def note(self, t: int, agent: int, choice: int, totals: Totals) -> None:
        """Record round t (from 1); `totals` are those of all rounds so far."""
        if self.agents is not None and self.choices is not None:
            self.agents[t - 1] = agent
            self.choices[t - 1] = choice
        if self.next < len(self.rounds) and self.rounds[self.next] == t:
            self.columns[self.next] = totals[:2]
            self.counts[self.next] = totals[2:]
            self.next += 1

    def note_block(
        self,
        t: int,
        agents: Index,
        choices: Index,
        sums: Matrix,
        counts: Index,
        all_counts: Callable[[Index], Index] | None = None,
    ) -> None:
        """Record rounds t+1 … t+n, n the number of `agents`; `sums` (n, 2) and `counts` (n, …) are totals.

        `all_counts` turns rows of `counts` into messages up, down, switches, scalars and bytes; None if they are that.
        """
        n = len(agents)
        if self.agents is not None and self.choices is not None:
            self.agents[t : t + n] = agents
            self.choices[t : t + n] = choices[:n]
        end = int(np.searchsorted(self.rounds, t + n, side="right"))
        at = self.rounds[self.next : end] - t - 1
        if len(at) > 0:
            self.columns[self.next : end] = sums[at]
            self.counts[self.next : end] = counts[at] if all_counts is None else all_counts(counts[at])
        self.next = end

    def trace(self) -> Trace:
        """The finished trace."""
        return Trace(
            self.dim,
            self.rounds,
            self.columns[:, 0].copy(),
            self.columns[:, 1].copy(),
            self.counts[:, 0].copy(),
            self.counts[:, 1].copy(),
            self.counts[:, 2].copy(),
            self.counts[:, 3].copy(),
            self.counts[:, 4].copy(),
            self.agents,
            self.choices,
        )
