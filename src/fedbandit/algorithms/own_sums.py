"""Which of an agent's own observations the model that it holds contains: (U, u), exact under lost and late messages.

Own observations are in pieces, one for each upload, numbered by the sequences of the incarnation. A download says up to
which sequence its model holds them. What cannot be attributed (a server that went back into the middle of a piece, own
data of an earlier incarnation) counts as the fleet's: nothing is ever in the prior and in the own sums at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedbandit.algorithms.messages import Upload
from fedbandit.core.statistics import SufficientStats


@dataclass(frozen=True, slots=True)
class Piece:
    """The sums of uploads `first` to `last` of one incarnation."""

    first: int
    last: int
    stats: SufficientStats


@dataclass(frozen=True, slots=True)
class OwnSums:
    """The answered uploads of one incarnation: those that the model holds, and those that it does not hold."""

    dim: int
    held: Piece | None = None  # (U, u)
    apart: tuple[Piece, ...] = ()
    blocks: int = 1

    @property
    def merged(self) -> SufficientStats:
        """(U, u): the own observations that the model holds."""
        return SufficientStats.zeros(self.dim, self.blocks) if self.held is None else self.held.stats

    def answered(self, upload: Upload) -> OwnSums:
        """The upload is merged at the server; whether the model holds it is another question."""
        if any(piece.last >= upload.sequence for piece in self._pieces()):
            return self
        return replace(self, apart=(*self.apart, Piece(upload.sequence, upload.sequence, upload.stats)))

    def in_model(self, acknowledged: int, *, excluded: bool = False, kept: Iterable[Upload] = ()) -> OwnSums:
        """The model holds the uploads up to `acknowledged`, or none of this agent's if it was `excluded`.

        `kept` are single uploads by which a piece can be divided that the server holds in part.
        """
        single = {upload.sequence: upload.stats for upload in kept}
        pieces = [part for piece in self._pieces() for part in _divided(piece, acknowledged, single)]
        inside = _joined([piece for piece in pieces if piece.last <= acknowledged])
        beyond = tuple(piece for piece in pieces if piece.first > acknowledged)
        if excluded:
            return replace(self, held=None, apart=beyond if inside is None else (inside, *beyond))
        return replace(self, held=inside, apart=beyond)

    def nothing(self) -> OwnSums:
        """No own observations, in a model of the same form."""
        return replace(self, held=None, apart=())

    def without_model(self) -> OwnSums:
        """The model was given up for the prior, which holds nothing."""
        return self.in_model(0)

    def total(self, in_flight: Upload | None, local: SufficientStats) -> SufficientStats:
        """The lifetime sums A, c, n and Σr²: everything that is attributed, in flight and in the buffer."""
        sums = sum((piece.stats for piece in self._pieces()), start=local)
        is_new = in_flight is not None and all(piece.last < in_flight.sequence for piece in self._pieces())
        return sums + in_flight.stats if in_flight is not None and is_new else sums

    def _pieces(self) -> tuple[Piece, ...]:
        return self.apart if self.held is None else (self.held, *self.apart)

    def state(self) -> dict[str, Any]:
        """Plain values and statistics."""
        return {str(i): _state(piece) for i, piece in enumerate(self._pieces())} | {"held": self.held is not None}

    @classmethod
    def from_state(cls, dim: int, state: dict[str, Any], blocks: int = 1) -> OwnSums:
        """The sums of a dictionary made by `state`."""
        values = dict(state)
        is_held = bool(values.pop("held"))
        pieces = tuple(Piece(int(v["first"]), int(v["last"]), v["sums"]) for _, v in sorted(values.items(), key=_place))
        return cls(dim, pieces[0], pieces[1:], blocks) if is_held else cls(dim, None, pieces, blocks)


def _place(item: tuple[str, Any]) -> int:
    return int(item[0])


def _state(piece: Piece) -> dict[str, Any]:
    return {"first": piece.first, "last": piece.last, "sums": piece.stats}


def _joined(pieces: list[Piece]) -> Piece | None:
    if not pieces:
        return None
    total = sum((piece.stats for piece in pieces[1:]), start=pieces[0].stats)
    return Piece(pieces[0].first, pieces[-1].last, total)


def _divided(piece: Piece, at: int, single: dict[int, SufficientStats]) -> list[Piece]:
    """The piece in a part up to `at` and single uploads beyond; what cannot be divided is left to the fleet."""
    if piece.last <= at or piece.first > at:
        return [piece]
    beyond = [Piece(n, n, single[n]) for n in range(at + 1, piece.last + 1) if n in single]
    if len(beyond) < piece.last - at:
        return beyond
    rest = piece.stats - sum((part.stats for part in beyond[1:]), start=beyond[0].stats)
    return [Piece(piece.first, at, rest), *beyond]
