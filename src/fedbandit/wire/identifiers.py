"""Names of models, agents and tokens: what can stand in a URL, a header and a log line. Every layer uses this rule."""

from __future__ import annotations

import re

from fedbandit.errors import InvalidParameter

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
AGENT_ID = re.compile(r"[\w@:+=~][\w.@:+=~-]{0,199}")
TOKEN_NAME = re.compile(r"[\w@.:-]{1,100}")


def check_model_name(name: str) -> str:
    """The name, if a model can have it.

    >>> check_model_name("news")
    'news'
    """
    if not MODEL_NAME.fullmatch(name):
        raise InvalidParameter(
            f"expected a model name of 1 to 100 letters, digits, '.', '_' or '-' that begins with a letter or "
            f"digit, got {name[:220]!r}"
        )
    return name


def check_agent_id(agent_id: object) -> str:
    """The id as text, if an agent can have it.

    >>> check_agent_id(7)
    '7'
    """
    name = str(agent_id)
    if not AGENT_ID.fullmatch(name):
        raise InvalidParameter(
            f"expected an agent id of 1 to 200 letters, digits or any of '._-@:+=~' that does not begin with '.' or "
            f"'-', got {name[:220]!r}"
        )
    return name


def check_token_name(name: str) -> str:
    """The name, if a person's token can have it."""
    if not TOKEN_NAME.fullmatch(name):
        raise InvalidParameter(
            f"expected a token name of 1 to 100 letters, digits or any of '_@.:-', got {name[:220]!r}"
        )
    return name
