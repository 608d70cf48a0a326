"""What short-lived agents cost: rows, bytes and the time of a page, before and after they are folded.

    python bench/short_lived_agents.py [--agents 10000] [--dim 25]

Each agent enrols, uploads once and is retired, as a pod that lives for an hour. Sizes are those of the SQLite file
after a vacuum; times are ratios to those of a fleet of 100 agents in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import tempfile
import time
from pathlib import Path

import numpy as np

from fedbandit.algorithms.messages import digest_of, packed_bytes
from fedbandit.core.radius import Fixed
from fedbandit.core.statistics import SufficientStats
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.stores.base import PageQuery
from fedbandit.service.stores.enrolments import Enrolment, Redemption
from fedbandit.service.stores.sqlite.store import SqliteStore, opened
from fedbandit.wire.settings import ModelSettings


def digest(*words: object) -> bytes:
    return hashlib.sha256(repr(words).encode()).digest()


async def live_and_end(store: SqliteStore, n_agents: int, dim: int, first: int) -> None:
    rng = np.random.default_rng(first)
    stats = packed_bytes(SufficientStats.of(rng.normal(size=(30, dim)), rng.normal(size=30)))
    for number in range(first, first + n_agents):
        token = digest("token", number)
        wanted = Redemption(digest("secret"), digest("nonce", number), token, f"web-{number:010}")
        await store.redeem("pods", wanted, now=float(number))
        numbers = np.frombuffer(stats, dtype="<f8")
        upload = IncomingUpload(wanted.agent, "life", 1, digest_of(stats), numbers, 0.5, token)
        await store.merge("pods", [upload], now=float(number))
        await store.retire("pods", wanted.agent, on=True, now=float(number))


async def page_s(store: SqliteStore) -> float:
    """The best of several times of what a view of the dashboard asks for."""
    times = []
    for _ in range(9):
        begun = time.perf_counter()
        await store.fleet("pods", since=0.0)
        await store.agents("pods", PageQuery(per_page=50, sort="-n_obs"))
        await store.load("pods")
        times.append(time.perf_counter() - begun)
    return min(times)


async def measure(n_agents: int, dim: int, folder: Path) -> None:
    store = SqliteStore(folder)
    await store.open()
    settings = ModelSettings(name="pods", dim=dim, lam=1.0, alpha=1.0, radius=Fixed(0.5))
    await store.create(settings, uid="pods", now=0.0)
    await store.create_enrolment("pods", Enrolment("e", 0.0, "web-"), digest("secret"), now=0.0)
    await live_and_end(store, 100, dim, 0)
    few_s, few = await page_s(store), size(store.path)
    begun = time.perf_counter()
    await live_and_end(store, n_agents, dim, 100)
    each_ms = 1e3 * (time.perf_counter() - begun) / n_agents
    print(f"{n_agents} agents enrolled, uploaded and retired: {each_ms:.2f} ms each")
    many_s, many = await page_s(store), size(store.path)
    report("rows kept", (many - few) / n_agents, many_s / few_s)
    before = (await store.state("pods")).packed
    begun = time.perf_counter()
    while await store.fold_retired("pods", before=1e18, token_hash=digest("nobody"), now=1e9):
        pass
    fold_s = time.perf_counter() - begun
    assert (await store.state("pods")).packed == before
    folded_s, folded = await page_s(store), size(store.path)
    report("rows folded", folded / n_agents, folded_s / few_s)
    print(f"folding takes {1e3 * fold_s / n_agents:.3f} ms per agent")
    await store.close()


def report(name: str, n_bytes: float, ratio: float) -> None:
    print(f"{name}: {n_bytes:.0f} bytes per agent, a page takes {ratio:.1f} times as long as with 100")


def size(path: Path) -> int:
    with opened(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=25)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(measure(options.agents, options.dim, Path(temporary)))
