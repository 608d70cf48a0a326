// Exchanges over HTTP: retries, refusals, storage.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as fedbandit from "../fedbandit.js";
import { SETTINGS, Stub } from "./stub.mjs";

const { Agent, connect } = fedbandit;
const QUICK = { model: "news", token: "secret-token-of-shop-1", backoff: [1, 5], background: false };
const problem = (status, error, headers) => ({ status, body: JSON.stringify({ error, message: `it is ${error}` }), headers });
const memory = (text = null) => ({ text, load() { return this.text; }, save(now) { this.text = now; } });
let server;
beforeEach(async () => { server = await new Stub().start(); });
afterEach(() => server.stop());
const open = (options) => connect({ url: server.url, ...QUICK, ...options });
const settled = async (agent) => { for (let i = 0; i < 400 && agent.flight; i++) await new Promise((r) => setTimeout(r, 5)); };

test("connect reads the settings, joins, and names itself", async () => {
  server.stats[0] = 5;
  server.version = 3;
  const agent = await open();
  assert.equal(agent.agent, "shop-1");
  assert.equal(agent.model.version, 3);
  assert.deepEqual(agent.choose([[1, 0], [0, 1]]).index, 1);
  assert.deepEqual(server.calls.map(({ path }) => path.split("?")[0]), ["/v1/models/news", "/v1/models/news/state"]);
  assert.equal(server.calls[1].headers.authorization, "Bearer secret-token-of-shop-1");
});

test("an agent whose settings do not name it learns its name from the first reply", async () => {
  server.settings = { ...SETTINGS, agent: "shop-9" };
  const state = server.handle;
  server.handle = function (request, body, response) {
    if (request.url !== "/v1/models/news") return state.call(this, request, body, response);
    const { agent, ...rest } = this.settings;
    return response.end(JSON.stringify(rest));
  };
  assert.equal((await open()).agent, "shop-9");
});

test("the background carries an upload as soon as it is made", async () => {
  const agent = await open({ background: true });
  assert.equal(agent.observe([2, 0], 1), true);
  await settled(agent);
  assert.equal(agent.flight, null);
  assert.equal(agent.model.version, 1);
  assert.equal(server.stats[0], 5);
});

test("lost answers, refused connections, 503 and login pages: the same bytes again, counted once", async () => {
  const agent = await open();
  server.faults = ["refused", "lost", problem(503, "overloaded"), { status: 200, body: "<html>log in</html>" }, problem(429, "slow")];
  agent.observe([2, 0], 1);
  await agent.sync();
  assert.equal(new Set(server.bodies).size, 1);
  assert.equal(server.bodies.length, 2); // the lost one, and the last
  assert.deepEqual([...server.stats], [5, 0, 1, 2, 0, 1, 1, 1]);
  assert.equal(agent.model.version, 1);
});

test("observations while an exchange is under way wait for the next one", async () => {
  const agent = await open();
  agent.observe([2, 0], 1);
  const exchange = agent.sync();
  agent.observe([0, 3], 1);
  agent.observe([0, 1], 1);
  await exchange; // the answer triggers the next upload, and sync carries it too
  assert.equal(agent.sequence, 2);
  assert.deepEqual([...server.stats], [5, 0, 11, 2, 4, 3, 3, 3]);
});

test("Retry-After is respected, in seconds and as a date", async () => {
  const agent = await open();
  server.faults = [problem(503, "overloaded", { "Retry-After": "1" })];
  agent.observe([2, 0], 1);
  const begun = performance.now();
  await agent.sync();
  assert.ok(performance.now() - begun >= 1000);
  server.faults = [problem(503, "overloaded", { "Retry-After": new Date(Date.now() + 2000).toUTCString() })];
  await assert.rejects(agent.refresh(), (error) => error.name === "NotReachable" && error.retryAfter > 0 && error.retryAfter <= 2);
});

test("attempts can be limited, and nothing is lost", async () => {
  const agent = await open();
  server.faults = ["refused", "refused"];
  agent.observe([2, 0], 1);
  await assert.rejects(agent.sync({ attempts: 2 }), fedbandit.NotReachable);
  assert.equal(agent.flight.sequence, 1);
  await agent.sync();
  assert.equal(server.stats[0], 5);
});

for (const [status, code, name] of [[401, "unauthenticated", "Unauthenticated"], [403, "forbidden", "Refused"], [404, "unknown_model", "Refused"],
  [409, "sequence_conflict", "SequenceConflict"], [409, "sequence_gap", "SequenceGap"], [409, "stale_incarnation", "StaleIncarnation"],
  [413, "body_too_large", "Refused"], [422, "implausible_upload", "ImplausibleUpload"], [400, "format_error", "Refused"]]) {
  test(`${status} ${code} is ${name}, and is not repeated`, async () => {
    const errors = [];
    const agent = await open({ background: true, onError: (error) => errors.push(error) });
    server.faults = [problem(status, code)];
    agent.observe([2, 0], 1);
    for (let i = 0; i < 400 && !errors.length; i++) await new Promise((r) => setTimeout(r, 5));
    assert.deepEqual([errors[0].name, errors[0].status, errors[0].code], [name, status, code]);
    assert.equal(errors[0].message, `it is ${code}`);
    agent.observe([2, 0], 1);
    await new Promise((r) => setTimeout(r, 30));
    assert.equal(server.calls.filter(({ method }) => method === "POST").length, 1);
    assert.equal(agent.failure, errors[0]);
    await agent.sync(); // somebody mended it
    assert.equal(agent.failure, null);
    assert.equal(agent.flight, null);
  });
}

test("a new incarnation after a refusal, with or without what was not acknowledged", async () => {
  const agent = await open();
  server.faults = [problem(409, "sequence_gap")];
  agent.observe([2, 0], 1);
  agent.observe([0, 1], 1);
  await assert.rejects(agent.sync(), fedbandit.SequenceGap);
  const { incarnation } = agent;
  agent.restart({ keep: true });
  await agent.flush();
  assert.notEqual(agent.incarnation, incarnation);
  assert.deepEqual([...server.stats], [5, 0, 2, 2, 1, 2, 2, 2]);
  agent.observe([2, 0], 1);
  agent.restart();
  await agent.flush();
  assert.deepEqual([...server.stats], [5, 0, 2, 2, 1, 2, 2, 2]);
});

test("an old copy of a state is found out by what the server has", async () => {
  const agent = await open(), old = JSON.stringify(agent);
  agent.observe([2, 0], 1);
  await agent.sync();
  await assert.rejects(open({ store: memory(old) }), fedbandit.SequenceConflict);
});

test("a server that lost uploads is found out when joining, where they are not kept here", async () => {
  const agent = await open({ keepBytes: 0 });
  agent.observe([2, 0], 1);
  await agent.sync();
  Object.assign(server, { incarnation: "", sequence: 0, version: 0 });
  await assert.rejects(open({ store: memory(JSON.stringify(agent)) }), fedbandit.StateMismatch);
});

test("changed settings end the exchange; connecting again uses them, with the same identity and data", async () => {
  const store = memory(), agent = await open({ store });
  agent.observe([2, 0], 1);
  agent.observe([0, 1], 1);
  Object.assign(server.settings, { settings: "s2", alpha: 0.5 });
  await assert.rejects(agent.sync(), fedbandit.SettingsChanged);
  assert.equal(agent.flight, null); // it is merged
  assert.equal(agent.model.version, 0);
  assert.equal(agent.choose([[1, 0], [0, 1]]).index, 0);
  await new Promise((r) => setTimeout(r, 5));
  const again = await open({ store });
  assert.equal(again.settings.alpha, 0.5);
  assert.deepEqual([again.incarnation, again.model.version, again.flight.sequence], [agent.incarnation, 1, 2]);
  await again.flush();
  assert.deepEqual([...server.stats], [5, 0, 2, 2, 1, 2, 2, 2]);
});

test("a restored agent sends the bytes that were in flight", async () => {
  const agent = await open(), store = memory();
  server.faults = ["lost"];
  agent.observe([2, 1], 0.1);
  await assert.rejects(agent.sync({ attempts: 1 }), fedbandit.NotReachable);
  agent.observe([0.3, 1], -0);
  store.save(JSON.stringify(agent));
  const again = await open({ store });
  await again.sync(); // joining told how many are merged, not which
  assert.equal(again.flight, null);
  const other = Agent.fromJSON(store.text, { url: server.url, ...QUICK });
  await other.sync();
  assert.equal(new Set(server.bodies).size, 1);
  assert.deepEqual([other.incarnation, other.sequence, other.growth.toFixed(9)], [agent.incarnation, 1, again.growth.toFixed(9)]);
  assert.deepEqual(other.buffer, agent.buffer);
});

test("a download does not end the flight of an upload: a copy of the state may have used its number", async () => {
  const agent = await open({ background: false });
  server.faults = ["lost"];
  agent.observe([2, 0], 1);
  await assert.rejects(agent.sync({ attempts: 1 }), fedbandit.NotReachable);
  assert.equal((await agent.refresh()).acknowledged, 1);
  assert.equal(agent.flight.sequence, 1);
  server.faults = [problem(409, "sequence_conflict")];
  await assert.rejects(agent.sync(), fedbandit.SequenceConflict);
  await agent.refresh();
  assert.equal(agent.flight.sequence, 1);
  await agent.sync();
  assert.equal(agent.flight, null);
});

test("an upload is stored before it is sent", async () => {
  const order = [], store = { load: () => null, save: async (text) => { await null; order.push(JSON.parse(text).flight?.sequence ?? 0); } };
  const agent = await open({ store }), merge = server.merge;
  server.merge = function (body) { order.push("sent"); merge.call(this, body); };
  agent.observe([2, 0], 1);
  await agent.sync();
  assert.ok(order.indexOf(1) >= 0 && order.indexOf(1) < order.indexOf("sent"), order.join());
});

test("a store that fails is told, and keeps the upload from being sent", async () => {
  const errors = [], store = { load: () => null, save: () => { throw new Error("disk full"); } };
  const agent = await open({ store, onError: (error) => errors.push(error.message) });
  agent.observe([2, 0], 1);
  await assert.rejects(agent.sync(), /disk full/);
  assert.ok(errors.includes("disk full"));
  assert.equal(server.bodies.length, 0);
});

test("a stored agent starts without the server, and goes on when it is back", async () => {
  const store = memory(), first = await open({ store });
  first.observe([1, 0], 1);
  await new Promise((r) => setTimeout(r, 5));
  const away = { fetch: () => Promise.reject(new TypeError("offline")) };
  await assert.rejects(open(away), fedbandit.NotReachable);
  const agent = await open({ store, ...away });
  agent.observe([1, 0], 1);
  agent.options.fetch = fetch;
  await agent.flush();
  assert.deepEqual([...server.stats], [3, 0, 1, 2, 0, 2, 2, 2]);
});

test("states of another agent or model are refused", async () => {
  const text = JSON.stringify(await open());
  server.settings = { ...SETTINGS, agent: "shop-2" };
  await assert.rejects(open({ store: memory(text) }), fedbandit.StateMismatch);
  assert.throws(() => Agent.fromJSON(text, { settings: { ...SETTINGS, dim: 3 } }), fedbandit.StateMismatch);
  assert.throws(() => Agent.fromJSON(text, { settings: { ...SETTINGS, name: "other" } }), fedbandit.StateMismatch);
  assert.throws(() => Agent.fromJSON("{}"), fedbandit.UnsupportedFormat);
});

const ACTIONS = [[1, 0], [0, 1]];
const asked = () => server.calls.map(({ headers }) => headers["if-none-match"]).filter(Boolean);
const until = async (isSo) => { for (let i = 0; i < 4000 && !isSo(); i++) await new Promise((r) => setTimeout(r, 5)); assert(isSo()); };
const afterSilence = (agent, act) => { // as if the interval had passed before, and never again
  agent.options.checkAfter = 0;
  try { return act(); } finally { agent.options.checkAfter = Infinity; }
};

test("after a silence an agent asks whether data were taken out, and downloads only then", async () => {
  server.stats.set([1e6, 0, 1e6, 0, 1e6]); // so much that nothing an agent sees makes an upload
  server.version = 1;
  const agent = await open({ background: true });
  agent.choose(ACTIONS); // the answer to joining is not five minutes old
  assert.deepEqual([agent.options.checkAfter, asked()], [300_000, []]);
  server.version = 2; // news, and no correction: 304
  afterSilence(agent, () => agent.choose(ACTIONS));
  agent.choose(ACTIONS);
  await until(() => asked().length);
  assert.deepEqual([asked(), agent.model.version], [['W/"1-0"'], 1]);
  server.forget();
  assert.equal(afterSilence(agent, () => agent.observe([1, 0], 1)), false); // the trigger is silent
  await until(() => agent.model.version === 3);
  assert.equal(agent.choose(ACTIONS).mean, 0);
});

test("an interval passes by the clock", async () => {
  server.version = 1;
  const agent = await open({ background: true, checkAfter: 50 });
  server.forget();
  await until(() => { agent.choose(ACTIONS); return agent.model.version === 2; });
});

test("an agent whose upload is put off asks, too, and one that is told not to exchange does not", async () => {
  server.version = 1;
  const quiet = await open({ checkAfter: 0 }), agent = await open({ background: true });
  server.faults = [problem(429, "rate_exceeded", { "Retry-After": "60" })];
  assert.equal(agent.observe([2, 0], 1), true);
  await until(() => server.faults.length === 0);
  server.forget();
  quiet.choose(ACTIONS);
  afterSilence(agent, () => agent.choose(ACTIONS));
  await until(() => agent.model.version === 2);
  assert.equal(quiet.model.version, 1);
  assert.equal(agent.flight.sequence, 1); // kept
  agent.close();
});

test("a check that fails is made again after the interval, and a tag that a proxy weakened is used as it was", async () => {
  server.version = 1;
  const problems = [], weaken = async (...request) => {
    const answer = await fetch(...request), headers = new Headers(answer.headers);
    if (headers.has("ETag")) headers.set("ETag", `W/${headers.get("ETag")}`);
    return new Response([204, 304].includes(answer.status) ? null : answer.body, { status: answer.status, headers });
  };
  const agent = await open({ background: true, fetch: weaken, onError: (error) => problems.push(error) });
  server.forget();
  server.faults = [problem(503, "overloaded")];
  afterSilence(agent, () => agent.choose(ACTIONS));
  await until(() => server.faults.length === 0);
  assert.equal(agent.model.version, 1);
  afterSilence(agent, () => agent.choose(ACTIONS));
  await until(() => agent.model.version === 2);
  assert.deepEqual([problems, asked()], [[], ['W/"1-0"', 'W/"1-0"']]);
});

test("refresh downloads, and 304 is nothing new", async () => {
  const agent = await open();
  assert.equal(await agent.refresh(), null);
  server.version = 4;
  server.stats[0] = 9;
  assert.equal((await agent.refresh()).version, 4);
  assert.equal(agent.model.version, 4);
  assert.equal(await agent.refresh(), null);
});

test("an answer that does not come in time is not waited for", async () => {
  const agent = await open(), handle = server.handle;
  let silent = true;
  agent.options.timeout = 50; // only from here on: connecting may take longer on a busy machine, and is not repeated
  server.handle = function (...all) { if (silent) silent = false; else handle.apply(this, all); };
  agent.observe([2, 0], 1);
  await agent.sync();
  assert.equal(server.stats[0], 5);
});

test("closing ends the waiting", async () => {
  const agent = await open({ backoff: [60_000, 60_000] });
  server.faults = ["refused", "refused"];
  agent.observe([2, 0], 1);
  const exchange = assert.rejects(agent.sync(), fedbandit.Closed);
  await new Promise((r) => setTimeout(r, 50));
  agent.close();
  await exchange;
  assert.equal(agent.flight.sequence, 1);
});

test("input that cannot be used", async () => {
  const agent = new Agent({ settings: { ...SETTINGS, action_bound: 2, reward_bound: 1 } });
  const bad = (action) => assert.throws(action, fedbandit.InvalidInput);
  for (const actions of [[], [[1]], [[1, NaN]], [[1, Infinity]], [[1, 2, 3]], [null]]) bad(() => agent.choose(actions));
  for (const reward of [NaN, Infinity, "x", "1", null, undefined, true, 1.1, -2]) bad(() => agent.observe([1, 0], reward));
  bad(() => agent.observe([2, 1], 1));
  bad(() => agent.observe(undefined, 1));
  const decision = agent.choose([[1, 0]]);
  agent.observe(decision, 1);
  bad(() => agent.observe(decision, 1));
  agent.observe(decision.x, 1); // but a row may come again
  bad(() => new Agent({ settings: { ...SETTINGS, radius: { kind: "guess" } } }));
  assert.equal(agent.buffer.at(-3) + agent.flight.stats.at(-3), 2);
});

test("a smallest batch holds uploads back", async () => {
  const agent = new Agent({ settings: SETTINGS, minUpload: 3 });
  assert.deepEqual([1, 2, 3].map(() => agent.observe([9, 0], 1)), [false, false, true]);
});

test("growth stays exact over a long life", async () => {
  const agent = new Agent({ settings: { ...SETTINGS, dim: 5, alpha: 1e300 } });
  for (let t = 0; t < 5000; t++) agent.observe(Array.from({ length: 5 }, (_, i) => Math.sin(t * (i + 1)) * 10 ** (i - 2)), 1);
  const fresh = Agent.fromJSON(JSON.stringify(agent)).growth;
  assert.ok(Math.abs(agent.growth - fresh) < 1e-10 * fresh);
});

test("statistics that rounding has made singular are taken", async () => {
  const agent = new Agent({ settings: { ...SETTINGS, alpha: 1e300 } });
  for (let t = 0; t < 300; t++) agent.observe([1e9, 1e9], 1);
  assert.ok(Number.isFinite(agent.growth));
});

test("own sums follow what the server acknowledges, and survive a restart", async () => {
  const settings = { name: "news", dim: 2, lam: 1, alpha: 1e9, radius: { kind: "fixed", beta: 0.5 }, settings: "one", agent: "a", personal: { kind: "fixed", kappa: 2 } };
  const agent = new Agent({ settings, background: false });
  const reply = (acknowledged, more = {}) => ({ agent: "a", version: agent.model.version + 1, acknowledged, settings: "one", stats: Float64Array.from([9, 0, 9, 1, 1, 6, 2, 2]), ...more });
  agent.observe([1, 0], 1);
  agent.makeUpload();
  assert.equal(agent.personal.held, null);
  agent.receive(reply(1), false); // a download that holds the upload in flight
  assert.equal(agent.personal.held.last, 1);
  assert.ok(agent.flight);
  const before = agent.estimate([[1, 0.5]])[0];
  agent.receive({ ...reply(1), version: agent.model.version }, true);
  assert.equal(agent.flight, null);
  assert.deepEqual(agent.estimate([[1, 0.5]])[0].mean, before.mean);
  const again = Agent.fromJSON(JSON.stringify(agent), { background: false });
  assert.deepEqual(again.estimate([[1, 0.5]])[0].mean, before.mean);
  agent.receive(reply(1, { excluded: true }), false); // quarantine: merged, and not in the model
  assert.equal(agent.personal.held, null);
  assert.equal(agent.personal.own(agent.buffer, null).at(-3), 1);
});

test("a restart of the model drops the buffer, and the next upload says how much and of which epoch", async () => {
  const settings = { name: "news", dim: 2, lam: 1, alpha: 1e9, radius: { kind: "fixed", beta: 0.5 }, settings: "one", agent: "a", max_silence_rounds: 3 };
  const agent = new Agent({ settings, background: false }), prior = Float64Array.from([1, 0, 1, 0, 0, 0, 0, 0]);
  const reply = (version, acknowledged, epoch) => ({ agent: "a", version, acknowledged, settings: "one", stats: prior, epoch });
  agent.observe([1, 0], 1);
  agent.makeUpload();
  assert.deepEqual([agent.flight.epoch, agent.flight.dropped], [0, 0]);
  agent.observe([0, 1], 1); // while the restart is on its way
  agent.receive(reply(2, 1, 1));
  assert.deepEqual([agent.epoch, agent.dropped, agent.buffer.at(-3), agent.flight], [1, 1, 0, null]);
  const again = Agent.fromJSON(JSON.stringify(agent), { background: false });
  assert.deepEqual([1, 2, 3].map(() => again.observe([1, 0], 1)), [false, false, true]); // silent for at most 3 rounds
  assert.deepEqual([again.flight.epoch, again.flight.dropped, again.dropped], [1, 1, 0]);
  again.receive(reply(9, 2, 0), true); // a server that was restored to before the restart
  assert.deepEqual([again.epoch, again.model.version, again.flight], [1, 2, null]);
});
