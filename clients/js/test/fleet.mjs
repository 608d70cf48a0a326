// An agent of a mixed fleet, for tests/clients/test_js.py: node fleet.mjs '{"url": …, "token": …, "rounds": …}'
// It plays with whole numbers, keeps its state in a file if one is named, and prints the sums of all it observed.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { connect } from "../fedbandit.js";

const { url, model, token, agent: name, seed, rounds, dim, state, flush } = JSON.parse(process.argv[2]);
const store = state && {
  load: () => existsSync(state) ? readFileSync(state, "utf8") : null,
  save: (text) => { writeFileSync(`${state}.new`, text); renameSync(`${state}.new`, state); },
};
const onError = (error) => { if (error.name !== "Closed") throw error; }; // close() below may end an exchange; its upload is in the stored state
const agent = await connect({ url, model, token, agent: name, store, backoff: [20, 500], timeout: 2000, onError });
console.log(JSON.stringify({ connected: true }));
await new Promise((resolve) => process.stdin.once("data", resolve)); // until the others are ready, too
let random = seed;
const whole = (low, high) => low + (random = (random * 1103515245 + 12345) % 2 ** 31) % (high - low + 1);
const total = new Float64Array(agent.buffer.length);
let uploads = 0;
const told = []; // what a policy that draws at random says of its decisions
const { blocks = 1 } = agent.settings, p = dim / blocks, size = p * (p + 1) / 2;
const inBlock = (block, values) => Array.from({ length: dim }, (_, i) => (Math.floor(i / p) === block ? values[i % p] : 0));
function add(block, values, reward) { // to the sums of everything, where the wire has them
  let k = block * size;
  for (let i = 0; i < p; i++) for (let j = i; j < p; j++) total[k++] += values[i] * values[j];
  values.forEach((value, i) => { total[blocks * size + block * p + i] += reward * value; });
  [1, reward, reward * reward].forEach((value, i) => { total[total.length - 3 + i] += value; });
}
function decide(round) { // by rows; in a model with blocks in turn by rows in one block each, and by context
  if (blocks === 1) return agent.choose(Array.from({ length: 4 }, () => Array.from({ length: dim }, () => whole(-3, 3))));
  const values = Array.from({ length: p }, () => whole(-3, 3)), all = Array.from({ length: blocks }, (_, block) => block);
  if (round % 2) return agent.chooseContext(values, { bias: false, arms: all.filter((block) => block !== round % blocks) });
  return agent.choose(all.map((block) => inBlock(block, values)));
}
for (let round = 0; round < rounds; round++) {
  const decision = decide(round), block = decision.block ?? (blocks > 1 ? decision.index : 0);
  const values = decision.x.length === p ? decision.x : decision.x.slice(block * p, (block + 1) * p);
  const reward = values[0] - values[1] + whole(-1, 1);
  uploads += agent.observe(decision, reward);
  if (decision.number !== undefined) told.push({ number: decision.number, index: decision.index, propensity: decision.propensity, policy: decision.policy });
  add(block, values, reward);
  await new Promise((resolve) => setTimeout(resolve, whole(0, 6)));
}
if (flush) await agent.flush();
agent.close();
await new Promise((resolve) => setTimeout(resolve, 50)); // the last state reaches the file
console.log(JSON.stringify({ total: [...total], told, incarnation: agent.incarnation, uploads, version: agent.model.version, unsent: agent.buffer.at(-3), inFlight: agent.flight?.sequence ?? null }));
process.exit(0);
