// A server that was restored from an older backup gets what it lacks; a conflict is not forgotten.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as fedbandit from "../fedbandit.js";
import { Stub } from "./stub.mjs";

const { Agent, connect } = fedbandit;
let server;
beforeEach(async () => { server = await new Stub().start(); });
afterEach(() => server.stop());
const open = (options) => connect({ url: server.url, model: "news", token: "t", background: false, backoff: [1, 5], ...options });
const memory = (text = null) => ({ text, load() { return this.text; }, save(now) { this.text = now; } });
async function upload(agent, n) { for (let i = 0; i < n; i++) { agent.observe([1 + i, i], i); await agent.flush(); } }

for (const how of ["joins", "refreshes", "uploads"]) test(`a restored server gets what it lacks when an agent ${how}`, async () => {
  const store = memory(), agent = await open({ store });
  await upload(agent, 2);
  const restore = server.backup();
  await upload(agent, 3);
  const all = [...server.stats], sent = server.bodies.slice(-3);
  restore();
  if (how === "joins") await open({ store });
  if (how === "refreshes") await agent.refresh();
  if (how === "uploads") {
    agent.observe([5, 5], 1);
    await agent.flush();
    [25, 25, 25, 5, 5, 1, 1, 1].forEach((value, i) => { all[i] += value; });
  }
  assert.deepEqual([...server.stats], all);
  assert.deepEqual(server.bodies.slice(5, 8), sent); // bit for bit
  if (how !== "joins") assert.deepEqual([...agent.model.stats], all);
});

test("a check for removed data finds a restored server, too", async () => {
  const agent = await open({ background: true });
  const restore = server.backup();
  agent.observe([2, 0], 1);
  await agent.flush();
  const all = [...server.stats];
  restore();
  agent.options.checkAfter = 0;
  agent.choose([[1, 0]]);
  agent.options.checkAfter = Infinity;
  for (let i = 0; i < 2000 && server.stats[5] < 1; i++) await new Promise((r) => setTimeout(r, 5));
  assert.deepEqual([...server.stats], all);
});

test("the model of a restored server is taken, though it is older: others' data may never come back", async () => {
  const agent = await open(), restore = server.backup();
  await upload(agent, 1);
  server.stats = server.stats.map((value) => 2 * value);
  server.version = 9;
  await agent.refresh();
  assert.equal(agent.model.version, 9);
  restore();
  await agent.refresh();
  assert.deepEqual([agent.model.version, server.version, ...agent.model.stats], [1, 1, ...server.stats]);
});

test("no more bytes are kept than allowed, the last ones, and what is lacking beyond is told", async () => {
  const agent = await open({ keepBytes: 600 }), restore = server.backup();
  await upload(agent, 8);
  const { kept } = agent;
  assert.deepEqual([kept.at(-1).sequence, kept.length > 1, kept.length < 8], [8, true, true]);
  const all = [...server.stats];
  restore();
  await assert.rejects(agent.refresh(), (error) => error instanceof fedbandit.StateMismatch && /acknowledges 0 of 8/.test(error.message));
  agent.observe([1, 1], 1);
  await assert.rejects(agent.flush(), fedbandit.StateMismatch);
  assert.deepEqual([server.stats[5], all[5], agent.flight.sequence], [0, 8, 9]); // nothing is merged in part, nothing is lost
});

test("a model that was created again gets nothing of what the last one had", async () => {
  const store = memory(), agent = await open({ store });
  await upload(agent, 2);
  const { http, url } = server, fresh = new Stub({ settings: "s2" });
  Object.assign(server, fresh, { http, url });
  await assert.rejects(open({ store }), fedbandit.StateMismatch);
  assert.equal(server.bodies.length, 0);
});

test("a sequence conflict is stored: a restarted process does not go on by itself, and says so", async () => {
  const store = memory(), told = [], agent = await open({ store });
  server.faults = [{ status: 409, body: JSON.stringify({ error: "sequence_conflict", message: "two processes" }) }];
  agent.observe([2, 0], 1);
  await assert.rejects(agent.sync(), fedbandit.SequenceConflict);
  const posts = () => server.calls.filter(({ method }) => method === "POST").length;
  const again = await open({ store, background: true, onError: (error) => told.push(error) });
  assert.deepEqual([again.failure.name, again.failure.message, told, again.flight.sequence], ["SequenceConflict", "two processes", [again.failure], 1]);
  again.observe([2, 0], 1);
  await new Promise((r) => setTimeout(r, 30));
  assert.equal(posts(), 1);
  again.restart(); // begins anew, with nothing of the copy
  assert.equal(Agent.fromJSON(JSON.stringify(again)).failure, null);
  again.observe([2, 0], 1);
  await again.flush();
  assert.deepEqual([posts(), again.sequence, server.stats[5]], [2, 1, 1]);
});

test("a conflict that a download finds is stored, too", async () => {
  const store = memory(), agent = await open({ store }), old = store.text;
  agent.observe([2, 0], 1);
  await agent.sync();
  const copy = memory(old), told = [];
  await assert.rejects(open({ store: copy, onError: (error) => told.push(error.name) }), fedbandit.SequenceConflict);
  assert.equal(JSON.parse(copy.text).conflict, "the server has uploads of this incarnation that were not made here");
});
