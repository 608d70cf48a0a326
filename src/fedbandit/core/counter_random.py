"""Random numbers as a function of what they are for: seed, agent, incarnation, purpose and decision number.

No generator is advanced, so no number depends on how many were drawn before: the simulator, the compiled engine, a live
agent, the same agent after a restart and a client in another language all draw the same for the same decision.

The generator is SplitMix64 (Steele, Lea and Flood 2014), twice. Its n-th output for a seed s, n = 0, 1, …, is
mix64(s + (n + 1)·GAMMA) modulo 2⁶⁴. A key is FNV-1a (64 bits) of the text "seed␀purpose␀incarnation␀agent" in UTF-8,
␀ the byte 0, mixed once. Decision n has the n-th output for the key as its own seed, and draw i of it is output i
for that seed. It is not cryptographic: whoever knows seed, agent and incarnation can compute every draw.
"""

from __future__ import annotations

import math

import numpy as np

from fedbandit.core.arrays import Vector

GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
TO_UNIT = 2.0**-53


def mix64(z: int) -> int:
    """The finalizer of SplitMix64: a bijection of 64-bit numbers."""
    z = ((z ^ (z >> 30)) * FIRST) & MASK
    z = ((z ^ (z >> 27)) * SECOND) & MASK
    return z ^ (z >> 31)


def splitmix64(seed: int, n: int) -> int:
    """Output n = 0, 1, … of SplitMix64.

    >>> splitmix64(1234567, 0)
    6457827717110365317
    """
    return mix64((seed + (n + 1) * GAMMA) & MASK)


def key_of(seed: int, agent_id: str, incarnation: str, purpose: str) -> int:
    """The 64-bit key of one agent's draws for one purpose."""
    value = FNV_OFFSET
    for byte in f"{seed}\0{purpose}\0{incarnation}\0{agent_id}".encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * FNV_PRIME) & MASK
    return mix64(value)


class CounterRandom:
    """Draws of one agent for one purpose, by decision number; purposes are independent of each other.

    >>> coin = CounterRandom(seed=0, agent_id="shop-1", incarnation="i", purpose="control")
    >>> coin.uniform(7) == coin.uniform(7) != coin.uniform(8)
    True
    """

    __slots__ = ("key",)

    def __init__(self, *, seed: int, agent_id: str, incarnation: str, purpose: str) -> None:
        self.key = key_of(seed, agent_id, incarnation, purpose)

    def bits(self, number: int, i: int = 0) -> int:
        """Draw i of decision `number`: 64 random bits."""
        return splitmix64(splitmix64(self.key, number), i)

    def uniform(self, number: int, i: int = 0) -> float:
        """Draw i of decision `number` as a multiple of 2⁻⁵³ in [0, 1): the upper 53 bits."""
        return (self.bits(number, i) >> 11) * TO_UNIT

    def index(self, number: int, n: int, i: int = 0) -> int:
        """Draw i of decision `number` as one of 0, …, n − 1: ⌊u·n⌋ of the uniform u."""
        return min(int(self.uniform(number, i) * n), n - 1)

    def uniforms(self, number: int, n: int) -> Vector:
        """Draws 0, …, n − 1 of decision `number` as uniforms, (n,)."""
        steps = np.arange(1, n + 1, dtype=np.uint64)
        z = np.uint64(splitmix64(self.key, number)) + steps * np.uint64(GAMMA)  # wraps, as it should
        z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
        return np.asarray(((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * TO_UNIT)

    def normals(self, number: int, n: int) -> Vector:
        """n standard normal numbers of decision `number`, by Box and Muller: a pair for each two uniforms u, v.

        The pair is √(−2 log(1 − u)) times cos 2πv and sin 2πv; of an odd n the last sine is left out.
        """
        pairs = self.uniforms(number, n + n % 2).reshape(-1, 2)
        radius = np.sqrt(-2.0 * np.log(1.0 - pairs[:, 0]))
        angle = 2.0 * math.pi * pairs[:, 1]
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]).reshape(-1)[:n]
