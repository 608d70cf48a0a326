"""Untrusted bytes: only merges and named rejections, bounded memory, and no change by a rejection.

`make fuzz` looks for new ones, coverage-guided and by the million; what it found worth keeping is in corpus.json.
"""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbandit.algorithms.messages import digest_of
from fedbandit.errors import FormatError
from fedbandit.wire import codec
from tests.security.endpoint_harness import AGENT, DIM, EndpointHarness
from tests.security.mutate import mutated, seeds

CORPUS = [base64.b64decode(text) for text in json.loads(Path(__file__).with_name("corpus.json").read_text())]
BOMBS = {  # a few bytes with a declared length of four billion
    "bytes": b"\x81\xa5stats\xc6\xff\xff\xff\xff",
    "text": b"\x81\xa5agent\xdb\xff\xff\xff\xff",
    "list": b"\x81\xa5extra\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "map inside": b"\x81\xa5extra\xdf\xff\xff\xff\xff",
    "extension": b"\x81\xa5extra\xc9\xff\xff\xff\xff\x01",
    "lists in lists": b"\x81\xa5extra" + b"\xdd\xff\xff\xff\xff" * 300,
    "dimension": msgspec.msgpack.encode(
        {"v": 1, "agent": AGENT, "incarnation": "i", "sequence": 1, "digest": digest_of(b""), "dim": 4096}
        | {"stats": b"", "growth": 0.0}
    ),
}


@pytest.fixture(scope="module")
def harness() -> Iterator[EndpointHarness]:
    made = EndpointHarness()
    yield made
    made.close()


def test_what_fuzzing_found_worth_keeping_does_no_harm(harness: EndpointHarness) -> None:
    known = [*seeds(), *CORPUS]
    outcomes = Counter(harness.upload(body) for body in known)
    answers = Counter(harness.answer(body) for body in known)
    assert len(CORPUS) > 50
    # The corpus must reach every outcome.
    assert {"merged", "format_error", "unsupported_format", "implausible_upload", "not_finite"} <= set(outcomes)
    assert {"forbidden", "sequence_gap", "body_too_large"} <= set(outcomes)
    assert {"adopted", "not_reachable", "refused"} <= set(answers)


def test_messages_with_changed_fields_do_no_harm(harness: EndpointHarness) -> None:
    rng, known = Random(7), [*seeds(), *CORPUS]
    for _ in range(1_000):
        body = mutated(rng.choice(known), rng)
        harness.upload(body)
        harness.answer(body)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=st.sampled_from([*seeds(), *CORPUS]), seed=st.integers(0, 1 << 32), cut=st.binary(max_size=12))
def test_messages_drawn_by_hypothesis_do_no_harm(
    harness: EndpointHarness, source: bytes, seed: int, cut: bytes
) -> None:
    body = mutated(source, Random(seed)) + cut
    harness.upload(body)
    harness.answer(body)


@pytest.mark.parametrize("name", BOMBS)
def test_a_body_that_claims_much_takes_no_memory(name: str) -> None:
    body = BOMBS[name]
    tracemalloc.start()
    try:
        for decode in (codec.decode_request, codec.decode_reply):
            with pytest.raises(FormatError):
                decode(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * len(body) + 64_000


def reply(**changes: float) -> bytes:
    """A server's answer with numbers put elsewhere: `s00` is the first of Σ, `n` the number of observations."""
    places = {"s00": 0, "s01": 1, "s11": 2, "b0": 3, "b1": 4, "n": 5, "r": 6, "rr": 7}
    numbers = np.array([3.0, 1.0, 2.0, 1.0, 0.5, 4.0, 1.0, 2.0])
    for name, value in changes.items():
        numbers[places[name]] = value
    stats = numbers.astype("<f8").tobytes()
    return codec.encode(codec.SyncReply(agent=AGENT, version=3, acknowledged=3, dim=DIM, stats=stats))


def test_an_agent_adopts_an_honest_answer(harness: EndpointHarness) -> None:
    assert harness.answer(reply()) == "adopted"


@pytest.mark.parametrize(
    "changes",
    [
        *({"s00": np.nan}, {"s01": np.inf}, {"b0": -np.inf}, {"s00": -3.0}, {"s11": 0.0}, {"s00": 1e-320}),
        *({"n": 1.5}, {"n": np.nan}, {"n": -4.0}, {"b1": 1e308}, {"s01": 1e200}, {"rr": np.inf}),
    ],
)
def test_an_agent_adopts_nothing_that_no_server_can_have_and_says_so(
    harness: EndpointHarness, changes: dict[str, float]
) -> None:
    """Before, a fractional n_obs made the background thread retry without a pause, and a NaN was adopted."""
    assert harness.answer(reply(**changes)) == "not_reachable"
