// Decisions that have no reward yet, by the number in their id, oldest first: `agent.pending`.
import { AlreadyObserved, InvalidInput, UnknownDecision } from "./errors.js";
export class PendingRows extends Map { // number → {at, block, values}
  static read = ([number, at, block, values]) => [number, { at, block, values: Float64Array.from(values) }];
  static write = ([number, { at, block, values }]) => [number, at, block, [...values]];
  add(made) { for (const [number, row] of made) this.set(number, row); }
  drop(numbers) { for (const number of numbers) this.delete(number); }
  dropOldest(most) { // so that this many are left; the numbers of the others
    const dropped = [...(this.size > most ? this.keys() : [])].slice(0, Math.max(this.size - most, 0));
    this.drop(dropped);
    return dropped;
  }
  toJSON() { return Array.from(this, PendingRows.write); }
}
export class Pending {
  #rows; #owner;
  constructor(rows, owner) { this.#rows = rows; this.#owner = owner; } // Map of {at, block, values}; owner: {prefix, decisions, blocks, arms, observe, drop}
  get prefix() { return this.#owner.prefix; }
  get size() { return this.#rows.size; }
  has(id) { return this.#rows.has(this.#number(id)); }
  get(id) { return this.has(id) ? this.#told(this.#number(id)) : undefined; }
  *[Symbol.iterator]() { for (const number of [...this.#rows.keys()]) if (this.#rows.has(number)) yield this.#told(number); }
  olderThan(ms) { return [...this].filter(isOlder(ms)); } // where the clock went back, those made later than now have age 0
  expire({ olderThan = 0 } = {}) { // drop all of this age in ms; how many. A reward that comes later is AlreadyObserved
    const old = this.olderThan(olderThan);
    this.#owner.drop(old.map(({ id }) => this.#number(id)));
    return old.length;
  }
  settle(reward, { olderThan = 0 } = {}) { // the same reward for all of this age; how many
    const old = this.olderThan(olderThan);
    for (const { id } of old) this.#owner.observe(id, reward);
    return old.length;
  }
  forget(decision) { this.#owner.drop([this.find(idOf(decision))]); } // drop one
  isOwn(id) { return this.#number(id) !== null; }
  find(id) { // the number of a pending decision, or the error that says why there is none
    const number = this.#number(id);
    if (number === null || number >= this.#owner.decisions) throw new UnknownDecision(`this agent never made decision ${id}; report() takes those of other agents`);
    if (!this.#rows.has(number)) throw new AlreadyObserved(`decision ${id} has its reward already, expired, or was dropped as the oldest of too many pending ones`);
    return number;
  }
  #number(id) {
    const { prefix } = this.#owner, digits = typeof id === "string" && id.startsWith(`${prefix}-`) ? id.slice(prefix.length + 1) : "";
    return /^(0|[1-9]\d{0,15})$/.test(digits) ? Number(digits) : null;
  }
  #told(number) {
    const { at, block, values } = this.#rows.get(number), { prefix, blocks, arms } = this.#owner;
    return { id: `${prefix}-${number}`, at, x: values.slice(), ...(blocks > 1 && { block, arm: arms?.[block] ?? null }) };
  }
}
const isOlder = (ms, now = Date.now()) => ({ at }) => Math.max(now - at, 0) >= ms;
export const idOf = (decision) => (typeof decision === "string" ? decision : decision?.id);
export function requireMost(most) {
  if (!(Number.isSafeInteger(most) && most >= 1)) throw new InvalidInput(`need maxPending as a whole number from 1, got ${most}`);
}
