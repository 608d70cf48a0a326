"""Starting without the server: an agent at the prior, with settings that the application gives, joins later.

Until then its description has the id `OFFLINE`. Before the first message travels, the server is asked for the model's
settings. If they are the given ones, what was observed meanwhile counts. If not, nothing is sent and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedbandit.errors import FormatError, InvalidParameter, NotReachable, Refused, StateMismatch
from fedbandit.wire.settings import ModelDescription, ModelSettings

if TYPE_CHECKING:
    from fedbandit.sdk.sync_client import SyncClient

OFFLINE = "offline"  # the id of settings that no server has confirmed; a server's own ids are hexadecimal
DEFAULTS = {"lam": 1.0, "alpha": 1.0}  # as for a new model


def given_settings(model: str, settings: ModelSettings | Mapping[str, Any]) -> ModelSettings:
    """What the application says about a model: `ModelSettings`, or its values as a new model takes them."""
    if isinstance(settings, ModelSettings):
        if settings.name != model:
            raise InvalidParameter(f"expected the settings of model {model!r}, got those of {settings.name!r}")
        return settings
    if not isinstance(settings, Mapping):
        raise InvalidParameter(f"expected settings as a dictionary, got {type(settings).__name__}")
    values = {**DEFAULTS, **settings, "name": model}
    known = {field.name for field in fields(ModelSettings)} | {"beta"}
    if "dim" not in values or not set(values) <= known:
        raise InvalidParameter(
            f"expected settings with dim, and beta or radius, of {', '.join(sorted(known))}; got "
            f"{', '.join(sorted(map(str, settings))) or 'none'}"
        )
    if isinstance(values.get("features"), tuple):
        values["features"] = list(values["features"])
    try:
        return ModelSettings.of_request(values)
    except InvalidParameter:
        raise
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise InvalidParameter(f"expected the settings of a model, got {dict(settings)!r}: {error}") from None


def describe_offline(
    model: str, settings: ModelSettings | Mapping[str, Any] | None, error: NotReachable
) -> ModelDescription:
    """The description of a model whose server was not reached."""
    if settings is None:
        raise NotReachable(
            f"{error}; a first start without the server needs settings= with the model's settings, later ones only the "
            f"state_dir"
        )
    return ModelDescription(given_settings(model, settings), OFFLINE)


def confirm(client: SyncClient, timeout_s: float) -> None:
    """Ask the server whether an agent that began without it has the model's settings; `Refused` if not.

    The caller holds the turn. Whatever the server says otherwise, nothing was sent before this.
    """
    durable = client.durable
    if durable.description.settings_id != OFFLINE:
        return
    try:
        found = ModelDescription.from_dict(client.transport.describe(timeout_s=timeout_s))
    except FormatError as error:
        raise NotReachable(f"{client.transport.address} answered with something else than settings: {error}") from None
    wrong = differences(durable.settings, found.settings)
    if found.agent_id not in (None, durable.agent.agent_id):
        wrong = [f"agent (here {durable.agent.agent_id!r}, by the token {found.agent_id!r})", *wrong]
    if wrong:
        client.halted = True
        raise Refused(
            f"agent {durable.agent.agent_id!r} began without the server, with other settings than model "
            f"{durable.settings.name!r} has: {', '.join(wrong)}. Nothing is sent; decisions go on with the given "
            f"ones and observations are kept: connect again to use those of the server",
            reason="settings_changed",
            status=409,
        )
    durable.description = found


def require_same_rows(before: ModelDescription, description: ModelDescription) -> None:
    """`StateMismatch` if rows that were observed without the server mean something else to it."""
    given, found = before.settings.features, description.settings.features
    if before.settings_id == OFFLINE and given is not None and given != found:
        raise StateMismatch(
            f"the state directory was begun without the server, with features {_brief(given)}; model "
            f"{description.settings.name!r} has {_brief(found)}. What was observed stays here; begin anew elsewhere"
        )


def differences(given: ModelSettings, found: ModelSettings) -> list[str]:
    """The settings that differ, with both values."""
    mine, theirs = given.to_dict(), found.to_dict()
    names = [name for name in {**mine, **theirs} if name != "notes" and mine.get(name) != theirs.get(name)]
    return [f"{name} (here {_brief(mine.get(name))}, there {_brief(theirs.get(name))})" for name in names]


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
