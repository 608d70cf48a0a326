"""Logs, metrics, events and samples: enough to see, nothing that should stay secret."""

import json

from tests.service.conftest import ADMIN_TOKEN


def lines(service):
    return [json.loads(line) for line in service.log.getvalue().splitlines()]


def flush(service):
    service.portal.call(service.container.history._flush)


def test_an_exchange_is_logged_with_request_agent_and_sequence(service):
    tokens = service.fleet("a")
    answer = service.send(tokens["a"])
    entry = next(line for line in lines(service) if line["event"] == "exchange")
    assert entry["request"] == answer.headers["x-request-id"]
    assert (entry["model"], entry["agent"], entry["sequence"], entry["version"]) == ("news", "a", 1, 1)
    assert (entry["result"], entry["status"]) == ("merged", 200)
    service.send(tokens["a"])
    service.send(tokens["a"], sequence=5)
    exchanges = [line for line in lines(service) if line["event"] == "exchange"]
    assert [entry["result"] for entry in exchanges] == ["merged", "repeated", "refused"]
    assert exchanges[-1]["error"] == "sequence_gap"


def test_no_token_is_ever_logged_or_told(service):
    tokens = service.fleet("a")
    wrong = "fb_a-wrong-token-of-some-length"
    answers = [
        service.send(tokens["a"]),
        service.send(wrong),
        service.request("GET", "/v1/models", token=wrong),
        service.request("POST", "/v1/models", json={"name": tokens["a"], "token": tokens["a"]}),
    ]
    service.call("POST", "/v1/models/news/agents/a/revoke")
    answers.append(service.send(tokens["a"], sequence=2))
    flush(service)
    events = json.dumps(service.call("GET", "/v1/models/news/events"))
    written = service.log.getvalue().decode() + "".join(answer.text for answer in answers[1:]) + events
    metrics = service.request("GET", "/metrics").text
    for secret in (tokens["a"], wrong, ADMIN_TOKEN):
        assert secret not in written
        assert secret not in metrics


def test_metrics_count_by_model_and_reason_and_never_by_agent(service):
    tokens = service.fleet("agent-with-a-name", "other")
    service.send(tokens["agent-with-a-name"], "agent-with-a-name")
    service.send(tokens["agent-with-a-name"], "agent-with-a-name")
    service.send(tokens["other"], "other", 3)
    service.send("fb_unknown-token-of-some-length", model="made-up-name")
    text = service.request("GET", "/metrics").text
    assert 'fedbandit_exchanges_total{model="news",result="merged"} 1.0' in text
    assert 'fedbandit_exchanges_total{model="news",result="repeated"} 1.0' in text
    assert 'fedbandit_refusals_total{reason="sequence_gap"} 1.0' in text
    assert 'fedbandit_effective_alpha{model="news"}' in text
    assert "fedbandit_batch_size_count" in text
    assert "fedbandit_commit_seconds_count" in text
    assert "agent-with-a-name" not in text
    assert "made-up-name" not in text


def test_a_deleted_model_leaves_no_series(service):
    tokens = service.fleet("a")
    service.send(tokens["a"])
    service.call("DELETE", "/v1/models/news")
    assert 'model="news"' not in service.request("GET", "/metrics").text


def test_metrics_count_agents_by_state_and_rewards_by_model(service):
    tokens = service.fleet("a", "b", "c")
    service.send(tokens["a"])
    service.call("POST", "/v1/models/news/agents/c/revoke")
    text = service.request("GET", "/metrics").text
    for state, n in {"enrolled": 3, "active": 1, "silent": 1, "revoked": 1, "quarantined": 0}.items():
        assert f'fedbandit_agents{{model="news",state="{state}"}} {n:.1f}' in text
    model = service.call("GET", "/v1/models/news")
    assert f'fedbandit_reward_observations{{model="news"}} {float(model["n_obs"])}' in text
    assert f'fedbandit_reward_sum{{model="news"}} {float(model["reward_sum"])}' in text
    assert 'fedbandit_unsent_observations{model="news"} 0.0' in text
    assert 'fedbandit_events_total{kind="enrolled"} 3.0' in text
    assert 'fedbandit_events_total{kind="revoked"} 1.0' in text
    assert 'fedbandit_events_total{kind="restored"} 0.0' in text  # alerts need a first sample


def test_an_agent_that_only_asks_for_the_model_is_active(service):
    tokens = service.fleet("a")
    service.now = 5000.0
    assert service.request("GET", "/v1/models/news/state", token=tokens["a"]).status_code == 200
    assert service.call("GET", "/v1/models/news/agents/a")["last_seen"] is None  # written with the next batch
    flush(service)
    assert service.call("GET", "/v1/models/news/agents/a")["last_seen"] == 5000.0
    service.now = 5001.0
    tag = service.request("GET", "/v1/models/news/state", token=tokens["a"]).headers["etag"]
    service.request("GET", "/v1/models/news/state", token=tokens["a"], headers={"If-None-Match": tag})
    service.request("GET", "/v1/models/news/state")  # a person, not an agent
    flush(service)
    assert service.call("GET", "/v1/models/news/agents/a")["last_seen"] == 5000.0  # within the interval
    service.now = 5020.0
    flush(service)
    assert service.call("GET", "/v1/models/news/agents/a")["last_seen"] == 5001.0
    assert 'fedbandit_agents{model="news",state="active"} 1.0' in service.request("GET", "/metrics").text


def test_events_tell_who_came_went_and_was_refused(service):
    tokens = service.fleet("a")
    for _ in range(5):
        service.send(tokens["a"], sequence=9)
    service.call("POST", "/v1/models/news/agents/a/forget")
    service.call("POST", "/v1/models/news/agents/a/revoke")
    flush(service)
    events = service.call("GET", "/v1/models/news/events")["events"]
    assert [event["kind"] for event in events] == ["revoked", "forgotten", "refused", "enrolled", "created"]
    assert events[2]["agent"] == "a"
    assert events[2]["detail"].startswith("sequence_gap: ")


def test_samples_follow_the_model(service):
    tokens = service.fleet("a")
    service.send(tokens["a"])
    flush(service)
    service.now = 1010.0
    service.send(tokens["a"], sequence=2)
    flush(service)
    flush(service)
    samples = service.call("GET", "/v1/models/news/samples")["samples"]
    assert [(sample["at"], sample["n_uploads"], sample["n_obs"]) for sample in samples] == [(1000, 1, 4), (1010, 2, 8)]
    assert samples[1]["log_det"] > samples[0]["log_det"] > 0
