"""What one batch does to a model, without a store."""

from __future__ import annotations

import numpy as np
import pytest

from fedbandit.core.plausibility import MAX_TOTAL
from fedbandit.errors import ImplausibleUpload, Unauthenticated
from fedbandit.service.exchange.epochs import EpochState
from fedbandit.service.exchange.ledger import Acknowledged, AgentRow, Fold
from fedbandit.service.model import NO_GROWTH
from tests.service.uploads import TOKEN, folded, incoming, settings


def fold_of(agent: AgentRow, n_obs: float = 0.0) -> Fold:
    state = np.frombuffer(folded(), dtype="<f8").copy()
    state[-3] = n_obs
    return Fold(settings(), "uid", 0, state, NO_GROWTH, {agent.name: agent}, {}, EpochState(settings()))


def test_a_model_counts_no_further_than_a_float_can():
    upload = incoming("a")  # of four observations
    for n_obs, is_merged in ((MAX_TOTAL - 4, True), (MAX_TOTAL - 3, False)):
        fold = fold_of(AgentRow("a", TOKEN), n_obs)
        (outcome,) = fold.run([upload], now=1e9)
        assert (outcome == Acknowledged(1, True)) == is_merged
        assert isinstance(outcome, ImplausibleUpload) != is_merged
        assert fold.state[-3] == (MAX_TOTAL if is_merged else n_obs)


def test_the_row_of_an_agent_says_whether_its_token_was_revoked():
    fold = fold_of(AgentRow("a", TOKEN, revoked=True))
    (outcome,) = fold.run([incoming("a")], now=1e9)
    assert isinstance(outcome, Unauthenticated)
    assert fold.version == 0


@pytest.mark.parametrize("sequence", [1, 2])
def test_a_superseded_incarnation_stays_out(sequence):
    fold = fold_of(AgentRow("a", TOKEN))
    uploads = [incoming("a"), incoming("a", incarnation="life-2"), incoming("a", sequence)]
    outcomes = fold.run(uploads, now=1e9)
    assert outcomes[2].code == "stale_incarnation"
    assert fold.version == 2
