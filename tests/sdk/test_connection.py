"""Between the two questions of a start the server may go away; an agent with a past starts all the same."""

from pathlib import Path

import pytest

from fedbandit.errors import NotReachable
from fedbandit.sdk.transport import TransportReply
from tests.sdk.helpers import Way, make_hub, make_live


class CutOff(Way):
    """Answers what the model is, and is gone when asked for its state."""

    is_cut = True

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        if self.is_cut:
            raise NotReachable("the reply was cut")
        return super().state(incarnation, tag, timeout_s=timeout_s)


def test_a_server_that_goes_away_during_the_start_does_not_keep_an_agent_from_its_past(tmp_path: Path) -> None:
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path, sync="inline") as agent:
        agent.observe([1.0, 2.0, 3.0], 1.0)
    way = CutOff(hub)
    with make_live(way, state_dir=tmp_path, sync="inline") as agent:
        assert agent.status().rounds == 1
        assert agent.model_version == 1
        assert agent.status().last_error_code == "not_reachable"
        way.is_cut = False
        agent.flush(5.0)
        assert agent.refresh() is False
        assert agent.status().last_error is None


def test_a_first_start_needs_both_answers(tmp_path: Path) -> None:
    with pytest.raises(NotReachable, match="the reply was cut; a first start needs the server"):
        make_live(CutOff(make_hub()), state_dir=tmp_path)
