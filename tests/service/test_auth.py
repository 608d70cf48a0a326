"""What is said to somebody whose token does not work."""

from __future__ import annotations

import hashlib

import pytest

from fedbandit.errors import Unauthenticated
from fedbandit.service.admin.auth import N_CHARACTERS, bearer_hash, hash_token, new_token

TOKEN = "fb_" + "Kq3-_x9Z" * 5 + "abc"  # the same in every worker: pytest-xdist compares the names of tests


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (None, "got no such header"),
        ("", "got no such header"),
        ("Bearer", "got no token in it"),
        ("Bearer ", "got no token in it"),
        (TOKEN, "got no scheme in it"),
        (f"Basic {TOKEN}", "got another scheme than Bearer"),
        (f"Bearer {TOKEN[:9]}", "got 9: was it cut off"),
        (f"Bearer {TOKEN * 5}", "got 230: was it cut off, or joined"),
        (f"Bearer {TOKEN[:20]} {TOKEN[20:]}", "visible ASCII characters"),
        (f"Bearer \u201c{TOKEN}\u201d", "visible ASCII characters"),
    ],
)
def test_what_is_wrong_with_a_token_is_said_without_repeating_it(header: str | None, words: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        bearer_hash(header)
    assert words in str(caught.value)
    assert TOKEN[:9] not in str(caught.value)


def test_tokens_have_the_length_that_messages_name() -> None:
    assert len(TOKEN) == len(new_token()) == N_CHARACTERS


def test_what_is_kept_of_a_token_is_its_sha256() -> None:
    assert bearer_hash(f"Bearer {TOKEN}") == hash_token(TOKEN) == hashlib.sha256(TOKEN.encode()).digest()
