"""Prices: twenty shops test prices, and rewards are known only days later.

    python examples/prices.py

The data are synthetic. A visitor sees a price and may buy within a week, which is 200 visits here. A pending decision
does not delay the next one: `choose` now, `observe` when the week is over. Rewards are recorded at the end of the week,
sold or not: recording sales immediately would overestimate every price, because there is no event for a missed sale.
Of the values of β and λ that we tried, these are best for learning alone.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from fleets import WAYS, Fleet, around, compare, options, save, three_fleets, titled, windows

from fedbandit.experiments.output.figures import SERIES, panels

N_SHOPS, WEEK = 20, 200
PRICES = np.array([6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0])  # euros
COST = 4.0


def features(income: float, weekend: float) -> np.ndarray:
    """A row for each price, (7, 6); profit is linear in these, though not in the price."""
    p = PRICES / 10
    ones = np.ones_like(p)
    return np.stack([ones, p, p**2, p * income, income * ones, weekend * ones], axis=1)


def chance_to_sell(income: float, weekend: float) -> np.ndarray:
    """At each price: 90 % at 6 euros for the average visitor, 6 % at 18; more with income and at weekends."""
    return np.clip(1.32 - 0.07 * PRICES + 0.15 * income + 0.1 * weekend, 0.02, 0.98)


def play(seed: int, n_visits: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Expected profit at each visit as a share of the best, for three ways to learn and one without delay."""
    visit_rng, luck_rng = np.random.default_rng(seed).spawn(2)
    shops = visit_rng.integers(N_SHOPS, size=n_visits)
    income, luck = visit_rng.uniform(-1, 1, n_visits), luck_rng.random(n_visits)
    weekend = (visit_rng.random(n_visits) < 2 / 7).astype(float)
    fleets = three_fleets(N_SHOPS, dim=6, alpha=1.0, beta=0.3, lam=0.03)
    prompt = three_fleets(N_SHOPS, dim=6, alpha=1.0, beta=0.3, lam=0.03)[1]
    waiting: dict[str, deque] = {fleet.name: deque() for fleet in fleets}
    found = {name: np.empty(n_visits) for name in (*WAYS, "together, no wait")}
    for t in range(n_visits):
        X, m = features(income[t], weekend[t]), int(shops[t])
        chances = chance_to_sell(income[t], weekend[t])
        profits = chances * (PRICES - COST)
        for fleet in fleets:
            decision = fleet.agents[m].choose(X)
            found[fleet.name][t] = profits[decision.index] / profits.max()
            waiting[fleet.name].append((m, decision, profit(decision.index, chances, luck[t])))
            if len(waiting[fleet.name]) > WEEK:  # the week of the oldest decision is over
                fleet.observe(*waiting[fleet.name].popleft())
        found["together, no wait"][t] = at_once(prompt, m, X, profits, chances, luck[t])
    return found, {fleet.name: fleet.n_messages for fleet in fleets}


def profit(index: int, chances: np.ndarray, luck: float) -> float:
    """In tens of euros, if it sold."""
    return float(luck < chances[index]) * (PRICES[index] - COST) / 10


def at_once(fleet: Fleet, m: int, X: np.ndarray, profits: np.ndarray, chances: np.ndarray, luck: float) -> float:
    """A visit whose reward is known immediately: the difference is the cost of the delay."""
    decision = fleet.agents[m].choose(X)
    fleet.observe(m, decision, profit(decision.index, chances, luck))
    return profits[decision.index] / profits.max()


def main() -> None:
    chosen = options("Prices: twenty shops, rewards that come a week late.", "prices.svg")
    n_visits, n_seeds = (1200, 2) if chosen.quick else (3000, 8)
    runs = [play(seed, n_visits) for seed in range(n_seeds)]
    share = {name: 100 * np.array([found[name] for found, _ in runs]) for name in runs[0][0]}
    print(f"{N_SHOPS} shops, {n_visits:,} visits, rewards {WEEK} visits late, {n_seeds} seeds; % of the best profit:")
    for name, values in share.items():
        n_messages = f"{np.mean([m[name] for _, m in runs]):10,.0f} messages" if name in runs[0][1] else ""
        late = values[:, -n_visits // 3 :].mean(axis=1)
        print(f"  {name:18} all {around(values.mean(axis=1)):>11}   last third {around(late):>11}   {n_messages}")

    figure, (axis,) = panels(1, 1, width=7.5, height=3.8)
    n_windows = 30
    x = (np.arange(n_windows) + 1) * n_visits / n_windows
    looks = {**WAYS, "together, no wait": SERIES[1]}
    compare(axis, x, {name: windows(values, n_windows) for name, values in share.items()}, looks)
    axis.axvline(WEEK, color="#6b727c", linewidth=0.9)
    axis.annotate("the first reward arrives", (WEEK, axis.get_ylim()[0]), xytext=(4, 5), textcoords="offset points")
    axis.set(xlabel="visits, all shops together", ylabel="expected profit, % of the best price's")
    titled(axis, "Prices: rewards that come a week late")
    save(figure, chosen.figure, f"examples/prices.py · synthetic visitors · {n_seeds} seeds, shade: 95 % interval")


if __name__ == "__main__":
    main()
