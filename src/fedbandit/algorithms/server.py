"""What every algorithm's server shares: an upload counts once, and a reply names its addressee."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbandit.algorithms.messages import Download, Receipt, Reply, Request, Upload
from fedbandit.core.group_sums import NO_GROUPS
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import (
    DimensionMismatch,
    InvalidInput,
    NotFinite,
    SequenceConflict,
    SequenceGap,
    StaleIncarnation,
)

if TYPE_CHECKING:
    from fedbandit.algorithms.base import Rule


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the server remembers of one agent: enough to recognise a retry, a gap and a twin."""

    incarnation: str
    sequence: int
    digest: bytes


class BaseServer:
    """A server: `receive` an upload, answer with replies that name their addressees."""

    def __init__(self, rule: Rule, prior: SufficientStats) -> None:
        self.rule = rule
        self.dim = rule.dim
        self.stats = prior
        self.version = 0
        self.groups = NO_GROUPS  # rewards of control and treatment decisions in merged uploads
        self.ledger: dict[str, LedgerEntry] = {}
        self.retired: dict[str, set[str]] = {}

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """Tell the server who is in the fleet. Algorithm 1 does not need to know; algorithms that push or poll do."""

    def receive(self, message: Request) -> Download | Receipt | tuple[Reply, ...]:
        """Merge an upload once, or answer a pull; Algorithm 1 answers the sender only."""
        raise NotImplementedError

    def _merge_once(self, upload: Upload) -> bool:
        """Count the upload if it is the next of its agent; False if it is a retry that was counted before."""
        entry = self._next_entry(upload)
        if entry is None:
            return False
        self._count(upload, entry)
        return True

    def _next_entry(self, upload: Upload) -> LedgerEntry | None:
        """What the ledger will say of an upload that is the next of its agent; None if it is a retry."""
        if not isinstance(upload, Upload):
            raise InvalidInput(f"expected an upload or a pull, got {type(upload).__name__}")
        if upload.stats.dim != self.dim or upload.stats.blocks != self.stats.blocks:
            blocks = f" in {self.stats.blocks} blocks, got {upload.stats.dim} in {upload.stats.blocks}"
            found = f", got {upload.stats.dim}" if upload.stats.blocks == self.stats.blocks else blocks
            raise DimensionMismatch(f"expected an upload with {self.dim} features{found}")
        _finite_upload(upload)
        digest = upload.digest()
        if not is_next(self.ledger.get(upload.agent_id), self.retired.get(upload.agent_id, set()), upload, digest):
            return None
        known = self.ledger.get(upload.agent_id)
        if known is not None and known.incarnation != upload.incarnation:
            self.retired.setdefault(upload.agent_id, set()).add(known.incarnation)
        return LedgerEntry(upload.incarnation, upload.sequence, digest)

    def _count(self, upload: Upload, entry: LedgerEntry) -> str:
        """Merge an upload that is the next of its agent; why it was discarded instead, "" if it was not."""
        merged = self.stats + upload.stats
        # Without a call in between: a signal handler that raises must not leave the entry without the sums.
        self.ledger[upload.agent_id] = entry
        self.stats = merged
        self.version += 1
        self.groups += upload.groups
        return ""

    def _download(self, agent_id: str, incarnation: str | None = None) -> Download:
        known = self.ledger.get(agent_id)
        merged = 0
        if known is not None and incarnation in (None, known.incarnation):
            merged = known.sequence
        return Download(agent_id, self.version, self.stats, merged)

    def to_bytes(self) -> bytes:
        """Everything this server knows, exactly; `fb.load` brings it back."""
        from fedbandit.algorithms.snapshot import dump_server

        return dump_server(self)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        from fedbandit.algorithms.snapshot import load

        return load, (self.to_bytes(),)

    def _state(self) -> dict[str, Any]:
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        """The inverse of `_state`."""


def is_next(known: LedgerEntry | None, retired: set[str], upload: Upload, digest: bytes) -> bool:
    """True if the upload must be merged, False if it was merged before; anything else is a named error."""
    who = f"agent {upload.agent_id!r}"
    if upload.incarnation in retired:
        raise StaleIncarnation(
            f"{who} has begun a new life; incarnation {upload.incarnation!r} may not upload any more"
        )
    last = known.sequence if known is not None and known.incarnation == upload.incarnation else 0
    if upload.sequence == last + 1:
        return True
    if upload.sequence > last:
        raise SequenceGap(f"{who}: expected sequence {last + 1}, got {upload.sequence}; an upload is missing")
    if upload.sequence < 1:
        raise SequenceGap(f"{who}: expected sequence {last + 1}, got {upload.sequence}; sequences begin at 1")
    if upload.sequence == last and known is not None and digest != known.digest:
        raise SequenceConflict(
            f"{who}: sequence {upload.sequence} was merged with other content; do two processes share this identity?"
        )
    return False


def _finite_upload(upload: Upload) -> None:
    stats = upload.stats
    if not np.isfinite(float(stats.Sigma.sum()) + float(stats.b.sum()) + stats.reward_sum + stats.reward_sq_sum):
        raise NotFinite(f"agent {upload.agent_id!r}: expected finite statistics in an upload")
    if stats.n_obs < 0:
        raise InvalidInput(f"agent {upload.agent_id!r}: expected n_obs ≥ 0, got {stats.n_obs}")
