"""An OpenFeature provider: the variant of a flag is an agent's decision, and a tracked event is its reward.

An evaluation never touches the network. Its `flag_metadata` has the id of the decision; an event that is tracked with
that id as the attribute `decision_id` books the reward, in this process or, by the server, in another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from fedbandit.algorithms.decision import Decision
from fedbandit.errors import FedbanditError, InvalidParameter, MissingExtra
from fedbandit.sdk.agent import LiveAgent

try:
    from openfeature.evaluation_context import EvaluationContext
    from openfeature.exception import FlagNotFoundError, GeneralError, InvalidContextError, TypeMismatchError
    from openfeature.flag_evaluation import FlagResolutionDetails, Reason
    from openfeature.provider import AbstractProvider, Metadata
    from openfeature.track import TrackingEventDetails
except ImportError:
    raise MissingExtra("the provider needs the OpenFeature SDK: install fedbandit[openfeature]") from None

logger = logging.getLogger("fedbandit.openfeature")
DECISION_ID = "decision_id"
Rows = Callable[[Mapping[str, Any], Sequence[str]], ArrayLike]


@dataclass(frozen=True, slots=True)
class BanditFlag:
    """A flag whose variants are the actions of a decision.

    `variants` maps names to values. `rows` gets the attributes of the evaluation context (with `targeting_key`) and
    the names of the variants, and returns one row of features per variant, in that order.
    """

    variants: Mapping[str, Any]
    rows: Rows

    def __post_init__(self) -> None:
        if not self.variants:
            raise InvalidParameter("expected at least one variant")


class FedbanditProvider(AbstractProvider):
    """Resolves flags by an agent; `rewards` says which tracked events are rewards.

    `rewards` maps the name of an event to the reward that it means, or to None if the event's own value is the
    reward. Other events are ignored. Errors of tracking are logged and never raised: they must not break a page.
    """

    def __init__(
        self, agent: LiveAgent, flags: Mapping[str, BanditFlag], *, rewards: Mapping[str, float | None]
    ) -> None:
        super().__init__()
        self._agent = agent
        self._flags = dict(flags)
        self._rewards = dict(rewards)

    def get_metadata(self) -> Metadata:
        """The provider's name."""
        return Metadata(name="fedbandit")

    def get_provider_hooks(self) -> list[Any]:
        """No hooks."""
        return []

    # -- flags

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[bool]:
        """The value of a flag with boolean variants."""
        return self._resolve(flag_key, bool, evaluation_context)

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[str]:
        """The value of a flag whose variants are strings."""
        return self._resolve(flag_key, str, evaluation_context)

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[int]:
        """The value of a flag whose variants are whole numbers."""
        return self._resolve(flag_key, int, evaluation_context)

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[float]:
        """The value of a flag whose variants are floats."""
        return self._resolve(flag_key, float, evaluation_context)

    def resolve_object_details(
        self,
        flag_key: str,
        default_value: Sequence[Any] | Mapping[str, Any],
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[Any]:
        """The value of a flag whose variants are lists or dictionaries."""
        return self._resolve(flag_key, (list, tuple, dict), evaluation_context)

    def _resolve(
        self, flag_key: str, kind: type[Any] | tuple[type[Any], ...], context: EvaluationContext | None
    ) -> FlagResolutionDetails[Any]:
        flag = self._flags.get(flag_key)
        if flag is None:
            raise FlagNotFoundError(f"no flag {flag_key!r}; known are {', '.join(self._flags)}")
        names = list(flag.variants)
        for name in names:  # before the decision, which would then wait for a reward in vain
            value = flag.variants[name]
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise TypeMismatchError(f"variant {name!r} of {flag_key!r} is a {type(value).__name__}")
        decision = self._decide(flag, names, context)
        chosen = names[decision.index or 0]
        return FlagResolutionDetails(
            flag.variants[chosen], reason=Reason.TARGETING_MATCH, variant=chosen, flag_metadata=metadata_of(decision)
        )

    def _decide(self, flag: BanditFlag, names: list[str], context: EvaluationContext | None) -> Decision:
        attributes: dict[str, Any] = {}
        if context is not None:
            attributes = {**context.attributes, "targeting_key": context.targeting_key}
        try:
            rows = flag.rows(attributes, names)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidContextError(f"the features cannot be made of this context: {error!r}") from error
        try:
            decision = self._agent.choose(rows)
        except FedbanditError as error:
            raise GeneralError(f"{error.code}: {error}") from error
        if decision.index is None or decision.index >= len(names):
            raise GeneralError(f"expected {len(names)} rows, one for each variant, got another number")
        return decision

    # -- rewards

    def track(
        self,
        tracking_event_name: str,
        evaluation_context: EvaluationContext | None = None,
        tracking_event_details: TrackingEventDetails | None = None,
    ) -> None:
        """Book the reward of the decision whose id is the attribute `decision_id` of the event."""
        if tracking_event_name not in self._rewards:
            return
        details = tracking_event_details or TrackingEventDetails()
        reward = self._rewards[tracking_event_name]
        reward = details.value if reward is None else reward
        decision_id = details.attributes.get(DECISION_ID)
        if reward is None or not isinstance(decision_id, str):
            logger.warning("event %r: expected a value and the attribute decision_id; ignored", tracking_event_name)
            return
        try:
            self._book(decision_id, reward)
        except FedbanditError as error:
            logger.warning("event %r: the reward was not booked: %s: %s", tracking_event_name, error.code, error)

    def _book(self, decision_id: str, reward: float) -> None:
        decision = self._agent.pending.get(decision_id)
        if decision is not None:
            self._agent.observe(decision, reward)
            return
        self._agent.pending[decision_id]  # raises: it has its reward, or was never made here

    def shutdown(self) -> None:
        """Close the agent; what was not sent stays in its journal."""
        self._agent.close()


def metadata_of(decision: Decision) -> dict[str, bool | int | float | str]:
    """What the application needs to track the reward, and to log the decision."""
    found: dict[str, bool | int | float | str] = {
        DECISION_ID: decision.id,
        "model_version": decision.model_version,
        "agent_id": decision.agent_id,
    }
    for name in ("propensity", "policy", "group"):
        value = getattr(decision, name, None)
        if value is not None:
            found[name] = value
    return found
