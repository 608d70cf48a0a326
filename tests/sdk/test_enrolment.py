"""Machines that enrol themselves, against a real server: once, whatever is killed; copies, retired agents, pins."""

import json
import os
import shutil
import signal
import stat
from functools import partial

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import FormatError, InvalidParameter, NotReachable, Refused, StateMismatch
from fedbandit.http_client import server_fingerprint
from fedbandit.sdk import enrolment
from fedbandit.wire.enrolment import EnrolmentString, read_enrolment
from tests.live import running_server
from tests.sdk.test_tls import certificates

__all__ = ["certificates"]
X = np.eye(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def model(server, request):
    name = f"m{abs(hash(request.node.name)) % 10**9}"
    server.add_model(name, dim=3, alpha=0.0)
    return name


def created(server, model, **options):
    made = server.call("POST", f"/v1/models/{model}/enrolments", {"name_prefix": "web-", **options})
    return made["secret"], made["name"]


def connected(server, model, state_dir, **options):
    return fb.connect(server.url, model=model, state_dir=state_dir, sync="inline", **options)


def agents(server, model):
    return [agent["name"] for agent in server.call("GET", f"/v1/models/{model}/agents")["agents"]]


def uses(server, model):
    return sum(item["n_used"] for item in server.call("GET", f"/v1/models/{model}/enrolments")["enrolments"])


def test_an_enrolment_is_exchanged_once_and_the_state_directory_keeps_the_token(server, model, tmp_path):
    secret, _ = created(server, model, max_uses=1)
    with connected(server, model, tmp_path / "s", enrol=secret) as agent:
        name = agent.agent_id
        agent.observe([1.0, 0.0, 0.0], 1.0)
    assert name.startswith("web-") and len(name) == 14
    file = tmp_path / "s" / "identity"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text() and json.loads(file.read_text())["token"].startswith("fb_")
    for options in ({"enrol": secret}, {}, {"enrol": "fbe_" + "z" * 43}):  # later starts need no enrolment
        with connected(server, model, tmp_path / "s", **options) as agent:
            assert (agent.agent_id, agent.status().rounds) == (name, 1)
    assert agents(server, model) == [name] and uses(server, model) == 1
    with pytest.raises(Refused) as refused:
        connected(server, model, tmp_path / "other", enrol=secret)
    assert refused.value.reason == "enrolment_ended"


def test_a_wanted_name_is_given_and_checked(server, model, tmp_path):
    secret, _ = created(server, model)
    with connected(server, model, tmp_path / "s", enrol=secret, agent="web-7") as agent:
        assert agent.agent_id == "web-7"
    with pytest.raises(InvalidParameter, match="web-7"):
        connected(server, model, tmp_path / "s", agent="web-8")
    for name, reason in (("web-7", "already_exists"), ("db-1", "forbidden")):
        with pytest.raises(Refused) as refused:
            connected(server, model, tmp_path / name, enrol=secret, agent=name)
        assert refused.value.reason == reason
    assert uses(server, model) == 1


def test_wrong_uses_of_an_enrolment_are_told(server, model, tmp_path):
    secret, _ = created(server, model)
    with pytest.raises(InvalidParameter, match="state_dir"):
        fb.connect(server.url, model=model, enrol=secret)
    with pytest.raises(InvalidParameter, match="without token"):
        connected(server, model, tmp_path / "s", enrol=secret, token="fb_" + "x" * 43)
    with pytest.raises(InvalidParameter, match="enrol create"):
        connected(server, model, tmp_path / "s", enrol=secret[:-1])
    token = server.add_agent(model, "plain")
    with connected(server, model, tmp_path / "plain", token=token) as agent:
        agent.observe([1.0, 0.0, 0.0], 1.0)
    with pytest.raises(StateMismatch, match="plain"):
        connected(server, model, tmp_path / "plain", enrol=secret)
    assert uses(server, model) == 0
    (tmp_path / "s").mkdir(exist_ok=True)
    (tmp_path / "s" / "identity").write_text('{"nonce": 3}')
    with pytest.raises(FormatError, match="identity"):
        connected(server, model, tmp_path / "s", enrol=secret)


# -- kills


def killed_at(step, connect):
    """Connect in a forked process that is killed by SIGKILL at this step; False if it ended before."""
    pid = os.fork()
    if pid == 0:
        n_steps = 0

        def counted(function):
            def call(*arguments, **options):
                nonlocal n_steps
                for after in (False, True):
                    if after:
                        result = function(*arguments, **options)
                    if n_steps == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    n_steps += 1
                return result

            return call

        enrolment.write_identity = counted(enrolment.write_identity)
        enrolment.publish = counted(enrolment.publish)
        enrolment.Enroller._post = counted(enrolment.Enroller._post)
        enrolment._move = counted(enrolment._move)
        try:
            connect().close()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_step_gives_one_agent_and_costs_one_use(server, model, tmp_path):
    step, n_dirs = 0, 0
    secret, _ = created(server, model)
    while killed_at(step, partial(connected, server, model, tmp_path / f"s{n_dirs}", enrol=secret)):
        with connected(server, model, tmp_path / f"s{n_dirs}", enrol=secret) as agent:
            name = agent.agent_id
        with connected(server, model, tmp_path / f"s{n_dirs}") as agent:
            assert agent.agent_id == name
        n_dirs += 1
        step += 1
        assert (len(agents(server, model)), uses(server, model)) == (n_dirs, n_dirs), f"killed at step {step}"
    assert step >= 20, "before and after each of two requests, and of the writes around them"


def test_another_enrolment_takes_over_when_the_first_one_ended_unused(server, model, tmp_path):
    first, name = created(server, model)
    assert killed_at(3, lambda: connected(server, model, tmp_path / "s", enrol=first)), "after the nonce is written"
    assert uses(server, model) == 0
    server.call("POST", f"/v1/models/{model}/enrolments/{name}/revoke")
    with pytest.raises(Refused):
        connected(server, model, tmp_path / "s", enrol=first)
    second, _ = created(server, model)
    with connected(server, model, tmp_path / "s", enrol=second) as agent:
        assert agents(server, model) == [agent.agent_id]


def test_a_first_start_without_the_server_keeps_the_nonce(server, model, tmp_path):
    secret, _ = created(server, model)
    with pytest.raises(NotReachable):
        fb.connect("http://127.0.0.1:9", model=model, enrol=secret, state_dir=tmp_path / "s", timeout_s=2.0)
    nonce = json.loads((tmp_path / "s" / "identity").read_text())["nonce"]
    with connected(server, model, tmp_path / "s", enrol=secret):
        assert json.loads((tmp_path / "s" / "identity").read_text())["nonce"] == nonce


def test_an_enrolled_agent_starts_without_the_server(server, model, tmp_path):
    secret, _ = created(server, model)
    with connected(server, model, tmp_path / "s", enrol=secret) as agent:
        agent.observe([1.0, 0.0, 0.0], 1.0)
    with fb.connect("http://127.0.0.1:9", model=model, state_dir=tmp_path / "s", timeout_s=2.0) as agent:
        agent.observe([0.0, 1.0, 0.0], 1.0)
    with connected(server, model, tmp_path / "s") as agent:
        agent.flush()
    assert server.call("GET", f"/v1/models/{model}")["n_obs"] == 2


# -- copies, and agents that were retired


def test_an_image_with_an_enrolled_state_directory_is_recognised(server, model, tmp_path):
    secret, _ = created(server, model)
    with connected(server, model, tmp_path / "image", enrol=secret) as agent:
        name = agent.agent_id
        agent.observe([1.0, 0.0, 0.0], 1.0)
    for machine in ("one", "two", "three"):
        shutil.copytree(tmp_path / "image", tmp_path / machine)
    with connected(server, model, tmp_path / "one") as agent:
        assert agent.agent_id == name
    for machine in ("two", "image"):
        with pytest.raises(Refused, match="images and copies") as refused:
            connected(server, model, tmp_path / machine, enrol=secret)
        assert refused.value.code == "copied_state"
    others = set()
    for machine in ("two", "three"):
        with connected(server, model, tmp_path / machine, enrol=secret, reenrol=True) as agent:
            others.add(agent.agent_id)
            assert agent.status().rounds == 0, "what the original observed stays with the original"
            agent.observe([0.0, 1.0, 0.0], 1.0)
        assert (tmp_path / machine / "set-aside-1" / "journal.db").exists()
    with connected(server, model, tmp_path / "one") as agent:
        agent.observe([0.0, 0.0, 1.0], 1.0)
    assert len({name, *others}) == 3 and sorted(agents(server, model)) == sorted({name, *others})
    assert server.call("GET", f"/v1/models/{model}")["n_obs"] == 4


@pytest.mark.slow
def test_a_copy_of_a_machine_that_was_killed_while_it_started_is_recognised(server, model, tmp_path):
    secret, _ = created(server, model)
    step = 0
    while True:
        original, copy = tmp_path / f"o{step}", tmp_path / f"c{step}"
        if not killed_at(step, partial(connected, server, model, original, enrol=secret)):
            break
        if not (original / "identity").exists():  # nothing that two machines could share
            step += 1
            continue
        shutil.copytree(original, copy)
        with connected(server, model, original, enrol=secret) as agent:
            name = agent.agent_id
        with pytest.raises(Refused) as refused:
            connected(server, model, copy, enrol=secret)
        assert refused.value.code == "copied_state", f"copied after step {step}"
        with connected(server, model, original) as agent:
            assert agent.agent_id == name
        step += 1
    assert step >= 20


@pytest.mark.slow
def test_setting_a_copy_aside_survives_a_kill_at_any_step(server, model, tmp_path):
    secret, _ = created(server, model)
    with connected(server, model, tmp_path / "image", enrol=secret) as agent:
        agent.observe([1.0, 0.0, 0.0], 1.0)
    shutil.copytree(tmp_path / "image", tmp_path / "copy")
    connected(server, model, tmp_path / "image").close()
    step = 0
    while True:
        machine = tmp_path / f"c{step}"
        shutil.copytree(tmp_path / "copy", machine)
        if not killed_at(step, partial(connected, server, model, machine, enrol=secret, reenrol=True)):
            break
        with connected(server, model, machine, enrol=secret, reenrol=True) as agent:
            assert agent.status().rounds == 0
            agent.observe([0.0, 1.0, 0.0], 1.0)
        kept = list(machine.glob("set-aside-*/journal.db"))
        assert len(kept) == 1, f"killed at step {step}"
        step += 1
    assert step >= 20
    assert server.call("GET", f"/v1/models/{model}")["n_obs"] == 1 + step
    assert len(agents(server, model)) == 2 + step


def test_a_retired_agent_is_told_and_may_begin_anew(server, model, tmp_path):
    secret, _ = created(server, model)
    with connected(server, model, tmp_path / "s", enrol=secret) as agent:
        name = agent.agent_id
        agent.observe([1.0, 0.0, 0.0], 1.0)
        server.call("POST", f"/v1/models/{model}/agents/{name}/retire")
        with pytest.raises(Refused) as refused:
            agent.refresh()
        assert refused.value.code == "retired"
    with pytest.raises(Refused, match="unretire"):
        connected(server, model, tmp_path / "s", enrol=secret)
    server.call("POST", f"/v1/models/{model}/agents/{name}/unretire")
    connected(server, model, tmp_path / "s").close()
    server.call("POST", f"/v1/models/{model}/agents/{name}/retire")
    with connected(server, model, tmp_path / "s", enrol=secret, reenrol=True) as agent:
        assert agent.agent_id != name
    assert server.call("GET", f"/v1/models/{model}")["n_obs"] == 1


def test_an_agent_that_was_retired_and_folded_is_told_and_may_begin_anew(server, model, tmp_path):
    secret, _ = created(server, model)
    with connected(server, model, tmp_path / "s", enrol=secret) as agent:
        name = agent.agent_id
        agent.observe([1.0, 0.0, 0.0], 1.0)
    server.call("POST", f"/v1/models/{model}/agents/{name}/retire")
    assert server.call("POST", f"/v1/models/{model}/prune", {"after_s": 3e9, "fold": True})["n_folded"] == 1
    for _ in range(2):
        with pytest.raises(Refused, match="reenrol=True") as refused:
            connected(server, model, tmp_path / "s", enrol=secret)
        assert refused.value.code == "retired"
    assert uses(server, model) == 1 and agents(server, model) == []
    with connected(server, model, tmp_path / "s", enrol=secret, reenrol=True) as agent:
        assert agents(server, model) == [agent.agent_id] != [name]
        assert agent.status().rounds == 0
    assert server.call("GET", f"/v1/models/{model}")["n_obs"] == 1


def test_a_revoked_agent_does_not_begin_anew_by_itself(server, model, tmp_path):
    secret, _ = created(server, model)
    with connected(server, model, tmp_path / "s", enrol=secret) as agent:
        name = agent.agent_id
    server.call("POST", f"/v1/models/{model}/agents/{name}/revoke")
    with pytest.raises(Refused, match="revoked"):
        connected(server, model, tmp_path / "s", enrol=secret, reenrol=True)
    assert agents(server, model) == [name]


# -- the certificate in the string


def test_a_pinned_certificate_needs_no_authority_and_no_other_is_accepted(certificates, tmp_path):
    files = {"tls_cert": certificates / "server.pem", "tls_key": certificates / "server.key"}
    with running_server(tmp_path / "server", **files) as server:
        server.http.connection_pool_kw["ca_certs"] = str(certificates / "ca.pem")
        server.add_model("news", dim=3, alpha=0.0)
        secret, _ = created(server, "news")
        with pytest.raises(NotReachable, match="certificate"):
            server_fingerprint(server.url)
        right = server_fingerprint(server.url, ca=str(certificates / "ca.pem"))
        text = str(EnrolmentString(secret, right))
        assert read_enrolment(text) == (secret, right)
        wrong = str(EnrolmentString(secret, bytes(32)))
        for enrol, problem in ((secret, "certificate verify failed"), (wrong, "ingerprint")):
            with pytest.raises(NotReachable, match=problem):
                fb.connect(server.url, model="news", enrol=enrol, state_dir=tmp_path / "wrong")
        assert uses(server, "news") == 0
        with fb.connect(server.url, model="news", enrol=text, state_dir=tmp_path / "right") as agent:
            agent.observe([1.0, 0.0, 0.0], 1.0)
            agent.flush()
        fb.connect(server.url, model="news", state_dir=tmp_path / "right").close()  # the directory has the pin
    with pytest.raises(InvalidParameter, match="https"):
        fb.connect("http://127.0.0.1:9", model="news", enrol=text, state_dir=tmp_path / "plain")
