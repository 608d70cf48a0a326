// Rewards that were reported to the server for decisions of this agent: each is booked on its pending decision, stored, and then answered.
import { AlreadyObserved, InvalidInput, UnknownDecision } from "./errors.js";
const MOST_ROUNDS = 100, AGAIN_AFTER_MS = 60_000; // of one collection, with at most 1000 rewards each; where the server keeps rewards, none of them ours
export class RewardCollector {
  #empty = { at: -Infinity, kept: 0 };
  isDue(kept, now = Date.now()) { return kept > 0 && (kept > this.#empty.kept || now - this.#empty.at >= AGAIN_AFTER_MS); }
  async collect({ prefix, post, observe, stored }, kept) { // how many were booked
    let answers = [], found = 0, booked = 0;
    for (let round = 0; round < MOST_ROUNDS; round++) {
      const { rewards } = await post("/rewards/collect", { prefix, answers });
      if (!rewards?.length) break;
      answers = rewards.map(([id, reward]) => [id, book(observe, id, reward)]);
      found += answers.length;
      booked += answers.filter(([, outcome]) => outcome === "booked").length;
      await stored(); // a kill before the answer finds the decision settled and the reward still at the server: it counts once
    }
    this.#empty = { at: Date.now(), kept: found ? 0 : kept };
    return booked;
  }
}
function book(observe, id, reward) {
  try { observe(id, reward); } catch (error) {
    if (error instanceof AlreadyObserved || error instanceof UnknownDecision) return "not_pending";
    if (error instanceof InvalidInput) return "refused";
    throw error;
  }
  return "booked";
}
