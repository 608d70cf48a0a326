"""What the words on the dashboard mean; `/words` shows all of them, and every panel links to its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """A word and its meaning."""

    title: str
    text: str


WORDS: Mapping[str, Entry] = {
    "agent": Entry(
        "Agent",
        "One participant: a process that decides, observes rewards, and exchanges with the server. It has a token of "
        "its own and usually a state directory with its journal.",
    ),
    "alpha": Entry(
        "Alpha (α), effective alpha",
        "α is the determinant growth that triggers an exchange: an agent uploads when its observations have multiplied "
        "det Σ by 1 + α. The effective alpha is the largest growth that recent uploads really had; latency and outages "
        "raise it above α.",
    ),
    "arm": Entry(
        "Arm, block",
        "In a model with one block of columns per arm, each arm has a parameter of its own. Observations and mean "
        "reward of an arm are read from the constant feature of its block; without one the sums do not tell them.",
    ),
    "assumptions": Entry(
        "Assumptions: held, contradicted, assumed",
        "What must be true for the radius, and for a shared model, to be right. Held: tested, and not contradicted. "
        "Contradicted: data like these would be very unlikely. Assumed: the server's sums cannot test it, or not yet.",
    ),
    "beta": Entry(
        "Beta (β), confidence radius",
        "How far the true parameter may be from the estimate, in the norm of Σ. An agent adds β·‖x‖ in the norm of Σ⁻¹ "
        "to the estimated reward of each action: the larger β, the more it explores.",
    ),
    "bytes": Entry(
        "Bytes, raw rows",
        "The bytes of all uploads that were merged. Raw rows are what it would cost to send each observation by "
        "itself, once, as float64: the features of the choice (with blocks the context and the arm) and the reward. "
        "Rows grow with the number of observations, uploads about with its logarithm.",
    ),
    "control": Entry(
        "Control and treatment, gain",
        "Where a model has a control group, a share of decisions is made by the application's own default (control), "
        "the others by the model (treatment). The gain is the difference of their mean rewards, with an interval that "
        "may be looked at at any time.",
    ),
    "epoch": Entry("Epoch", "The time between two restarts of a model. Uploads of earlier epochs are discarded."),
    "estimate": Entry(
        "Estimate (θ̂), interval",
        "θ̂ = Σ⁻¹b is the estimated weight of each feature. Its interval is ± β·√(Σ⁻¹)ᵢᵢ.",
    ),
    "events": Entry(
        "Events",
        "What happened to a model and its agents, newest first; the last 1,000 are kept. Notes are written by "
        "administrators, everything else by the server.",
    ),
    "exchange": Entry(
        "Exchange, upload, download",
        "An agent's upload carries the sums of its new observations; the download in the reply is the newest model. "
        "Both together are one exchange.",
    ),
    "incarnation": Entry(
        "Incarnation",
        "One uninterrupted history of an agent's state directory. A process that is killed and started again continues "
        "its incarnation, and nothing is lost. With an empty or recovered directory a new incarnation begins.",
    ),
    "influence": Entry(
        "Influence", "How far the estimate would move without the data of one agent: θ̂ − θ̂₋ₐ, by feature and in all."
    ),
    "information": Entry(
        "Information gained",
        "log det Σ − d·log λ, in nats: how much narrower the model's confidence ellipsoid is than at the start.",
    ),
    "kappa": Entry(
        "Kappa (κ)",
        "In a model with `personal`, how much an agent's own parameter may differ from the fleet's. Where agents "
        "choose it, they do not send it: the dashboard shows what the agent's merged observations give.",
    ),
    "next-upload": Entry(
        "Expected upload, rhythm",
        "An upload needs observations that grow the determinant by 1 + α, about a constant share of all that the model "
        "has. The larger the model, the rarer the uploads: a mature agent is silent for long without any fault. The "
        "expected time is that share, from the agent's own uploads since this server process started, divided by the "
        "agent's own pace; the end of it is twice that, or the longest gap there was. An agent in contact is running, "
        "whatever its next upload.",
    ),
    "observation": Entry(
        "Observation: unsent, in flight, merged",
        "One decision with its reward. It is unsent at its agent, in flight in an upload, and then merged into the "
        "model, exactly once.",
    ),
    "quarantine": Entry(
        "Quarantine",
        "The contribution of an agent in quarantine is not in the model. Its uploads are kept apart, and a release "
        "merges all of them.",
    ),
    "refused": Entry(
        "Refused", "An upload that was not merged, with its reason. The agent keeps the data; nothing is counted twice."
    ),
    "restart": Entry(
        "Restart of a model",
        "After a change of the world the model begins again at its prior, by itself (`drift`) or by an administrator.",
    ),
    "restore": Entry(
        "Restore",
        "The server's data were replaced by a backup. Agents recognise it and send again what the backup lacks.",
    ),
    "reward": Entry(
        "Mean reward, recent",
        "Overall: over all observations in the model. Recent: over the last 5 % of them, at least 20.",
    ),
    "seen": Entry(
        "Last seen, active",
        "An agent was seen when it uploaded or asked for the model. A running agent asks at least every 5 minutes; "
        "active are those seen in the last 10.",
    ),
    "share": Entry(
        "Share of information",
        "tr(Σ⁻¹Σₐ)/d: the part of the model's precision that an agent's data Σₐ contribute, averaged over directions. "
        "The shares of all agents and of the prior add up to exactly 100 %; so do those of all arms and the prior.",
    ),
    "store": Entry("Store", "Where the server keeps everything: a SQLite file or a PostgreSQL database."),
}
