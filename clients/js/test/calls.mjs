// An agent behind standard input and output, for tests: node calls.mjs '{options of connect, "state": …}', then one line per call: {"call": "choose", "args": […]}
import { createInterface } from "node:readline";
import { connect } from "../fedbandit.js";
import { stateDirectory } from "../node.js";

const { state, ...options } = JSON.parse(process.argv[2]), say = (answer) => console.log(JSON.stringify(answer));
const telling = async (work) => { try { say({ value: (await work()) ?? null }); } catch (error) { say({ error: error.name, code: error.code, message: error.message }); } };
let agent;
await telling(async () => { agent = await connect({ ...options, ...(state && { store: stateDirectory(state) }), backoff: [20, 200] }); return agent.agent; });
for await (const line of createInterface({ input: process.stdin })) {
  const { call, args = [] } = JSON.parse(line), [first, second] = call.split(".");
  await telling(async () => {
    const owner = second ? agent[first] : agent, member = owner[second ?? first];
    return typeof member === "function" ? member.apply(owner, args) : member;
  });
}
process.exit(0);
