"""News: ten sites recommend articles from a changing set, and learn together what their readers like.

    python examples/news.py

The data are synthetic. Readers (5 interests) meet articles (4 topics); whether a reader clicks depends on the product
of the two. Twelve articles are on the front page; one is replaced every 25 visits. Articles are scored by their
features, so that data of all sites apply to a new article immediately.
"""

from __future__ import annotations

import numpy as np
from fleets import around, compare, options, save, three_fleets, titled, windows

from fedbandit.experiments.output.figures import panels

N_SITES, N_INTERESTS, N_TOPICS, FRONT_PAGE, LIFETIME = 10, 5, 4, 12, 25


class News:
    """One seeded world: readers, articles that change, clicks."""

    def __init__(self, seed: int, n_visits: int) -> None:
        taste_rng, reader_rng, article_rng, site_rng, self.click_rng = np.random.default_rng(seed).spawn(5)
        taste = taste_rng.normal(size=(N_INTERESTS, N_TOPICS))
        self.theta = 0.6 * taste.ravel() / np.linalg.norm(taste)
        self.readers = reader_rng.dirichlet(np.full(N_INTERESTS, 0.5), size=n_visits)
        n_articles = FRONT_PAGE + n_visits // LIFETIME + 1
        self.articles = article_rng.dirichlet(np.full(N_TOPICS, 0.5), size=n_articles)
        self.sites = site_rng.integers(N_SITES, size=n_visits)
        self.luck = self.click_rng.random(n_visits)

    def actions(self, t: int) -> np.ndarray:
        """A row for each article on the front page: interests times topics, (12, 20)."""
        newest = FRONT_PAGE + t // LIFETIME
        page = self.articles[newest - FRONT_PAGE : newest]
        return np.einsum("i,kj->kij", self.readers[t], page).reshape(FRONT_PAGE, -1)

    def chance(self, x: np.ndarray) -> np.ndarray:
        """The probability of a click, from 0.2 % to 40 %."""
        return np.clip(0.12 + x @ self.theta, 0.002, 0.4)


def play(seed: int, n_visits: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Expected clicks at each visit, for three ways to learn and two baselines; messages of each way."""
    world = News(seed, n_visits)
    fleets = three_fleets(N_SITES, dim=N_INTERESTS * N_TOPICS, alpha=1.0, beta=0.3, lam=0.1)
    found = {name: np.empty(n_visits) for name in [fleet.name for fleet in fleets] + ["random", "best"]}
    for t in range(n_visits):
        X, m = world.actions(t), int(world.sites[t])
        chances = world.chance(X)
        found["random"][t], found["best"][t] = chances.mean(), chances.max()
        for fleet in fleets:
            decision = fleet.agents[m].choose(X)
            chance = chances[decision.index]
            found[fleet.name][t] = chance
            fleet.observe(m, decision, float(world.luck[t] < chance) - 0.12)  # what is above the usual 12 %
    return found, {fleet.name: fleet.n_messages for fleet in fleets}


def main() -> None:
    chosen = options("News: ten sites, articles that come and go.", "news.svg")
    n_visits, n_seeds = (1500, 2) if chosen.quick else (10_000, 6)
    runs = [play(seed, n_visits) for seed in range(n_seeds)]
    # Seeds differ in the reward that is possible, so regret is compared.
    missed = {name: 100 * np.array([found["best"] - found[name] for found, _ in runs]) for name in runs[0][0]}
    possible = 100 * np.mean([found["best"] for found, _ in runs])
    print(
        f"{N_SITES} sites, {n_visits:,} visits, {n_seeds} seeds; the best articles would get {possible:.1f} clicks per"
    )
    print("100 visits. Missed of them in the last third:")
    for name, values in missed.items():
        if name == "best":
            continue
        n_messages = np.mean([messages[name] for _, messages in runs]) if name in runs[0][1] else 0.0
        print(f"  {name:10}  {around(values[:, -n_visits // 3 :].mean(axis=1)):>12}   {n_messages:10,.0f} messages")

    figure, (axis,) = panels(1, 1, width=7.5, height=3.8)
    n_windows = 30
    x = (np.arange(n_windows) + 1) * n_visits / n_windows
    compare(axis, x, {name: windows(missed[name], n_windows) for name in ("alone", "together", "all shared")})
    axis.axhline(missed["random"].mean(), color="#6b727c", linewidth=0.9)
    axis.annotate("any article", (x[0], missed["random"].mean()), xytext=(3, 3), textcoords="offset points", fontsize=8)
    axis.set_ylim(bottom=0.0)
    axis.set(xlabel="visits, all sites together", ylabel=f"clicks missed per 100 visits (of {possible:.0f})")
    titled(axis, "News: a front page that changes every 25 visits")
    save(figure, chosen.figure, f"examples/news.py · synthetic readers · {n_seeds} seeds, shade: 95 % interval")


if __name__ == "__main__":
    main()
