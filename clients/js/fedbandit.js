// A fedbandit agent for Node (18 and later) and browsers, written from docs/protocol.md alone. No dependencies.
import { readArms, readContext, scored } from "./contexts.js";
import { identify } from "./enrolment.js";
import { Closed, FormatError, InvalidInput, Refused, SequenceConflict, SequenceGap, SettingsChanged, StateMismatch } from "./errors.js";
import { call, postJson, sleep } from "./http.js";
import { keep, lacking } from "./kept.js";
import { Float, decodeReply, digest, encode, randomHex } from "./messages.js";
import { Pending, PendingRows, idOf, requireMost } from "./pending.js";
import { Personal } from "./personal.js";
import { best, draw, isCertain } from "./policies.js";
import { beta } from "./radius.js";
import { RewardCollector } from "./rewards.js";
import { Saver, readState, requireFormat } from "./saving.js";
import { Layout, cholesky, dot, forward, fromBase64, isWidened, logDet, packStats, rankOne, sum, toBase64, unpackStats } from "./statistics.js";
export * from "./errors.js";
export { Float, decode, decodeReply, digest, encode } from "./messages.js";
export { indexedDbStore, localStore } from "./stores.js";
export { beta, packStats, unpackStats };
const MARGIN = 1e-12, SLACK = 1 + 1e-9, LARGEST = 1e70, REFACTOR_EVERY = 256; // observations between fresh factorisations
const RESERVE = 2 ** 16; // numbers of decisions that a snapshot sets aside: a restarted process begins after them, so that no id is given twice, whatever was not stored
// ---- the agent: decides and learns in memory; exchanges in the background, or when sync() is called ----
const birth = () => ({ incarnation: randomHex(16), sequence: 0, flight: null, failure: null, kept: [] });
export class Agent {
  #touched = new Map(); #observed = 0; #rows = new PendingRows(); #saver; #syncing; #collecting; #turns = Promise.resolve(); #etag; #acknowledged; #sent; #rewards = 0; #collector = new RewardCollector();
  #heard = Date.now(); #closed = false; #sleepers = new Set(); #scratch = null;
  constructor({ settings, agent = settings.agent, ...options }) { // an unknown agent id is taken from the first reply
    this.options = { background: true, backoff: [500, 60_000], minUpload: 1, checkAfter: 300_000, maxPending: 10_000, keepBytes: 2 ** 18, ...options };
    requireMost(this.options.maxPending);
    Object.assign(this, birth(), { agent, born: null, decisions: 0, reserved: 0, epoch: 0, clock: 0, dropped: 0, layout: new Layout(settings), personal: settings.personal ? new Personal(settings) : null });
    this.buffer = this.layout.blank();
    this.#use(settings, 0, this.layout.blank(settings.lam));
    this.#refactor();
    this.#saver = new Saver(this.options.store, () => { this.reserved = this.decisions + RESERVE; return JSON.stringify(this); }, (error) => this.options.onError?.(error));
    this.pending = new Pending(this.#rows, this.#owner());
  }
  #owner(self = this) { // what the list of pending decisions needs of its agent
    return { get prefix() { return (self.born ?? self.incarnation).slice(0, 12); }, get decisions() { return self.decisions; }, get blocks() { return self.layout.blocks; },
      get arms() { return self.settings.arms; }, observe: (id, reward) => self.observe(id, reward), drop: (numbers) => self.#drop(numbers) };
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
    const own = this.personal?.basis(this.model, this.buffer, this.flight);
    return own ?? { ...this.model, n: this.model.stats.at(-3) };
  }
  choose(actions, { k } = {}) { // of an array of feature vectors the one to play; with k the k best, best first
    this.#requireOpen();
    const all = this.estimate(actions);
    if (!all.length) throw new InvalidInput("no actions to choose from");
    if (k !== undefined && !isCertain(this.settings)) throw new InvalidInput("no k with a policy that draws at random: the probability of a list is not defined");
    if (!isCertain(this.settings)) return this.#drawn(all);
    const found = best(Float64Array.from(all, ({ score }) => score), k).map((index) => ({ ...all[index], propensity: 1, policy: "ucb" }));
    return this.#decided(found, found.map(({ x }) => this.layout.row(x)), k);
  }
  chooseContext(context, { arms, bias = true, k } = {}) { // in a model with one block per arm: the arm to play, scored without rows
    this.#requireOpen();
    if (!isCertain(this.settings)) throw new InvalidInput("a policy that draws at random chooses from rows; pass them to choose");
    const values = readContext(this.settings, context, bias), blocks = readArms(this.settings, arms), { means, widths, scores } = this.#scratch = scored({ model: this.#basis(), layout: this.layout, beta: this.beta }, values, blocks, this.#scratch);
    const found = best(scores, k).map((index) => {
      const block = blocks ? blocks[index] : index;
      return { index, block, arm: this.settings.arms?.[block] ?? null, mean: means[index], width: widths[index], score: scores[index], version: this.model.version, x: values.slice(), propensity: 1, policy: "ucb" };
    });
    return this.#decided(found, found.map(({ block }) => ({ block, values })), k);
  }
  #decided(found, rows, k) { // pending, and stored with their numbers, so that no later decision has the same id or draws the same
    const at = Date.now(), first = this.decisions, made = rows.map(({ block, values }, i) => [first + i, { at, block, values: values.slice() }]);
    this.decisions += made.length;
    this.#rows.add(made);
    found.forEach((decision, i) => { decision.id = `${this.pending.prefix}-${first + i}`; });
    const dropped = this.#rows.dropOldest(this.options.maxPending);
    if (this.decisions > this.reserved - RESERVE / 2) this.#saver.save(); else this.#saver.line(["d", made.map(PendingRows.write), dropped]);
    this.#ask();
    return k === undefined ? found[0] : found;
  }
  #drop(numbers) {
    this.#requireOpen();
    this.#rows.drop(numbers);
    if (numbers.length) this.#saver.line(["f", numbers]);
  }
  #whitened(x) { // L⁻¹x, zero outside the block of the row
    const { block, values } = this.layout.row(x), white = new Float64Array(x.length);
    white.set(forward(this.#basis().factors[block], values.slice()), block * this.layout.p);
    return white;
  }
  #drawn(all, number = this.decisions) { // by a policy that draws at random
    const { index, ...told } = draw(this.settings, { agent: this.agent, incarnation: this.born ?? this.incarnation, beta: this.beta }, all, this.#basis().n, number, (x) => this.#whitened(x));
    return this.#decided([{ ...all[index], ...told, number }], [this.layout.row(all[index].x)]);
  }
  observe(decision, reward) { // the reward of a decision or its id, once, or of any feature vector; true if that created an upload
    this.#requireOpen();
    const id = idOf(decision), number = id === undefined ? null : this.pending.find(id), row = number === null ? this.#row(decision) : this.#rows.get(number);
    const { block, values } = row, { action_bound: L, reward_bound: most } = this.settings;
    if (!Number.isFinite(reward) || Math.abs(reward) > (most ?? LARGEST) * SLACK) throw new InvalidInput(`cannot take a reward of ${reward}`);
    if (dot(values, values) ** 0.5 > (L ?? Infinity) * SLACK) throw new InvalidInput(`the model takes actions with a norm of at most ${L}`);
    const change = number === null ? ["r", block, [...values], reward] : ["o", number, reward];
    this.#book(number, row, reward);
    this.personal?.changed();
    if (++this.#observed % REFACTOR_EVERY) this.#follow(block, values.slice()); else this.#refactor();
    return this.#test(change);
  }
  #book(number, row, reward) { this.#rows.delete(number); this.layout.absorb(this.buffer, row, reward); }
  #replay([kind, ...rest]) { // a stored change
    if (kind === "d") {
      const [made, dropped] = rest;
      this.#rows.add(made.map(PendingRows.read));
      this.decisions = Math.max(this.decisions, ...made.map(([number]) => number + 1));
      this.#rows.drop(dropped);
    } else if (kind === "o" && this.#rows.has(rest[0])) this.#book(rest[0], this.#rows.get(rest[0]), rest[1]);
    else if (kind === "r") this.#book(null, { block: rest[0], values: Float64Array.from(rest[1]) }, rest[2]);
    else if (kind === "f") this.#rows.drop(rest[0]);
    else throw new FormatError(`the stored state has a change that does not fit: ${kind} ${rest[0]}`);
  }
  async report(decision, reward) { // the reward of any agent's decision, by its id or token; may be repeated. "booked", "waiting" or "not_pending"
    const name = String(idOf(decision));
    if (this.pending.isOwn(name)) { this.observe(name, reward); return "booked"; }
    if (!Number.isFinite(reward)) throw new InvalidInput(`cannot take a reward of ${reward}`);
    return (await postJson(this.options, "/rewards", { decision: name, reward })).status;
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
    this.#saver.save();
    return true;
  }
  async request() { // the bytes of the upload in flight, always the same
    const { flight: { sequence, stats, growth, version, ...time }, agent, incarnation, layout: { dim, blocks } } = this;
    const { touched, numbers } = blocks > 1 ? this.layout.short(stats) : { numbers: stats }, packed = packStats(numbers);
    const hash = await digest(touched ? Uint8Array.from([...touched, ...packed]) : packed), short = touched && { blocks, touched };
    return encode({ v: touched ? 2 : 1, agent, incarnation, sequence, digest: hash, dim, stats: packed, growth: new Float(growth), model_version: version, unsent: 0,
      ...Object.fromEntries(["epoch", "clock", "dropped"].filter((key) => time[key]).map((key) => [key, time[key]])), ...short });
  }
  receive({ agent, version, acknowledged, stats, blocks = 1, settings, excluded = false, epoch = 0, clock = 0 }, toUpload = true) { // from decodeReply; `acknowledged` of a download is no evidence: a copy of the state may have used the number
    const same = settings === (this.settings.settings ?? settings), newer = same && version >= this.model.version && epoch >= this.epoch, merged = toUpload && this.flight?.sequence <= acknowledged;
    if (agent !== (this.agent ??= agent) || (same && (blocks !== this.layout.blocks || stats.length !== this.buffer.length))) throw new StateMismatch("a reply for somebody else");
    if (acknowledged > this.sequence) throw this.#conflict(new SequenceConflict("the server has uploads of this incarnation that were not made here"));
    if (newer && epoch > this.epoch) this.#endEpoch();
    if (newer) Object.assign(this, { epoch, clock });
    if (newer) this.#use(this.settings, version, stats, this.buffer.at(-3) > 0 || (this.flight && !merged)); // throws before anything changes
    if (this.personal && this.flight?.sequence <= acknowledged && (merged || newer)) this.personal.answered(this.flight); // a model may hold an upload that is in flight still
    if (newer) this.personal?.take(acknowledged, excluded);
    if (merged && this.#sent?.sequence === this.flight.sequence) this.kept = keep(this.kept, this.#sent, this.options.keepBytes);
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
    Object.assign(this, { born: this.born ?? this.incarnation }, birth(), { personal: this.personal && new Personal(this.settings) }); // what an earlier incarnation sent is the fleet's
    this.#etag = this.#acknowledged = this.#sent = undefined;
    this.#changed();
  }
  sync(options) { return this.#syncing ??= this.#exchange(options).finally(() => { this.#syncing = null; }); }
  async #exchange({ attempts = Infinity } = {}) { // until nothing is in flight, or this many attempts failed
    for (let mended = 0; this.flight;) {
      const { sequence } = this.flight, body = await this.request();
      this.#sent = { sequence, body };
      await this.#saver.stored(); // stored before it is sent
      try { await this.#converse(attempts, "/sync", { method: "POST", body }, sequence); } catch (error) {
        if (error instanceof SequenceConflict) this.#conflict(error);
        if (!(error instanceof SequenceGap) || mended === sequence || !(await this.#mended(attempts))) throw error;
        mended = sequence;
        continue;
      }
      if (this.flight?.sequence === sequence) throw new Refused(`the server answered upload ${sequence} without having merged it`);
    }
    if (this.failure) { this.failure = null; this.#saver.save(); }
    await this.#collectQuietly();
  }
  #conflict(error) { this.failure = error; this.#saver.save(); return error; } // stored: a restarted process does not go on as if nothing was
  async #mended(attempts) { // the server lacks earlier uploads; whether it has got them again
    this.#etag = undefined;
    await this.#download(attempts);
    return (await this.#resend(attempts)) > 0;
  }
  async #resend(attempts) { // what the server had and lacks now; how many uploads
    const answered = this.sequence - (this.flight ? 1 : 0), from = this.#acknowledged ?? answered, again = lacking(this.kept, from, answered);
    if (from >= answered) return 0;
    for (const { sequence, body } of again) await this.#converse(attempts, "/sync", { method: "POST", body }, sequence);
    return again.length;
  }
  async flush(options) { do await this.sync(options); while (this.makeUpload()); } // upload everything observed so far
  async refresh({ attempts = 1, ifCorrected = false } = {}) { // download without an upload; the reply, or null if there is nothing new (ifCorrected: if no data were taken out)
    const reply = await this.#download(attempts, ifCorrected);
    await this.#resend(attempts); // also after a 304: the server may still lack what it lacked before
    await this.#collectQuietly();
    return reply;
  }
  #download(attempts, ifCorrected = false) {
    const headers = this.#etag && { "If-None-Match": (ifCorrected ? "W/" : "") + this.#etag };
    this.#heard = Date.now();
    return this.#converse(attempts, `/state?incarnation=${encodeURIComponent(this.incarnation)}`, { headers });
  }
  async #collectQuietly() { // rewards that the server keeps for decisions of this agent; the exchange before it has succeeded, whatever comes of this
    if (this.#collector.isDue(this.#rewards)) await this.collect().catch((error) => { if (!(error instanceof Refused || error.retryable || error instanceof Closed)) throw error; });
  }
  collect() { // now; how many were booked
    const { prefix } = this.pending, tools = { prefix, post: (path, body) => postJson(this.options, path, body), observe: (id, reward) => this.observe(id, reward), stored: () => this.#saver.stored() };
    return this.#collecting ??= this.#collector.collect(tools, this.#rewards).finally(() => { this.#collecting = null; });
  }
  async join({ attempts = 5 } = {}) { // at the start, and when a device wakes up
    await this.refresh({ attempts });
    this.#test();
    return this;
  }
  saved() { return this.#saver.stored(); } // resolves when everything so far is stored
  #requireOpen() { if (this.#closed && this.options.store) throw new Closed("the agent was closed"); } // its store is closed, too
  async close() { this.#closed = true; this.#sleepers.forEach((wake) => wake()); await this.#saver.close(); } // stop exchanging, and close the store; toJSON keeps the state
  toJSON() { // the whole state, to continue later as the same agent
    const { agent, incarnation, born, sequence, decisions, reserved, epoch, clock, dropped, settings, model: { version, stats, ownBuffer }, buffer, flight, failure, kept, options: { identity } } = this;
    return { format: 1, agent, incarnation, born, sequence, decisions, reserved, epoch, clock, dropped, settings, identity, kept, model: { version, stats: toBase64(stats), ownBuffer },
      buffer: toBase64(buffer), flight: flight && { ...flight, stats: toBase64(flight.stats) }, conflict: failure instanceof SequenceConflict ? failure.message : undefined,
      pending: this.#rows, own: this.personal?.toJSON() };
  }
  static fromJSON(saved, { settings, ...options } = {}) { // settings: the server's current ones, if they may have changed
    const { snapshot, changes } = typeof saved === "string" ? readState(saved) : { snapshot: saved, changes: [] };
    requireFormat(snapshot);
    const { settings: old, format, agent, model, buffer, flight, own, pending = [], conflict, identity, kept = [], ...rest } = snapshot;
    const now = settings ?? old, wider = isWidened(old, now), was = new Layout(old), isSame = now.dim === old.dim && (now.blocks ?? 1) === was.blocks;
    if (!(isSame || wider) || now.name !== old.name || agent !== (now.agent ?? agent)) throw new StateMismatch("a state of another agent or model");
    const self = new Agent({ identity, ...options, settings: now, agent }), read = (text) => fromBase64(text, old.dim, was.blocks);
    const stats = (text) => wider ? was.widened(read(text), self.layout) : read(text); // arms that were added have no data yet
    Object.assign(self, rest, { buffer: stats(buffer), flight: flight && { ...flight, stats: stats(flight.stats) }, failure: conflict === undefined ? null : new SequenceConflict(conflict, { code: "sequence_conflict" }) });
    const piece = (saved) => ({ ...saved, stats: stats(saved.stats) }), isKnown = now.settings === old.settings;
    if (self.personal && own) self.personal = new Personal(now, { ...own, held: own.held && piece(own.held), apart: own.apart.map(piece) });
    if (!isKnown) self.personal?.take(0); // the prior holds nothing
    if (isKnown) self.#use(now, model.version, stats(model.stats), model.ownBuffer); // else as before the first download
    if (isKnown) self.kept = kept; // other settings may be those of a model that was created again: it must not get what the last one had
    self.#rows.add(pending.map(PendingRows.read));
    changes.forEach((change) => self.#replay(change));
    self.#rows.dropOldest(self.options.maxPending);
    self.decisions = Math.max(self.decisions, self.reserved);
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
  #test(change) { // the trigger; then sync in the background. After a rejection, not until sync() is called and succeeds
    const { background, url, onError } = this.options, fail = (error) => onError?.(error);
    const silent = this.buffer.at(-3) >= (this.settings.max_silence_rounds ?? Infinity);
    const made = !this.flight && (silent || this.growth > Math.log1p(this.settings.alpha) * (1 + MARGIN)) && this.makeUpload();
    if (change && !made) this.#saver.line(change);
    if (!change) this.#saver.save();
    this.#ask();
    if (this.flight && background && url && !this.failure && !this.#syncing) this.sync().catch((e) => fail(this.failure = e));
    return made;
  }
  async #converse(attempts, path, request, sent) {
    for (let failed = 1, [first, most] = this.options.backoff; !this.#closed; failed++) {
      try { return await (this.#turns = this.#turns.catch(() => {}).then(() => this.#one(path, request, sent))); } catch (error) { // bytes that are not a reply may come from a captive portal: retry
        if (!(error.retryable || error.constructor === FormatError) || failed >= attempts) throw error;
        const wait = Math.min(most, first * 2 ** (failed - 1)) * Math.random(); // full jitter
        await sleep(Math.max(wait, 1000 * Math.min(error.retryAfter ?? 0, 3600) * (1 + Math.random() / 10)), this.#sleepers);
      }
    }
    throw new Closed("the agent was closed");
  }
  async #one(path, request, sent) { // one at a time: a reply with a lower version is not late, the server itself went back
    const { status, bytes, etag, rewards } = await call(this.options, path, request), reply = status === 304 ? null : decodeReply(bytes);
    if (this.#closed) throw new Closed("the agent was closed"); // like a reply that was lost: the next process sends the upload again
    this.#rewards = rewards;
    if (!reply) return null;
    if (reply.version < this.model.version && reply.epoch >= this.epoch && reply.settings === this.settings.settings) this.model.version = 0;
    this.#etag = this.#acknowledged = undefined;
    this.receive(reply, sent !== undefined && sent === this.flight?.sequence);
    this.#etag = etag?.replace(/^W\//, ""); this.#acknowledged = reply.acknowledged; this.#heard = Date.now(); // a proxy may weaken tags
    return reply;
  }
}
// An agent of {url, model, token}, or of an enrolment. With a store it continues as the same agent after a restart.
export async function connect({ join = true, enrol, ...options }) {
  let agent = null;
  try {
    const { state, ...identity } = await identify(await options.store?.load(), enrol, options), all = { ...options, ...identity };
    const settings = await call(all, "").then(({ bytes }) => JSON.parse(new TextDecoder().decode(bytes))).catch((error) => { if (state && error.retryable) return null; throw error; });
    agent = state ? Agent.fromJSON(state, { ...all, settings }) : new Agent({ ...all, settings });
    if (agent.failure) all.onError?.(agent.failure);
    if (settings && join) await agent.join();
    await agent.saved().catch(() => {}); // told already
    return agent;
  } catch (error) { await (agent ? agent.close() : options.store?.close?.()); throw error; }
}
