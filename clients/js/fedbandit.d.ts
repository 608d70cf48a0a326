// Types of fedbandit.js.
export type Row = ArrayLike<number>;
export interface Settings {
  name?: string; agent?: string; settings?: string; dim: number; lam: number; alpha: number;
  radius: { kind: string; [key: string]: unknown };
  blocks?: number; arms?: string[] | null; features?: string[] | null; action_bound?: number | null; reward_bound?: number | null;
  [key: string]: unknown;
}
export interface Estimate { index: number; x: Float64Array; mean: number; width: number; score: number; version: number; }
/** `propensity` is null where the policy does not tell it; `number` is there where it draws at random. */
export interface Decision extends Estimate { id: string; propensity: number | null; policy: string; number?: number; }
/** Of a model with one block per arm: `x` holds the numbers in `block`; `arm` is null where arms have no names. */
export interface ContextDecision extends Decision { block: number; arm: string | null; }
/** A decision without a reward: `at` is when it was made, in ms; `block` and `arm` are there in a model with one block per arm. */
export interface PendingDecision { id: string; at: number; x: Float64Array; block?: number; arm?: string | null; }
export interface Pending extends Iterable<PendingDecision> {
  readonly size: number;
  readonly prefix: string;
  has(id: string): boolean;
  get(id: string): PendingDecision | undefined;
  isOwn(id: string): boolean;
  olderThan(ms: number): PendingDecision[];
  expire(options?: { olderThan?: number }): number;
  settle(reward: number, options?: { olderThan?: number }): number;
  forget(decision: string | { id: string }): void;
}
/** `save` replaces everything that is stored, `append` adds to it; either may return a promise. `load` gives everything, or null. */
export interface Store {
  load(): string | null | undefined | Promise<string | null | undefined>;
  save(text: string): unknown;
  append?(text: string): unknown;
  close?(): unknown;
}
export function localStore(name: string, storage?: { getItem(key: string): string | null; setItem(key: string, value: string): void }): Required<Store>;
export function indexedDbStore(name: string, factory?: IDBFactory): Required<Store>;
export interface AgentOptions {
  url?: string; model?: string; token?: string; store?: Store; background?: boolean; onError?: (error: Error) => void;
  checkAfter?: number; minUpload?: number; timeout?: number; backoff?: [number, number]; maxPending?: number; keepBytes?: number; fetch?: typeof globalThis.fetch;
}
interface ConnectTo extends AgentOptions { url: string; model: string; agent?: string; join?: boolean; }
/** With a token, or with an enrolment string and a store; later starts with that store need neither. */
export type ConnectOptions = ConnectTo & ({ token: string; enrol?: undefined } | { enrol?: string; token?: undefined; store: Store });
export interface ContextOptions { arms?: (string | number)[] | null; bias?: boolean; }
export type Context = Row | { [name: string]: number };
export interface Upload { sequence: number; stats: Float64Array; growth: number; version: number; epoch: number; clock: number; dropped: number; }
export interface Reply {
  agent: string; version: number; acknowledged: number; stats: Float64Array; settings: string; blocks?: number; excluded?: boolean; epoch?: number; clock?: number;
}
export class Agent {
  constructor(options: AgentOptions & { settings: Settings; agent?: string });
  static fromJSON(saved: string | object, options?: AgentOptions & { settings?: Settings | null }): Agent;
  readonly agent: string | undefined;
  readonly incarnation: string;
  readonly sequence: number;
  readonly beta: number;
  readonly growth: number;
  readonly settings: Settings;
  readonly model: { readonly version: number; readonly stats: Float64Array };
  readonly buffer: Float64Array;
  readonly flight: Upload | null;
  readonly failure: Error | null;
  readonly kept: readonly { sequence: number; body: string }[];
  readonly decisions: number;
  readonly pending: Pending;
  estimate(actions: Iterable<Row> | ArrayLike<Row>): Estimate[];
  choose(actions: Iterable<Row> | ArrayLike<Row>, options?: { k?: undefined }): Decision;
  choose(actions: Iterable<Row> | ArrayLike<Row>, options: { k: number }): Decision[];
  chooseContext(context: Context, options?: ContextOptions & { k?: undefined }): ContextDecision;
  chooseContext(context: Context, options: ContextOptions & { k: number }): ContextDecision[];
  observe(decision: string | Decision | PendingDecision | Row | { block: number; x: Row }, reward: number): boolean;
  report(decision: string | { id: string }, reward: number): Promise<"booked" | "waiting" | "not_pending" | "refused">;
  collect(): Promise<number>;
  saved(): Promise<void>;
  makeUpload(): boolean;
  request(): Promise<Uint8Array>;
  receive(reply: Reply, toUpload?: boolean): void;
  restart(options?: { keep?: boolean }): void;
  sync(options?: { attempts?: number }): Promise<void>;
  flush(options?: { attempts?: number }): Promise<void>;
  refresh(options?: { attempts?: number; ifCorrected?: boolean }): Promise<Reply | null>;
  join(options?: { attempts?: number }): Promise<this>;
  close(): Promise<void>;
  toJSON(): object;
}
export function connect(options: ConnectOptions): Promise<Agent>;
export class Float { constructor(value: number); value: number; }
export function encode(map: { [key: string]: string | number | Uint8Array | Float }): Uint8Array;
export function decode(bytes: Uint8Array): Map<unknown, unknown>;
export function decodeReply(bytes: Uint8Array): Reply;
export function packStats(stats: Float64Array): Uint8Array;
export function unpackStats(bytes: Uint8Array, dim: number, blocks?: number): Float64Array;
export function digest(bytes: Uint8Array): Promise<Uint8Array>;
export function beta(settings: Settings, version: number, n: number, rho: number, ownBuffer?: boolean): number;
export class FedbanditError extends Error { constructor(message?: string, details?: object); retryable: boolean; status?: number; code?: string; retryAfter?: number; }
export class InvalidInput extends FedbanditError {}
export class NotOneBlock extends InvalidInput {}
export class UnknownDecision extends InvalidInput {}
export class AlreadyObserved extends InvalidInput {}
export class FormatError extends FedbanditError {}
export class UnsupportedFormat extends FormatError {}
export class StateMismatch extends FedbanditError {}
export class StateInUse extends StateMismatch {}
export class Closed extends FedbanditError {}
export class NotReachable extends FedbanditError {}
export class Refused extends FedbanditError {}
export class Unauthenticated extends Refused {}
export class SettingsChanged extends Refused {}
export class ImplausibleUpload extends Refused {}
export class SequenceConflict extends Refused {}
export class SequenceGap extends Refused {}
export class StaleIncarnation extends Refused {}
