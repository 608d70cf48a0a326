"""After the server was restored from an older backup: what it lacks is sent again, or goes along into a new life.

An agent keeps its answered uploads for a while (`Journal.kept_after`). A server that acknowledges fewer than it once
did is sent the rest again, in order, the same bytes under the same sequences: what it has already it recognises.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fedbandit.algorithms.messages import Upload
from fedbandit.errors import Refused, SequenceConflict, SequenceGap, StateMismatch
from fedbandit.wire.codec import encode, request_of

if TYPE_CHECKING:
    from fedbandit.sdk.sync_client import SyncClient

logger = logging.getLogger("fedbandit.sdk")


def is_gap(error: Refused) -> bool:
    """Whether the server misses an upload that it acknowledged once."""
    return error.reason == SequenceGap.code


def send_again(link: SyncClient, timeout_s: float) -> int:
    """Bring the server to where this agent knows it was; how many uploads that took.

    `Refused` if the journal does not reach back far enough.
    """
    core = link.core
    missing = 0 if link.acknowledged is None else core.n_answered - link.acknowledged
    if missing <= 0:
        return 0
    kept = core.kept_after(core.n_answered - missing)
    if len(kept) < missing:
        raise too_far_back(link, len(kept))
    logger.warning("agent %s: the server lacks %d uploads that it had; sending them again", core.agent_id, missing)
    for upload in kept:
        link.deliver(_body(link, upload), upload.sequence, timeout_s)
    return missing


def too_far_back(link: SyncClient, n_kept: int) -> Refused:
    """The server lacks uploads that this agent does not have either."""
    core = link.core
    return Refused(
        f"the server acknowledges {link.acknowledged} uploads of this life of agent {core.agent_id!r}, which remembers "
        f"{core.n_answered} and has kept the last {n_kept}: it was restored from an older backup, the model was made "
        f"anew, or the agent was forgotten. `rejoin` goes on as a new incarnation with all that is kept here",
        reason=SequenceGap.code,
        status=409,
    )


def require_nothing_twice(link: SyncClient, timeout_s: float) -> None:
    """Before the first upload of a life that took over uploads of earlier ones: the server must not have those.

    It would, if after the `rejoin` a backup came back that was made before the server went back for the first time.
    """
    core = link.core
    for incarnation, n_before in core.earlier:
        answer = link.transport.state(incarnation, None, timeout_s=timeout_s)
        found = 0 if answer is None else answer.reply.acknowledged
        if found > n_before:
            raise Refused(
                f"the server has {found} uploads of incarnation {incarnation} of agent {core.agent_id!r}, which "
                f"rejoined with those from {n_before + 1} on: another backup was restored since. Nothing travels, so "
                f"that nothing counts twice; begin anew in another directory",
                reason=SequenceConflict.code,
                status=409,
            )


def rejoin(link: SyncClient) -> bool:
    """Go on as a new incarnation if the server went back too far; False if there was no need.

    The buffer, the upload in flight and the kept uploads go along, unless the server says that this life was forgotten.
    """
    try:
        link.refresh()
        return False
    except Refused as error:
        if not is_gap(error):
            raise
    kept = link.core.kept_after(link.acknowledged or 0)
    _require_not_forgotten(link, kept)
    link.core.begin_incarnation(kept)
    link.begin_anew()
    logger.warning("agent %s: goes on as incarnation %s", link.core.agent_id, link.core.incarnation)
    link.refresh()
    return True


def _require_not_forgotten(link: SyncClient, kept: list[Upload]) -> None:
    """Ask by an upload that cannot be merged: a gap means that nothing of it is there, another refusal is final."""
    core = link.core
    try:
        if kept:
            link.probe(_body(link, kept[-1]), kept[-1].sequence)
        elif not link.exchange(everything=True) and core.n_unsent:
            raise StateMismatch(
                f"{core.n_unsent} observations wait, fewer than min_upload: rejoin with a smaller min_upload, or "
                f"begin anew in another directory without them"
            )
    except Refused as error:
        if not is_gap(error):
            raise


def _body(link: SyncClient, upload: Upload) -> bytes:
    core = link.core
    return encode(request_of(upload, model_version=core.model_version, unsent=core.n_unsent))
