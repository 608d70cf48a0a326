"""The OpenFeature provider with the real SDK and a real server: flags are decisions, tracked events their rewards."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.track import TrackingEventDetails

import fedbandit as fb
from fedbandit.errors import InvalidParameter
from fedbandit.integrations.openfeature import BanditFlag, FedbanditProvider
from tests.live import running_server

VARIANTS = {"small": "banner-s", "large": "banner-l"}


def rows(attributes, names):
    return np.array([[float(name == "large"), attributes["hour"] / 24.0] for name in names])


@pytest.fixture
def client(tmp_path: Path):
    with running_server(tmp_path / "server") as server:
        server.add_model("banner", dim=2, alpha=0.5)
        agent = fb.connect(
            server.url, model="banner", token=server.add_agent("banner", "web"), state_dir=tmp_path / "state"
        )
        flags = {"banner": BanditFlag(VARIANTS, rows), "speed": BanditFlag({"slow": 1, "fast": True}, rows)}
        api.set_provider(FedbanditProvider(agent, flags, rewards={"click": 1.0, "leave": 0.0, "purchase": None}))
        client = api.get_client()
        client.agent, client.server_process = agent, server
        yield client
        api.shutdown()
        api.clear_providers()


def test_the_flag_learns_from_tracked_events(client) -> None:
    context = EvaluationContext(targeting_key="user-1", attributes={"hour": 9})
    shown = []
    for _ in range(200):
        details = client.get_string_details("banner", "banner-s", context)
        assert details.error_code is None and details.value == VARIANTS[details.variant]
        shown.append(details.variant)
        event = "click" if details.variant == "large" else "leave"
        attributes = {"decision_id": details.flag_metadata["decision_id"]}
        client.track(event, context, TrackingEventDetails(attributes=attributes))
    assert client.agent.status().pending == 0
    assert shown[-100:].count("large") >= 95
    client.agent.flush()
    assert client.server_process.show("banner")["n_obs"] == 200


def test_a_reward_counts_once_and_mistakes_are_logged(client, caplog) -> None:
    details = client.get_string_details("banner", "banner-s", EvaluationContext(attributes={"hour": 3}))
    attributes = {"decision_id": details.flag_metadata["decision_id"]}
    with caplog.at_level(logging.WARNING, logger="fedbandit.openfeature"):
        client.track("page view", tracking_event_details=TrackingEventDetails(attributes=attributes))  # no reward
        client.track("purchase", tracking_event_details=TrackingEventDetails(attributes=attributes))  # without a value
        client.track("click")  # without an id
        assert client.agent.status().pending == 1
        client.track("purchase", tracking_event_details=TrackingEventDetails(2.5, attributes))
        client.track("purchase", tracking_event_details=TrackingEventDetails(2.5, attributes))
    status = client.agent.status()
    assert (status.pending, status.rounds) == (0, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


@pytest.mark.parametrize(
    ("flag", "attributes", "code"),
    [
        ("unknown", {"hour": 1}, ErrorCode.FLAG_NOT_FOUND),
        ("banner", {}, ErrorCode.INVALID_CONTEXT),
        ("banner", {"hour": float("nan")}, ErrorCode.GENERAL),
        ("speed", {"hour": 1}, ErrorCode.TYPE_MISMATCH),
    ],
)
def test_a_flag_that_cannot_be_decided_gives_the_default_and_no_decision(client, flag, attributes, code) -> None:
    context = EvaluationContext(attributes=attributes)
    found = (client.get_integer_details if flag == "speed" else client.get_string_details)(
        flag, 7 if flag == "speed" else "default", context
    )
    assert found.error_code == code
    assert found.value in (7, "default")
    assert client.agent.status().pending == 0


def test_a_flag_without_variants_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="variant"):
        BanditFlag({}, rows)
