"""Settings and identifiers: the same rule for library, agents, server, command line and API."""

import inspect
import math
from dataclasses import fields, replace

import pytest

import fedbandit as fb
from fedbandit.cli import models
from fedbandit.errors import FormatError, InvalidParameter
from fedbandit.service.http.routes import NewModel
from fedbandit.wire.identifiers import check_agent_id, check_model_name
from fedbandit.wire.policy_choice import PolicyChoice
from fedbandit.wire.settings import ModelDescription, ModelSettings

FULL = ModelSettings(
    "news",
    2,
    1.0,
    0.5,
    fb.radius.fixed(0.5),
    features=("a", "b"),
    action_bound=1.0,
    reward_bound=2.0,
    max_rate=3.0,
    max_share=0.5,
    policy=PolicyChoice("inverse-gap", explore=0.1, gamma=3.0, policy_seed=4),
)


@pytest.mark.parametrize(
    "settings", [FULL, replace(FULL, alpha=math.inf), ModelSettings("m", 1, 1.0, 0.0, FULL.radius)]
)
def test_settings_come_back_from_their_description(settings):
    description = ModelDescription(settings, "0123", "shop-7")
    assert ModelDescription.from_dict(description.to_dict()) == description
    assert ModelSettings.from_dict(settings.to_dict()) == settings


def test_the_api_and_the_command_line_take_every_setting():
    names = {field.name for kind in (ModelSettings, PolicyChoice) for field in fields(kind)}
    names.remove("earlier_dims")  # what `models widen` remembers
    assert set(NewModel.model_fields) == names | {"beta"}
    assert names | {"beta"} <= set(inspect.signature(models.create).parameters)


def test_a_request_names_its_radius_once_and_a_finite_alpha():
    values = {**FULL.to_dict(), "radius": None, "beta": 0.5}
    assert ModelSettings.of_request(values) == FULL
    for wrong in ({"beta": None}, {"radius": {"kind": "fixed", "beta": 1.0}}, {"alpha": math.inf}):
        with pytest.raises(InvalidParameter):
            ModelSettings.of_request({**values, **wrong})


def test_min_upload_is_refused_where_the_radius_depends_on_alpha():
    adaptive = replace(FULL, radius=fb.radius.adaptive(n_agents=3, noise_scale=1.0, theta_bound=1.0, delta=0.1))
    assert FULL.rule(min_upload=3).min_upload == 3
    with pytest.raises(InvalidParameter, match="min_upload"):
        adaptive.rule(min_upload=3)


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b,c", "two words", "x" * 201, "line\n", "-a", "a?b"])
def test_one_rule_for_agent_ids(bad):
    with pytest.raises(InvalidParameter, match="agent id"):
        check_agent_id(bad)
    with pytest.raises(InvalidParameter, match="agent id"):
        fb.FedLinUCB(dim=2, beta=0.5).agent(bad)
    assert check_agent_id("é@shop:7") == "é@shop:7"


@pytest.mark.parametrize("bad", ["", ".", "a/b", "é", "x" * 101, "a b"])
def test_one_rule_for_model_names(bad):
    with pytest.raises(InvalidParameter, match="model name"):
        check_model_name(bad)
    with pytest.raises(FormatError):
        ModelDescription.from_dict({**FULL.to_dict(), "name": bad})
