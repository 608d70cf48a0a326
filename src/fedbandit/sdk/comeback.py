"""After the server was restored from an older backup: what it lacks is sent again, or goes along into a new life.

An agent keeps its answered uploads for a while (`Journal.kept_after`). A server that acknowledges fewer than it once
did is sent the rest again, in order, the same bytes under the same sequences: what it has already it recognises.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fedbandit.algorithms.messages import Upload
from fedbandit.errors import Refused, SequenceGap, StateMismatch
from fedbandit.wire.codec import encode, request_of

if TYPE_CHECKING:
    from fedbandit.sdk.link import Link

logger = logging.getLogger("fedbandit.sdk")


def is_gap(error: Refused) -> bool:
    """Whether the server misses an upload that it acknowledged once."""
    return error.reason == SequenceGap.code


def send_again(link: Link, timeout_s: float) -> int:
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
        link.deliver(_body(link, upload), timeout_s)
    return missing


def too_far_back(link: Link, n_kept: int) -> Refused:
    """The server lacks uploads that this agent does not have either."""
    core = link.core
    return Refused(
        f"the server acknowledges {link.acknowledged} uploads of this life of agent {core.agent_id!r}, which remembers "
        f"{core.n_answered} and has kept the last {n_kept}: it was restored from an older backup, the model was made "
        f"anew, or the agent was forgotten. `rejoin` goes on as a new incarnation with all that is kept here",
        reason=SequenceGap.code,
        status=409,
    )


def rejoin(link: Link) -> bool:
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
    link.core.begin_new_life(kept)
    link.begin_anew()
    logger.warning("agent %s: goes on as incarnation %s", link.core.agent_id, link.core.incarnation)
    link.refresh()
    return True


def _require_not_forgotten(link: Link, kept: list[Upload]) -> None:
    """Ask by an upload that cannot be merged: a gap means that nothing of it is there, another refusal is final."""
    core = link.core
    try:
        if kept:
            link.probe(_body(link, kept[-1]))
        elif not link.exchange(everything=True) and core.n_waiting:
            raise StateMismatch(
                f"{core.n_waiting} observations wait, fewer than min_upload: rejoin with a smaller min_upload, or "
                f"begin anew in another directory without them"
            )
    except Refused as error:
        if not is_gap(error):
            raise


def _body(link: Link, upload: Upload) -> bytes:
    core = link.core
    return encode(request_of(upload, model_version=core.model_version, waiting=core.n_waiting))
