// The client does what docs/vectors says.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as fedbandit from "../fedbandit.js";

const { Agent, Float, decode, decodeReply, digest, encode, packStats, unpackStats } = fedbandit;
const read = (name) => JSON.parse(readFileSync(new URL(`../../../docs/vectors/${name}.json`, import.meta.url), "utf8"));
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const unhex = (text) => new Uint8Array(Buffer.from(text, "hex"));
const close = (got, want, what) =>
  assert.ok(Math.abs(got - want) <= 1e-9 * Math.max(1, Math.abs(want)), `${what}: got ${got}, expected ${want}`);

for (const item of read("statistics").cases) {
  test(`statistics: ${item.name}`, async () => {
    const stats = unpackStats(unhex(item.bytes), item.dim);
    assert.equal(hex(packStats(stats)), item.bytes);
    assert.equal(hex(await digest(unhex(item.bytes))), item.digest);
    const numbers = item.Sigma.flatMap((row, i) => row.slice(i)).concat(item.b, item.n_obs, item.reward_sum, item.reward_sq_sum);
    assert.deepEqual([...stats], numbers);
    if (item.lam > 0 || !item.observations.length) return;
    const settings = { dim: item.dim, lam: 1, alpha: 1e300, radius: { kind: "fixed", beta: 1 } };
    const agent = new Agent({ agent: "a", settings });
    for (const { x, reward } of item.observations) agent.observe(x, reward);
    assert.equal(hex(packStats(agent.buffer)), item.bytes);
  });
}

for (const { fields, bytes } of read("messages").requests) {
  test(`request ${fields.sequence} of ${fields.agent.slice(0, 9)}`, async () => {
    const stats = unhex(fields.stats);
    assert.equal(hex(await digest(stats)), fields.digest);
    assert.equal(hex(encode({ ...fields, digest: unhex(fields.digest), stats, growth: new Float(fields.growth) })), bytes);
    assert.equal(decode(unhex(bytes)).get("growth").value, fields.growth);
  });
}

const same = (bytes, fields) => {
  const reply = decodeReply(unhex(bytes));
  for (const key of ["agent", "version", "acknowledged", "settings"]) assert.equal(reply[key], fields[key]);
  assert.equal(hex(packStats(reply.stats)), fields.stats);
};
for (const { fields, bytes } of read("messages").replies) test(`reply ${fields.version}`, () => same(bytes, fields));
for (const { name, fields, bytes } of read("messages").same_replies) test(`reply with ${name}`, () => same(bytes, fields));
for (const { name, bytes, error } of read("messages").bad_replies) {
  test(`bad reply: ${name}`, () => {
    assert.throws(() => decodeReply(unhex(bytes)), (got) => got.constructor === fedbandit[error]);
  });
}

test("mutated replies are replies or FormatErrors", () => {
  let state = 12345;
  const random = (n) => (state = (state * 1103515245 + 12345) % 2 ** 31) % n;
  for (const { bytes } of read("messages").replies) {
    for (let round = 0; round < 2000; round++) {
      const mutated = unhex(bytes).slice(0, random(4) ? undefined : random(bytes.length / 2));
      for (let n = random(4); n > 0 && mutated.length; n--) mutated[random(mutated.length)] = random(256);
      try { decodeReply(mutated); } catch (error) { assert.ok(error instanceof fedbandit.FormatError, error.stack); }
    }
  }
});

for (const { name, why, settings, incarnation, steps } of read("agents").stories) {
  for (const resumes of [false, true]) {
    test(`${name}: ${why}${resumes ? "; saved and restored at every step" : ""}`, async () => {
      let agent = Object.assign(new Agent({ settings }), { incarnation });
      for (const [number, step] of steps.entries()) {
        if (resumes) agent = Agent.fromJSON(JSON.stringify(agent));
        await play(agent, step, `step ${number}`);
      }
    });
  }
}

async function play(agent, step, at) {
  if (step.do === "choose") {
    const all = agent.estimate(step.actions), decision = agent.choose(step.actions);
    assert.equal(decision.index, step.index, at);
    assert.equal(decision.version, step.model_version, at);
    close(agent.beta, step.beta, `${at}: beta`);
    all.forEach(({ mean, width, score }, i) => {
      close(mean, step.means[i], `${at}: mean`);
      close(width, step.widths[i], `${at}: width`);
      close(score, step.scores[i], `${at}: score`);
    });
    return;
  }
  const before = agent.flight;
  if (step.do === "observe") assert.equal(agent.observe(step.x, step.reward), step.upload !== null, at);
  if (step.do === "flush") agent.makeUpload();
  if (step.do === "receive") {
    agent.receive(decodeReply(unhex(step.reply)));
    assert.equal(agent.model.version, step.model_version, at);
    assert.equal(before !== null && agent.flight !== before, step.answered, at);
    close(agent.beta, step.beta, `${at}: beta`);
  }
  close(agent.growth, step.growth, `${at}: growth`);
  assert.equal(agent.buffer.at(-3), step.n_unsent, at);
  assert.equal(agent.flight?.sequence ?? null, step.in_flight, at);
  if (!step.upload) return;
  const request = decode(await agent.request());
  assert.equal(request.get("agent"), agent.agent);
  assert.equal(request.get("incarnation"), agent.incarnation);
  assert.equal(request.get("sequence"), step.upload.sequence, at);
  assert.equal(hex(request.get("stats")), step.upload.stats, at);
  assert.equal(hex(request.get("digest")), step.upload.digest, at);
  close(request.get("growth").value, step.upload.growth, `${at}: growth of the upload`);
}
