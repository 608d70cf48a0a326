// A fedbandit agent for Node (18 and later) and browsers, written from docs/protocol.md alone. No dependencies.
const crypto = globalThis.crypto ?? (await import("node:crypto")).webcrypto; // Node 18 has no global one
const MARGIN = 1e-12, SLACK = 1 + 1e-9, LARGEST = 1e70, REFACTOR_EVERY = 256; // observations between fresh factorisations
// ---- errors: after a `retryable` one the same bytes can be sent again; the others are permanent ----
export class FedbanditError extends Error {
  constructor(message, details) { super(message); Object.assign(this, { name: new.target.name, retryable: false }, details); }
}
export class InvalidInput extends FedbanditError {} // the caller's actions, reward or settings are unusable
export class FormatError extends FedbanditError {} // malformed bytes
export class UnsupportedFormat extends FormatError {} // a message or a state of another version
export class StateMismatch extends FedbanditError {} // a stored state of another agent or model, or one that the server does not know
export class Closed extends FedbanditError {} // the agent was closed
export class NotReachable extends FedbanditError {} // no connection, 408, 425, 429, 5xx; nothing is lost
export class Refused extends FedbanditError {} // permanent rejection, do not retry; see status and code
export class Unauthenticated extends Refused {} // 401: unknown or revoked token
export class SettingsChanged extends Refused {} // decisions continue with the old ones; connect again to use the new ones
export class ImplausibleUpload extends Refused {} // 422: sums that no data can produce
export class SequenceConflict extends Refused {} // 409: two processes, or an old copy of a state, share one identity
export class SequenceGap extends Refused {} // 409: the server lacks an earlier upload
export class StaleIncarnation extends Refused {} // 409: a newer incarnation exists, or this agent was forgotten
const REFUSALS = { unauthenticated: Unauthenticated, sequence_conflict: SequenceConflict, sequence_gap: SequenceGap, stale_incarnation: StaleIncarnation, implausible_upload: ImplausibleUpload };
// ---- statistics: a Float64Array in the order of the wire. Σ's upper triangle by rows, b, n_obs, Σr, Σr² ----
const triangle = (d) => d * (d + 1) / 2;
const sum = (...parts) => parts.filter(Boolean).reduce((a, b) => a.map((value, i) => value + b[i]));
function blank(d, lam = 0, stats = new Float64Array(triangle(d) + d + 3)) {
  for (let i = 0, k = 0; i < d; k += d - i++) stats[k] = lam;
  return stats;
}
function absorb(stats, x, reward, k = 0) {
  for (let i = 0; i < x.length; i++) for (let j = i; j < x.length; j++) stats[k++] += x[i] * x[j];
  for (const value of [...x.map((feature) => reward * feature), 1, reward, reward * reward]) stats[k++] += value;
}
export function packStats(stats, view = new DataView(new ArrayBuffer(8 * stats.length))) {
  stats.forEach((value, i) => view.setFloat64(8 * i, value, true));
  return new Uint8Array(view.buffer);
}
export function unpackStats(bytes, d) {
  if (bytes.length !== 8 * (triangle(d) + d + 3) || d < 1) throw new FormatError(`${bytes.length} bytes of statistics for dim ${d}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset), stats = blank(d).map((_, i) => view.getFloat64(8 * i, true));
  if (stats.every(Number.isFinite) && Number.isSafeInteger(stats.at(-3)) && stats.at(-3) >= 0) return stats;
  throw new FormatError("statistics that are not finite, or with n_obs that is no whole number");
}
export const digest = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)).slice(0, 16);
const toBase64 = (stats) => btoa(Array.from(packStats(stats), (byte) => String.fromCharCode(byte)).join(""));
const fromBase64 = (text, d) => unpackStats(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), d);
// ---- linear algebra: L lower triangular, d × d, by rows ----
function cholesky(stats, d, L = new Float64Array(d * d)) { // of their Σ
  for (let j = 0, at = 0; j < d; j++) for (let i = j; i < d; i++) {
    let s = stats[at++]; // Σ_ji = Σ_ij
    for (let k = 0; k < j; k++) s -= L[i * d + k] * L[j * d + k];
    if (i === j && !(stats[at - 1] > 0)) throw new FormatError("Sigma is not positive definite");
    L[i * d + j] = i > j ? s / L[j * d + j] : Math.sqrt(Math.max(s, d * Number.EPSILON * stats[at - 1])); // rounding may cancel a small ridge
  }
  return L;
}
function forward(L, y, d = y.length) { // y becomes L⁻¹y
  for (let i = 0; i < d; y[i] /= L[i * d + i], i++) for (let k = 0; k < i; k++) y[i] -= L[i * d + k] * y[k];
  return y;
}
function rankOne(L, v, d = v.length) { // L becomes the factor of LLᵀ + vvᵀ, in O(d²); v is used up
  for (let k = 0; k < d; k++) {
    const old = L[k * d + k], c = Math.hypot(old, v[k]) / old, s = v[k] / old;
    L[k * d + k] = c * old;
    for (let i = k + 1; i < d; i++) v[i] = c * v[i] - s * (L[i * d + k] = (L[i * d + k] + s * v[i]) / c);
  }
}
const dot = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);
const logDet = (L, d, over) => Array.from({ length: d }, (_, i) => 2 * Math.log(L[i * d + i] / (over?.[i * d + i] ?? 1))).reduce((a, b) => a + b); // of LLᵀ, less another's
// ---- MessagePack: writes maps of str, bin, whole numbers and floats; reads everything ----
export class Float { constructor(value) { this.value = value; } } // a number that is a float on the wire
const method = (verb, kind, log2) => `${verb}${log2 === 3 && kind !== "Float" ? "Big" : ""}${kind}${8 << log2}`; // of a DataView
export function encode(map) {
  const out = [0x80 | Object.keys(map).length];
  const number = (tag, kind, log2, value, view = new DataView(new ArrayBuffer(1 << log2))) => {
    view[method("set", kind, log2)](0, value);
    out.push(tag, ...new Uint8Array(view.buffer));
  };
  const natural = (n, tag, log2 = n < 2 ** 8 ? 0 : n < 2 ** 16 ? 1 : n < 2 ** 32 ? 2 : 3) => // tag: of the one with 1 byte
    number(tag + log2, "Uint", log2, log2 === 3 ? BigInt(n) : n);
  const put = (value) => {
    if (value instanceof Float) return number(0xcb, "Float", 3, value.value);
    if (Number.isSafeInteger(value) && value >= 0) return value < 128 ? out.push(value) : natural(value, 0xcc);
    const isText = typeof value === "string", bytes = isText ? new TextEncoder().encode(value) : value;
    if (!(bytes instanceof Uint8Array)) throw new InvalidInput(`cannot encode ${value}`);
    if (isText && bytes.length < 32) out.push(0xa0 | bytes.length); else natural(bytes.length, isText ? 0xd9 : 0xc4);
    for (const byte of bytes) out.push(byte);
  };
  Object.entries(map).flat().forEach(put);
  return Uint8Array.from(out);
}
export function decode(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  const skip = (n) => { if (at + n > bytes.length) throw new FormatError("message ends early"); at += n; return at - n; };
  const number = (log2, kind = "Uint") => Number(view[method("get", kind, log2)](skip(1 << log2)));
  const bin = (n) => bytes.slice(skip(n), at);
  const str = (n, utf8 = bin(n)) => {
    try { return new TextDecoder("utf-8", { fatal: true }).decode(utf8); } catch { throw new FormatError("text is not UTF-8"); }
  };
  const array = (n, depth) => { const all = []; while (n-- > 0) all.push(take(depth + 1)); return all; };
  const map = (n, depth) => { const all = new Map(); while (n-- > 0) all.set(take(depth + 1), take(depth + 1)); return all; };
  const take = (depth) => {
    const tag = number(0);
    if (depth > 16 || tag === 0xc1) throw new FormatError("nested too deeply, or no MessagePack");
    if (tag < 0x80 || tag >= 0xe0) return tag < 0x80 ? tag : tag - 256;
    if (tag < 0xc0) return tag < 0x90 ? map(tag & 15, depth) : tag < 0xa0 ? array(tag & 15, depth) : str(tag & 31);
    if (tag < 0xc4) return tag === 0xc0 ? null : tag === 0xc3;
    if (tag < 0xca) return tag < 0xc7 ? bin(number(tag - 0xc4)) : bin(number(tag - 0xc7) + 1); // or an extension, skipped
    if (tag < 0xcc) return new Float(number(tag - 0xc8, "Float"));
    if (tag < 0xd4) return tag < 0xd0 ? number(tag - 0xcc) : number(tag - 0xd0, "Int");
    if (tag < 0xdc) return tag < 0xd9 ? bin((1 << (tag - 0xd4)) + 1) : str(number(tag - 0xd9));
    return tag < 0xde ? array(number(tag - 0xdb), depth) : map(number(tag - 0xdd), depth);
  };
  const message = take(0);
  if (at !== bytes.length || !(message instanceof Map)) throw new FormatError("not one MessagePack map");
  return message;
}
export function decodeReply(bytes) {
  const message = decode(bytes), text = (value) => typeof value === "string", bin = (value) => value instanceof Uint8Array;
  const natural = (value) => Number.isSafeInteger(value) && value >= 0;
  const field = (key, fits) => { if (!fits(message.get(key))) throw new FormatError(`reply: bad ${key}`); return message.get(key); };
  if (field("v", natural) !== 1) throw new UnsupportedFormat(`a reply of version ${message.get("v")}; this client knows 1`);
  return { agent: field("agent", text), version: field("version", natural), acknowledged: field("acknowledged", natural),
    stats: unpackStats(field("stats", bin), field("dim", natural)), settings: field("settings", text) };
}
export function beta({ dim: d, lam, alpha, radius }, version, n, rho, ownBuffer = false) { // docs/theory.md, "The radius β"
  const { kind, noise_scale: R, theta_bound: S, action_bound: L, delta, n_agents: M, n_rounds: T } = radius;
  const { log, log1p, sqrt } = Math, bias = sqrt(lam) * S, mu = ownBuffer && M > 1 ? M : M - 1, missing = mu * alpha;
  const value = kind === "fixed" ? radius.beta : kind === "exogenous" ? bias + R * sqrt(2 * log(1 / delta) + rho)
    : kind === "counted" ? bias + R * sqrt(d * log1p(n / (d * lam)) + 2 * log(1 / delta))
    : kind === "adaptive" ? bias + R * sqrt(1 + missing) * sqrt(2 * log(2 / delta) + rho + d * log1p(missing / d))
      + R * mu * sqrt(alpha) * (1 + sqrt(2 * log((T ? 2 * T : 2 * M * (version + 1) * (version + 2)) / delta)))
    : kind === "paper" ? bias + (sqrt(1 + M * alpha) + M * sqrt(2 * alpha))
      * (R * sqrt(d * log((1 + T * L * L / (Math.min(alpha, 1) * lam)) / delta)) + bias) : NaN;
  if (!(value >= 0 && value < Infinity)) throw new InvalidInput(`no radius follows from ${JSON.stringify(radius)}`);
  return value;
}
// ---- the agent: decides and learns in memory; exchanges in the background, or when sync() is called ----
const birth = () => ({ incarnation: crypto.getRandomValues(new Uint32Array(4)).join("-"), sequence: 0, flight: null, failure: null });
export class Agent {
  #factor; #observed = 0; #booked = new WeakSet(); #syncing; #saving = Promise.resolve(); #etag; #heard = Date.now(); #closed = false; #sleepers = new Set();
  constructor({ settings, agent = settings.agent, ...options }) { // an unknown agent id is taken from the first reply
    this.options = { background: true, backoff: [500, 60_000], minUpload: 1, checkAfter: 300_000, ...options };
    Object.assign(this, birth(), { agent, buffer: blank(settings.dim) });
    this.#use(settings, 0, blank(settings.dim, settings.lam));
    this.#refactor();
  }
  estimate(actions) { // ⟨θ̂, x⟩ = (L⁻¹b)ᵀ(L⁻¹x), and its uncertainty ‖L⁻¹x‖, for each of an array of feature vectors
    return Array.from(actions, (action, index) => {
      const x = this.#vector(action), y = forward(this.model.L, x.slice()), mean = dot(this.model.z, y), width = dot(y, y) ** 0.5;
      return { index, x, mean, width, score: mean + this.beta * width, version: this.model.version };
    });
  }
  choose(actions) { // of an array of feature vectors the one to play
    const all = this.estimate(actions), best = all.reduce((most, { score }) => Math.max(most, score), -Infinity);
    if (!all.length) throw new InvalidInput("no actions to choose from");
    this.#ask();
    return all.find(({ score }) => score >= best - MARGIN * Math.abs(best));
  }
  observe(decision, reward) { // record the reward of a decision, once, or of any feature vector; true if that created an upload
    const x = this.#vector(decision?.x ?? decision), { action_bound: L, reward_bound: most } = this.settings;
    if (!Number.isFinite(reward) || Math.abs(reward) > (most ?? LARGEST) * SLACK) throw new InvalidInput(`cannot take a reward of ${reward}`);
    if (dot(x, x) ** 0.5 > (L ?? Infinity) * SLACK) throw new InvalidInput(`the model takes actions with a norm of at most ${L}`);
    if (this.#booked.has(decision)) throw new InvalidInput("this decision has its reward already");
    if (decision.x) this.#booked.add(decision);
    absorb(this.buffer, x, reward);
    if (++this.#observed % REFACTOR_EVERY) rankOne(this.#factor, x); else this.#refactor();
    return this.#test();
  }
  get growth() { return logDet(this.#factor, this.settings.dim, this.model.L); } // of det(Σ + Σ_flight + Σ_loc) over det Σ
  makeUpload() { // from the buffer, without the trigger; false if one is in flight already, or the buffer is empty
    if (this.flight || this.buffer.at(-3) < this.options.minUpload) return false;
    this.flight = { sequence: ++this.sequence, stats: this.buffer, growth: this.growth, version: this.model.version };
    this.buffer = blank(this.settings.dim);
    return true;
  }
  async request() { // of the upload in flight: always the same bytes
    const { flight: { sequence, stats, growth, version }, agent, incarnation, settings: { dim } } = this, packed = packStats(stats);
    return encode({ v: 1, agent, incarnation, sequence, digest: await digest(packed), dim, stats: packed, growth: new Float(growth), model_version: version, unsent: 0 });
  }
  receive({ agent, version, acknowledged, stats, settings }, toUpload = true) { // from decodeReply; `acknowledged` of a download is no evidence: a copy of the state may have used the number
    const same = settings === (this.settings.settings ?? settings), newer = same && version >= this.model.version, merged = toUpload && this.flight?.sequence <= acknowledged;
    if (agent !== (this.agent ??= agent) || (same && stats.length !== this.buffer.length)) throw new StateMismatch("a reply for somebody else");
    if (acknowledged > this.sequence) throw new SequenceConflict("the server has uploads of this incarnation that were not made here");
    if (newer) this.#use(this.settings, version, stats, this.buffer.at(-3) > 0 || (this.flight && !merged)); // throws before anything changes
    if (merged) this.flight = null;
    if (!same) this.failure = new SettingsChanged("the model's settings changed on the server");
    this.#changed();
    if (!same) throw this.failure;
  }
  restart({ keep = false } = {}) { // after a rejection: a new incarnation, with all that was not acknowledged (keep) or with nothing
    this.buffer = keep ? sum(this.buffer, this.flight?.stats) : blank(this.settings.dim);
    Object.assign(this, birth());
    this.#changed();
  }
  sync(options) { return this.#syncing ??= this.#exchange(options).finally(() => { this.#syncing = null; }); }
  async #exchange({ attempts = Infinity } = {}) { // until nothing is in flight, or this many attempts failed
    while (this.flight) {
      const { sequence } = this.flight, body = await this.request();
      await this.#save(); // stored before it is sent
      await this.#converse(attempts, "/sync", { method: "POST", body });
      if (this.flight?.sequence === sequence) throw new Refused(`the server answered upload ${sequence} without having merged it`);
    }
    this.failure = null;
  }
  async flush(options) { do await this.sync(options); while (this.makeUpload()); } // upload everything observed so far
  async refresh({ attempts = 1, ifCorrected = false } = {}) { // download without an upload; the reply, or null if there is nothing new (ifCorrected: if no data were taken out)
    const headers = this.#etag && { "If-None-Match": (ifCorrected ? "W/" : "") + this.#etag };
    this.#heard = Date.now();
    return this.#converse(attempts, `/state?incarnation=${encodeURIComponent(this.incarnation)}`, { headers });
  }
  async join({ attempts = 5 } = {}) { // at the start, and when a device wakes up
    const reply = await this.refresh({ attempts });
    if (reply?.acknowledged < this.sequence - (this.flight ? 1 : 0)) throw new StateMismatch("the server lacks uploads that it had");
    this.#test();
    return this;
  }
  close() { this.#closed = true; this.#sleepers.forEach((wake) => wake()); } // stop exchanging; toJSON keeps the state
  toJSON() { // the whole state, to continue later as the same agent
    const { agent, incarnation, sequence, settings, model: { version, stats, ownBuffer }, buffer, flight } = this;
    return { format: 1, agent, incarnation, sequence, settings, model: { version, stats: toBase64(stats), ownBuffer },
      buffer: toBase64(buffer), flight: flight && { ...flight, stats: toBase64(flight.stats) } };
  }
  static fromJSON(saved, { settings, ...options } = {}) { // settings: the server's current ones, if they may have changed
    const { settings: old, format, agent, model, buffer, flight, ...identity } = typeof saved === "string" ? JSON.parse(saved) : saved;
    if (format !== 1) throw new UnsupportedFormat("not an agent's state, or of another version");
    const now = settings ?? old, stats = (text) => fromBase64(text, old.dim), self = new Agent({ ...options, settings: now, agent });
    if (now.dim !== old.dim || now.name !== old.name || agent !== (now.agent ?? agent)) throw new StateMismatch("a state of another agent or model");
    Object.assign(self, identity, { buffer: stats(buffer), flight: flight && { ...flight, stats: stats(flight.stats) } });
    if (now.settings === old.settings) self.#use(now, model.version, stats(model.stats), model.ownBuffer); // else as before the first download
    return self.#refactor();
  }
  #vector(x, v = Float64Array.from(x ?? [])) {
    if (v.length === this.settings.dim && v.every((feature) => Math.abs(feature) <= LARGEST)) return v;
    throw new InvalidInput(`need ${this.settings.dim} finite features`);
  }
  #use(settings, version, stats, ownBuffer = false) { // ownBuffer: whether this agent holds data that the model lacks
    const { dim: d, lam } = settings, L = cholesky(stats, d), z = forward(L, stats.slice(triangle(d), -3));
    this.beta = beta(settings, version, stats.at(-3), Math.max(logDet(L, d) - d * Math.log(lam), 0), ownBuffer);
    Object.assign(this, { settings, model: { version, stats, L, z, ownBuffer } });
  }
  #refactor() { this.#factor = cholesky(sum(this.model.stats, this.buffer, this.flight?.stats), this.settings.dim); return this; }
  #changed() { this.#refactor(); return this.#test(); }
  #ask({ background, url, checkAfter, onError } = this.options) { // after a time without exchanges: removed data may be why the trigger does not fire
    if (!background || !url || this.#closed || !this.model.version || Date.now() - this.#heard < checkAfter) return;
    this.refresh({ ifCorrected: true }).catch((error) => error.retryable || onError?.(error));
  }
  #test() { // the trigger; then sync in the background. After a rejection, not until sync() is called and succeeds
    const { background, url, onError } = this.options, fail = (error) => onError?.(error);
    const made = !this.flight && this.growth > Math.log1p(this.settings.alpha) * (1 + MARGIN) && this.makeUpload();
    this.#save().catch(fail);
    this.#ask();
    if (this.flight && background && url && !this.failure && !this.#syncing) this.sync().catch((e) => fail(this.failure = e));
    return made;
  }
  #save(store = this.options.store) { // one after another, each time the latest state
    return store ? this.#saving = this.#saving.catch(() => {}).then(() => store.save(JSON.stringify(this))) : this.#saving;
  }
  async #converse(attempts, path, request) {
    for (let failed = 1, [first, most] = this.options.backoff; !this.#closed; failed++) {
      try {
        const { status, bytes, etag } = await call(this.options, path, request);
        const reply = status === 304 ? null : decodeReply(bytes);
        if (reply) { this.receive(reply, path === "/sync"); this.#etag = etag?.replace(/^W\//, ""); this.#heard = Date.now(); } // a proxy may weaken tags
        return reply;
      } catch (error) { // bytes that are not a reply may come from a captive portal: retry
        if (!(error.retryable || error.constructor === FormatError) || failed >= attempts) throw error;
        const wait = Math.min(most, first * 2 ** (failed - 1)) * Math.random(); // full jitter
        await sleep(Math.max(wait, 1000 * Math.min(error.retryAfter ?? 0, 3600) * (1 + Math.random() / 10)), this.#sleepers);
      }
    }
    throw new Closed("the agent was closed");
  }
}
const sleep = (ms, sleepers) => new Promise((resolve) => {
  const wake = () => { clearTimeout(timer); resolve(sleepers.delete(wake)); }, timer = setTimeout(wake, Math.min(ms, 2 ** 31 - 1));
  sleepers.add(wake);
});
async function call({ url, model, token, timeout = 10_000, fetch = globalThis.fetch }, path, { method, body, headers } = {}) {
  let response, bytes, said, address = `${url.replace(/\/+$/, "")}/v1/models/${encodeURIComponent(model)}${path}`;
  headers = { Authorization: `Bearer ${token}`, ...(body && { "Content-Type": "application/vnd.fedbandit.v1+msgpack" }), ...headers };
  const late = new AbortController(), timer = setTimeout(() => late.abort(), timeout); // Node does not keep AbortSignal.timeout alive
  try {
    response = await fetch(address, { method, body, headers, cache: "no-store", signal: late.signal });
    bytes = new Uint8Array(await response.arrayBuffer());
  } catch (cause) { throw new NotReachable(`no answer from ${url}: ${cause.message}`, { cause, retryable: true }); } finally { clearTimeout(timer); }
  const { status } = response, [after, etag] = ["Retry-After", "ETag"].map((name) => response.headers.get(name));
  if (response.ok || status === 304) return { status, bytes, etag };
  try { said = JSON.parse(new TextDecoder().decode(bytes)); } catch { said = null; } // perhaps a proxy's page
  const retryAfter = after && (/^\d+$/.test(after) ? Number(after) : (Date.parse(after) - Date.now()) / 1000) || 0;
  const retryable = status >= 500 || [408, 425, 429].includes(status), Kind = retryable ? NotReachable : REFUSALS[said?.error] ?? Refused;
  throw new Kind(said?.message ?? `the server answered ${status}`, { status, code: said?.error, retryable, retryAfter });
}
// An agent of {url, model, token}. With store: {load() -> text or null, save(text)} it continues as the same agent after a restart.
export async function connect({ join = true, ...options }) {
  const saved = await options.store?.load();
  const settings = await call(options, "").then(({ bytes }) => JSON.parse(new TextDecoder().decode(bytes))).catch((error) => { if (saved && error.retryable) return null; throw error; });
  const agent = saved ? Agent.fromJSON(saved, { ...options, settings }) : new Agent({ ...options, settings });
  return settings && join ? agent.join() : agent;
}
