"""The store protocol and its values. One contract suite runs over every store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.errors import InvalidParameter
from fedbandit.service.exchange.epochs import ModelRestart
from fedbandit.service.exchange.ledger import IncomingUpload, MergeOutcome
from fedbandit.service.model import Model, alpha_of
from fedbandit.service.stores.checkpoints import Checkpoint
from fedbandit.service.stores.enrolments import EnrolmentStore
from fedbandit.service.stores.rewards import RewardStore
from fedbandit.wire.settings import ModelSettings

Role = Literal["admin", "viewer", "reporter", "agent", "enrolment", "link"]
Widening = Callable[[ModelSettings], ModelSettings]  # the settings of a model with arms or features added
SORTS = ("name", "last_seen", "n_obs", "n_uploads", "created", "growth", "unsent", "mean_reward")
MAX_PER_PAGE = 500
MAX_EVENTS = 1_000  # kept for each model
MAX_SAMPLES = 1_200  # kept for each model; older ones are thinned out by half when there are more


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a token; for an agent or an enrolment also its model."""

    role: Role
    name: str
    model: str = ""
    revoked: bool = False
    retired: bool = False
    until: float | None = None  # a token that was renewed is valid until then


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model with its packed sums, read together."""

    model: Model
    packed: bytes


@dataclass(frozen=True, slots=True)
class AgentSum:
    """The packed sum of everything merged from one agent."""

    name: str
    n_obs: int
    packed: bytes


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """The state after a batch, and for each upload what is acknowledged or why it was refused."""

    model: Model
    packed: bytes
    outcomes: list[MergeOutcome]
    n_merged: int  # or discarded
    restarts: Sequence[ModelRestart] = ()


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent as an operator sees it."""

    name: str
    created: float
    revoked: bool
    quarantined: bool
    last_seen: float | None
    incarnation: str
    sequence: int
    n_uploads: int
    n_obs: int
    reward_sum: float
    n_bytes: int
    growth: float
    growth_most: float
    unsent: int
    model_version: int
    retired: float | None = None  # when; None: at work
    enrolment: str = ""  # by which it came
    n_discarded: int = 0
    groups: GroupSums = NO_GROUPS  # its rewards by group, where the model has a control group

    @property
    def counts(self) -> bool:
        """Whether the model contains data of this agent."""
        return self.n_uploads > 0 and not self.quarantined

    def to_dict(self) -> dict[str, Any]:
        """The response of the agent routes."""
        return {
            **asdict(self),
            "mean_reward": self.reward_sum / self.n_obs if self.n_obs else None,
            "alpha": alpha_of(self.growth),
            "worst_alpha": alpha_of(self.growth_most),
        }


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A page of a sorted search for agents; `-` before the sort key means descending."""

    page: int = 1
    per_page: int = 50
    sort: str = "name"
    search: str = ""
    retired: bool | None = False  # True: only those that were retired; None: all

    def __post_init__(self) -> None:
        if not 1 <= self.page <= 1_000_000:
            raise InvalidParameter(f"expected page from 1 to 1000000, got {self.page}")
        if not 1 <= self.per_page <= MAX_PER_PAGE:
            raise InvalidParameter(f"expected per_page from 1 to {MAX_PER_PAGE}, got {self.per_page}")
        if self.sort.removeprefix("-") not in SORTS:
            raise InvalidParameter(f"expected sort to be one of {', '.join(SORTS)}, got {self.sort[:50]!r}")
        if len(self.search) > 200:
            raise InvalidParameter("expected a search of at most 200 characters")
        if "\0" in self.search:
            raise InvalidParameter("expected a search without NUL characters")

    @property
    def key(self) -> str:
        """The sort key."""
        return self.sort.removeprefix("-")

    @property
    def descending(self) -> bool:
        """Whether the largest comes first."""
        return self.sort.startswith("-")

    @property
    def offset(self) -> int:
        """The number of agents before the page."""
        return (self.page - 1) * self.per_page


@dataclass(frozen=True, slots=True)
class AgentPage:
    """One page, and the total number of agents found."""

    agents: list[AgentRecord]
    total: int


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """All agents of a model in a few numbers."""

    n_agents: int = 0
    n_active: int = 0  # seen since a given time
    n_silent: int = 0  # never seen
    n_revoked: int = 0
    n_with_unsent: int = 0  # agents that reported unsent observations
    unsent: int = 0  # those observations, as of each agent's last upload
    last_seen: float | None = None
    n_quarantined: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """An event for operators: enrolled, renewed, revoked, refused and why, forgotten."""

    at: float
    kind: str
    agent: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts of a model at one time; cumulative, so that thinning loses no total."""

    at: float
    version: int
    n_obs: int
    reward_sum: float
    n_uploads: int
    n_bytes: int
    log_det: float
    growth: float  # largest among recent uploads


@dataclass(frozen=True, slots=True)
class Contact:
    """An agent that asked for the model at this time; uploads are recorded by `merge`."""

    agent: str
    at: float


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry for a model's history, by its uid so that a deleted model's are dropped."""

    uid: str
    entry: Event | Sample | Contact | Checkpoint


class Store(EnrolmentStore, RewardStore, Protocol):
    """Durable when a call returns. Unknown names raise `UnknownModel` or `UnknownAgent`, outages `StoreUnavailable`."""

    async def open(self) -> None:
        """Connect and bring the schema up to date."""
        ...

    async def close(self) -> None:
        """Finish running operations and close."""
        ...

    async def ping(self) -> None:
        """Raise `StoreUnavailable` if the store cannot be reached."""
        ...

    # -- models

    async def create(self, settings: ModelSettings, *, uid: str, now: float) -> Model:
        """A new model at its prior; `AlreadyExists` if the name is taken."""
        ...

    async def models(self) -> list[Model]:
        """All models, by name."""
        ...

    async def load(self, model: str) -> Model:
        """A model without its sums."""
        ...

    async def state(self, model: str) -> ModelState:
        """A model with its sums."""
        ...

    async def configure(self, model: str, before: ModelSettings, after: ModelSettings) -> bool:
        """Replace the settings of a model; False, and no change, if they are not `before` any more."""
        ...

    async def delete(self, model: str) -> None:
        """Remove a model, its agents and their tokens."""
        ...

    async def merge(self, model: str, batch: Sequence[IncomingUpload], *, now: float) -> MergedBatch:
        """Fold a batch in one transaction: each upload is merged once, acknowledged as a retry, or refused."""
        ...

    async def restart(self, model: str, *, now: float) -> Model:
        """Begin a new epoch at the prior; uploads of earlier epochs are discarded from now on."""
        ...

    # -- agents

    async def enroll(
        self,
        model: str,
        agent: str,
        token_hash: bytes,
        *,
        now: float,
        renew: bool = False,
        old_until: float | None = None,
    ) -> None:
        """Enrol an agent; with `renew` an existing one gets a new token, and is no longer revoked.

        The token before stays valid until `old_until`.
        """
        ...

    async def agent(self, model: str, agent: str) -> AgentRecord:
        """One agent."""
        ...

    async def agents(self, model: str, query: PageQuery) -> AgentPage:
        """A page of agents."""
        ...

    async def fleet(self, model: str, *, since: float) -> FleetSummary:
        """All agents in a few numbers; active are those seen since then."""
        ...

    async def contribution(self, model: str, agent: str) -> bytes | None:
        """The packed sum of everything merged from an agent, None before its first upload."""
        ...

    async def counted_sums(self, model: str, *, limit: int) -> list[AgentSum]:
        """The sums of the agents that the model contains, those with most observations first."""
        ...

    async def revoke(self, model: str, agent: str, *, now: float) -> None:
        """Revoke the agent's token; its contribution stays."""
        ...

    async def forget(self, model: str, agent: str, *, now: float) -> Model:
        """State = λI + the other agents' sums; the agent's incarnation is retired, so that no retry restores it."""
        ...

    async def quarantine(self, model: str, agent: str, *, on: bool, now: float) -> Model:
        """Exclude an agent's sum from the state, or include it: state = λI + the sums of agents not in quarantine.

        Uploads of an agent in quarantine are merged once, into its own sum. No change if nothing would change.
        """
        ...

    async def widen(self, model: str, widen: Widening, *, now: float) -> Model:
        """Add arms or features behind those that the model has: they begin at the prior, everything else stays.

        Sums of agents get the same blocks or columns, without data; checkpoints of the narrower model are dropped.
        """
        ...

    # -- tokens of people

    async def put_token(self, name: str, role: Role, token_hash: bytes, *, now: float, replace: bool = False) -> bool:
        """Store a token under a name; False, and no change, if the name is taken and `replace` is not set."""
        ...

    async def find_token(self, token_hash: bytes) -> Principal | None:
        """The owner of a token."""
        ...

    async def tokens(self) -> list[Principal]:
        """The owners of tokens except agents, by name."""
        ...

    async def drop_token(self, name: str) -> bool:
        """Delete the token of this name; False if there is none."""
        ...

    # -- history

    async def record(self, notes: Sequence[HistoryEntry]) -> None:
        """Add to the models' histories, and remove entries beyond the limits; a contact updates `last_seen`."""
        ...

    async def events(self, model: str, *, limit: int = 100) -> list[Event]:
        """The newest events, newest first."""
        ...

    async def samples(self, model: str) -> list[Sample]:
        """The time series, oldest first."""
        ...

    async def checkpoints(self, model: str) -> list[Checkpoint]:
        """Earlier states of the model, oldest first."""
        ...
