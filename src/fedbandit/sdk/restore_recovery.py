"""After the server was restored from an older backup: what it lacks is sent again, or joins a new incarnation.

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


def send_again(client: SyncClient, timeout_s: float) -> int:
    """Bring the server to where this agent knows it was; how many uploads that took.

    `Refused` if the journal does not reach back far enough.
    """
    durable = client.durable
    missing = 0 if client.acknowledged is None else durable.n_answered - client.acknowledged
    if missing <= 0:
        return 0
    kept = durable.kept_after(durable.n_answered - missing)
    if len(kept) < missing:
        raise too_far_back(client, len(kept))
    logger.warning(
        "agent %s: the server lacks %d uploads that it had; sending them again", durable.agent.agent_id, missing
    )
    for upload in kept:
        client.deliver(_body(client, upload), upload.sequence, timeout_s)
    return missing


def too_far_back(client: SyncClient, n_kept: int) -> Refused:
    """The server lacks uploads that this agent does not have either."""
    durable = client.durable
    return Refused(
        f"the server acknowledges {client.acknowledged} uploads of this incarnation of agent "
        f"{durable.agent.agent_id!r}, which remembers {durable.n_answered} and has kept the last {n_kept}: it was "
        f"restored from an older backup, the model was created again, or the agent was forgotten. `rejoin` "
        f"continues as a new incarnation with all that is kept here",
        reason=SequenceGap.code,
        status=409,
    )


def require_nothing_twice(client: SyncClient, timeout_s: float) -> None:
    """Before the first upload of an incarnation that took over earlier uploads: the server must not have those.

    It would, if after the `rejoin` a backup came back that was made before the server went back for the first time.
    """
    durable = client.durable
    for incarnation, n_before in durable.earlier:
        answer = client.transport.state(incarnation, None, timeout_s=timeout_s)
        found = 0 if answer is None else answer.reply.acknowledged
        if found > n_before:
            raise Refused(
                f"the server has {found} uploads of incarnation {incarnation} of agent {durable.agent.agent_id!r}, "
                f"which rejoined with those from {n_before + 1} on: another backup was restored since. Nothing is "
                f"sent, so that nothing counts twice; begin anew in another directory",
                reason=SequenceConflict.code,
                status=409,
            )


def rejoin(client: SyncClient) -> bool:
    """Continue as a new incarnation if the server was restored to a state that is too old; False if there was no need.

    The new incarnation takes over the buffer, the upload in flight and the kept uploads, unless the server says that
    the old one was forgotten.
    """
    try:
        client.refresh()
        return False
    except Refused as error:
        if not is_gap(error):
            raise
    kept = client.durable.kept_after(client.acknowledged or 0)
    _require_not_forgotten(client, kept)
    client.durable.begin_incarnation(kept)
    client.begin_incarnation()
    logger.warning(
        "agent %s: goes on as incarnation %s", client.durable.agent.agent_id, client.durable.agent.incarnation
    )
    client.refresh()
    return True


def _require_not_forgotten(client: SyncClient, kept: list[Upload]) -> None:
    """Ask by an upload that cannot be merged: a gap means that nothing of it is there, another refusal is final."""
    durable = client.durable
    try:
        if kept:
            client.probe(_body(client, kept[-1]), kept[-1].sequence)
        elif not client.exchange(everything=True) and durable.n_unsent:
            raise StateMismatch(
                f"{durable.n_unsent} observations are unsent, fewer than min_upload: rejoin with a smaller min_upload, "
                f"or begin anew in another directory without them"
            )
    except Refused as error:
        if not is_gap(error):
            raise


def _body(client: SyncClient, upload: Upload) -> bytes:
    durable = client.durable
    return encode(request_of(upload, model_version=durable.agent.model_version, unsent=durable.n_unsent))
