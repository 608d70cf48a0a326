// Compiled, never run: tsc --noEmit --strict --target es2022 --module nodenext --lib es2022,dom test/types.ts
import { Agent, NotOneBlock, connect, type ContextDecision, type Decision } from "../fedbandit.js";

export async function use(): Promise<void> {
  const agent: Agent = await connect({ url: "https://fleet.example", model: "news", token: "t", store: { load: () => null, save: () => {} } });
  const one: Decision = agent.choose([[1, 0], new Float64Array([0, 1])]);
  const best: Decision[] = agent.choose([[1, 0], [0, 1]], { k: 2 });
  const arm: ContextDecision = agent.chooseContext([0.5], { arms: ["tea", 2] });
  const arms: string[] = agent.chooseContext({ hour: 1 }, { k: 2, bias: false }).map((each) => each.arm ?? String(each.block));
  const made: boolean = agent.observe(one, 1) || agent.observe(arm, 1) || agent.observe([1, 0], arms.length + best.length);
  if (made) await agent.flush({ attempts: 3 });
  try { agent.observe([1, 1], 0); } catch (error) { if (error instanceof NotOneBlock) console.log(error.retryable, error.message); }
  // @ts-expect-error a reward is a number
  agent.observe(one, "1");
  // @ts-expect-error without k there is one decision
  agent.choose([[1, 0]]).map(String);
  agent.close();
}
