// The client does what docs/vectors says.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as fedbandit from "../fedbandit.js";
import { CounterRandom, splitmix64 } from "../policies.js";
import { close, hex, mutate, playPolicy, playStory, read, unhex } from "./story.mjs";

const { Agent, Float, decode, decodeReply, digest, encode, packStats, unpackStats } = fedbandit;
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

test("mutated replies are replies or FormatErrors", () => mutate(read("messages").replies));

for (const { seed, outputs } of read("random").splitmix64) {
  test(`SplitMix64 of ${seed}`, () => assert.deepEqual(outputs.map((_, n) => String(splitmix64(BigInt(seed), n))), outputs));
}
for (const { seed, agent, incarnation, purpose, key, decisions } of read("random").draws) {
  test(`draws of ${agent} for ${purpose}`, () => {
    const random = new CounterRandom(seed, agent, incarnation, purpose);
    assert.equal(String(random.key), key);
    for (const { number, bits, uniforms, index_of_10, normals } of decisions) {
      assert.deepEqual(bits.map((_, i) => String(random.bits(number, i))), bits);
      assert.deepEqual(uniforms.map((_, i) => random.uniform(number, i)), uniforms);
      assert.equal(random.index(number, 10), index_of_10);
      random.normals(number, 3).forEach((z, i) => close(z, normals[i], `normal ${i}`));
    }
  });
}
for (const item of read("policies").cases) for (const resumes of [false, true]) {
  const { policy = "ucb", explore = 0 } = item.settings;
  test(`policy ${policy}, explore ${explore}${resumes ? "; saved and restored at every step" : ""}`, () => playPolicy(item, resumes));
}
for (const item of read("agents").stories) for (const resumes of [false, true]) {
  test(`${item.name}: ${item.why}${resumes ? "; saved and restored at every step" : ""}`, () => playStory(item, resumes));
}
