// Stored states: a process that ends at any write, and nothing is lost or counted twice.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import * as fedbandit from "../fedbandit.js";
import { stateDirectory } from "../node.js";
import { Stub } from "./stub.mjs";

const { connect, localStore } = fedbandit;
let server, folder;
beforeEach(async () => { server = await new Stub().start(); folder = mkdtempSync(join(tmpdir(), "fedbandit-")); });
afterEach(async () => { await server.stop(); rmSync(folder, { recursive: true }); });
const open = (store, more) => connect({ url: server.url, model: "news", token: "t", store, background: false, backoff: [1, 5], ...more });

/** A store whose process ends at a given write: a line is cut, a snapshot is not there. Later writes fail. */
class Ending {
  constructor({ isSlow }) { Object.assign(this, { text: "", left: Infinity, written: 0, isSlow }); }
  load() { return this.text || null; }
  save(text) { return this.#write(() => { this.text = text; }, () => {}); }
  append(text) { return this.#write(() => { this.text += text; }, () => { this.text += text.slice(0, text.length / 2); }); }
  #write(whole, cut) {
    const work = () => {
      if (this.left === 0) throw new Error("this process has ended");
      this.written += 1;
      this.left -= 1;
      if (this.left > 0) return whole();
      cut();
      throw new Error("this process ends here");
    };
    return this.isSlow ? Promise.resolve().then(work) : work();
  }
  get isOver() { return this.left === 0; }
}

/** Play until the end, or until the store's process ends; `seen` is the application's own record of rewards. */
async function play(store, seen, rounds) {
  const agent = await open(store, { maxPending: 50 });
  for (const [id, { reward }] of seen) if (agent.pending.has(id)) agent.observe(id, reward);
  while (seen.size < rounds && !store.isOver) {
    const n = seen.size, { id, x } = agent.choose([[1 + n % 3, 0], [0, 1 + n % 2]]);
    await agent.saved().catch(() => {}); // where the store takes time: before anybody hears of the decision
    if (store.isOver) break;
    seen.set(id, { x, reward: n % 4 });
    agent.observe(id, n % 4);
    if (n % 3 === 2) await agent.sync({ attempts: 3 }).catch(() => {});
  }
  if (!store.isOver) await agent.flush();
  if (!store.isOver) await agent.close();
}

for (const isSlow of [false, true]) test(`a process that ends at any write counts everything once; ${isSlow ? "a store that takes time" : "a synchronous store"}`, async () => {
  let ends = 1, isDone = false;
  for (; !isDone; ends++) {
    await server.stop();
    server = await new Stub({ alpha: 0.5 }).start();
    const store = new Ending({ isSlow }), seen = new Map(), prior = [...server.stats];
    store.left = ends;
    server.faults = ends % 3 ? [undefined, undefined, "lost"] : [];
    await play(store, seen, 9).catch((error) => { if (!store.isOver) throw error; });
    isDone = !store.isOver;
    store.left = Infinity;
    await play(store, seen, 9);
    const expected = prior.slice();
    for (const { x: [p, q], reward } of seen.values()) [p * p, p * q, q * q, p * reward, q * reward, 1, reward, reward * reward].forEach((value, i) => { expected[i] += value; });
    assert.deepEqual([...server.stats], expected, `ended at write ${ends}`);
  }
  assert.ok(ends > 15, `${ends} writes`);
});

test("a state directory holds a state, and one process at a time", async () => {
  const store = stateDirectory(join(folder, "new")), agent = await open(store), { id } = agent.choose([[1, 0]]);
  const other = agent.choose([[0, 1]]).id;
  agent.observe(other, 1);
  await assert.rejects(open(stateDirectory(join(folder, "new"))), fedbandit.StateInUse);
  assert.equal(readFileSync(join(folder, "new", "agent.jsonl"), "utf8").trim().split("\n").length, 4); // a snapshot, two decisions, one reward
  await agent.close();
  assert.throws(() => agent.observe(id, 1), fedbandit.Closed);
  assert.throws(() => agent.choose([[1, 0]]), fedbandit.Closed);
  assert.deepEqual(readdirSync(join(folder, "new")), ["agent.jsonl"]);
  const again = await open(stateDirectory(join(folder, "new"), { fsync: true }));
  assert.deepEqual([...again.pending].map((each) => each.id), [id]);
  again.observe(id, 1);
  await again.flush();
  assert.deepEqual([...server.stats], [2, 0, 2, 1, 1, 2, 2, 2]);
  await again.close();
});

test("the lock of a process that ended is taken over", async () => {
  for (const dead of ["999999999 1", `${process.ppid} 1`, "", "x"]) {
    writeFileSync(join(folder, "lock"), dead);
    await (await open(stateDirectory(folder))).close();
    assert.deepEqual(readdirSync(folder), ["agent.jsonl"]);
  }
});

test("lines are folded into a new snapshot before there are too many", async () => {
  const agent = await open(stateDirectory(folder), { maxPending: 10 });
  for (let n = 0; n < 5000; n++) agent.choose([[1, 0]]);
  const text = readFileSync(join(folder, "agent.jsonl"), "utf8");
  assert.ok(text.length < 200_000, `${text.length}`);
  await agent.close();
  const again = await open(stateDirectory(folder));
  assert.deepEqual([again.pending.size, again.decisions >= 5000], [10, true]);
  await again.close();
});

test("a directory that cannot be written is told, and what could not be stored is stored with the next change", async () => {
  const errors = [], store = stateDirectory(folder), agent = await open(store, { onError: (error) => errors.push(error) });
  const append = store.append;
  store.append = () => { throw new Error("disk full"); };
  const { id } = agent.choose([[1, 0]]);
  assert.equal(errors[0].message, "disk full");
  store.append = append;
  agent.choose([[1, 0]]); // by a snapshot, which takes the place of the broken line
  await agent.close();
  const again = await open(stateDirectory(folder));
  assert.deepEqual([again.pending.size, again.pending.has(id)], [2, true]);
  await again.close();
});

test("a damaged state is a FormatError, not another agent", async () => {
  for (const text of ["{", "[1", '{"format":1}\n{"broken\n["d",[],[]]\n']) {
    writeFileSync(join(folder, "agent.jsonl"), text);
    await assert.rejects(open(stateDirectory(folder)), fedbandit.FormatError);
  }
  const agent = await open(localStore("a", storage()));
  const text = `${JSON.stringify(agent)}\n["o",7,1]\n`;
  assert.throws(() => fedbandit.Agent.fromJSON(text), fedbandit.FormatError);
});

const storage = (all = new Map()) => ({ getItem: (key) => all.get(key) ?? null, setItem: (key, value) => { all.set(key, value); } });
test("a store on localStorage, or on anything like it", async () => {
  const where = storage(), first = await open(localStore("agent 1", where)), { id } = first.choose([[1, 0]]);
  const again = await open(localStore("agent 1", where)), other = await open(localStore("agent 2", where));
  assert.deepEqual([again.incarnation, again.pending.has(id), other.incarnation === again.incarnation], [first.incarnation, true, false]);
});

test("no id is given twice, whatever a slow store did not get to store", async () => {
  const store = new Ending({ isSlow: true }), agent = await open(store), ids = new Set();
  for (let n = 0; n < 100; n++) ids.add(agent.choose([[1, 0], [0, 1]])?.id);
  agent.choose([[1, 0], [0, 1]], { k: 2 }).forEach(({ id }) => ids.add(id));
  const { text } = store, again = await open(Object.assign(new Ending({ isSlow: true }), { text }));
  assert.ok(again.pending.size < ids.size); // what was not stored is not pending
  ids.add(again.choose([[1, 0]]).id);
  assert.equal(ids.size, 103);
});

test("numbers of decisions are set aside before they are used up", async () => {
  const where = storage(), agent = await open(localStore("a", where)), snapshot = () => JSON.parse(where.getItem("a").split("\n")[0]);
  agent.choose([[1, 0]]);
  agent.decisions = agent.reserved - 1; // as after tens of thousands of decisions
  agent.choose([[1, 0], [0, 1]], { k: 2 });
  assert.ok(snapshot().reserved > agent.decisions);
  assert.ok((await open(localStore("a", where))).decisions > agent.decisions);
});
