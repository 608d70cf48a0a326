// Models with one block per arm: docs/vectors/blocks.json, the dense model beside it, exchanges, arms that are added.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as fedbandit from "../fedbandit.js";
import { Layout } from "../statistics.js";
import { SETTINGS, Stub } from "./stub.mjs";
import { close, hex, mutate, playPolicy, playStory, read, unhex } from "./story.mjs";

const { Agent, Float, connect, decode, decodeReply, digest, encode, packStats } = fedbandit;
const vectors = read("blocks");
const ARMS = ["tea", "milk", "bread"], BLOCKS = { dim: 6, blocks: 3, arms: ARMS };
const memory = (text = null) => ({ text, load() { return this.text; }, save(now) { this.text = now; } });

for (const { fields, bytes } of vectors.requests) {
  test(`request ${fields.sequence} with ${fields.touched.length / 8} blocks`, async () => {
    const stats = unhex(fields.stats), touched = unhex(fields.touched);
    assert.equal(hex(await digest(unhex(fields.touched + fields.stats))), fields.digest);
    assert.equal(hex(encode({ ...fields, digest: unhex(fields.digest), stats, touched, growth: new Float(fields.growth) })), bytes);
  });
}
for (const { fields, bytes } of vectors.replies) {
  test(`reply of ${fields.blocks} blocks`, () => {
    const reply = decodeReply(unhex(bytes));
    for (const key of ["agent", "version", "acknowledged", "settings", "blocks"]) assert.equal(reply[key], fields[key]);
    assert.equal(hex(packStats(reply.stats)), fields.stats);
  });
}
for (const { name, bytes, error } of vectors.bad_replies) {
  test(`bad reply: ${name}`, () => assert.throws(() => decodeReply(unhex(bytes)), (got) => got.constructor === fedbandit[error]));
}
test("mutated replies are replies or FormatErrors", () => mutate(vectors.replies));
for (const { dim, blocks, x, block } of vectors.rows) {
  test(`the row ${x} is in ${block === null ? "several blocks" : `block ${block}`}`, () => {
    const agent = new Agent({ settings: { ...SETTINGS, dim, blocks, alpha: 1e300 } });
    if (block === null) {
      for (const act of [() => agent.observe(x, 1), () => agent.choose([x]), () => agent.estimate([x])]) {
        assert.throws(act, (error) => error.name === "NotOneBlock" && error instanceof fedbandit.InvalidInput);
      }
      assert.equal(agent.buffer.at(-3), 0);
    } else {
      agent.observe(x, 1);
      assert.deepEqual([...agent.layout.b(agent.buffer, block)], x.slice(2 * block, 2 * block + 2));
    }
  });
}
for (const resumes of [false, true]) {
  const how = resumes ? "; saved and restored at every step" : "";
  for (const item of vectors.policies) test(`policy ${item.settings.policy ?? "explore"} on rows in blocks${how}`, () => playPolicy(item, resumes));
  for (const item of vectors.stories) test(`${item.name}: ${item.why}${how}`, () => playStory(item, resumes));
}

test("the same choices, growth and uploads as the dense model", async () => {
  let state = 7;
  const random = () => (state = (state * 1103515245 + 12345) % 2 ** 31) / 2 ** 31;
  const radius = { kind: "exogenous", noise_scale: 0.3, theta_bound: 1, delta: 0.1 };
  for (const alpha of [0.2, 2]) {
    const servers = [1, 4].map((blocks) => new Layout({ dim: 12, blocks }).blank(1));
    const agents = [1, 4].map((blocks) => new Agent({ settings: { ...SETTINGS, radius, dim: 12, blocks, alpha } }));
    let uploads = 0;
    for (let t = 1; t <= 700; t++) { // more than one fresh factorisation
      const context = [random() - 0.5, random() - 0.5, 1], reward = random();
      const rows = [0, 1, 2, 3].map((block) => Array.from({ length: 12 }, (_, i) => (Math.floor(i / 3) === block ? context[i % 3] : 0)));
      const [dense, blocks] = agents.map((agent) => agent.choose(rows)), byContext = agents[1].chooseContext(context.slice(0, 2));
      assert.deepEqual([blocks.index, byContext.index, byContext.block], [dense.index, dense.index, dense.index]);
      for (const key of ["mean", "width", "score"]) { close(blocks[key], dense[key], key); close(byContext[key], dense[key], key); }
      const made = [agents[0].observe(dense, reward), agents[1].observe(t % 2 ? blocks : byContext, reward)];
      assert.equal(made[0], made[1]);
      close(agents[1].growth, agents[0].growth, `growth ${t}`);
      if (!made[0]) continue;
      uploads += 1;
      agents.forEach((agent, i) => {
        servers[i] = servers[i].map((value, k) => value + agent.flight.stats[k]);
        agent.receive({ agent: agent.agent, version: uploads, acknowledged: uploads, stats: servers[i], blocks: agent.layout.blocks, settings: "s1" });
      });
      close(agents[1].beta, agents[0].beta, "beta");
    }
    assert.ok(uploads > 5);
  }
});

let server;
beforeEach(async () => { server = await new Stub(BLOCKS).start(); });
afterEach(() => server.stop());
const open = (options) => connect({ url: server.url, model: "news", token: "secret", backoff: [1, 5], background: false, ...options });

test("an upload carries the touched blocks only, the same bytes again after a lost answer, counted once", async () => {
  const agent = await open();
  server.faults = ["lost", "refused"];
  agent.observe(agent.chooseContext([2], { arms: ["milk"] }), 1);
  await agent.flush();
  assert.equal(new Set(server.bodies).size, 1);
  assert.equal(server.bodies.length, 2);
  const message = decode(unhex(server.bodies[0]));
  assert.deepEqual([message.get("v"), message.get("blocks"), hex(message.get("touched")), message.get("stats").length], [2, 3, "01000000", 8 * 8]);
  assert.deepEqual([...server.stats], [1, 0, 1, 5, 2, 2, 1, 0, 1, 0, 0, 2, 1, 0, 0, 1, 1, 1]);
  assert.equal(agent.model.version, 1);
  assert.equal(agent.growth, 0);
});

test("a reply of a model with other blocks is not taken", async () => {
  const agent = await open(), { stats } = agent.model;
  server.settings = { ...server.settings, dim: 6, blocks: undefined };
  server.stats = new Layout({ dim: 6 }).blank(1);
  agent.observe([1, 1, 0, 0, 0, 0], 1);
  await assert.rejects(agent.flush(), fedbandit.StateMismatch);
  assert.equal(agent.model.stats, stats);
  assert.equal(agent.flight.stats.at(-3), 1);
});

test("arms by name and number, left out, and contexts by name", () => {
  const features = ARMS.flatMap((arm) => [`hour@${arm}`, `1@${arm}`]);
  const agent = new Agent({ settings: { ...SETTINGS, ...BLOCKS, features } });
  const decision = agent.chooseContext({ hour: 0.5 }, { arms: ["bread", 0] });
  assert.deepEqual([decision.index, decision.block, decision.arm, [...decision.x]], [0, 2, "bread", [0.5, 1]]);
  assert.deepEqual(agent.chooseContext([0.5], { k: 3 }).map(({ arm }) => arm), ARMS);
  assert.deepEqual(agent.chooseContext([0.5, 3], { bias: false, arms: [1], k: 1 }).map(({ x }) => [...x]), [[0.5, 3]]);
  agent.observe(decision, 1);
  assert.throws(() => agent.observe(decision, 1), fedbandit.InvalidInput);
  const bad = (act) => assert.throws(act, fedbandit.InvalidInput);
  for (const context of [[], [1, 2], [NaN], ["1"], null, 3, {}, { day: 1 }, { hour: 1, day: 2 }, { hour: Infinity }]) bad(() => agent.chooseContext(context));
  for (const arms of [[], "tea", ["coffee"], [3], [-1], [0.5], [null], ["tea", 0]]) bad(() => agent.chooseContext([1], { arms }));
  for (const k of [0, 4, 1.5, "1"]) bad(() => agent.chooseContext([1], { k }));
  for (const made of [{ block: 3, x: [1, 1] }, { block: -1, x: [1, 1] }, { block: 0, x: [1] }, { block: 0, x: [1, NaN] }, { block: 0 }]) bad(() => agent.observe(made, 1));
  bad(() => new Agent({ settings: SETTINGS }).chooseContext([1]));
  bad(() => new Agent({ settings: SETTINGS }).observe({ block: 0, x: [1, 1] }, 1));
  bad(() => new Agent({ settings: { ...SETTINGS, ...BLOCKS, explore: 0.5 } }).chooseContext([1]));
  bad(() => new Agent({ settings: { ...SETTINGS, ...BLOCKS } }).chooseContext({ hour: 1 })); // columns without names
  bad(() => new Agent({ settings: { ...SETTINGS, dim: 7, blocks: 3 } }));
  assert.equal(agent.buffer.at(-3) + (agent.flight?.stats.at(-3) ?? 0), 1);
});

test("the k best rows, best first, and no k where a policy draws", () => {
  const agent = new Agent({ settings: SETTINGS }), rows = [[1, 0], [3, 0], [0, 2], [0, 3]];
  assert.deepEqual(agent.choose(rows, { k: 3 }).map(({ index }) => index), [1, 3, 2]);
  for (const k of [0, 5, 1.5, null]) assert.throws(() => agent.choose(rows, { k }), fedbandit.InvalidInput);
  assert.throws(() => new Agent({ settings: { ...SETTINGS, explore: 0.5 } }).choose(rows, { k: 2 }), fedbandit.InvalidInput);
});

test("an agent takes added arms up when it connects again, with the data and the bytes that were in flight", async () => {
  const store = memory(), agent = await open({ store });
  server.faults = ["lost"];
  agent.observe(agent.chooseContext([2], { arms: ["bread"] }), 1);
  agent.makeUpload();
  await assert.rejects(agent.sync({ attempts: 1 }), fedbandit.NotReachable); // merged, the answer is lost
  agent.observe({ block: 0, x: [1, 1] }, 3);
  agent.close();
  await new Promise((resolve) => setTimeout(resolve, 5));
  const narrow = server.settings, was = new Layout(narrow), wide = { ...narrow, dim: 8, blocks: 4, arms: [...ARMS, "jam"], settings: "s2" };
  const sums = was.widened(server.stats, new Layout(wide));
  sums[9] = sums[11] = 1; // the prior of the new arm
  Object.assign(server, { settings: wide, stats: sums });
  for (const other of [{ ...wide, arms: ["x", ...ARMS] }, { ...narrow, blocks: 2, arms: ["a", "b"] }, { ...wide, dim: 12 }]) {
    assert.throws(() => Agent.fromJSON(store.text, { settings: other }), fedbandit.StateMismatch);
  }
  const again = await open({ store });
  assert.equal(again.chooseContext([0], { arms: ["jam"] }).block, 3);
  again.observe({ block: 3, x: [1, 2] }, 1);
  await again.flush();
  const [first, second] = server.bodies.map((body) => decode(unhex(body)));
  assert.deepEqual([hex(second.get("digest")), second.get("blocks")], [hex(first.get("digest")), 4]); // a retry: the server knows its digest
  const layout = new Layout(wide), expected = layout.blank(1);
  for (const [block, values, reward] of [[2, [2, 1], 1], [0, [1, 1], 3], [3, [1, 2], 1]]) layout.absorb(expected, { block, values: Float64Array.from(values) }, reward);
  assert.deepEqual([...server.stats], [...expected]);
});
