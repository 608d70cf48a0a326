// An agent of a mixed fleet, for tests/clients/test_js.py: node fleet.mjs '{"url": …, "token": …, "rounds": …}'
// It plays with whole numbers, keeps its state in a file if one is named, and prints the sums of all it observed.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { connect } from "../fedbandit.js";

const { url, model, token, agent: name, seed, rounds, dim, state, flush } = JSON.parse(process.argv[2]);
const store = state && {
  load: () => existsSync(state) ? readFileSync(state, "utf8") : null,
  save: (text) => { writeFileSync(`${state}.new`, text); renameSync(`${state}.new`, state); },
};
const agent = await connect({ url, model, token, agent: name, store, backoff: [20, 500], timeout: 2000, onError: (error) => { throw error; } });
console.log(JSON.stringify({ connected: true }));
await new Promise((resolve) => process.stdin.once("data", resolve)); // until the others are ready, too
let random = seed;
const whole = (low, high) => low + (random = (random * 1103515245 + 12345) % 2 ** 31) % (high - low + 1);
const total = new Float64Array(agent.buffer.length);
let uploads = 0;
for (let round = 0; round < rounds; round++) {
  const actions = Array.from({ length: 4 }, () => Array.from({ length: dim }, () => whole(-3, 3)));
  const decision = agent.choose(actions), reward = decision.x[0] - decision.x[1] + whole(-1, 1);
  uploads += agent.observe(decision, reward);
  let k = 0;
  for (let i = 0; i < dim; i++) for (let j = i; j < dim; j++) total[k++] += decision.x[i] * decision.x[j];
  for (const value of [...decision.x.map((feature) => reward * feature), 1, reward, reward * reward]) total[k++] += value;
  await new Promise((resolve) => setTimeout(resolve, whole(0, 6)));
}
if (flush) await agent.flush();
agent.close();
await new Promise((resolve) => setTimeout(resolve, 50)); // the last state reaches the file
console.log(JSON.stringify({ total: [...total], uploads, version: agent.model.version, unsent: agent.buffer.at(-3), inFlight: agent.flight?.sequence ?? null }));
process.exit(0);
