// A fedbandit agent for Node (18 and later) and browsers, written from docs/protocol.md alone. No dependencies.
import { readArms, readContext } from "./contexts.js";
import { Closed, FormatError, ImplausibleUpload, InvalidInput, NotReachable, Refused, SequenceConflict, SequenceGap, SettingsChanged, StaleIncarnation, StateMismatch, Unauthenticated, UnsupportedFormat } from "./errors.js";
import { Personal } from "./personal.js";
import { draw, isCertain } from "./policies.js";
import { Layout, cholesky, dot, forward, fromBase64, isWidened, logDet, packStats, rankOne, sum, toBase64, toText, unpackStats } from "./statistics.js";
export * from "./errors.js";
export { packStats, unpackStats };
const crypto = globalThis.crypto ?? (await import("node:crypto")).webcrypto; // Node 18 has no global one
const MARGIN = 1e-12, SLACK = 1 + 1e-9, LARGEST = 1e70, REFACTOR_EVERY = 256; // observations between fresh factorisations
const REFUSALS = { unauthenticated: Unauthenticated, sequence_conflict: SequenceConflict, sequence_gap: SequenceGap, stale_incarnation: StaleIncarnation, implausible_upload: ImplausibleUpload };
export const digest = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)).slice(0, 16);
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
  const natural = (value) => Number.isSafeInteger(value) && value >= 0, optional = (value) => value === undefined || natural(value);
  const field = (key, fits) => { if (!fits(message.get(key))) throw new FormatError(`reply: bad ${key}`); return message.get(key); };
  const v = field("v", natural), dim = field("dim", natural), blocks = v === 2 ? message.get("blocks") : 1; // version 2: of a model with blocks
  if (![1, 2].includes(v) || !Number.isSafeInteger(blocks)) throw new UnsupportedFormat(`a reply of version ${v}; this client knows 1, and 2 with blocks`);
  if (v === 2 && !(blocks > 1 && dim % blocks === 0)) throw new FormatError(`reply: ${blocks} blocks of dim ${dim}`);
  return { agent: field("agent", text), version: field("version", natural), acknowledged: field("acknowledged", natural),
    stats: unpackStats(field("stats", bin), dim, blocks), blocks, settings: field("settings", text), excluded: message.get("excluded") === true,
    epoch: field("epoch", optional) ?? 0, clock: field("clock", optional) ?? 0 };
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
  #touched = new Map(); #observed = 0; #booked = new WeakSet(); #syncing; #saving = Promise.resolve(); #etag; #heard = Date.now(); #closed = false; #sleepers = new Set();
  constructor({ settings, agent = settings.agent, ...options }) { // an unknown agent id is taken from the first reply
    this.options = { background: true, backoff: [500, 60_000], minUpload: 1, checkAfter: 300_000, ...options };
    Object.assign(this, birth(), { agent, decisions: 0, epoch: 0, clock: 0, dropped: 0, layout: new Layout(settings), personal: settings.personal ? new Personal(settings) : null });
    this.buffer = this.layout.blank();
    this.#use(settings, 0, this.layout.blank(settings.lam));
    this.#refactor();
  }
  estimate(actions) { // ⟨θ̂, x⟩ = (L⁻¹b)ᵀ(L⁻¹x), and its uncertainty ‖L⁻¹x‖, for each of an array of feature vectors
    return this.#estimates(Array.from(actions, (action, index) => { const x = this.#vector(action); return { index, x, ...this.layout.row(x) }; }))
      .map(({ index, x, mean, width, score, version }) => ({ index, x, mean, width, score, version }));
  }
  #estimates(rows) { // each {block, values}
    const { factors, z } = this.#basis();
    return rows.map((row) => {
      const y = forward(factors[row.block], row.values.slice()), mean = dot(this.layout.part(z, row.block), y), width = dot(y, y) ** 0.5;
      return { ...row, mean, width, score: mean + this.beta * width, version: this.model.version };
    });
  }
  #basis() { // θ̂ and Σ as L and z = L⁻¹b, block by block
    const own = this.personal?.basis(this.model, this.buffer, this.flight, { cholesky, forward, dot });
    return own ?? { ...this.model, n: this.model.stats.at(-3) };
  }
  choose(actions, { k } = {}) { // of an array of feature vectors the one to play; with k the k best, best first
    const all = this.estimate(actions);
    if (!all.length) throw new InvalidInput("no actions to choose from");
    if (k !== undefined && !isCertain(this.settings)) throw new InvalidInput("no k with a policy that draws at random: the probability of a list is not defined");
    const best = isCertain(this.settings) ? this.#best(all, k) : null;
    this.#ask();
    return best ?? this.#drawn(all, this.decisions++);
  }
  chooseContext(context, { arms, bias = true, k } = {}) { // in a model with one block per arm: the arm to play, scored without rows
    if (!isCertain(this.settings)) throw new InvalidInput("a policy that draws at random chooses from rows; pass them to choose");
    const values = readContext(this.settings, context, bias), blocks = readArms(this.settings, arms);
    const all = this.#estimates(blocks.map((block, index) => ({ index, block, arm: this.settings.arms?.[block] ?? null, values })));
    const chosen = this.#best(all.map(({ values: x, ...rest }) => ({ ...rest, x })), k);
    this.#ask();
    return chosen;
  }
  #best(all, k) { // by score; of those within the margin the first
    if (k !== undefined && !(Number.isSafeInteger(k) && k >= 1 && k <= all.length)) throw new InvalidInput(`need k between 1 and the ${all.length} actions there are, got ${k}`);
    const rest = [...all], chosen = [];
    while (chosen.length < (k ?? 1)) {
      const best = rest.reduce((most, { score }) => Math.max(most, score), -Infinity);
      if (!Number.isFinite(best)) throw new InvalidInput("the scores of these actions overflow");
      const [one] = rest.splice(rest.findIndex(({ score }) => score >= best - MARGIN * Math.abs(best)), 1);
      chosen.push(Object.assign(one, { x: one.x.slice(), propensity: 1, policy: "ucb" }));
    }
    return k === undefined ? chosen[0] : chosen;
  }
  #whitened(x) { // L⁻¹x, zero outside the block of the row
    const { block, values } = this.layout.row(x), white = new Float64Array(x.length);
    white.set(forward(this.#basis().factors[block], values.slice()), block * this.layout.p);
    return white;
  }
  #drawn(all, number) { // by a policy that draws at random; the number is saved, so that no later decision draws the same
    const { index, ...told } = draw(this.settings, this, all, this.#basis().n, number, (x) => this.#whitened(x));
    this.#save().catch((error) => this.options.onError?.(error));
    return { ...all[index], ...told, number };
  }
  observe(decision, reward) { // record the reward of a decision, once, or of any feature vector; true if that created an upload
    const row = this.#row(decision), { block, values } = row, { action_bound: L, reward_bound: most } = this.settings;
    if (!Number.isFinite(reward) || Math.abs(reward) > (most ?? LARGEST) * SLACK) throw new InvalidInput(`cannot take a reward of ${reward}`);
    if (dot(values, values) ** 0.5 > (L ?? Infinity) * SLACK) throw new InvalidInput(`the model takes actions with a norm of at most ${L}`);
    if (this.#booked.has(decision)) throw new InvalidInput("this decision has its reward already");
    if (decision.x) this.#booked.add(decision);
    this.layout.absorb(this.buffer, row, reward);
    this.personal?.changed();
    if (++this.#observed % REFACTOR_EVERY) this.#follow(block, values); else this.#refactor();
    return this.#test();
  }
  get growth() { return [...this.#touched.values()].reduce((total, { growth }) => total + growth, 0); } // of log det(Σ + Σ_flight + Σ_loc) over log det Σ: a sum over blocks
  #follow(block, values) { // an observation touches one block
    const L = this.#touched.get(block)?.L ?? this.model.factors[block].slice();
    rankOne(L, values);
    this.#grown(block, L);
  }
  #grown(block, L) { this.#touched.set(block, { L, growth: logDet(L, this.layout.p, this.model.factors[block]) }); }
  makeUpload() { // from the buffer, without the trigger; false if one is in flight already, or the buffer is empty
    if (this.flight || this.buffer.at(-3) < this.options.minUpload) return false;
    this.flight = { sequence: ++this.sequence, stats: this.buffer, growth: this.growth, version: this.model.version, epoch: this.epoch, clock: this.clock, dropped: this.dropped };
    Object.assign(this, { buffer: this.layout.blank(), dropped: 0 });
    return true;
  }
  async request() { // of the upload in flight: always the same bytes
    const { flight: { sequence, stats, growth, version, ...time }, agent, incarnation, layout: { dim, blocks } } = this;
    const { touched, numbers } = blocks > 1 ? this.layout.short(stats) : { numbers: stats }, packed = packStats(numbers);
    const hash = await digest(touched ? Uint8Array.from([...touched, ...packed]) : packed), short = touched && { blocks, touched };
    return encode({ v: touched ? 2 : 1, agent, incarnation, sequence, digest: hash, dim, stats: packed, growth: new Float(growth), model_version: version, unsent: 0,
      ...Object.fromEntries(["epoch", "clock", "dropped"].filter((key) => time[key]).map((key) => [key, time[key]])), ...short });
  }
  receive({ agent, version, acknowledged, stats, blocks = 1, settings, excluded = false, epoch = 0, clock = 0 }, toUpload = true) { // from decodeReply; `acknowledged` of a download is no evidence: a copy of the state may have used the number
    const same = settings === (this.settings.settings ?? settings), newer = same && version >= this.model.version && epoch >= this.epoch, merged = toUpload && this.flight?.sequence <= acknowledged;
    if (agent !== (this.agent ??= agent) || (same && (blocks !== this.layout.blocks || stats.length !== this.buffer.length))) throw new StateMismatch("a reply for somebody else");
    if (acknowledged > this.sequence) throw new SequenceConflict("the server has uploads of this incarnation that were not made here");
    if (newer && epoch > this.epoch) this.#endEpoch();
    if (newer) Object.assign(this, { epoch, clock });
    if (newer) this.#use(this.settings, version, stats, this.buffer.at(-3) > 0 || (this.flight && !merged)); // throws before anything changes
    if (this.personal && this.flight?.sequence <= acknowledged && (merged || newer)) this.personal.answered(this.flight); // a model may hold an upload that is in flight still
    if (newer) this.personal?.take(acknowledged, excluded);
    if (merged) this.flight = null;
    if (!same) this.failure = new SettingsChanged("the model's settings changed on the server");
    this.#changed();
    if (!same) throw this.failure;
  }
  #endEpoch() { // the model was restarted: what was gathered before counts for nothing, and the next upload says how much that was
    Object.assign(this, { dropped: this.dropped + this.buffer.at(-3), buffer: this.layout.blank(), personal: this.personal && new Personal(this.settings) });
  }
  restart({ keep = false } = {}) { // after a rejection: a new incarnation, with all that was not acknowledged (keep) or with nothing
    this.buffer = keep ? sum(this.buffer, this.flight?.stats) : this.layout.blank();
    Object.assign(this, birth(), { personal: this.personal && new Personal(this.settings) }); // what an earlier incarnation sent is the fleet's
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
    const { agent, incarnation, sequence, decisions, epoch, clock, dropped, settings, model: { version, stats, ownBuffer }, buffer, flight } = this;
    return { format: 1, agent, incarnation, sequence, decisions, epoch, clock, dropped, settings, model: { version, stats: toBase64(stats), ownBuffer },
      buffer: toBase64(buffer), flight: flight && { ...flight, stats: toBase64(flight.stats) },
      own: this.personal && { held: this.personal.held && toText(this.personal.held), apart: this.personal.apart.map(toText) } };
  }
  static fromJSON(saved, { settings, ...options } = {}) { // settings: the server's current ones, if they may have changed
    const { settings: old, format, agent, model, buffer, flight, own, ...identity } = typeof saved === "string" ? JSON.parse(saved) : saved;
    if (format !== 1) throw new UnsupportedFormat("not an agent's state, or of another version");
    const now = settings ?? old, wider = isWidened(old, now), was = new Layout(old), isSame = now.dim === old.dim && (now.blocks ?? 1) === was.blocks;
    if (!(isSame || wider) || now.name !== old.name || agent !== (now.agent ?? agent)) throw new StateMismatch("a state of another agent or model");
    const self = new Agent({ ...options, settings: now, agent }), read = (text) => fromBase64(text, old.dim, was.blocks);
    const stats = (text) => wider ? was.widened(read(text), self.layout) : read(text); // arms that were added have no data yet
    Object.assign(self, identity, { buffer: stats(buffer), flight: flight && { ...flight, stats: stats(flight.stats) } });
    const piece = (saved) => ({ ...saved, stats: stats(saved.stats) });
    if (self.personal && own) self.personal = new Personal(now, { held: own.held && piece(own.held), apart: own.apart.map(piece) });
    if (now.settings !== old.settings) self.personal?.take(0); // the prior holds nothing
    if (now.settings === old.settings) self.#use(now, model.version, stats(model.stats), model.ownBuffer); // else as before the first download
    return self.#refactor();
  }
  #vector(x, v = Float64Array.from(x ?? [])) {
    if (v.length === this.settings.dim && v.every((feature) => Math.abs(feature) <= LARGEST)) return v;
    throw new InvalidInput(`need ${this.settings.dim} finite features`);
  }
  #row(decision) { // of a decision by chooseContext, one by choose, or a feature vector
    if (decision?.block === undefined) return this.layout.row(this.#vector(decision?.x ?? decision));
    const { block, x } = decision, { blocks, p } = this.layout, values = Float64Array.from(x ?? []);
    const fits = blocks > 1 && Number.isSafeInteger(block) && block >= 0 && block < blocks && values.length === p;
    if (fits && values.every((value) => Math.abs(value) <= LARGEST)) return { block, values };
    throw new InvalidInput(`need a decision in one of ${blocks} block(s) of ${p} finite numbers, got block ${block} and ${values.length}`);
  }
  #use(settings, version, stats, ownBuffer = false) { // ownBuffer: whether this agent holds data that the model lacks
    const { dim: d, lam } = settings, { blocks, p, size } = this.layout, z = stats.slice(blocks * size, -3);
    const factors = Array.from({ length: blocks }, (_, block) => cholesky(this.layout.Sigma(stats, block), p));
    factors.forEach((L, block) => forward(L, this.layout.part(z, block)));
    const determinant = factors.reduce((total, L) => total + logDet(L, p), 0);
    this.beta = beta(settings, version, stats.at(-3), Math.max(determinant - d * Math.log(lam), 0), ownBuffer);
    Object.assign(this, { settings, model: { version, stats, factors, z, ownBuffer } });
  }
  #refactor() { // of the blocks in which there is more than the model has
    const { layout } = this, more = layout.touched(this.flight ? sum(this.buffer, this.flight.stats) : this.buffer);
    const parts = (block) => [this.model.stats, this.buffer, this.flight?.stats].map((stats) => stats && layout.Sigma(stats, block));
    this.#touched.clear();
    for (const block of more) this.#grown(block, cholesky(sum(...parts(block)), layout.p));
    return this;
  }
  #changed() { this.#refactor(); return this.#test(); }
  #ask({ background, url, checkAfter, onError } = this.options) { // after a time without exchanges: removed data may be why the trigger does not fire
    if (!background || !url || this.#closed || !this.model.version || Date.now() - this.#heard < checkAfter) return;
    this.refresh({ ifCorrected: true }).catch((error) => error.retryable || onError?.(error));
  }
  #test() { // the trigger; then sync in the background. After a rejection, not until sync() is called and succeeds
    const { background, url, onError } = this.options, fail = (error) => onError?.(error);
    const silent = this.buffer.at(-3) >= (this.settings.max_silence_rounds ?? Infinity);
    const made = !this.flight && (silent || this.growth > Math.log1p(this.settings.alpha) * (1 + MARGIN)) && this.makeUpload();
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
