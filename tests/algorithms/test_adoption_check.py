"""An agent that uploads and is never given an answer never learns: it says so, once."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.adoption_check import LONG
from fedbandit.errors import NothingAdopted
from tests.builders import make_rule, rows

# In this suite a warning that nobody expects is an error.
LAZY = ("fedlinucb", "fedlinucb-join", "fedlinucb-arrival", "fedlinucb-spectral", "oful-shared")


def feed(agent, n, *, server=None):
    """Observations whose uploads go to the server, if there is one; replies are adopted."""
    for x in rows(n):
        upload = agent.observe(x, 1.0)
        if upload is not None and server is not None:
            agent.adopt(server.receive(upload))


@pytest.mark.parametrize("name", LAZY)
def test_an_agent_that_is_never_answered_says_so_once(name):
    agent = make_rule(name).agent("shop-7")
    with pytest.warns(NothingAdopted, match="'shop-7'.*never given a model.*fb.OFUL") as caught:
        feed(agent, 3 * LONG)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert not agent.predict(np.eye(3)).any(), "it has learnt nothing"


def test_receipts_alone_teach_nothing_either():
    rule = make_rule("fedlinucb-arrival")
    server, agent = rule.server(), rule.agent("a")
    with pytest.warns(NothingAdopted):
        feed(agent, 2 * LONG, server=server)  # nobody calls arrive(), so no model is asked for


@pytest.mark.parametrize("name", LAZY)
def test_an_answer_even_a_late_one_silences_it(name):
    rule = make_rule(name)
    server, agent = rule.server(), rule.agent("a")
    feed(agent, LONG // 2)
    agent.adopt(server.receive(agent.in_flight))
    agent.adopt(server.receive(fb.Pull("a", agent.incarnation)))
    feed(agent, 3 * LONG)
    assert agent.predict(np.eye(3)).any()


def test_an_agent_whose_trigger_never_holds_and_one_that_learns_alone_stay_silent():
    for rule in (make_rule(alpha=np.inf), make_rule("oful-independent"), make_rule("oful-independent-rare-switching")):
        feed(rule.agent("a"), 3 * LONG)
