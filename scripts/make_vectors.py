"""Write docs/vectors/*.json: what a client in another language must reproduce.

    .venv/bin/python scripts/make_vectors.py

Every number is chosen so that sums of data are exact in float64: bytes of statistics and digests are then the same
in every language, whatever the order of additions. Growth, scores and β need a tolerance (1e-9 is plenty). A choice is
either clear by a wide margin or a tie by construction, so that rounding never decides. docs/vectors/README.md says how
to read the files; tests/wire/test_vectors.py keeps them equal to what the code does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedbandit import FedLinUCB, SufficientStats, Upload
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Download, Pull, digest_of, packed_bytes
from fedbandit.core import personal as personals
from fedbandit.core import radius as radii
from fedbandit.core.arrays import TIE
from fedbandit.core.block_rows import full_row, joined, split_rows
from fedbandit.core.counter_random import CounterRandom, splitmix64
from fedbandit.errors import FormatError, NotOneBlock
from fedbandit.wire import codec

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "vectors"
SETTINGS_ID = "0123456789abcdef"
Row = Sequence[float]


def make() -> dict[str, Any]:
    """File name -> content."""
    return {
        "statistics.json": statistics(),
        "messages.json": messages(),
        "agents.json": agents(),
        "random.json": random_numbers(),
        "policies.json": policies(),
        "blocks.json": blocks(),
    }


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in make().items():
        text = to_text(content)
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"{FOLDER / name}: {len(text)} bytes")


def to_text(content: Any) -> str:
    """JSON with one case, or one step, a line."""
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {_list(value)}" for key, value in content.items()) + "\n}\n"


def _list(value: Any) -> str:
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join("  " + _case(case) for case in value) + "\n ]"


def _case(case: dict[str, Any]) -> str:
    if "steps" not in case:
        return json.dumps(case, ensure_ascii=False)
    head = json.dumps({key: value for key, value in case.items() if key != "steps"}, ensure_ascii=False)
    steps = ",\n".join("    " + json.dumps(step, ensure_ascii=False) for step in case["steps"])
    return f'{head[:-1]}, "steps": [\n{steps}\n  ]}}'


# -- statistics


def statistics() -> dict[str, Any]:
    """Observations, the sums they give, their bytes and their digest."""
    cases: list[tuple[str, float, list[tuple[Row, float]]]] = [
        ("no data, one feature", 0.0, []),
        ("the prior of three features", 2.5, []),
        ("one feature", 0.0, [([3.0], -2.0)]),
        ("two features, one observation", 0.0, [([1.0, 2.0], 1.0)]),
        ("three features, signs and fractions", 0.0, [([1.0, -0.5, 0.25], 1.5), ([-2.0, 0.0, 4.0], -0.125)]),
        ("a model: prior and data", 1.0, [([1.0, 0.0, 2.0, 0.0], 1.0), ([0.0, 1.0, 0.0, 3.0], 0.0)]),
        ("large and small", 0.0, [([2.0**40, 2.0**-40], 2.0**20)]),
    ]
    dims = {"no data, one feature": 1, "the prior of three features": 3}
    return {"cases": [_statistics_case(name, lam, pairs, dims.get(name, 0)) for name, lam, pairs in cases]}


def _statistics_case(name: str, lam: float, pairs: list[tuple[Row, float]], dim: int) -> dict[str, Any]:
    dim = dim or len(pairs[0][0])
    stats = SufficientStats.prior(dim=dim, lam=lam) if lam else SufficientStats.zeros(dim)
    for x, reward in pairs:
        stats = stats + SufficientStats.of([x], [reward])
    packed = packed_bytes(stats)
    return {
        "name": name,
        "dim": dim,
        "lam": lam,
        "observations": [{"x": list(x), "reward": reward} for x, reward in pairs],
        "Sigma": stats.Sigma.tolist(),
        "b": stats.b.tolist(),
        "n_obs": stats.n_obs,
        "reward_sum": stats.reward_sum,
        "reward_sq_sum": stats.reward_sq_sum,
        "bytes": packed.hex(),
        "digest": digest_of(packed).hex(),
    }


# -- messages


def messages() -> dict[str, Any]:
    """Messages with their bytes, other encodings of the same message, and invalid bytes."""
    requests, replies = _requests(), _replies()
    return {
        "requests": [{"fields": _plain(message), "bytes": codec.encode(message).hex()} for message in requests],
        "replies": [{"fields": _plain(message), "bytes": codec.encode(message).hex()} for message in replies],
        "same_replies": _same_replies(replies[1]),
        "bad_replies": _bad_replies(replies[1]),
        "bad_requests": _bad_requests(requests[1]),
    }


def _requests() -> list[codec.SyncRequest]:
    one = Upload("a", "i", 1, SufficientStats.of([[3.0]], [-2.0]), 2.302585092994046)
    two = Upload("shop-1", "0123456789abcdef0123456789abcdef", 3, _ints(2, 1), 1.25)
    many = Upload("Händler@7", "ü" * 40, 70_000, _ints(8, 2), 0.0)
    last = Upload("x" * 200, "y" * 64, (1 << 53) - 1, _ints(3, 3), 1e-300)
    return [
        codec.request_of(one),
        codec.request_of(two, model_version=7, unsent=2),
        codec.request_of(many, model_version=300, unsent=128),
        codec.request_of(last, model_version=1 << 33, unsent=1 << 16),
    ]


def _replies() -> list[codec.SyncReply]:
    one = Download("a", 0, SufficientStats.prior(dim=1, lam=1.0), 0)
    two = Download("shop-1", 8, SufficientStats.prior(dim=2, lam=0.5) + _ints(2, 4), 3)
    many = Download("Händler@7", 70_000, SufficientStats.prior(dim=8, lam=1.0) + _ints(8, 5), 69_999)
    far = Download("x", 1 << 40, SufficientStats.prior(dim=3, lam=1.0) + _ints(3, 6), 1 << 35)
    return [
        codec.reply_of(download, settings=SETTINGS_ID if download is not one else "")
        for download in (one, two, many, far)
    ]


def _ints(dim: int, seed: int) -> SufficientStats:
    rng = np.random.default_rng(seed)
    return SufficientStats.of(rng.integers(-3, 4, (5, dim)).astype(float), rng.integers(-2, 3, 5).astype(float))


def _plain(message: codec.SyncRequest | codec.SyncReply) -> dict[str, Any]:
    fields = codec.fields_of(message)
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in fields.items()}


def _same_replies(reply: codec.SyncReply) -> list[dict[str, Any]]:
    """Encodings that a reader must decode to the same reply."""
    fields = codec.fields_of(reply)
    pack = msgspec.msgpack.encode
    other_order = dict(reversed(fields.items()))
    more = {
        **fields,
        "later": [1, -2, 1.5, None, True, {"a": b"b"}],
        "text": "ß" * 40,
        "ext": msgspec.msgpack.Ext(5, b"123"),
    }
    wide = pack(fields).replace(b"\xa7version\x08", b"\xa7version\xcf" + (8).to_bytes(8, "big"))
    long_head = b"\xde\x00\x07" + pack(fields)[1:]
    variants = [
        ("keys in another order", pack(other_order)),
        ("unknown keys of every type", pack(more)),
        ("an integer in eight bytes", wide),
        ("a map with a long head", long_head),
    ]
    for name, blob in variants:
        if codec.fields_of(codec.decode_reply(blob)) != fields:
            raise AssertionError(name)
    return [{"name": name, "bytes": blob.hex(), "fields": _plain(reply)} for name, blob in variants]


def _bad_replies(reply: codec.SyncReply) -> list[dict[str, Any]]:
    fields, whole = codec.fields_of(reply), codec.encode(reply)
    pack = msgspec.msgpack.encode
    cases = [
        ("nothing", b""),
        ("cut", whole[:-1]),
        ("one byte too many", whole + b"\x00"),
        ("an array", pack(list(fields.values()))),
        ("a number", b"\x01"),
        ("the byte that MessagePack never uses", b"\xc1"),
        ("a page of some network in between", b"<!doctype html><title>Please log in</title>"),
        ("of version 2", pack({**fields, "v": 2})),
        ("version is text", pack({**fields, "version": "8"})),
        ("version below 0", pack({**fields, "version": -1})),
        ("no stats", pack({key: value for key, value in fields.items() if key != "stats"})),
        ("stats as text", pack({**fields, "stats": "x" * len(reply.stats)})),
        ("stats too short", pack({**fields, "stats": reply.stats[:-8]})),
        ("stats of another dim", pack({**fields, "dim": 3})),
        ("dim 0", pack({**fields, "dim": 0, "stats": bytes(24)})),
    ]
    return [_bad(name, blob, codec.decode_reply) for name, blob in cases]


def _bad_requests(request: codec.SyncRequest) -> list[dict[str, Any]]:
    fields, whole = codec.fields_of(request), codec.encode(request)
    pack = msgspec.msgpack.encode
    cases = [
        ("cut", whole[:-1]),
        ("of version 2", pack({**fields, "v": 2})),
        ("no agent", pack({key: value for key, value in fields.items() if key != "agent"})),
        ("an empty incarnation", pack({**fields, "incarnation": ""})),
        ("an incarnation that is too long", pack({**fields, "incarnation": "i" * 65})),
        ("sequence 0", pack({**fields, "sequence": 0})),
        ("the digest of something else", pack({**fields, "digest": bytes(16)})),
        ("a growth that is no number", pack({**fields, "growth": float("nan")})),
    ]
    return [_bad(name, blob, codec.decode_request) for name, blob in cases]


def _bad(name: str, blob: bytes, decode: Any) -> dict[str, Any]:
    try:
        decode(blob)
    except FormatError as error:
        return {"name": name, "bytes": blob.hex(), "error": type(error).__name__}
    raise AssertionError(f"{name} was accepted")


# -- random numbers


def random_numbers() -> dict[str, Any]:
    """Outputs of SplitMix64, keys, and the draws of decisions."""
    seeds = (0, 1234567, (1 << 64) - 1)
    splitmix = [{"seed": str(seed), "outputs": [str(splitmix64(seed, n)) for n in range(3)]} for seed in seeds]
    whose = [
        (0, "shop-1", "0123456789abcdef0123456789abcdef", "policy"),
        (0, "shop-1", "0123456789abcdef0123456789abcdef", "control"),
        (20, "Händler@7", "ü", "propensity"),
        ((1 << 53) - 1, "0", "simulation", "policy"),
    ]
    return {"splitmix64": splitmix, "draws": [_draws(*who) for who in whose]}


def _draws(seed: int, agent_id: str, incarnation: str, purpose: str) -> dict[str, Any]:
    random = CounterRandom(seed=seed, agent_id=agent_id, incarnation=incarnation, purpose=purpose)
    decisions = [
        {
            "number": number,
            "bits": [str(random.bits(number, i)) for i in range(3)],
            "uniforms": [random.uniform(number, i) for i in range(3)],
            "index_of_10": random.index(number, 10),
            "normals": random.normals(number, 3).tolist(),
        }
        for number in (0, 1, 70_000, (1 << 53) - 1)
    ]
    who = {"seed": seed, "agent": agent_id, "incarnation": incarnation, "purpose": purpose}
    return {**who, "key": str(random.key), "decisions": decisions}


# -- policies


def policies() -> dict[str, Any]:
    """Decisions of policies that draw at random, with their probabilities, under one model."""
    choices: list[dict[str, Any]] = [
        {"explore": 0.25},
        {"explore": 1.0, "policy_seed": 7},
        {"policy": "inverse-gap"},
        {"policy": "inverse-gap", "gamma": 4.0, "explore": 0.125},
        {"policy": "thompson", "propensity_samples": 10},
        {"policy": "thompson", "propensity_samples": 10, "explore": 0.5},
        {"policy": "thompson", "propensity_samples": 0},
    ]
    return {"cases": [_policy_case(choice) for choice in choices]}


def _policy_case(choice: dict[str, Any]) -> dict[str, Any]:
    rule = FedLinUCB(dim=3, beta=0.5, lam=1.0, alpha=1.0, **choice)
    agent = rule.agent("shop-1", incarnation="0123456789abcdef0123456789abcdef")
    download = Download("shop-1", 1, SufficientStats.prior(dim=3, lam=1.0) + _ints(3, 9), 0)
    agent.adopt(download)
    rng = np.random.default_rng(11)
    decisions = []
    for number in range(12):
        actions = rng.integers(-8, 9, (4, 3)) / 8.0
        decision = agent.choose(actions)
        told = {"index": decision.index, "propensity": decision.propensity, "score": decision.score}
        decisions.append({"number": number, "actions": actions.tolist(), **told})
    settings = {"name": "news", "dim": 3, "lam": 1.0, "alpha": 1.0, "radius": radii.to_dict(rule.radius)}
    settings |= {**choice, "settings": SETTINGS_ID, "agent": "shop-1"}
    reply = codec.encode(codec.reply_of(download, settings=SETTINGS_ID)).hex()
    return {"settings": settings, "incarnation": agent.incarnation, "reply": reply, "steps": decisions}


# -- agents


class Story:
    """Scenarios of an agent: steps and the expected state after each."""

    def __init__(self, name: str, why: str, rule: FedLinUCB) -> None:
        self.name, self.why, self.rule = name, why, rule
        self.agent: FedLinUCBAgent = rule.agent("shop-1", incarnation=f"story-{name}")
        self.server = rule.server()
        self.steps: list[dict[str, Any]] = []

    def choose(self, actions: Sequence[Row]) -> np.ndarray:
        """A decision with its scores; scores must be clearly separated or tied."""
        X = np.array(actions, dtype=float)
        scores, decision = self.agent.scores(X), self.agent.choose(X)
        self._require_clear(scores.upper)
        step = {"do": "choose", "actions": X.tolist(), "index": decision.index, "beta": self.agent.beta}
        lists = {"means": scores.means.tolist(), "widths": scores.widths.tolist(), "scores": scores.upper.tolist()}
        self.steps.append({**step, **lists, "model_version": decision.model_version})
        return X[decision.index]

    def _require_clear(self, upper: np.ndarray) -> None:
        best = float(upper.max())
        gaps = (best - upper) / max(abs(best), 1e-300)
        if any(TIE * 0.8 < gap < TIE * 1.25 or TIE * 20 < gap < 1e-7 for gap in gaps):
            raise AssertionError(f"{self.name}: rounding might decide between {upper}")

    def observe(self, x: Row | np.ndarray, reward: float) -> Upload | None:
        """A reward; growth is what it was when the trigger was tested."""
        row = np.asarray(x, dtype=float)
        upload = self.agent.observe(row, reward)
        self.steps.append({"do": "observe", "x": row.tolist(), "reward": reward, **self._after(upload)})
        return upload

    def choose_context(self, context: Row, *, arms: Sequence[str] | None = None, bias: bool = True) -> Decision:
        """A decision of a model with blocks by context; scores must be clearly separated or tied."""
        decision = self.agent.choose_context(context, arms=arms, bias=bias)
        values = np.array([*context, 1.0] if bias else context, dtype=float)
        K = self.rule.blocks
        scores = self.agent.scores(np.array([full_row(joined(block, values), K) for block in range(K)]))
        step = {"do": "choose_context", "context": list(context), "arms": arms, "bias": bias}
        told = {"index": decision.index, "block": decision.block, "arm": decision.arm}
        on_offer = range(K) if arms is None else [(self.rule.arms or ()).index(arm) for arm in arms]
        self._require_clear(scores.upper[list(on_offer)])
        self.steps.append({**step, **told, "scores": scores.upper.tolist(), "model_version": decision.model_version})
        return decision

    def observe_context(self, decision: Decision, reward: float) -> Upload | None:
        """The reward of a decision by context: numbers in a block instead of a row."""
        upload = self.agent.observe(decision, reward)
        row = {"block": decision.block, "x": decision.x.tolist()}
        self.steps.append({"do": "observe", **row, "reward": reward, **self._after(upload)})
        return upload

    def flush(self) -> Upload | None:
        """An upload without the trigger."""
        upload = self.agent.upload_now()
        self.steps.append({"do": "flush", **self._after(upload)})
        return upload

    def answer(self) -> Download:
        """The server's reply to the upload in flight, not received yet; the upload is merged."""
        sent = self.agent.in_flight
        if sent is None:
            raise AssertionError(f"{self.name}: nothing is in flight")
        reply = self.server.receive(sent)
        if not isinstance(reply, Download):
            raise AssertionError(f"{self.name}: expected a download")
        return reply

    def receive(self, download: Download) -> Upload | None:
        """A reply arrives."""
        before = self.agent.in_flight
        upload = self.agent.adopt(download)
        answered = before is not None and self.agent.in_flight is not before
        reply = codec.encode(codec.reply_of(download, settings=SETTINGS_ID)).hex()
        state = {"version": download.version, "acknowledged": download.acknowledged, "answered": answered}
        after = {"model_version": self.agent.model_version, "beta": self.agent.beta, **self._after(upload)}
        self.steps.append({"do": "receive", "reply": reply, **state, **after})
        return upload

    def pull(self) -> Download:
        """The state without an upload, not received yet."""
        reply = self.server.receive(Pull(self.agent.agent_id, self.agent.incarnation))
        if not isinstance(reply, Download):
            raise AssertionError(f"{self.name}: expected a download")
        return reply

    def others(self, pairs: Sequence[tuple[Row, float]]) -> None:
        """An upload of another agent reaches the server."""
        known = self.server.ledger.get("shop-2")
        stats = SufficientStats.of([x for x, _ in pairs], [reward for _, reward in pairs], blocks=self.rule.blocks)
        self.server.receive(Upload("shop-2", "other", 1 + (known.sequence if known else 0), stats, 1.0))

    def _after(self, upload: Upload | None) -> dict[str, Any]:
        flight = self.agent.in_flight
        return {
            "growth": self.agent.growth,
            "n_unsent": self.agent.local.n_obs,
            "in_flight": None if flight is None else flight.sequence,
            "upload": None if upload is None else _upload(upload),
        }

    def told(self) -> dict[str, Any]:
        """The story as plain values."""
        rule = self.rule
        settings = {
            "name": "news",
            "dim": rule.dim,
            "lam": rule.lam,
            "alpha": rule.alpha,
            "radius": radii.to_dict(rule.radius),
            "features": None,
            "action_bound": None,
            "reward_bound": None,
            "settings": SETTINGS_ID,
            "agent": self.agent.agent_id,
        }
        if rule.personal is not None:
            settings["personal"] = personals.to_dict(personals.as_personal(rule.personal))
        if rule.blocks > 1:
            settings |= {"blocks": rule.blocks, "arms": None if rule.arms is None else list(rule.arms)}
            settings["features"] = None if rule.features is None else list(rule.features)
        head = {"name": self.name, "why": self.why, "settings": settings, "incarnation": self.agent.incarnation}
        return {**head, "steps": self.steps}


def _upload(upload: Upload) -> dict[str, Any]:
    packed = packed_bytes(upload.stats)
    stats = {"stats": packed.hex(), "digest": digest_of(packed).hex()}
    if upload.stats.blocks > 1:
        fields = _plain(codec.request_of(upload))
        stats = {key: fields[key] for key in ("touched", "stats", "digest")}
    return {"sequence": upload.sequence, "growth": upload.growth, **stats}


def agents() -> dict[str, Any]:
    """All stories."""
    stories = [one_feature(), ties(), *strict_trigger(), always(), in_flight(), pulls(), flushed()]
    return {"stories": [story.told() for story in (*stories, *radius_stories(), fleet(), *personal_stories())]}


def personal_stories() -> list[Story]:
    """Agents with parameters of their own: κ = 0, and a κ that counts; late replies, and what the model lacks."""
    fixed = [_personal(f"personal-{number}", kappa) for number, kappa in enumerate((0.0, 0.5, 20.0), 1)]
    return [*fixed, _personal("personal-auto", "auto"), *(_alike_or_not(differs=differs) for differs in (False, True))]


def _alike_or_not(*, differs: bool) -> Story:
    """κ is chosen, small or large: own rewards follow the others' parameter, or the opposite one."""
    name, rewards = ("differ", "opposite to") if differs else ("alike", "like")
    rule = FedLinUCB(dim=3, beta=0.4, lam=1.5, alpha=4.0, personal="auto")
    story = Story(
        f"personal-{name}", f"κ is chosen from own rewards {rewards} the others'; again when they double", rule
    )
    rng, theta = np.random.default_rng(5), np.array([1.0, -0.5, 0.25])
    rows = rng.integers(-4, 5, (60, 3)) / 4.0
    noise = rng.integers(-4, 5, 60) / 16.0
    story.others([(x.tolist(), float(x @ theta + e)) for x, e in zip(rows[:30], noise[:30], strict=True)])
    story.receive(story.pull())
    for n in range(30, 50):
        actions = rows[[n, n - 10, n - 20]].tolist()
        x = story.choose(actions)
        upload = story.observe(x, float((-1.0 if differs else 1.0) * (np.array(x) @ theta) + noise[n]))
        if upload is not None:
            story.receive(story.answer())
    story.choose(rows[50:54].tolist())
    return story


def _personal(name: str, kappa: float | str) -> Story:
    how = f"{kappa:g}" if isinstance(kappa, float) else "chosen from them"
    why = f"a parameter of its own, κ = {how}: decisions rest on all own observations, sent or not"
    story = Story(name, why, FedLinUCB(dim=3, beta=0.4, lam=1.5, alpha=1.0, personal=kappa))
    actions = [[1.0, 0.0, 0.5], [0.0, 1.0, -0.25], [0.5, 0.5, 1.0], [-1.0, 0.25, 0.0]]
    story.choose(actions)
    for reward in (1.0, 0.25, -0.5):
        story.observe(story.choose(actions), reward)
    story.others([([1.0, 1.0, 0.0], 0.5), ([0.0, -1.0, 2.0], -1.0), ([2.0, 0.0, 1.0], 1.5)])
    late = story.pull()
    if story.agent.in_flight is None:
        story.flush()
    answer = story.answer()
    story.observe([0.5, 1.0, 0.0], 2.0)
    story.choose(actions)
    story.receive(answer)
    story.choose(actions)
    story.receive(late)
    story.observe([1.0, -0.5, 0.5], -1.0)
    story.choose(actions)
    story.others([([0.0, 1.0, 1.0], 1.0)])
    story.receive(story.pull())
    story.choose(actions)
    story.flush()
    story.receive(story.answer())
    story.choose(actions)
    return story


def one_feature() -> Story:
    """d = 1."""
    story = Story("one-feature", "d = 1: everything is a number", FedLinUCB(dim=1, beta=0.5, alpha=1.0))
    for reward in (1.0, 0.0, 1.0, 2.0):
        x = story.choose([[1.0], [-1.0], [0.5]])
        if story.observe(x, reward) is not None:
            story.receive(story.answer())
    story.choose([[-1.0], [1.0], [2.0]])
    return story


def ties() -> Story:
    """The lowest index among scores within a relative 1e-12 of the best."""
    story = Story("ties", "equal scores: the lowest index wins; 1e-12 is the margin", FedLinUCB(dim=2, beta=1.0))
    story.choose([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    story.choose([[0.5, 0.0], [0.0, 1.0], [1.0, 0.0]])
    story.choose([[1.0, 0.0], [1.0 + 5e-13, 0.0]])
    story.choose([[1.0, 0.0], [1.0 + 5e-12, 0.0]])
    story.choose([[1.0, 0.0], [1.0 + 5e-13, 0.0], [0.0, 1.0 + 5e-12]])
    story.choose([[0.0, 0.0], [0.0, 0.0]])
    for _ in range(4):
        story.observe([1.0, 0.0], -1.0)
    story.receive(story.answer())
    story.choose([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    story.choose([[0.0, 2.0], [0.0, -2.0], [1.0, 0.0]])
    return story


def strict_trigger() -> list[Story]:
    """A determinant ratio of exactly 1 + α does not trigger, whatever the rounding of a logarithm."""
    cases: list[tuple[float, float, list[Row]]] = [
        (1.0, 1.0, [[1.0, 0.0]]),
        (1.0, 2.0, [[1.0, 1.0]]),
        (10.0, 0.1, [[1.0]]),
        (2.0, 0.5, [[1.0]]),
        (1.0, 3.0, [[1.0, 0.0], [0.0, 1.0]]),
        (1.0, 11.0, [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]]),
    ]
    return [_strict(f"strict-{number}", *case) for number, case in enumerate(cases, 1)]


def _strict(name: str, lam: float, alpha: float, rows: list[Row]) -> Story:
    why = f"the determinant grows by exactly {1 + alpha:g}, which is not more; then it is more"
    story = Story(name, why, FedLinUCB(dim=len(rows[0]), beta=0.5, lam=lam, alpha=alpha))
    if any(story.observe(x, 1.0) is not None for x in rows):
        raise AssertionError(f"{name}: triggered at the exact ratio")
    if not np.isclose(story.agent.growth, np.log1p(alpha), rtol=1e-14):
        raise AssertionError(f"{name}: the determinant grew by {np.exp(story.agent.growth)}")
    if story.observe([2.0**-10] * len(rows[0]), 1.0) is None:
        raise AssertionError(f"{name}: did not trigger above the ratio")
    return story


def always() -> Story:
    """α = 0."""
    story = Story(
        "alpha-0", "α = 0: every observation but the zero row is uploaded", FedLinUCB(dim=2, beta=0.5, alpha=0.0)
    )
    story.observe([0.0, 0.0], 1.0)
    for x in ([1.0, 0.0], [0.0, 0.5]):
        story.observe(x, 1.0)
        story.receive(story.answer())
    return story


def in_flight() -> Story:
    """Observations while an exchange is under way."""
    why = "while an upload is in flight no other is made, growth counts it, and its answer may trigger the next at once"
    story = Story("in-flight", why, FedLinUCB(dim=2, beta=0.5, alpha=1.0))
    story.observe([1.0, 1.0], 1.0)
    answer = story.answer()
    for x, reward in (([1.0, 0.0], 1.0), ([0.0, 2.0], -1.0), ([2.0, 1.0], 0.5), ([3.0, 0.0], 2.0)):
        story.choose([[1.0, 0.0], [0.0, 2.0]])
        story.observe(x, reward)
    story.receive(answer)  # and the buffer becomes an upload immediately
    story.choose([[1.0, 0.0], [0.0, 1.0]])
    retry = story.answer()
    story.receive(story.answer())  # a retry of the same upload: the same state comes back
    story.receive(retry)
    story.observe([0.0, 1.0], 0.0)
    story.receive(answer)  # a reply that comes late changes nothing
    story.choose([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    return story


def pulls() -> Story:
    """Downloads without an upload."""
    why = "the state without an upload is taken over also while an upload is in flight, which stays until acknowledged"
    story = Story("pulls", why, FedLinUCB(dim=2, beta=0.5, alpha=1.0))
    story.others([([3.0, 1.0], 1.0), ([0.0, 1.0], 0.0)])
    story.receive(story.pull())
    story.choose([[1.0, 0.0], [0.0, 1.0]])
    story.observe([0.0, 1.0], 1.0)
    story.observe([1.0, 2.0], 1.0)
    story.others([([1.0, 1.0], 1.0)])
    story.receive(story.pull())  # not acknowledged: the upload stays in flight, and counts
    story.observe([1.0, 0.0], 1.0)
    story.answer()  # merged, but the answer is lost
    story.receive(story.pull())  # and comes back as acknowledged here
    story.choose([[1.0, 0.0], [0.0, 1.0]])
    return story


def flushed() -> Story:
    """Uploads without the trigger."""
    story = Story(
        "flush", "an upload made without the trigger; none of an empty buffer", FedLinUCB(dim=3, beta=0.5, alpha=8.0)
    )
    story.flush()
    story.observe([1.0, 0.0, 2.0], 1.0)
    story.flush()
    story.observe([0.0, 1.0, 0.0], 1.0)
    story.flush()  # the same one again
    story.receive(story.answer())
    story.flush()
    story.receive(story.answer())
    return story


def radius_stories() -> list[Story]:
    """Every kind of radius, at the prior and at two models."""
    kinds = {
        "fixed": radii.fixed(0.25),
        "exogenous": radii.exogenous(noise_scale=0.3, theta_bound=2.0, delta=0.05),
        "adaptive": radii.adaptive(n_agents=5, noise_scale=0.3, theta_bound=1.5, delta=0.01, n_rounds=1000),
        "adaptive-open": radii.adaptive(n_agents=5, noise_scale=0.3, theta_bound=1.0, delta=0.01),
        "adaptive-alone": radii.adaptive(n_agents=1, noise_scale=0.3, theta_bound=1.0, delta=0.01),
        "counted": radii.counted(noise_scale=0.3, theta_bound=1.0, delta=0.1),
        "paper": radii.paper(n_agents=5, n_rounds=1000, noise_scale=0.3),
    }
    stories = []
    for name, radius in kinds.items():
        rule = FedLinUCB(dim=3, beta=radius, lam=2.0, alpha=0.5)
        story = Story(f"radius-{name}", f"β of kind {radius.kind}", rule)
        story.choose([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        story.observe([1.0, 1.0, 0.0], 1.0)
        story.receive(story.answer())
        story.others([([1.0, 0.0, 3.0], 1.0), ([0.0, 2.0, 0.0], -1.0), ([1.0, 1.0, 1.0], 2.0)])
        story.receive(story.pull())
        story.choose([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.5]])
        story.observe([0.0, 0.0, 0.5], 1.0)  # the next model comes while the agent's own buffer is not empty
        story.receive(story.pull())
        story.choose([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        stories.append(story)
    return stories


def fleet() -> Story:
    """A longer scenario with late replies and data of other agents."""
    rng = np.random.default_rng(20240501)
    why = "five features, eighty rounds, answers that take up to four rounds, other agents' uploads in between"
    story = Story("long", why, FedLinUCB(dim=5, beta=0.5, lam=1.0, alpha=0.75))
    due: tuple[int, Download] | None = None
    for t in range(80):
        actions = rng.integers(-8, 9, (6, 5)) / 8.0
        x = story.choose(actions.tolist())
        upload = story.observe(x, float(rng.integers(-4, 5)) / 4.0)
        if t % 9 == 4:
            story.others(
                [((rng.integers(-8, 9, 5) / 8.0).tolist(), float(rng.integers(-4, 5)) / 4.0) for _ in range(3)]
            )
        if upload is not None:
            due = (t + int(rng.integers(0, 5)), story.answer())
        if due is not None and due[0] <= t:
            following = story.receive(due[1])
            due = None if following is None else (t + 2, story.answer())
    return story


# -- models with blocks


def blocks() -> dict[str, Any]:
    """Messages of version 2, rows that lie in no block, policies and stories of models with one block per arm."""
    requests, replies = _block_requests(), _block_replies()
    pack = msgspec.msgpack.encode  # of the fields that are there: a map with the shortest head
    return {
        "requests": [
            {"fields": _plain(message), "bytes": pack(codec.fields_of(message)).hex()} for message in requests
        ],
        "replies": [{"fields": _plain(message), "bytes": codec.encode(message).hex()} for message in replies],
        "bad_replies": _bad_block_replies(replies[1]),
        "bad_requests": _bad_block_requests(requests[1]),
        "rows": _block_rows(),
        "policies": [_block_policy(choice) for choice in ({"policy": "inverse-gap"}, _SAMPLED, {"explore": 0.5})],
        "stories": [story.told() for story in _block_stories()],
    }


_SAMPLED: dict[str, Any] = {"policy": "thompson", "propensity_samples": 10}


def _block_sums(pairs: Sequence[tuple[int, Row, float]], n_blocks: int) -> SufficientStats:
    places = np.array([place for place, _, _ in pairs], dtype=np.intp)
    rows, rewards = np.array([x for _, x, _ in pairs]), np.array([reward for *_, reward in pairs])
    return SufficientStats.of_blocks(places, rows, rewards, n_blocks)


def _block_requests() -> list[codec.SyncRequest]:
    one = _block_sums([(1, [3.0], -2.0)], 2)
    some = _block_sums([(0, [1.0, 2.0], 1.0), (300, [-0.5, 4.0], 0.0), (300, [2.0, 0.0], -1.0)], 301)
    none = _block_sums([(1, [0.0, 0.0, 0.0], 2.0)], 3)
    return [
        codec.request_of(Upload("a", "i", 1, one, 2.302585092994046)),
        codec.request_of(Upload("shop-1", "0123456789abcdef0123456789abcdef", 3, some, 1.25), model_version=7),
        codec.request_of(Upload("Händler@7", "ü", 70_000, none, 0.0), model_version=300, unsent=128),
    ]


def _block_replies() -> list[codec.SyncReply]:
    one = Download("a", 0, SufficientStats.prior(dim=2, lam=1.0, blocks=2), 0)
    sums = _block_sums([(0, [1.0, 2.0], 1.0), (2, [-0.5, 4.0], 0.5)], 3)
    two = Download("shop-1", 8, SufficientStats.prior(dim=6, lam=0.5, blocks=3) + sums, 3)
    return [codec.reply_of(download, settings=SETTINGS_ID) for download in (one, two)]


def _bad_block_replies(reply: codec.SyncReply) -> list[dict[str, Any]]:
    fields, whole = codec.fields_of(reply), codec.encode(reply)
    pack = msgspec.msgpack.encode
    cases = [
        ("cut", whole[:-1]),
        ("of version 3", pack({**fields, "v": 3})),
        ("of version 1", pack({**fields, "v": 1})),
        ("no blocks", pack({key: value for key, value in fields.items() if key != "blocks"})),
        ("blocks as text", pack({**fields, "blocks": "3"})),
        ("no block", pack({**fields, "blocks": 0})),
        ("one block", pack({**fields, "blocks": 1})),
        ("fewer than no blocks", pack({**fields, "blocks": -3})),
        ("blocks that do not divide dim", pack({**fields, "blocks": 4})),
        ("stats of another number of blocks", pack({**fields, "blocks": 2})),
        ("stats too short", pack({**fields, "stats": reply.stats[:-8]})),
    ]
    return [_bad(name, blob, codec.decode_reply) for name, blob in cases]


def _bad_block_requests(request: codec.SyncRequest) -> list[dict[str, Any]]:
    fields = codec.fields_of(request)
    pack = msgspec.msgpack.encode

    def with_touched(*places: int) -> bytes:
        touched = np.array(places, dtype="<u4").tobytes()
        return pack({**fields, "touched": touched, "digest": digest_of(touched + request.stats)})

    cases = [
        ("the digest of the statistics alone", pack({**fields, "digest": digest_of(request.stats)})),
        ("blocks that descend", with_touched(300, 0)),
        ("a block twice", with_touched(0, 0)),
        ("a block that is not there", with_touched(0, 301)),
        ("more blocks than sums", with_touched(0, 1, 300)),
        ("no touched blocks", pack({key: value for key, value in fields.items() if key != "touched"})),
    ]
    return [_bad(name, blob, codec.decode_request) for name, blob in cases]


def _block_rows() -> list[dict[str, Any]]:
    """Rows of a model with three blocks of two columns: the block of each, or null where it is refused."""
    rows = [[0.0, 0.0, 3.0, 4.0, 0.0, 0.0], [0.0] * 6, [0.0, 0.0, 0.0, 0.0, 0.0, -1.0], [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]]
    return [{"dim": 6, "blocks": 3, "x": x, "block": _block_of(x)} for x in (*rows, [1.0, 0.0, 0.0, 0.0, 1e-300, 0.0])]


def _block_of(x: Row) -> int | None:
    try:
        return int(split_rows(np.array([x]), 3)[0][0])
    except NotOneBlock:
        return None


def _block_policy(choice: dict[str, Any]) -> dict[str, Any]:
    """Decisions on rows by a policy that draws at random, in a model with blocks."""
    rule = FedLinUCB(dim=6, blocks=3, beta=0.5, lam=1.0, alpha=1.0, **choice)
    agent = rule.agent("shop-1", incarnation="0123456789abcdef0123456789abcdef")
    sums = _block_sums([(0, [1.0, 2.0], 1.0), (2, [-0.5, 1.0], 0.5), (1, [1.0, -1.0], -1.0)], 3)
    download = Download("shop-1", 1, SufficientStats.prior(dim=6, lam=1.0, blocks=3) + sums, 0)
    agent.adopt(download)
    rng = np.random.default_rng(12)
    decisions = []
    for number in range(8):
        context = rng.integers(-8, 9, 2) / 8.0
        actions = np.array([full_row(joined(block, context), 3) for block in range(3)])
        decision = agent.choose(actions)
        told = {"index": decision.index, "propensity": decision.propensity, "score": decision.score}
        decisions.append({"number": number, "actions": actions.tolist(), **told})
    settings = {"name": "news", "dim": 6, "blocks": 3, "lam": 1.0, "alpha": 1.0, "radius": radii.to_dict(rule.radius)}
    settings |= {**choice, "settings": SETTINGS_ID, "agent": "shop-1"}
    reply = codec.encode(codec.reply_of(download, settings=SETTINGS_ID)).hex()
    return {"settings": settings, "incarnation": agent.incarnation, "reply": reply, "steps": decisions}


def _block_stories() -> list[Story]:
    return [block_arms(), block_trigger(), block_flight(), *block_radii(), block_fleet(), block_personal()]


def block_arms() -> Story:
    """Rows and contexts, arms left out."""
    why = (
        "three arms of two columns: rows and contexts give the same scores; arms may be left out, a row of zeros counts"
    )
    rule = FedLinUCB(dim=6, blocks=3, arms=["tea", "milk", "bread"], beta=0.5, lam=1.5, alpha=2.0)
    story = Story("blocks-arms", why, rule)
    story.choose_context([0.5])
    story.choose(np.kron(np.eye(3), [0.5, 1.0]).tolist())
    story.observe_context(story.choose_context([0.5], arms=["bread", "milk"]), 1.0)
    story.observe([0.0] * 6, 0.5)
    story.flush()
    story.receive(story.answer())
    story.choose_context([0.25, -1.0], bias=False)
    story.observe([0.0, 0.0, 2.0, 1.0, 0.0, 0.0], -1.0)
    story.observe_context(story.choose_context([2.0], arms=["tea"]), 0.25)
    if story.agent.in_flight is None:
        story.flush()
    story.receive(story.answer())
    story.choose_context([-1.0])
    return story


def block_trigger() -> Story:
    """Growth is a sum over blocks."""
    why = "growth over two blocks: the determinant grows by exactly 1 + α, which is not more; then it is more"
    story = Story("blocks-trigger", why, FedLinUCB(dim=4, blocks=2, beta=0.5, lam=1.0, alpha=3.0))
    if any(story.observe(x, 1.0) is not None for x in ([1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0])):
        raise AssertionError("triggered at the exact ratio")
    if story.observe([0.0, 0.0, 2.0**-10, 0.0], 1.0) is None:
        raise AssertionError("did not trigger above the ratio")
    story.receive(story.answer())
    return story


def block_flight() -> Story:
    """Observations while an upload is in flight, in its blocks and in others; pulls and other agents."""
    why = "an upload in flight counts in its blocks, the buffer in others; its answer triggers the next; late replies"
    story = Story("blocks-flight", why, FedLinUCB(dim=6, blocks=3, beta=0.5, alpha=1.0))
    story.observe([2.0, 1.0, 0.0, 0.0, 0.0, 0.0], 1.0)
    answer = story.answer()
    for x, reward in (([0.0, 0.0, 1.0, 2.0, 0.0, 0.0], 1.0), ([1.0, 3.0, 0.0, 0.0, 0.0, 0.0], -0.5)):
        story.observe(x, reward)
    story.others([([0.0, 0.0, 0.0, 0.0, 3.0, 1.0], 1.0), ([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 0.0)])
    late = story.pull()
    if story.receive(answer) is None:
        raise AssertionError("the answer did not trigger the next upload")
    story.receive(late)
    story.choose_context([0.5])
    story.observe([0.0, 0.0, 0.0, 0.0, 0.5, 0.25], 2.0)
    story.receive(story.answer())
    story.flush()
    story.receive(story.answer())
    story.choose_context([-0.5])
    return story


def block_personal() -> Story:
    """Parameters of their own, by blocks."""
    why = "a parameter of its own in each block, κ = 0.5: decisions rest on all own observations, sent or not"
    story = Story("blocks-personal", why, FedLinUCB(dim=6, blocks=3, beta=0.4, lam=1.5, alpha=1.0, personal=0.5))
    story.choose_context([0.5])
    for context, reward in (([0.5], 1.0), ([-1.0], 0.25), ([2.0], -0.5)):
        story.observe_context(story.choose_context(context), reward)
    story.others([([0.0, 0.0, 0.0, 0.0, 3.0, 1.0], 1.0), ([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 0.5)])
    if story.agent.in_flight is None:
        story.flush()
    answer = story.answer()
    story.observe([0.0, 0.0, 0.5, 1.0, 0.0, 0.0], 2.0)
    story.choose_context([0.25])
    story.receive(answer)
    story.choose_context([0.25])
    story.receive(story.pull())
    story.choose(np.kron(np.eye(3), [0.5, 1.0]).tolist())
    return story


def block_radii() -> list[Story]:
    """Radii that depend on the determinant, on counts and on versions."""
    kinds = {
        "exogenous": radii.exogenous(noise_scale=0.3, theta_bound=2.0, delta=0.05),
        "adaptive": radii.adaptive(n_agents=5, noise_scale=0.3, theta_bound=1.5, delta=0.01, n_rounds=1000),
        "counted": radii.counted(noise_scale=0.3, theta_bound=1.0, delta=0.1),
    }
    stories = []
    for name, radius in kinds.items():
        rule = FedLinUCB(dim=4, blocks=2, beta=radius, lam=2.0, alpha=0.5)
        story = Story(f"blocks-radius-{name}", f"β of kind {radius.kind} in a model with blocks", rule)
        story.choose([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
        story.observe([1.0, 1.0, 0.0, 0.0], 1.0)
        story.receive(story.answer())
        story.others([([0.0, 0.0, 1.0, 3.0], 1.0), ([0.0, 2.0, 0.0, 0.0], -1.0)])
        story.receive(story.pull())
        story.choose([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
        stories.append(story)
    return stories


def block_fleet() -> Story:
    """A longer scenario by contexts."""
    rng = np.random.default_rng(20240502)
    why = "five arms of three columns by context, sixty rounds, answers that take up to four, other agents in between"
    story = Story("blocks-long", why, FedLinUCB(dim=15, blocks=5, beta=0.5, lam=1.0, alpha=0.75))
    due: tuple[int, Download] | None = None
    for t in range(60):
        decision = story.choose_context((rng.integers(-8, 9, 2) / 8.0).tolist())
        upload = story.observe_context(decision, float(rng.integers(-4, 5)) / 4.0)
        if t % 9 == 4:
            rows = [full_row(joined(int(rng.integers(5)), rng.integers(-8, 9, 3) / 8.0), 5) for _ in range(3)]
            story.others([(row.tolist(), float(rng.integers(-4, 5)) / 4.0) for row in rows])
        if upload is not None:
            due = (t + int(rng.integers(0, 5)), story.answer())
        if due is not None and due[0] <= t:
            following = story.receive(due[1])
            due = None if following is None else (t + 2, story.answer())
    return story


if __name__ == "__main__":
    main()
