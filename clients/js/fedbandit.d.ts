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
export interface Decision extends Estimate { propensity: number | null; policy: string; number?: number; }
/** Of a model with one block per arm: `x` holds the numbers in `block`; `arm` is null where arms have no names. */
export interface ContextDecision extends Decision { block: number; arm: string | null; }
export interface Store { load(): string | null | undefined | Promise<string | null | undefined>; save(text: string): unknown; }
export interface AgentOptions {
  url?: string; model?: string; token?: string; store?: Store; background?: boolean; onError?: (error: Error) => void;
  checkAfter?: number; minUpload?: number; timeout?: number; backoff?: [number, number]; fetch?: typeof globalThis.fetch;
}
export interface ConnectOptions extends AgentOptions { url: string; model: string; token: string; agent?: string; join?: boolean; }
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
  estimate(actions: Iterable<Row> | ArrayLike<Row>): Estimate[];
  choose(actions: Iterable<Row> | ArrayLike<Row>, options?: { k?: undefined }): Decision;
  choose(actions: Iterable<Row> | ArrayLike<Row>, options: { k: number }): Decision[];
  chooseContext(context: Context, options?: ContextOptions & { k?: undefined }): ContextDecision;
  chooseContext(context: Context, options: ContextOptions & { k: number }): ContextDecision[];
  observe(decision: Decision | Row | { block: number; x: Row }, reward: number): boolean;
  makeUpload(): boolean;
  request(): Promise<Uint8Array>;
  receive(reply: Reply, toUpload?: boolean): void;
  restart(options?: { keep?: boolean }): void;
  sync(options?: { attempts?: number }): Promise<void>;
  flush(options?: { attempts?: number }): Promise<void>;
  refresh(options?: { attempts?: number; ifCorrected?: boolean }): Promise<Reply | null>;
  join(options?: { attempts?: number }): Promise<this>;
  close(): void;
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
export class FormatError extends FedbanditError {}
export class UnsupportedFormat extends FormatError {}
export class StateMismatch extends FedbanditError {}
export class Closed extends FedbanditError {}
export class NotReachable extends FedbanditError {}
export class Refused extends FedbanditError {}
export class Unauthenticated extends Refused {}
export class SettingsChanged extends Refused {}
export class ImplausibleUpload extends Refused {}
export class SequenceConflict extends Refused {}
export class SequenceGap extends Refused {}
export class StaleIncarnation extends Refused {}
