"""Contracts of any agent: what passes between it and its server."""

from __future__ import annotations

import numpy as np

from fedbandit import errors
from fedbandit.algorithms.messages import Download, Receipt, Upload
from fedbandit.core.statistics import SufficientStats
from fedbandit.testing.contracts import ROUNDS, Subject, close, contract, raising, state_of, stats_of


@contract("uploads", *ROUNDS)
def _the_upload_of_an_unanswered_exchange_is_kept_and_stays_identical(subject: Subject) -> None:
    agent = subject.agent()
    upload = subject.uploading(agent)
    content = upload.digest()
    assert agent.in_flight is upload and upload.sequence == 1
    for seed in range(20):
        assert agent.observe(subject.rows(1, seed=seed)[0], 1.0) is None, "one exchange at a time"
    assert agent.in_flight is upload and upload.digest() == content
    assert agent.local.n_obs == 20


@contract("uploads", "sums", *ROUNDS)
def _an_upload_received_twice_counts_once(subject: Subject) -> None:
    server, agent = subject.rule.server(), subject.agent()
    upload = subject.uploading(agent)
    server.receive(upload)
    merged, version = server.stats, server.version
    again = server.receive(upload)
    assert server.stats == merged and server.version == version == 1
    assert merged.n_obs == upload.stats.n_obs
    agent.adopt(again)
    assert agent.in_flight is None


@contract("uploads", "sums", *ROUNDS)
def _what_was_seen_while_an_exchange_was_under_way_starts_the_next_upload(subject: Subject) -> None:
    server, agent = subject.rule.server(), subject.agent()
    first = subject.uploading(agent)
    seen = [(x, 1.0) for x in subject.rows(50, seed=5)]
    for x, reward in seen:
        agent.observe(x, reward)
    second = agent.adopt(server.receive(first))
    if second is None:  # an answer without a model: the next observation finds the buffer due
        seen.append((np.ones(subject.dim), 1.0))
        second = agent.observe(np.ones(subject.dim), 1.0)
    assert second is not None and second.sequence == 2
    assert close(second.stats.Sigma, stats_of(seen, subject.dim).Sigma, rtol=1e-5, atol=1e-8)
    assert agent.local.n_obs == 0


@contract("uploads", *ROUNDS)
def _a_gap_a_conflict_and_a_stale_incarnation_are_refused_and_change_nothing(subject: Subject) -> None:
    server = subject.rule.server()
    server.enroll(["a"])
    first = subject.uploading(subject.rule.agent("a", incarnation="first"))
    server.receive(first)
    other = SufficientStats.of(subject.rows(2, seed=9), [1.0, 2.0])
    before = state_of(server)
    for incarnation, sequence, stats, error in (
        ("first", 3, first.stats, errors.SequenceGap),
        ("first", 0, first.stats, errors.SequenceGap),
        ("first", 1, other, errors.SequenceConflict),
        ("second", 2, first.stats, errors.SequenceGap),
    ):
        with raising(error):
            server.receive(Upload("a", incarnation, sequence, stats, 0.1))
        assert state_of(server) == before
    server.receive(Upload("a", "second", 1, other, 0.1))
    before = state_of(server)
    with raising(errors.StaleIncarnation):
        server.receive(Upload("a", "first", 2, first.stats, 0.1))
    assert state_of(server) == before


@contract("uploads", *ROUNDS)
def _an_upload_that_cannot_be_added_is_refused_and_changes_nothing(subject: Subject) -> None:
    server, good = subject.played(20).server, SufficientStats.of(subject.rows(2), [1.0, 2.0])
    before = state_of(server)
    for stats, error in (
        (SufficientStats.of(np.ones((2, subject.dim + 1)), [1.0, 2.0]), errors.DimensionMismatch),
        (SufficientStats(good.Sigma * np.nan, good.b, 2), errors.NotFinite),
        (SufficientStats(good.Sigma, good.b, 2, np.inf), errors.NotFinite),
        (SufficientStats(good.Sigma, good.b, -1), errors.InvalidInput),
    ):
        with raising(error):
            server.receive(Upload("newcomer", "one", 1, stats, 0.1))
    assert state_of(server) == before


@contract(*ROUNDS)
def _a_reply_for_another_agent_or_dimension_is_refused_and_changes_nothing(subject: Subject) -> None:
    agent, d = subject.played(20).agent("0"), subject.dim
    before = state_of(agent)
    with raising(errors.InvalidInput, "expected a reply for agent '0', got one for 'b'"):
        agent.adopt(Download("b", 99, SufficientStats.prior(dim=d, lam=1.0)))
    with raising(errors.DimensionMismatch, f"a model with {d} features, got {d + 1}"):
        agent.adopt(Download("0", 99, SufficientStats.prior(dim=d + 1, lam=1.0)))
    assert state_of(agent) == before


@contract("uploads", "sums", *ROUNDS)
def _a_late_download_does_not_replace_a_newer_model(subject: Subject) -> None:
    agent = subject.played(60).agent("0")
    assert agent.model_version > 1
    before = agent.predict(np.eye(subject.dim))
    agent.adopt(Download("0", agent.model_version - 1, SufficientStats.prior(dim=subject.dim, lam=1.0)))
    assert np.array_equal(agent.predict(np.eye(subject.dim)), before)


@contract("uploads", "sums", "ridge")
def _of_several_replies_an_agent_takes_its_own(subject: Subject) -> None:
    agent, prior = subject.agent(), SufficientStats.prior(dim=subject.dim, lam=1.0)
    stats = prior + SufficientStats.of(subject.rows(10), np.ones(10))
    agent.adopt((Receipt("b", 3), Download("a", 5, stats), Download("b", 5, prior)))
    assert agent.model_version == 5
    assert close(agent.predict(np.eye(subject.dim)), np.linalg.solve(stats.Sigma, stats.b), rtol=1e-7)
