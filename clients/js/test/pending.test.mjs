// Decisions by id: one reward each, dropped and settled by age, also after a restart.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as fedbandit from "../fedbandit.js";
import { SETTINGS } from "./stub.mjs";

const { Agent, AlreadyObserved, InvalidInput, UnknownDecision } = fedbandit;
const ROWS = [[1, 0], [0, 1]], QUIET = { settings: { ...SETTINGS, alpha: 1e9 }, background: false };
const later = (agent, options) => Agent.fromJSON(JSON.stringify(agent), { background: false, ...options });
const observations = (agent) => agent.buffer.at(-3);

test("a reward finds its decision by its id, once, also after a restart", () => {
  let agent = new Agent(QUIET);
  const ids = [1, 2, 3].map(() => agent.choose(ROWS).id);
  assert.equal(new Set(ids).size, 3);
  assert.match(ids[0], /^[0-9a-f]{12}-0$/);
  assert.equal(agent.observe(ids[1], 1), false);
  assert.throws(() => agent.observe(ids[1], 1), AlreadyObserved);
  agent = later(agent);
  assert.deepEqual([...agent.pending].map(({ id }) => id), [ids[0], ids[2]]);
  assert.throws(() => agent.observe(ids[1], 1), AlreadyObserved);
  assert.throws(() => agent.observe({ id: ids[1], x: [1, 0] }, 1), AlreadyObserved);
  agent.observe(ids[0], 0.5);
  assert.deepEqual([agent.pending.size, agent.pending.has(ids[2]), observations(agent)], [1, true, 2]);
  assert.equal(agent.choose(ROWS).id, ids[0].replace(/0$/, "3"));
});

test("the row that was decided on counts, whatever the decision looks like when it comes back", () => {
  const agent = new Agent(QUIET), decision = agent.choose([[0, 3]]);
  decision.x[1] = 100;
  agent.observe(JSON.parse(JSON.stringify(decision)), 2);
  assert.deepEqual([...agent.buffer], [0, 0, 9, 0, 6, 1, 2, 4]);
});

test("a reward that cannot be used leaves its decision pending", () => {
  const agent = new Agent({ ...QUIET, settings: { ...QUIET.settings, reward_bound: 1 } }), { id } = agent.choose(ROWS);
  for (const reward of [NaN, 2, "1", undefined]) assert.throws(() => agent.observe(id, reward), InvalidInput);
  agent.observe(id, 1);
  assert.equal(observations(agent), 1);
});

test("ids of other agents and ids that are none are not known", () => {
  const agent = new Agent(QUIET), other = new Agent(QUIET), { id } = agent.choose(ROWS);
  for (const unknown of [other.choose(ROWS).id, `${id}1`, id.replace("-0", "-00"), id.replace("-0", "--0"), "", "x", `${id} `]) {
    assert.throws(() => agent.observe(unknown, 1), UnknownDecision, unknown);
    assert.equal(agent.pending.has(unknown), false);
  }
  assert.equal(observations(agent), 0);
});

test("old decisions expire, are settled or are forgotten", () => {
  const agent = new Agent(QUIET), [a, b, c] = [1, 2, 3].map(() => agent.choose(ROWS));
  assert.equal(agent.pending.expire({ olderThan: 3_600_000 }), 0);
  agent.pending.forget(a);
  assert.throws(() => agent.pending.forget(a.id), AlreadyObserved);
  assert.throws(() => agent.observe(a, 1), AlreadyObserved);
  assert.equal(agent.pending.settle(0, { olderThan: 3_600_000 }), 0);
  agent.observe(b, 1);
  assert.equal(agent.pending.settle(0), 1);
  assert.throws(() => agent.observe(c, 1), AlreadyObserved);
  assert.deepEqual([observations(agent), agent.pending.size], [2, 0]);
  const last = agent.choose(ROWS);
  assert.equal(agent.pending.expire(), 1);
  assert.throws(() => later(agent).observe(last, 1), AlreadyObserved);
});

test("the oldest decision is dropped beyond the bound, and its late reward is a named error", () => {
  const agent = new Agent({ ...QUIET, maxPending: 2 }), [a, b, c] = [1, 2, 3].map(() => agent.choose(ROWS));
  assert.throws(() => agent.observe(a, 1), (error) => error instanceof AlreadyObserved && /dropped as the oldest/.test(error.message));
  agent.observe(b, 1);
  agent.observe(c, 1);
  agent.choose(ROWS, { k: 2 });
  assert.equal(later(agent, { maxPending: 1 }).pending.size, 1);
  for (const maxPending of [0, 1.5, "9", null]) assert.throws(() => new Agent({ ...QUIET, maxPending }), InvalidInput);
});

test("in a model with blocks a decision by context or by rows is pending in its block", () => {
  const settings = { ...QUIET.settings, dim: 4, blocks: 2, arms: ["tea", "milk"] }, agent = new Agent({ settings, background: false });
  const [first, second] = agent.chooseContext([3], { k: 2 }), row = agent.choose([[0, 0, 1, 2]]);
  const again = later(agent), { id, at, ...told } = again.pending.get(row.id);
  assert.deepEqual(told, { x: Float64Array.from([1, 2]), block: 1, arm: "milk" });
  assert.equal(again.pending.get(second.id).arm, "milk");
  for (const { id } of [first, second, row]) again.observe(id, 1);
  assert.deepEqual([...again.buffer], [9, 3, 1, 10, 5, 5, 3, 1, 4, 3, 3, 3, 3]);
});

test("a new incarnation keeps its decisions and their ids", () => {
  const agent = new Agent(QUIET), { id } = agent.choose(ROWS);
  agent.restart();
  const after = agent.choose(ROWS);
  assert.equal(after.id, id.replace(/0$/, "1"));
  const again = later(agent);
  again.observe(id, 1);
  again.observe(after.id, 1);
  assert.equal(observations(again), 2);
});
