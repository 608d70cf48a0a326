"""Rewards from anywhere, with real agents and a real server: one observation for one decision, in every order."""

import os
import signal
import threading

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import AlreadyObserved, FormatError, InvalidInput, NotReachable, Refused
from fedbandit.sdk import reward_collection
from fedbandit.wire.decision_token import DecisionToken, is_token, read_token, token_key, write_token
from tests.live import running_server

X = np.eye(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


class Place:
    """A model of its own with an owner and another worker."""

    def __init__(self, server, name, folder):
        self.server, self.name, self.folder = server, name, folder
        server.add_model(name, dim=3, alpha=1e6)  # nothing is uploaded but by `flush`
        self.tokens = {agent: server.add_agent(name, agent) for agent in ("owner", "other")}

    def connect(self, agent="owner", **options):
        options = {"sync": "inline", "state_dir": self.folder / agent, **options}
        return fb.connect(self.server.url, model=self.name, token=self.tokens[agent], **options)

    def post(self, decision, reward, **options):
        path = f"/v1/models/{self.name}/rewards"
        answer = self.server.request("POST", path, json={"decision": decision, "reward": reward}, **options)
        return answer.json().get("status") or answer.json()["error"]

    def model(self):
        return self.server.show(self.name)


@pytest.fixture
def place(server, request, tmp_path):
    return Place(server, f"m{abs(hash(request.node.name)) % 10**9}", tmp_path)


def test_a_reward_reported_elsewhere_is_booked_on_the_owners_decision(place):
    with place.connect() as owner, place.connect("other") as other:
        decision = owner.choose(X)
        assert other.report(decision.id, 0.5) == "waiting"
        assert other.report(decision, 0.5) == "waiting"
        assert place.post(decision.id, 0.25) == "reward_conflict"
        assert place.model()["n_rewards"] == 1
        owner.refresh()
        assert (owner.status().rounds, owner.status().pending) == (1, 0)
        assert place.model()["n_rewards"] == 0
        assert place.post(decision.id, 0.5) == "booked"
        with pytest.raises(AlreadyObserved):
            owner.observe(decision, 0.5)
        owner.flush()
    assert (place.model()["n_obs"], place.model()["reward_sum"]) == (1, 0.5)


def test_the_owners_own_report_is_an_observation(place):
    with place.connect() as owner:
        decision = owner.choose(X)
        assert owner.report(decision.id, 1.0) == "booked"
        with pytest.raises(fb.errors.DecisionError):
            owner.report(decision.id, 1.0)
        assert owner.status().rounds == 1


def test_an_exchange_and_the_background_collect_as_well(place):
    with place.connect("other") as other, place.connect(sync="background", check_after_s=0.5) as owner:
        first = owner.choose(X)
        owner.observe([1.0, 0.0, 0.0], 1.0)
        other.report(first.id, 1.0)
        owner.flush()
        assert owner.status().pending == 0
        second = owner.choose(X)
        other.report(second.id, 1.0)
        for _ in range(100):
            if not owner.status().pending:
                break
            threading.Event().wait(0.1)
        assert owner.status().pending == 0, "an idle owner asks now and then"


# -- orders: whatever the owner does meanwhile, one decision is at most one observation


def owner_observes(owner, decision):
    owner.observe(decision, 0.0)


def owner_settles(owner, decision):
    owner.pending.settle(0.0)


def owner_expires(owner, decision):
    owner.pending.expire()


def owner_gives_up(owner, decision):
    owner.token(decision)


@pytest.mark.parametrize("act", [owner_observes, owner_settles, owner_expires, owner_gives_up])
@pytest.mark.parametrize("is_first", [True, False], ids=["acts first", "reported first"])
def test_an_owner_that_acted_itself_books_nothing_more(place, act, is_first):
    with place.connect() as owner, place.connect("other") as other:
        owner.token(owner.choose(X))  # the first token asks the server for a key, and collects
        decision = owner.choose(X)
        for step in (act, None) if is_first else (None, act):
            if step is not None:
                step(owner, decision)
            else:
                other.report(decision.id, 1.0)
        owner.refresh()
        owner.flush()
        n_booked = 1 if act in (owner_observes, owner_settles) else 0
        assert owner.status().rounds == n_booked
        assert (place.model()["n_obs"], place.model()["reward_sum"]) == (n_booked, 0.0)
        assert other.report(decision.id, 1.0) == "not_pending"
        assert place.model()["n_rewards"] == 0


def test_a_collected_reward_keeps_the_owner_from_acting_again(place):
    with place.connect() as owner, place.connect("other") as other:
        decision = owner.choose(X)
        other.report(decision.id, 1.0)
        owner.refresh()
        for act in (owner_observes, owner_gives_up):
            with pytest.raises(AlreadyObserved):
                act(owner, decision)
        assert owner.pending.settle(0.0) == owner.pending.expire() == 0
        assert owner.status().rounds == 1


def test_a_retired_owner_leaves_its_rewards_to_tokens(place):
    with place.connect() as owner, place.connect("other") as other:
        by_id, by_token, late = owner.choose(X), owner.choose(X), owner.choose(X)
        token = owner.token(by_token)
        owner.refresh()
        place.server.call("POST", f"/v1/models/{place.name}/agents/owner/retire")
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                other.report(by_id.id, 1.0)
            assert refused.value.code == "owner_ended"
            assert other.report(token, 1.0) == "booked"
        with pytest.raises(Refused):
            other.report(token, 0.0)
        assert place.model()["n_obs"] == 1
        place.server.call("POST", f"/v1/models/{place.name}/agents/owner/unretire")
        assert other.report(late.id, 1.0) == "waiting"
        owner.refresh()
        owner.flush()
        assert place.model()["n_obs"] == 2


def test_a_forgotten_owner_gets_and_gives_nothing(place):
    with place.connect() as owner, place.connect("other") as other:
        owner.observe([1.0, 0.0, 0.0], 1.0)
        owner.flush()
        first, second = owner.choose(X), owner.choose(X)
        token = owner.token(second)
        place.server.call("POST", f"/v1/models/{place.name}/agents/owner/forget")
        for name in (first.id, token):
            with pytest.raises(Refused) as refused:
                other.report(name, 1.0)
            assert refused.value.code == "owner_ended"
    assert place.model()["n_obs"] == 0


def test_an_owner_without_a_state_dir_collects_too(place):
    with place.connect(state_dir=None) as owner, place.connect("other") as other:
        decision = owner.choose(X)
        other.report(decision.id, 1.0)
        owner.refresh()
        assert owner.status().rounds == 1


def test_a_server_restored_from_a_backup_makes_no_second_observation(tmp_path):
    from fedbandit.service.admin.backup import backup, restore

    with running_server(tmp_path / "server") as server:
        place = Place(server, "news", tmp_path)
        with place.connect() as owner, place.connect("other") as other:
            waiting, given_up = owner.choose(X), owner.choose(X)
            token = owner.token(given_up)
            other.report(waiting.id, 1.0)
            backup(server.data_dir, tmp_path / "backup")  # the reward waits in it
            owner.refresh()
            assert other.report(token, 1.0) == "booked"
            owner.flush()
            assert place.model()["n_obs"] == 2
            server.stop()
            restore(server.data_dir, tmp_path / "backup")
            server.start()
            owner.refresh()
            owner.flush()
            assert place.model()["n_obs"] == 1 and place.model()["n_rewards"] == 0
            assert other.report(token, 1.0) == "booked", "the booking went with the backup, and can be repeated"
            assert place.model()["n_obs"] == 2


# -- kills


def killed_at(step, work):
    """Run in a forked process that is killed at this step of a collection; False if it ended before."""
    pid = os.fork()
    if pid == 0:
        n_steps = 0

        def counted(function):
            def call(*arguments, **options):
                nonlocal n_steps
                if n_steps == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                n_steps += 1
                result = function(*arguments, **options)
                if n_steps == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                n_steps += 1
                return result

            return call

        from fedbandit.sdk.durable_agent import DurableAgent
        from fedbandit.sdk.journal.journal import Journal
        from fedbandit.sdk.transport import HttpTransport

        for kind, name in (
            (HttpTransport, "collect"),
            (DurableAgent, "observe"),
            (Journal, "book"),
            (Journal, "sync_log"),
            (Journal, "give_up"),
        ):
            setattr(kind, name, counted(getattr(kind, name)))
        reward_collection._book = counted(reward_collection._book)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_step_of_a_collection_counts_each_reward_once(place):
    def work():
        place.connect().close()

    step, n_expected = 0, 0
    with place.connect("other") as other:
        while True:
            with place.connect() as owner:
                ids = [owner.choose(X).id for _ in range(2)]
            for name in ids:
                assert other.report(name, 1.0) == "waiting"
            n_expected += 2
            if not killed_at(step, work):
                break
            with place.connect() as owner:
                assert (owner.status().rounds, owner.status().pending) == (n_expected, 0), f"killed at step {step}"
            assert place.model()["n_rewards"] == 0
            step += 1
    assert step >= 12
    with place.connect() as owner:
        owner.flush()
    assert place.model()["n_obs"] == n_expected == place.model()["reward_sum"]


def test_a_decision_that_was_given_up_stays_so_after_a_kill(place):
    with place.connect() as owner:
        owner.token(owner.choose(X))
        decision = owner.choose(X)
        name = decision.id

    def work():
        owner = place.connect()
        owner.token(owner.pending[name])
        os.kill(os.getpid(), signal.SIGKILL)

    assert killed_at(-1, work)
    with place.connect() as owner:
        assert len(owner.pending) == 0 and owner.pending.settle(0.0) == 0


# -- tokens


def test_a_token_books_its_row_once_whatever_the_owner_does(place):
    with place.connect() as owner, place.connect("other") as other:
        decision = owner.choose(X)
        token = owner.token(decision)
        assert is_token(token)
        for act in (owner_observes, owner_gives_up):
            with pytest.raises(AlreadyObserved):
                act(owner, decision)
        assert owner.pending.settle(0.0) == 0
        assert [other.report(token, 1.0), place.post(token, 1.0), owner.report(token, 1.0)] == ["booked"] * 3
        assert place.post(token, 0.0) == "reward_conflict"
        assert place.post(decision.id, 1.0) == "booked"
        owner.flush()
        assert (place.model()["n_obs"], place.model()["reward_sum"]) == (1, 1.0)
        owner.refresh()
        assert np.array_equal(owner.model.stats.Sigma, np.eye(3) + np.outer(decision.x, decision.x))


def test_a_changed_token_is_refused(place):
    with place.connect() as owner:
        token = owner.token(owner.choose(X))
        for changed in (token[:-1] + ("A" if token[-1] != "A" else "B"), token[:40], token[:-1], "fbd_", "fbd_" + "é"):
            assert place.post(changed, 1.0) in ("format_error", "invalid_input")
        key = token_key(b"another model's secret", "owner")
        forged = write_token(key, DecisionToken("owner", "aaaaaaaaaaaa-1", 0.0, np.ones(3)))
        assert place.post(forged, 1.0) == "format_error"
        assert place.model()["n_obs"] == 0
    with pytest.raises(FormatError, match="cut off"):
        read_token(b"secret", token[:50])


def test_rewards_are_checked_when_they_are_reported(place):
    for name, reward, error in (
        ("nonsense", 1.0, "invalid_parameter"),
        ("aaaaaaaaaaaa-1", 1e300, "invalid_input"),
        ("x" * 70_000, 1.0, "invalid_input"),
    ):
        assert place.post(name, reward) == error
    with place.connect() as owner, pytest.raises(InvalidInput):
        owner.report("aaaaaaaaaaaa-1", float("nan"))


def test_many_rewards_are_reported_together(place):
    with place.connect() as owner:
        ids = [owner.choose(X).id for _ in range(3)]
        items = [{"decision": name, "reward": 1.0} for name in [*ids, ids[0], "nonsense"]]
        items.append({"decision": ids[1], "reward": 0.0})
        answer = place.server.call("POST", f"/v1/models/{place.name}/rewards", {"rewards": items})
        assert [item["status"] for item in answer["results"]] == ["waiting"] * 4 + ["refused"] * 2
        assert [item.get("error") for item in answer["results"][4:]] == ["invalid_parameter", "reward_conflict"]
        owner.refresh()
        assert owner.status().rounds == 3


def test_a_reporter_may_report_and_nothing_else(place):
    token = place.server.call("POST", "/v1/tokens", {"name": place.name, "role": "reporter"})["token"]
    assert place.post("aaaaaaaaaaaa-1", 1.0, token=token) == "waiting"
    for method, path in (("GET", "/v1/models"), ("GET", f"/v1/models/{place.name}/state"), ("GET", "/status")):
        assert place.server.request(method, path, token=token).status == 403


def test_without_the_server_a_report_is_told_to_be_repeated(place):
    with place.connect() as owner, place.connect("other") as other:
        name = owner.choose(X).id
    with (
        fb.connect(
            "http://127.0.0.1:9",
            model=place.name,
            token=place.tokens["other"],
            state_dir=place.folder / "other",
            timeout_s=1.0,
        ) as other,
        pytest.raises(NotReachable),
    ):
        other.report(name, 1.0)
