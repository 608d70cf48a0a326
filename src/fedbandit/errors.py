"""Every exception that fedbandit raises, on one screen.

    FedbanditError
    ├── InvalidInput (ValueError)       what was passed cannot be used
    │   ├── InvalidParameter            lam ≤ 0, alpha < 0, an unknown option
    │   ├── DimensionMismatch           another number of features than the model has
    │   ├── FeatureMismatch             the right number of columns with other names
    │   ├── NotFinite                   NaN or infinity, also by overflow
    │   └── EmptyDecisionSet            nothing to choose from
    ├── DecisionError (LookupError)     a reward that cannot be booked
    │   ├── UnknownDecision             this agent never made it, or dropped it
    │   └── AlreadyObserved             it has its reward already
    ├── ProtocolError                   a message that must not be merged
    │   ├── SequenceGap                 an upload between this one and the last is missing
    │   ├── SequenceConflict            the same sequence with other content: two processes, one identity
    │   ├── StaleIncarnation            a later life of this agent has taken over
    │   └── ImplausibleUpload           no data can give these sums
    ├── FormatError (ValueError)        bytes that are not what they should be
    │   └── UnsupportedFormat           written by a newer version
    └── MissingExtra (ImportError)      an optional dependency is not installed

Each class has a `code`, its name in snake case, which is what travels in HTTP errors.
"""

from __future__ import annotations

import re


class FedbanditError(Exception):
    """Base of everything raised on purpose; `code` is the class name in snake case."""

    code = "fedbandit_error"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class InvalidInput(FedbanditError, ValueError):
    """What was passed cannot be used."""


class InvalidParameter(InvalidInput):
    """A setting outside its range, or an option that does not exist."""


class DimensionMismatch(InvalidInput):
    """Another number of features than the model has."""


class FeatureMismatch(InvalidInput):
    """The right number of columns, with other names or in another order."""


class NotFinite(InvalidInput):
    """NaN or infinity where a finite number is needed."""


class EmptyDecisionSet(InvalidInput):
    """A decision set without a single action."""


class DecisionError(FedbanditError, LookupError):
    """A reward that cannot be booked."""


class UnknownDecision(DecisionError):
    """The agent never made this decision, or has dropped it."""


class AlreadyObserved(DecisionError):
    """The decision has its reward already."""


class ProtocolError(FedbanditError):
    """A message that must not be merged."""


class SequenceGap(ProtocolError):
    """An upload between this one and the last merged one is missing."""


class SequenceConflict(ProtocolError):
    """The sequence was merged before with other content."""


class StaleIncarnation(ProtocolError):
    """A later life of this agent has taken over its identity."""


class ImplausibleUpload(ProtocolError):
    """Sums that no data can give."""


class FormatError(FedbanditError, ValueError):
    """Bytes that are not what they should be."""


class UnsupportedFormat(FormatError):
    """Bytes written by a version of fedbandit that is newer than this one."""


class MissingExtra(FedbanditError, ImportError):
    """An optional dependency is not installed."""
