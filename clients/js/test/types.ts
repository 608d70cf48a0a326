// Compiled, never run: tsc --noEmit --strict --target es2022 --module nodenext --lib es2022,dom,dom.iterable test/types.ts
import { Agent, AlreadyObserved, NotOneBlock, SequenceConflict, StateInUse, UnknownDecision, connect, indexedDbStore, localStore, type ConnectOptions, type ContextDecision, type Decision, type PendingDecision, type Store } from "../fedbandit.js";
import { stateDirectory } from "../node.js";

export async function use(): Promise<void> {
  const stores: Store[] = [{ load: () => null, save: () => {} }, localStore("a"), localStore("a", sessionStorage), indexedDbStore("a"), stateDirectory("state", { fsync: true })];
  const agent: Agent = await connect({ url: "https://fleet.example", model: "news", token: "t", store: stores[0], maxPending: 500, keepBytes: 2 ** 20 });
  const one: Decision = agent.choose([[1, 0], new Float64Array([0, 1])]);
  const best: Decision[] = agent.choose([[1, 0], [0, 1]], { k: 2 });
  const arm: ContextDecision = agent.chooseContext([0.5], { arms: ["tea", 2] });
  const arms: string[] = agent.chooseContext({ hour: 1 }, { k: 2, bias: false }).map((each) => each.arm ?? String(each.block));
  const made: boolean = agent.observe(one, 1) || agent.observe(arm, 1) || agent.observe([1, 0], arms.length + best.length) || agent.observe(best[0]!.id, 1);
  if (made) await agent.flush({ attempts: 3 });
  try { agent.observe([1, 1], 0); } catch (error) { if (error instanceof NotOneBlock) console.log(error.retryable, error.message); }
  try { agent.observe("0a1b2c3d4e5f-17", 0); } catch (error) { if (error instanceof AlreadyObserved || error instanceof UnknownDecision) console.log(error.message); }
  const old: PendingDecision[] = agent.pending.olderThan(3_600_000), found: PendingDecision | undefined = agent.pending.get(one.id);
  for (const { id, at } of agent.pending) if (agent.pending.has(id) && at < 0) agent.pending.forget(id);
  const n: number = agent.pending.settle(0, { olderThan: 3_600_000 }) + agent.pending.expire() + old.length + agent.pending.size + (await agent.collect());
  if ((await agent.report(one.id, n)) === "waiting" && found) console.log(agent.kept.length);
  if (agent.failure instanceof SequenceConflict || agent.failure instanceof StateInUse) agent.restart();
  const enrolling: ConnectOptions = { url: "https://fleet.example", model: "news", enrol: "fbe_", store: stores[1]! };
  // @ts-expect-error an enrolment needs a store, where the token is kept
  const unstored: ConnectOptions = { url: "https://fleet.example", model: "news", enrol: "fbe_" };
  // @ts-expect-error a reward is a number
  agent.observe(one, "1");
  // @ts-expect-error without k there is one decision
  agent.choose([[1, 0]]).map(String);
  // @ts-expect-error what is pending is changed by its methods only
  agent.pending.size = 0;
  await Promise.all([agent.saved(), connect(enrolling), connect(unstored)]);
  await agent.close();
}
