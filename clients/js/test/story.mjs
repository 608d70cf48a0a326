// Reads docs/vectors, and plays what they hold.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Agent, FormatError, decode, decodeReply } from "../fedbandit.js";

export const read = (name) => JSON.parse(readFileSync(new URL(`../../../docs/vectors/${name}.json`, import.meta.url), "utf8"));
export const hex = (bytes) => Buffer.from(bytes).toString("hex");
export const unhex = (text) => new Uint8Array(Buffer.from(text, "hex"));
export const close = (got, want, what) =>
  assert.ok(Math.abs(got - want) <= 1e-9 * Math.max(1, Math.abs(want)), `${what}: got ${got}, expected ${want}`);

/** Replies with some bytes changed or cut are replies or FormatErrors. */
export function mutate(replies) {
  let state = 12345;
  const random = (n) => (state = (state * 1103515245 + 12345) % 2 ** 31) % n;
  for (const { bytes } of replies) {
    for (let round = 0; round < 2000; round++) {
      const mutated = unhex(bytes).slice(0, random(4) ? undefined : random(bytes.length / 2));
      for (let n = random(4); n > 0 && mutated.length; n--) mutated[random(mutated.length)] = random(256);
      try { decodeReply(mutated); } catch (error) { assert.ok(error instanceof FormatError, error.stack); }
    }
  }
}

export function playPolicy({ settings, incarnation, reply, steps }, resumes) {
  let agent = Object.assign(new Agent({ settings }), { incarnation });
  agent.receive(decodeReply(unhex(reply)));
  for (const { number, actions, index, propensity, score } of steps) {
    if (resumes) agent = Agent.fromJSON(JSON.stringify(agent));
    const decision = agent.choose(actions);
    assert.deepEqual([decision.number, decision.index, decision.policy], [number, index, settings.policy ?? "ucb"]);
    close(decision.score, score, "score");
    if (propensity === null) assert.equal(decision.propensity, null);
    else close(decision.propensity, propensity, "propensity");
  }
}

export async function playStory({ settings, incarnation, steps }, resumes) {
  let agent = Object.assign(new Agent({ settings }), { incarnation });
  for (const [number, step] of steps.entries()) {
    if (resumes) agent = Agent.fromJSON(JSON.stringify(agent));
    await play(agent, step, `step ${number}`);
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
  if (step.do === "choose_context") {
    const { arms, bias } = step, decision = agent.chooseContext(step.context, { arms, bias });
    assert.deepEqual([decision.index, decision.block, decision.arm, decision.version], [step.index, step.block, step.arm, step.model_version], at);
    const all = agent.chooseContext(step.context, { bias, k: step.scores.length });
    all.forEach(({ block, score }) => close(score, step.scores[block], `${at}: score`));
    return;
  }
  const before = agent.flight, row = step.block === undefined ? step.x : { block: step.block, x: step.x };
  if (step.do === "observe") assert.equal(agent.observe(row, step.reward), step.upload !== null, at);
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
  assert.equal(request.get("touched") && hex(request.get("touched")), step.upload.touched, at);
  assert.deepEqual([request.get("v"), request.get("blocks")], agent.settings.blocks ? [2, agent.settings.blocks] : [1, undefined], at);
  close(request.get("growth").value, step.upload.growth, `${at}: growth of the upload`);
}
