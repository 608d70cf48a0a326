"""What a model fixes for every agent, and its description as a server sends it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import n_packed, packed_bytes
from fedbandit.core import drift as drifts
from fedbandit.core import personal as personals
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, finite_at_least, whole_at_least
from fedbandit.core.block_rows import compact_row
from fedbandit.core.plausibility import Bounds
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FormatError, InvalidInput, InvalidParameter
from fedbandit.wire.codec import MAX_DIM, is_possible
from fedbandit.wire.identifiers import check_model_name
from fedbandit.wire.policy_choice import UCB, PolicyChoice

LARGEST_BOUND = 1e30  # the scores of 2⁵³ such observations are finite at λ ≥ 1e-3
# For models that set no bound: beyond any sensible scale, and no data within it can keep an agent from deciding.
DEFAULT_BOUND = 1e9
DEFAULT_MAX_RATE = 10_000.0  # observations per second and agent
MAX_SHARE_DIM = 200  # beyond it a factorisation for every upload takes too long
# What may change while a model is in use: everything that leaves the sums, and what was observed, valid.
CHANGEABLE = frozenset({"alpha", "radius", "action_bound", "reward_bound", "max_rate", "max_share"}) | {
    "policy",
    "explore",
    "gamma",
    "propensity_samples",
    "drift",  # but for discounts, which are in the sums
    "max_silence_rounds",
    "max_silence_s",
    "notes",
}
MAX_NOTES = 2_000  # characters
SLACK = 1.0 + 1e-9  # a row of norm L in the application's arithmetic may come out a bit longer in ours


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a model fixes when it is created; every agent gets the same."""

    name: str
    dim: int
    lam: float
    alpha: float
    radius: radii.AnyRadius
    features: tuple[str, ...] | None = None
    action_bound: float | None = None
    reward_bound: float | None = None
    max_rate: float | None = None
    max_share: float | None = None
    personal: personals.Personal | None = None
    policy: PolicyChoice = UCB
    blocks: int = 1  # disjoint arms: every row lies in one of so many blocks of columns
    arms: tuple[str, ...] | None = None  # names of the blocks
    control: float = 0.0  # share of decisions that the application's default makes
    drift: drifts.AnyDrift | None = None
    max_silence_rounds: int | None = None
    max_silence_s: float | None = None
    notes: str = ""  # for people
    earlier_dims: tuple[int, ...] = ()  # before features were added; what was gathered then stays valid

    def __post_init__(self) -> None:
        check_model_name(self.name)
        if self.blocks == 1 and self.dim > MAX_DIM:
            raise InvalidParameter(
                f"expected dim ≤ {MAX_DIM}, got {self.dim}; with one block of columns per arm (blocks) it may be larger"
            )
        if self.personal is not None and not isinstance(self.radius, radii.Fixed):
            raise InvalidParameter(
                f"expected beta as a number with personal, got the {self.radius.kind} radius: agents with parameters "
                f"of their own decide eagerly on their own data, for which no radius has a proof"
            )
        rule = self.rule()
        object.__setattr__(self, "blocks", rule.blocks)
        object.__setattr__(self, "arms", rule.arms)
        if not is_possible(self.dim, self.blocks):
            raise InvalidParameter(
                f"expected a model of at most {n_packed(MAX_DIM)} numbers, got {n_packed(self.dim, self.blocks)} in "
                f"{self.blocks} blocks"
            )
        if len(self.notes) > MAX_NOTES or not all(letter.isprintable() or letter == "\n" for letter in self.notes):
            raise InvalidParameter(f"expected notes of at most {MAX_NOTES} printable characters")
        if self.max_silence_s is not None:
            finite_at_least(self.max_silence_s, 0.0, "max_silence_s", strictly=True)
        for feature in (*(self.features or ()), *(self.arms or ())):
            if not feature.isprintable():  # also a lone surrogate, which no answer could carry
                raise InvalidParameter(f"expected printable feature names, got {feature[:100]!a}")
        for name, bound in (("action_bound", self.action_bound), ("reward_bound", self.reward_bound)):
            if bound is not None and finite_at_least(bound, 0.0, name, strictly=True) > LARGEST_BOUND:
                raise InvalidParameter(f"expected {name} ≤ {LARGEST_BOUND:g}, got {bound:g}")
        if self.max_rate is not None:
            finite_at_least(self.max_rate, 0.0, "max_rate", strictly=True)
        if self.max_share is not None:
            if not 0.0 < self.max_share <= 1.0:
                raise InvalidParameter(f"expected max_share above 0 and at most 1, got {self.max_share:g}")
            if self.dim // self.blocks > MAX_SHARE_DIM or self.dim > 10 * MAX_SHARE_DIM:
                raise InvalidParameter(
                    f"expected dim ≤ {MAX_SHARE_DIM} with max_share, which factorises Σ for every upload"
                )

    def rule(self, *, min_upload: int = 1) -> FedLinUCB:
        """The algorithm of the model's agents, which begin with a download."""
        return FedLinUCB(
            dim=self.dim,
            lam=self.lam,
            alpha=self.alpha,
            beta=self.radius,
            features=self.features,
            blocks=self.blocks,
            arms=self.arms,
            join=True,
            min_upload=min_upload,
            personal=self.personal,
            **self.policy.numbers,
            control=self.control,
            drift=self.drift,
            max_silence=math.inf if self.max_silence_rounds is None else self.max_silence_rounds,
        )

    @property
    def is_plain(self) -> bool:
        """Whether an observation is its row and its reward, and nothing else is counted with it."""
        return self.personal is None and self.blocks == 1 and not self.control and self.drift is None

    @property
    def bounds(self) -> Bounds:
        """What an upload must respect, whether the model's creator set it or not."""
        return Bounds(self.largest_action, self.largest_reward)

    @property
    def largest_action(self) -> float:
        """The longest action that an upload may hold."""
        return DEFAULT_BOUND if self.action_bound is None else self.action_bound

    @property
    def largest_reward(self) -> float:
        """The largest |r| that an upload may hold."""
        return DEFAULT_BOUND if self.reward_bound is None else self.reward_bound

    @property
    def observation_rate(self) -> float:
        """Observations per second that one agent may bring."""
        return DEFAULT_MAX_RATE if self.max_rate is None else self.max_rate

    def prior(self) -> bytes:
        """The packed state before any upload: λ on the diagonal, zero elsewhere."""
        return packed_bytes(SufficientStats.prior(dim=self.dim, lam=self.lam, blocks=self.blocks))

    def widened(self, arms: Sequence[str]) -> ModelSettings:
        """The settings with these arms behind those there are; columns of a named model get the names of the new."""
        if self.blocks == 1 or self.arms is None:
            raise InvalidParameter(
                f"expected a model with named arms, and {self.name!r} has none: make it by `models create --arms`"
            )
        new = [str(arm) for arm in arms]
        if not new:
            raise InvalidParameter("expected at least one new arm")
        known = [arm for arm in new if arm in self.arms]
        if known:
            raise InvalidParameter(f"model {self.name!r} has these arms already: {', '.join(known)}")
        p, blocks = self.dim // self.blocks, self.blocks + len(new)
        features = self.features
        if features is not None:
            columns = [name.partition("@")[0] for name in features[:p]]
            features = (*features, *(f"{column}@{arm}" for arm in new for column in columns))
        return replace(self, dim=p * blocks, blocks=blocks, arms=(*self.arms, *new), features=features)

    def with_features(self, added: Sequence[str] | int) -> ModelSettings:
        """The settings with these features behind those there are: names, or how many for a model without names."""
        if self.blocks > 1:
            raise InvalidParameter(
                f"expected a model without arms, and {self.name!r} has {self.blocks}: a column more in each would not "
                f"be behind the others. Create a model for the longer contexts"
            )
        if isinstance(added, int) != (self.features is None):
            wanted = "a number, because its features have no names" if self.features is None else "names"
            raise InvalidParameter(f"expected the features to add to model {self.name!r} as {wanted}")
        n_added = added if isinstance(added, int) else len(added)
        if n_added < 1:
            raise InvalidParameter("expected at least one new feature")
        names = None if isinstance(added, int) or self.features is None else (*self.features, *map(str, added))
        if names is not None and len(set(names)) < len(names):
            raise InvalidParameter(f"expected new names, each of them once; model {self.name!r} has {self.features}")
        return replace(self, dim=self.dim + n_added, features=names, earlier_dims=(*self.earlier_dims, self.dim))

    def is_widened_from(self, before: ModelSettings) -> bool:
        """Whether these settings are the others with arms or features added, and nothing that changes the sums."""
        if self.blocks == before.blocks == 1:
            if before.dim not in self.earlier_dims or (before.features is None) != (self.features is None):
                return False
            if self.features is not None and before.features != self.features[: before.dim]:
                return False
            wider = replace(before, dim=self.dim, features=self.features, earlier_dims=self.earlier_dims)
            return self.keeps_sums_of(wider)
        if before.arms is None or self.arms is None or before.blocks < 2 or self.blocks <= before.blocks:
            return False
        try:
            return self.keeps_sums_of(before.widened(self.arms[before.blocks :]))
        except InvalidParameter:
            return False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files, the database and the wire; α = ∞ (never exchange), which JSON has not, is null."""
        values = {
            "name": self.name,
            "dim": self.dim,
            "lam": self.lam,
            "alpha": None if math.isinf(self.alpha) else self.alpha,
            "radius": radii.to_dict(self.radius),
            "features": None if self.features is None else list(self.features),
            "action_bound": self.action_bound,
            "reward_bound": self.reward_bound,
            "max_rate": self.max_rate,
            "max_share": self.max_share,
            **self.policy.to_dict(),
            **({"blocks": self.blocks} if self.blocks > 1 else {}),
            **({"arms": list(self.arms)} if self.arms is not None else {}),
            **self._of_time(),
            **({"notes": self.notes} if self.notes else {}),
            **({"earlier_dims": list(self.earlier_dims)} if self.earlier_dims else {}),
        }
        if self.personal is not None:
            values["personal"] = personals.to_dict(self.personal)
        if self.control:
            values["control"] = self.control
        return values

    def _of_time(self) -> dict[str, Any]:
        """What a model does about a world that changes; each is left out where it does nothing."""
        values = {
            "drift": None if self.drift is None else drifts.to_dict(self.drift),
            "max_silence_rounds": self.max_silence_rounds,
            "max_silence_s": self.max_silence_s,
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSettings:
        """The settings of a dictionary made by `to_dict`; other keys are ignored."""
        if type(data["dim"]) is not int:
            raise InvalidParameter(f"expected dim as a whole number, got {data['dim']!r}")
        features = data.get("features")
        if features is not None and not (isinstance(features, list) and all(isinstance(f, str) for f in features)):
            raise InvalidParameter("expected features as a list of names")
        arms = data.get("arms")
        if arms is not None and not (isinstance(arms, list) and all(isinstance(arm, str) for arm in arms)):
            raise InvalidParameter("expected arms as a list of names")
        blocks = data.get("blocks")
        if blocks is not None and type(blocks) is not int:
            raise InvalidParameter(f"expected blocks as a whole number, got {blocks!r}")
        return cls(
            name=data["name"],
            dim=data["dim"],
            lam=float(data["lam"]),
            alpha=math.inf if data["alpha"] is None else float(data["alpha"]),
            radius=radii.from_dict(data["radius"]),
            features=None if features is None else tuple(features),
            action_bound=_number(data.get("action_bound")),
            reward_bound=_number(data.get("reward_bound")),
            max_rate=_number(data.get("max_rate")),
            max_share=_number(data.get("max_share")),
            personal=None if data.get("personal") is None else personals.as_personal(data["personal"]),
            policy=PolicyChoice.from_dict(data),
            blocks=blocks if blocks is not None else len(arms) if arms else 1,
            arms=None if arms is None else tuple(arms),
            control=_number(data.get("control")) or 0.0,
            drift=drifts.from_dict(data.get("drift")),
            max_silence_rounds=_whole(data.get("max_silence_rounds"), "max_silence_rounds"),
            max_silence_s=_number(data.get("max_silence_s")),
            notes=str(data.get("notes") or ""),
            earlier_dims=tuple(whole_at_least(dim, 1, "earlier_dims") for dim in data.get("earlier_dims") or ()),
        )

    @classmethod
    def of_request(cls, values: dict[str, Any]) -> ModelSettings:
        """The settings of a new model: `beta` is a number, or `radius` a dictionary with its kind; α is finite."""
        beta, radius = values.get("beta"), values.get("radius")
        if (beta is None) == (radius is None):
            raise InvalidParameter("expected beta, a number, or radius, an object with its kind: one of the two")
        finite_at_least(values["alpha"], 0.0, "alpha")
        if beta is not None:
            radius = radii.to_dict(radii.as_radius(beta))
        return cls.from_dict({**values, "radius": radius})

    def changed(self, values: dict[str, Any]) -> ModelSettings:
        """These settings with other values; `beta` is a number, or `radius` a dictionary with its kind."""
        values = dict(values)
        if "beta" in values:
            if "radius" in values:
                raise InvalidParameter("expected beta or radius, got both")
            values["radius"] = radii.to_dict(radii.as_radius(values.pop("beta")))
        fixed = sorted(set(values) - CHANGEABLE)
        if fixed:
            raise InvalidParameter(
                f"{', '.join(fixed)} cannot change: the sums of the model would lose their meaning. "
                f"{', '.join(sorted(CHANGEABLE))} can"
            )
        if "alpha" in values:
            finite_at_least(values["alpha"], 0.0, "alpha")
        after = ModelSettings.from_dict({**self.to_dict(), **values})
        if not after._weighs_as(self):
            raise InvalidParameter(
                "drift cannot change from or to a discount: the sums of the model are weighted by age, or are not"
            )
        return after

    def _weighs_as(self, other: ModelSettings) -> bool:
        """Whether observations lose weight with age in the same way, or in neither."""
        is_discounted = isinstance(self.drift, drifts.Discount) or isinstance(other.drift, drifts.Discount)
        return self.drift == other.drift or not is_discounted

    def keeps_sums_of(self, other: ModelSettings) -> bool:
        """Whether sums that were made under the other settings keep their meaning under these."""
        ours, theirs = self.to_dict(), other.to_dict()
        return self._weighs_as(other) and all(
            ours.get(key) == theirs.get(key) for key in (ours.keys() | theirs.keys()) - CHANGEABLE
        )

    def check(self, x: Vector, reward: float) -> None:
        """Refuse an observation that would make the server refuse a whole upload later."""
        if self.reward_bound is not None and abs(reward) > self.reward_bound * SLACK:
            raise InvalidInput(f"the model takes rewards with |r| ≤ {self.reward_bound:g}, got {reward:g}")
        if self.action_bound is not None:
            values = x if self.blocks == 1 else x[1:]  # a compact row begins with the number of its block
            norm = math.sqrt(float(values @ values))
            if norm > self.action_bound * SLACK:
                raise InvalidInput(f"the model takes actions with ‖x‖ ≤ {self.action_bound:g}, got {norm:g}")

    def check_all(self, X: Matrix, y: Vector) -> None:
        """The same for many rows."""
        if self.reward_bound is not None or self.action_bound is not None:
            longest = int(np.einsum("ij,ij->i", X, X).argmax())
            largest = int(np.abs(y).argmax())
            for row in (longest, largest):
                x = X[row] if self.blocks == 1 else compact_row(X[row], self.blocks)
                self.check(x, float(y[row]))

    def to_json(self) -> str:
        """One line, the same for the same settings."""
        return json.dumps(self.to_dict(), sort_keys=True)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The settings of a model as a server describes them to an agent; the id changes when they do."""

    settings: ModelSettings
    settings_id: str = ""
    agent_id: str | None = None  # whom the token belongs to
    uid: str = ""  # of the model: another one after it was deleted and created again

    def continues(self, earlier: ModelDescription) -> bool:
        """Whether it describes the same model with settings that leave its sums and an agent's buffer valid."""
        return self.uid == earlier.uid != "" and self.settings.keeps_sums_of(earlier.settings)

    def widens(self, earlier: ModelDescription) -> bool:
        """Whether it describes the same model with arms or features added: what was gathered before stays valid."""
        return self.uid == earlier.uid != "" and self.settings.is_widened_from(earlier.settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the shape that the server uses."""
        return {**self.settings.to_dict(), "settings": self.settings_id, "agent": self.agent_id, "uid": self.uid}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelDescription:
        """The description in a server's answer; `FormatError` for anything else."""
        try:
            agent = data.get("agent")
            settings = ModelSettings.from_dict(data)
            uid = str(data.get("uid") or "")
            return cls(settings, str(data.get("settings", "")), None if agent is None else str(agent), uid)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise FormatError(f"expected a model's settings from the server, got {_brief(data)}: {error}") from None


def _brief(data: dict[str, Any]) -> str:
    try:
        return repr(data)[:200]
    except RecursionError:
        return "an object without end"


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _whole(value: Any, name: str) -> int | None:
    return None if value is None else whole_at_least(value, 1, name)
