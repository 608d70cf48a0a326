"""FedLinUCB as others write it, on the very rounds that our engines play: for bench/simulator.py.

Each rival takes the blocks of a stream and returns regret and uploads, so that one can see that it does the same work.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedbandit.simulation.worlds import Block

Rounds = Iterable[tuple[np.ndarray, Block]]


def researchers_loop(rounds: Rounds, *, dim: int, n_agents: int, n_rounds: int, beta: float, lam: float) -> tuple:
    """What is published: least squares for every action, a determinant every round. α = 1."""
    server, b_server = lam * np.eye(dim), np.zeros(dim)
    Sigma = [lam * np.eye(dim) for _ in range(n_agents)]
    b = [np.zeros(dim) for _ in range(n_agents)]
    local = [np.zeros((dim, dim)) for _ in range(n_agents)]
    b_local = [np.zeros(dim) for _ in range(n_agents)]
    regret, uploads, t = 0.0, 0, 0
    for active, block in rounds:
        for i in range(min(len(block), n_rounds - t)):
            m, actions = active[i], block.actions(i)
            theta = np.linalg.lstsq(Sigma[m], b[m], rcond=None)[0]
            scores = []
            for x in actions:
                width = np.sqrt(x @ np.linalg.lstsq(Sigma[m], x, rcond=None)[0])
                scores.append(x @ theta + beta * width)
            k = int(np.argmax(scores))
            x, reward = actions[k], block.means[i, k] + block.noise[i]
            local[m] += np.outer(x, x)
            b_local[m] += reward * x
            regret += block.means[i].max() - block.means[i, k]
            if np.linalg.det(Sigma[m] + local[m]) > 2.0 * np.linalg.det(Sigma[m]):
                server, b_server = server + local[m], b_server + b_local[m]
                Sigma[m], b[m] = server.copy(), b_server.copy()
                local[m], b_local[m] = np.zeros((dim, dim)), np.zeros(dim)
                uploads += 1
            t += 1
    return regret, uploads


def plain_numpy(rounds: Rounds, *, dim: int, n_agents: int, n_rounds: int, beta: float, lam: float) -> tuple:
    """Written well: all actions in one einsum, an inverse only at an exchange, slogdet every round. α = 1."""
    server, b_server = lam * np.eye(dim), np.zeros(dim)
    Sigma = np.tile(lam * np.eye(dim), (n_agents, 1, 1))
    inverse = np.tile(np.eye(dim) / lam, (n_agents, 1, 1))
    log_det = np.full(n_agents, dim * np.log(lam))
    theta = np.zeros((n_agents, dim))
    local, b_local = np.zeros((n_agents, dim, dim)), np.zeros((n_agents, dim))
    regret, uploads, t = 0.0, 0, 0
    for active, block in rounds:
        for i in range(min(len(block), n_rounds - t)):
            m, X = active[i], block.actions(i)
            k = int(np.argmax(X @ theta[m] + beta * np.sqrt(np.einsum("ij,ij->i", X @ inverse[m], X))))
            x, reward = X[k], block.means[i, k] + block.noise[i]
            local[m] += np.outer(x, x)
            b_local[m] += reward * x
            regret += block.means[i].max() - block.means[i, k]
            if np.linalg.slogdet(Sigma[m] + local[m])[1] - log_det[m] > np.log(2.0):
                server, b_server = server + local[m], b_server + b_local[m]
                Sigma[m], inverse[m] = server, np.linalg.inv(server)
                log_det[m], theta[m] = np.linalg.slogdet(server)[1], inverse[m] @ b_server
                local[m], b_local[m] = 0.0, 0.0
                uploads += 1
            t += 1
    return regret, uploads


def best_numpy(rounds: Rounds, *, dim: int, n_agents: int, n_rounds: int, beta: float, lam: float) -> tuple:
    """All that NumPy gives for actions from a table: every row scored once an exchange, one product for all of them;
    a running inverse for the trigger, everything in place. α = 1."""
    server, b_server = lam * np.eye(dim), np.zeros(dim)
    P = np.tile(np.eye(dim) / lam, (n_agents, 1, 1))
    growth = np.zeros(n_agents)
    scores: np.ndarray | None = None
    local, b_local = np.zeros((n_agents, dim, dim)), np.zeros((n_agents, dim))
    scratch, threshold = np.empty((dim, dim)), np.log(2.0)
    regret, uploads, t = 0.0, 0, 0
    for active, block in rounds:
        if scores is None:
            table = block.table
            scores = np.tile(beta * np.linalg.norm(table, axis=1) / np.sqrt(lam), (n_agents, 1))
        best = block.means.max(axis=1)
        rewards = block.means + block.noise[:, None]
        for i in range(min(len(block), n_rounds - t)):
            m, rows = active[i], block.rows[i]
            k = scores[m].take(rows).argmax()
            x, reward = table[rows[k]], rewards[i, k]
            np.multiply(x[:, None], x, out=scratch)
            local[m] += scratch
            b_local[m] += reward * x
            regret += best[i] - block.means[i, k]
            u = P[m] @ x
            g = x @ u
            growth[m] += np.log1p(g)
            if growth[m] > threshold:
                server += local[m]
                b_server += b_local[m]
                inverse = np.linalg.inv(server)
                forms = np.einsum("ij,ij->i", table @ inverse, table)
                scores[m] = table @ (inverse @ b_server) + beta * np.sqrt(forms)
                P[m], growth[m] = inverse, 0.0
                local[m], b_local[m] = 0.0, 0.0
                uploads += 1
            else:
                np.multiply(u[:, None], u / (1.0 + g), out=scratch)
                P[m] -= scratch
            t += 1
    return regret, uploads
