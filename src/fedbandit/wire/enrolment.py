"""Enrolment strings: a secret, and optionally the fingerprint of the certificate that the server must have.

fbe_<43 letters>                          a secret
fbe_<43 letters>.sha256-<43 letters>      the same, with the SHA-256 of the server's certificate (DER), in base64url
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from fedbandit.errors import InvalidParameter

ENROLMENT = re.compile(r"(fbe_[A-Za-z0-9_-]{43})(?:\.sha256-([A-Za-z0-9_-]{43}))?")


class EnrolmentString(NamedTuple):
    """What an enrolment string says."""

    secret: str
    fingerprint: bytes | None = None  # SHA-256 of the server's certificate

    def __str__(self) -> str:
        if self.fingerprint is None:
            return self.secret
        return f"{self.secret}.sha256-{base64.urlsafe_b64encode(self.fingerprint).rstrip(b'=').decode()}"


def read_enrolment(text: object) -> EnrolmentString:
    """The parts of an enrolment string; the error does not repeat it.

    >>> read_enrolment("fbe_" + "x" * 43).fingerprint is None
    True
    """
    match = ENROLMENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise InvalidParameter(
            "expected an enrolment string as printed by `fedbandit enrol create`: fbe_ and 43 letters, perhaps with "
            "the server's fingerprint after a dot; was it cut off when it was copied?"
        )
    secret, encoded = match.groups()
    if encoded is None:
        return EnrolmentString(secret)
    try:
        return EnrolmentString(secret, base64.urlsafe_b64decode(encoded + "="))
    except binascii.Error:
        raise InvalidParameter("expected 43 letters of base64url after sha256- in the enrolment string") from None
