"""The cost of sharing everything in simple ways: the baselines beside every count of messages.

- Two messages per decision: each decision uploads its observation and downloads the result. This is FedLinUCB with
  α = 0, `join` and `refresh="arrival"`, and its agents decide on all data, as one shared model does.
- A broadcast: each observation goes up and the new model goes down to all M agents, M + 1 messages per round. This is
  Table 1's OFUL; fetching a model before each decision is always cheaper, so this baseline flatters every fleet.
- Raw rows: each context goes to the server with its arm and its reward, in bytes. A message carries d(d+1)/2 + d + 3
  numbers, so that statistics save bytes only when a fleet sees many more rows than it sends messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedbandit.algorithms.messages import n_bytes

NUMBER_BYTES = 8  # float64, as on our wire


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingCost:
    """Messages and bytes of sharing everything, for M agents, T decisions in all and d features.

    `row_numbers` are the numbers of one raw row: the chosen action's features and the reward (d + 1) when left out;
    fewer where the features are made from a shorter context.

    >>> digits = SharingCost(n_agents=20, n_rounds=1797, dim=110, row_numbers=12)
    >>> digits.two_per_decision, digits.broadcast, digits.raw_bytes
    (3594, 37737, 172512)
    """

    n_agents: int
    n_rounds: int
    dim: int
    row_numbers: int | None = None
    blocks: int = 1  # of a model with disjoint arms, whose messages are shorter

    @property
    def two_per_decision(self) -> int:
        """Messages if each decision uploads and downloads: 2T."""
        return 2 * self.n_rounds

    @property
    def broadcast(self) -> int:
        """Messages if each observation is uploaded and the model sent to all agents: (M + 1)T."""
        return (self.n_agents + 1) * self.n_rounds

    @property
    def raw_bytes(self) -> int:
        """Bytes of all raw rows, each sent to the server once, as float64."""
        numbers = self.dim + 1 if self.row_numbers is None else self.row_numbers
        return NUMBER_BYTES * numbers * self.n_rounds

    @property
    def raw_bytes_to_everybody(self) -> int:
        """Bytes of all raw rows if every other agent gets them too, to decide locally."""
        return self.n_agents * self.raw_bytes

    def bytes_of(self, n_messages: float) -> float:
        """Bytes of this many messages with statistics."""
        return n_messages * n_bytes(self.dim, self.blocks)

    def rounds_until_cheaper(self, n_bytes_sent: float) -> float:
        """Rounds from which the sums cost fewer bytes than raw rows, for a fleet that has sent so many bytes by now.

        Rows cost the same in every round. Messages are at most c·log(1 + t/d) (`fb.theory.message_bound`), so from the
        bytes of T rounds on they grow by the logarithm: the t with bytes(T)·log(1 + t/d)/log(1 + T/d) = row bytes · t.

        >>> SharingCost(n_agents=20, n_rounds=1797, dim=110, row_numbers=12).rounds_until_cheaper(2_000_000) > 20_000
        True
        """
        scale = n_bytes_sent / math.log1p(self.n_rounds / self.dim)
        per_row = self.raw_bytes / self.n_rounds
        low, high = 1.0, 1.0
        while scale * math.log1p(high / self.dim) > per_row * high and high < 1e18:
            low, high = high, 2.0 * high
        for _ in range(60):
            middle = 0.5 * (low + high)
            is_cheaper = scale * math.log1p(middle / self.dim) <= per_row * middle
            low, high = (low, middle) if is_cheaper else (middle, high)
        return math.ceil(high)

    def per_decision(self, n_messages: float) -> float:
        """Messages per decision."""
        return n_messages / self.n_rounds

    def of_two_per_decision(self, n_messages: float) -> float:
        """Messages relative to two per decision."""
        return n_messages / self.two_per_decision

    def of_broadcast(self, n_messages: float) -> float:
        """Messages relative to a broadcast per round."""
        return n_messages / self.broadcast


def human_bytes(n: float) -> str:
    """Bytes as text with a unit.

    >>> human_bytes(172512), human_bytes(45_100_000)
    ('173 kB', '45.1 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if n >= 100 or unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"


def baseline_note(costs: Sequence[SharingCost]) -> str:
    """The baselines of a study's fleets as a sentence, with ranges where there are several."""
    return (
        f"For scale: two messages per decision (α = 0 with join and arrival, which uses all data) would be "
        f"{range_text([c.two_per_decision for c in costs])} messages, a broadcast of every observation to all agents "
        f"(M + 1 per round) {range_text([c.broadcast for c in costs])}; the raw rows (features of the choice and "
        f"reward, sent once) are {range_text([c.raw_bytes for c in costs], human_bytes)}, a message is "
        f"{range_text([n_bytes(c.dim, c.blocks) for c in costs], human_bytes)}."
    )


def range_text(values: Sequence[float], form: Callable[[float], str] | None = None) -> str:
    """The smallest and the largest as text, once where they read the same."""
    low, high = ((form or _count)(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _count(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")
