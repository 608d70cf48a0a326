"""What a snapshot of an agent consists of, and answered uploads as the journal keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.messages import Upload, drift_fields, packed_bytes
from fedbandit.core.block_packing import leading_columns, packed_dim
from fedbandit.core.group_sums import PACKED, GroupSums
from fedbandit.sdk.journal.journal import JournalPosition, KeptUpload
from fedbandit.sdk.kept_rows import stats_of_batch
from fedbandit.wire.settings import ModelDescription


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """All that a snapshot needs, as it was at one moment."""

    moment: JournalPosition
    incarnation: str
    sequence: int
    description: ModelDescription
    state: dict[str, Any]
    marks: bytes
    answered: tuple[Upload, ...]
    drop_kept: bool
    n_drops: int


def kept_of(upload: Upload, agent: BaseAgent) -> KeptUpload:
    """An answered upload for the journal; where there is a control group, rewards by group follow its statistics."""
    groups = (upload.groups.to_bytes() or bytes(PACKED.size)) if agent._has_control else b""
    stats = packed_bytes(upload.stats)
    if upload.width:
        stats = leading_columns(np.frombuffer(stats, dtype="<f8"), upload.width).tobytes()
    return KeptUpload(upload.sequence, upload.growth, stats + groups, drift_fields(upload))


def upload_of(kept: KeptUpload, agent: BaseAgent) -> Upload:
    """An answered upload of this agent, as it travelled."""
    # Counted from the end: the statistics may be of fewer blocks or features than the model has now.
    size = len(kept.packed) - (PACKED.size if agent._has_control else 0)
    stats, groups = stats_of_batch(agent, kept.packed[:size]), GroupSums.from_bytes(kept.packed[size:])
    width = packed_dim(size // 8) if agent.blocks == 1 else agent.dim
    names = agent.agent_id, agent.incarnation, kept.sequence
    return Upload(*names, stats, kept.growth, groups=groups, width=0 if width == agent.dim else width, **kept.drift)
