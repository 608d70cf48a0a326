// Errors: after a `retryable` one the same bytes can be sent again; the others are permanent.
export class FedbanditError extends Error {
  constructor(message, details) { super(message); Object.assign(this, { name: new.target.name, retryable: false }, details); }
}
export class InvalidInput extends FedbanditError {} // the caller's actions, reward or settings are unusable
export class NotOneBlock extends InvalidInput {} // a row with numbers in several blocks of a model with `blocks`
export class UnknownDecision extends InvalidInput {} // this agent never made it
export class AlreadyObserved extends InvalidInput {} // it has its reward already, or was dropped
export class FormatError extends FedbanditError {} // malformed bytes
export class UnsupportedFormat extends FormatError {} // a message or a state of another version
export class StateMismatch extends FedbanditError {} // a stored state of another agent or model, or one that the server does not know
export class StateInUse extends StateMismatch {} // another process or tab has this state open
export class Closed extends FedbanditError {} // the agent was closed
export class NotReachable extends FedbanditError {} // no connection, 408, 425, 429, 5xx; nothing is lost
export class Refused extends FedbanditError {} // permanent rejection, do not retry; see status and code
export class Unauthenticated extends Refused {} // 401: unknown or revoked token
export class SettingsChanged extends Refused {} // decisions continue with the old ones; connect again to use the new ones
export class ImplausibleUpload extends Refused {} // 422: sums that no data can produce
export class SequenceConflict extends Refused {} // 409: two processes, or an old copy of a state, share one identity
export class SequenceGap extends Refused {} // 409: the server lacks an earlier upload
export class StaleIncarnation extends Refused {} // 409: a newer incarnation exists, or this agent was forgotten
