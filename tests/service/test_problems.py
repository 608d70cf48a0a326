"""What is wrong now, who is missing, and what to do; and the events that tell of kills and renewals."""

import pytest

from fedbandit.errors import StoreUnavailable


def problems(service):
    return service.call("GET", "/v1/models/news/problems")


def kinds(service):
    service.portal.call(service.container.history._flush)
    return [event["kind"] for event in service.call("GET", "/v1/models/news/events")["events"]]


def feed(service, token, *, n=8, every_s=60.0, agent="a"):
    """Uploads at a steady pace; the clock stands at the last one."""
    for sequence in range(1, n + 1):
        service.now += every_s
        assert service.send(token, agent, sequence).status_code == 200
        service.portal.call(service.container.history._flush)


def test_a_fleet_in_order_has_no_problems(service):
    tokens = service.fleet("a")
    feed(service, tokens["a"])
    found = problems(service)
    assert (found["problems"], found["missing"], found["is_clear"]) == ([], [], True)


def test_an_agent_that_is_overdue_by_its_own_rhythm_is_missing_and_one_within_it_is_not(service):
    tokens = service.fleet("a", "b")
    feed(service, tokens["a"])
    feed(service, tokens["b"], agent="b", every_s=7200.0)
    service.now += 1800.0  # both without contact for half an hour: b has uploaded every two hours so far
    found = problems(service)
    assert [item["agent"] for item in found["missing"]] == ["a"]
    missing = found["missing"][0]
    assert missing["state"] == "overdue" and "What" not in missing["advice"] and missing["advice"]
    assert missing["rhythm"]["expected_by"] < service.now
    assert not found["is_clear"] and found["n_silent"] == 2


def test_contact_is_enough_to_be_there(service):
    tokens = service.fleet("a")
    feed(service, tokens["a"])
    service.now += 40_000.0
    assert problems(service)["missing"]
    service.request("GET", "/v1/models/news/state", token=tokens["a"])
    service.now += 11.0
    service.portal.call(service.container.history._flush)
    assert problems(service)["missing"] == []


def test_an_agent_of_unknown_rhythm_is_missing_after_a_day_and_one_that_never_came_after_an_hour(service):
    tokens = service.fleet("a", "b", "gone")
    service.call("POST", "/v1/models/news/agents/gone/revoke")
    service.send(tokens["a"])
    service.now += 3000.0
    assert problems(service)["missing"] == []
    service.now += 1000.0
    assert [(item["agent"], item["state"]) for item in problems(service)["missing"]] == [("b", "never")]
    service.now += 86_400.0
    found = {item["agent"]: item["state"] for item in problems(service)["missing"]}
    assert found == {"a": "silent", "b": "never"}


def test_refusals_of_the_last_hour_are_told_with_what_to_do(service):
    tokens = service.fleet("a")
    assert service.send(tokens["a"], sequence=5).status_code == 409
    service.portal.call(service.container.history._flush)
    (problem,) = problems(service)["problems"]
    assert problem["kind"] == "refused" and problem["severity"] == "bad" and problem["agents"] == ["a"]
    assert "sequence_gap" in problem["what"] and "backup" in problem["advice"]
    service.now += 4000.0
    assert [p["kind"] for p in problems(service)["problems"]] == []


def test_agents_in_quarantine_and_restarts_need_attention(service):
    tokens = service.fleet("a")
    service.send(tokens["a"])
    service.call("POST", "/v1/models/news/agents/a/quarantine")
    service.call("POST", "/v1/models/news/restart")
    service.portal.call(service.container.history._flush)
    assert {p["kind"]: p["severity"] for p in problems(service)["problems"]} == {
        "quarantined": "warn",
        "restarted": "warn",
    }


def test_a_store_that_failed_is_a_problem_for_an_hour(service, monkeypatch):
    service.fleet("a")

    async def unavailable():
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(service.container.store, "models", unavailable)
        assert service.request("GET", "/v1/models").status_code == 503
    (problem,) = problems(service)["problems"]
    assert problem["kind"] == "store" and "1 request failed" in problem["what"]
    service.now += 3601.0
    assert problems(service)["problems"] == []


def test_a_process_that_starts_again_is_an_event_and_a_running_one_is_not(service):
    tokens = service.fleet("a")
    path = "/v1/models/news/state?incarnation=life-1"
    service.request("GET", path, token=tokens["a"])  # its first start
    service.send(tokens["a"])
    assert "started_again" not in kinds(service)
    tag = service.request("GET", path, token=tokens["a"]).headers["etag"]  # killed, and started from its journal
    assert kinds(service).count("started_again") == 1
    service.request("GET", path, token=tokens["a"], headers={"If-None-Match": tag})
    service.request("GET", path, token=tokens["a"])  # fails and starts all the time: told once
    assert kinds(service).count("started_again") == 1
    service.now += 601.0
    service.request("GET", path, token=tokens["a"])
    assert kinds(service).count("started_again") == 2


def test_a_new_incarnation_is_an_event_and_the_first_one_is_not(service):
    tokens = service.fleet("a")
    service.send(tokens["a"])
    service.send(tokens["a"], sequence=2)
    assert "new_incarnation" not in kinds(service)
    assert service.send(tokens["a"], incarnation="life-2").status_code == 200
    assert kinds(service).count("new_incarnation") == 1


def test_a_note_of_an_administrator_is_an_event(service):
    tokens = service.fleet("a")
    service.call("POST", "/v1/models/news/events", {"text": "new shop opened", "agent": "a"})
    service.portal.call(service.container.history._flush)
    first = service.call("GET", "/v1/models/news/events")["events"][0]
    assert (first["kind"], first["agent"], first["detail"]) == ("noted", "a", "new shop opened")
    body = {"text": "hello"}
    assert service.request("POST", "/v1/models/news/events", json=body, token=tokens["a"]).status_code == 403
    unknown = {"text": "hello", "agent": "nobody"}
    assert service.request("POST", "/v1/models/news/events", json=unknown).status_code == 404


@pytest.mark.parametrize("path", ["problems", "arms"])
def test_agents_may_not_read_what_operators_read(service, path):
    tokens = service.fleet("a")
    assert service.request("GET", f"/v1/models/news/{path}", token=tokens["a"]).status_code == 403
