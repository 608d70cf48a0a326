"""Every exception that fedbandit raises, on one screen.

    FedbanditError
    ├── InvalidInput (ValueError)       what was passed cannot be used
    │   ├── InvalidParameter            lam ≤ 0, alpha < 0, an unknown option
    │   ├── DimensionMismatch           another number of features than the model has
    │   ├── FeatureMismatch             the right number of columns with other names
    │   ├── NotOneBlock                 a row with numbers in several blocks of a model with `blocks`
    │   ├── NotFinite                   NaN or infinity, also by overflow
    │   ├── EmptyDecisionSet            nothing to choose from
    │   ├── MissingPropensity           a log that does not tell how probable its decisions were
    │   └── NoSupport                   a log of certain decisions: other actions had probability 0
    ├── DecisionError (LookupError)     a reward that cannot be booked
    │   ├── UnknownDecision             this agent never made it
    │   ├── AlreadyObserved             it has its reward already, or is waited for no more
    │   └── NotCorrectable              its reward cannot be replaced any more
    ├── ProtocolError                   a message that must not be merged
    │   ├── SequenceGap                 an upload between this one and the last is missing
    │   ├── SequenceConflict            the same sequence with other content: two processes, one identity
    │   ├── StaleIncarnation            a later life of this agent has taken over
    │   ├── LaterEpoch                  an upload after a restart that the server does not know of
    │   └── ImplausibleUpload           no data can give these sums
    ├── ServiceError                    the server cannot or may not do it; each has an HTTP `status`
    │   ├── Unauthenticated             401: no token, or one that is not known
    │   │   └── Retired                 401: the agent was retired, and its data stay
    │   ├── Forbidden                   403: the token may not do this
    │   ├── UnknownModel                404
    │   ├── UnknownAgent                404
    │   ├── UnknownEnrolment            404
    │   ├── UnknownTable                404: a file of the dashboard that does not exist
    │   ├── AlreadyExists               409: a model or an agent of this name
    │   ├── EnrolmentEnded              403: an enrolment that expired, was revoked, or has no use left
    │   ├── CopiedState                 409: another process started from a copy of this state directory
    │   ├── RewardConflict              409: another reward for this decision was reported before
    │   ├── OwnerEnded                  410: who made the decision was retired or forgotten
    │   ├── RateExceeded                429: more observations than the model allows an agent in this time
    │   │   ├── ShareExceeded           429: more influence than the model allows one agent
    │   │   └── RewardsFull             429: too many rewards that no agent has collected
    │   ├── ModelChanged                503: deleted and created again while the upload travelled; send it again
    │   ├── BodyTooSlow                 408: try again on a better line
    │   ├── BodyTooLarge                413
    │   ├── HeadTooLarge                431: the request line and the headers
    │   ├── MalformedRequest            400: not an HTTP request
    │   ├── Overloaded                  503: shed; try again after `Retry-After`
    │   ├── StoreUnavailable            503: the database cannot be reached
    │   └── SchemaTooNew                the data directory was written by a newer version
    ├── LiveError                       an agent inside an application, talking to a server
    │   ├── NotReachable                no answer in time; nothing is lost
    │   ├── Refused                     the server said no, and saying it again will not help
    │   ├── UnusableModel               the server's newest model cannot be decided on; the one before stays in use
    │   ├── StateDirInUse               another process holds the state directory
    │   ├── StateMismatch               the state directory belongs to another agent or model
    │   ├── JournalFailed               the state directory cannot be written: no space, no permission
    │   ├── ForkedProcess               used after a fork; connect again in the child
    │   └── Closed                      the agent was closed
    ├── FormatError (ValueError)        bytes that are not what they should be
    │   └── UnsupportedFormat           written by a newer version
    ├── UnusableEntryPoint              an installed package registers something that cannot be loaded
    ├── DataUnavailable                 a data set that cannot be downloaded, or is not what it should be
    └── MissingExtra (ImportError)      an optional dependency is not installed

Each class has a `code`, its name in snake case, which is what travels in HTTP errors; a
`Refused` has the code that the server sent. Warnings are shown, not raised:

    FedbanditWarning (UserWarning)
    ├── UnprovenRadius                  the radius has no proof for this algorithm
    ├── NothingAdopted                  the agent uploads, and was never given an answer
    ├── BrokenEntryPoint                an entry of an installed package cannot be loaded and is left out
    └── UnnamedArms                     rows without names, for a model with columns for each arm
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


class NotOneBlock(InvalidInput):
    """A row with numbers in more than one block of a model with disjoint arms (`blocks`)."""


class NotFinite(InvalidInput):
    """NaN or infinity where a finite number is needed."""


class EmptyDecisionSet(InvalidInput):
    """A decision set without a single action."""


class MissingPropensity(InvalidInput):
    """A log does not tell the probability of its decisions; other policies cannot be evaluated on it."""


class NoSupport(InvalidInput):
    """A log of certain decisions: the actions that another policy would take had probability 0."""


class DecisionError(FedbanditError, LookupError):
    """A reward that cannot be booked."""


class UnknownDecision(DecisionError):
    """The agent never made this decision."""


class AlreadyObserved(DecisionError):
    """The decision has its reward already, expired or was dropped: it is waited for no more."""


class NotCorrectable(DecisionError):
    """The reward of this decision cannot be replaced: an upload holds it, or it was never observed here."""


class ProtocolError(FedbanditError):
    """A message that must not be merged."""


class SequenceGap(ProtocolError):
    """An upload between this one and the last merged one is missing."""


class SequenceConflict(ProtocolError):
    """The sequence was merged before with other content."""


class StaleIncarnation(ProtocolError):
    """A later life of this agent has taken over its identity."""


class LaterEpoch(ProtocolError):
    """An upload of an epoch that the server does not know: it was restored to a state before a restart by hand."""


class ImplausibleUpload(ProtocolError):
    """Sums that no data can give."""


class ServiceError(FedbanditError):
    """The server cannot or may not do it; `status` is the HTTP status."""

    status = 500


class Unauthenticated(ServiceError):
    """No token, or one that is not known."""

    status = 401


class Retired(Unauthenticated):
    """The agent was retired: its token is no longer valid, and its contribution stays."""


class Forbidden(ServiceError):
    """The token may not do this."""

    status = 403


class UnknownModel(ServiceError):
    """There is no model of this name."""

    status = 404


class UnknownAgent(ServiceError):
    """There is no agent of this name in this model."""

    status = 404


class UnknownEnrolment(ServiceError):
    """There is no enrolment of this name in this model."""

    status = 404


class UnknownTable(ServiceError):
    """There is no such table of a model."""

    status = 404


class AlreadyExists(ServiceError):
    """There is one of this name already."""

    status = 409


class EnrolmentEnded(ServiceError):
    """The enrolment expired, was revoked, or has been used as often as it may be; agents it enrolled stay."""

    status = 403


class CopiedState(ServiceError):
    """The state directory is a copy: another process has started from the same one since."""

    status = 409


class RewardConflict(ServiceError):
    """Another reward was reported for this decision before; the first one holds."""

    status = 409


class OwnerEnded(ServiceError):
    """The agent that made the decision was retired or forgotten: nobody can book the reward."""

    status = 410


class RateExceeded(ServiceError):
    """More observations than the model allows an agent in this time; the same upload may be sent again later."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: float = 60.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShareExceeded(RateExceeded):
    """More influence than the model allows one agent; the same upload may be sent again when others have uploaded."""


class RewardsFull(RateExceeded):
    """Too many rewards wait for agents that do not collect them; send it again later."""


class ModelChanged(ServiceError):
    """The model was deleted and created again while the request was handled; send the same request again."""

    status = 503


class BodyTooSlow(ServiceError):
    """The request did not arrive in time; it may be sent again."""

    status = 408


class BodyTooLarge(ServiceError):
    """The request is longer than any honest one."""

    status = 413


class HeadTooLarge(ServiceError):
    """The request line and the headers are longer than any honest ones."""

    status = 431


class MalformedRequest(ServiceError):
    """The bytes are not an HTTP request."""

    status = 400


class Overloaded(ServiceError):
    """More requests than the server can take now; try again after `Retry-After`."""

    status = 503


class StoreUnavailable(ServiceError):
    """The database cannot be reached."""

    status = 503


class SchemaTooNew(ServiceError):
    """The data was written by a version of fedbandit that is newer than this one."""


class LiveError(FedbanditError):
    """An agent inside an application, talking to a server."""


class NotReachable(LiveError):
    """The server did not answer in time; what was observed is kept and sent later.

    `retry_after_s` is how long the server asked to be left alone, if it did.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Refused(LiveError):
    """The server refuses, and would again; `reason`, which is also the `code`, is the server's error code."""

    def __init__(self, message: str, *, reason: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        if reason:
            self.code = reason


class UnusableModel(LiveError):
    """No decision can rest on the model that the server gave; the one before stays in use."""


class StateDirInUse(LiveError):
    """Another process holds the state directory."""


class StateMismatch(LiveError):
    """The state directory belongs to another agent or model."""


class JournalFailed(LiveError):
    """The state directory cannot be written; what was passed is not booked, and can be passed again."""


class ForkedProcess(LiveError):
    """The agent was made before a fork; connect again in the child."""


class Closed(LiveError):
    """The agent was closed."""


class FormatError(FedbanditError, ValueError):
    """Bytes that are not what they should be."""


class UnsupportedFormat(FormatError):
    """Bytes written by a version of fedbandit that is newer than this one."""


class UnusableEntryPoint(FedbanditError):
    """An installed package registers an algorithm, a world or a participation pattern that cannot be loaded."""


class DataUnavailable(FedbanditError):
    """A data set cannot be downloaded, or is not what it should be."""


class MissingExtra(FedbanditError, ImportError):
    """An optional dependency is not installed."""


class FedbanditWarning(UserWarning):
    """Base of every warning; `warnings.filterwarnings` takes these classes as `category`."""


class UnprovenRadius(FedbanditWarning):
    """The confidence radius has no proof for this algorithm; docs/theory.md says which rule may use which."""


class NothingAdopted(FedbanditWarning):
    """An agent made an upload long ago and was never given an answer, so that it still decides on its first model."""


class BrokenEntryPoint(FedbanditWarning):
    """An entry that an installed package registers cannot be loaded, and is left out of a list."""


class UnnamedArms(FedbanditWarning):
    """Rows without column names were given to a model with columns for each arm: their order cannot be checked."""
