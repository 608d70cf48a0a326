// An agent that is killed, for tests/clients/test_js_recovery.py: node killed.mjs '{"url": …, "token": …, "state": …, "record": …}'
// Its application writes each decision and the reward that it will get to a file of its own, and gives rewards a few rounds later, by id.
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { connect } from "../fedbandit.js";
import { stateDirectory } from "../node.js";

const { url, token, state, record, seed, last } = JSON.parse(process.argv[2]);
const agent = await connect({ url, model: "news", token, store: stateDirectory(state), backoff: [20, 200], timeout: 2000 });
let random = seed;
const whole = (low, high) => low + (random = (random * 1103515245 + 12345) % 2 ** 31) % (high - low + 1);
const due = (existsSync(record) ? readFileSync(record, "utf8").split("\n").slice(0, -1).map((line) => JSON.parse(line)) : []).filter(({ id }) => agent.pending.has(id));
const again = due.length;
console.log(JSON.stringify({ ready: true, again }));
for (let round = 0; !last || round < 20; round++) {
  const { id, x } = agent.choose(Array.from({ length: 4 }, () => Array.from({ length: 3 }, () => whole(-3, 3))));
  const made = { id, x: [...x], reward: x[0] - x[1] + whole(-1, 1) };
  appendFileSync(record, `${JSON.stringify(made)}\n`);
  due.push(made);
  while (due.length > 3) { const [{ id, reward }] = due.splice(whole(0, due.length - 1), 1); agent.observe(id, reward); }
  if (round % 4 === 0) await new Promise((resolve) => setTimeout(resolve, whole(0, 4)));
}
for (const { id, reward } of due) agent.observe(id, reward);
const lost = agent.pending.expire(); // made, and not written down by the application before it was killed
await agent.flush();
await agent.close();
console.log(JSON.stringify({ lost, sequence: agent.sequence, kept: agent.kept.length }));
