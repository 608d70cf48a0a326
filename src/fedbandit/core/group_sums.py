"""Rewards by group: how many decisions the application's default and the algorithm made, and what they earned."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fedbandit.errors import FormatError

CONTROL, TREATMENT = "control", "treatment"
GROUPS = (CONTROL, TREATMENT)
PACKED = struct.Struct("<6d")


@dataclass(frozen=True, slots=True)
class RewardSums:
    """n, Σr and Σr² of some rewards.

    >>> RewardSums().observe(2.0).observe(4.0)
    RewardSums(n_obs=2, reward_sum=6.0, reward_sq_sum=20.0)
    """

    n_obs: int = 0
    reward_sum: float = 0.0
    reward_sq_sum: float = 0.0

    def observe(self, reward: float) -> RewardSums:
        """The sums with one more reward."""
        return RewardSums(self.n_obs + 1, self.reward_sum + reward, self.reward_sq_sum + reward * reward)

    def __add__(self, other: RewardSums) -> RewardSums:
        return RewardSums(
            self.n_obs + other.n_obs,
            self.reward_sum + other.reward_sum,
            self.reward_sq_sum + other.reward_sq_sum,
        )

    @property
    def mean(self) -> float | None:
        """The mean reward, None without any."""
        return self.reward_sum / self.n_obs if self.n_obs else None

    @property
    def variance(self) -> float | None:
        """The unbiased variance of a reward, None for fewer than two."""
        if self.n_obs < 2:
            return None
        spread = self.reward_sq_sum - self.reward_sum**2 / self.n_obs
        return max(spread, 0.0) / (self.n_obs - 1)


@dataclass(frozen=True, slots=True)
class GroupSums:
    """The rewards of control decisions, by the application's default, and of treatment decisions, by the algorithm.

    Rewards of rows that no decision chose are in neither.
    """

    control: RewardSums = RewardSums()
    treatment: RewardSums = RewardSums()

    def observe(self, group: str, reward: float) -> GroupSums:
        """The sums with one more reward of this group."""
        if group == CONTROL:
            return GroupSums(self.control.observe(reward), self.treatment)
        return GroupSums(self.control, self.treatment.observe(reward))

    def __add__(self, other: GroupSums) -> GroupSums:
        return GroupSums(self.control + other.control, self.treatment + other.treatment)

    def __bool__(self) -> bool:
        return self.n_obs > 0

    @property
    def n_obs(self) -> int:
        """Rewards in both groups."""
        return self.control.n_obs + self.treatment.n_obs

    def to_bytes(self) -> bytes:
        """n, Σr, Σr² of control, then of treatment, as little-endian float64; nothing for no rewards."""
        if self == NO_GROUPS:
            return b""
        one, two = self.control, self.treatment
        return PACKED.pack(one.n_obs, one.reward_sum, one.reward_sq_sum, two.n_obs, two.reward_sum, two.reward_sq_sum)

    @classmethod
    def from_bytes(cls, packed: bytes) -> GroupSums:
        """The sums of bytes made by `to_bytes`."""
        if not packed:
            return NO_GROUPS
        if len(packed) != PACKED.size:
            raise FormatError(f"expected {PACKED.size} bytes of sums per group, got {len(packed)}")
        numbers = PACKED.unpack(packed)
        for n in (numbers[0], numbers[3]):
            if not (0 <= n <= 1 << 53 and n == int(n)):
                raise FormatError(f"expected whole numbers of rewards per group, got {n}")
        return cls(RewardSums(int(numbers[0]), *numbers[1:3]), RewardSums(int(numbers[3]), *numbers[4:6]))


NO_GROUPS = GroupSums()
