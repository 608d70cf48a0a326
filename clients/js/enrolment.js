// An agent that enrols itself: the identity is part of the stored state, and stored before each request that depends on it.
// {nonce, secret} come first, so that a process that is killed at any step sends the same again; then {agent, token}; then the starts of its processes.
import { InvalidInput, Refused, StateMismatch } from "./errors.js";
import { postJson } from "./http.js";
import { randomHex } from "./messages.js";
import { readState, requireFormat } from "./saving.js";
import { bytesToBase64 } from "./statistics.js";
const STRING = /^(fbe_[A-Za-z0-9_-]{43})(\.sha256-[A-Za-z0-9_-]{43})?$/, ENDED = [401, 403];
function secretOf(enrol) {
  const [, secret, pin] = (typeof enrol === "string" && STRING.exec(enrol.trim())) || [];
  if (!secret) throw new InvalidInput("need an enrolment string as printed by `fedbandit enrol create`: fbe_ and 43 letters");
  if (pin) throw new InvalidInput("this client cannot check the server's certificate against a pin; create the enrolment without --pin");
  return secret;
}
const begin = (secret) => ({ nonce: bytesToBase64(Uint8Array.from(randomHex(32).match(/../g), (byte) => parseInt(byte, 16))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, ""), secret, session: "" });
// The token and identity of a stored state, enrolled now if need be; `state` is the agent's stored text, if there is an agent.
export async function identify(saved, enrol, options) {
  const { snapshot, changes } = saved ? readState(saved) : { snapshot: { format: 1 }, changes: [] }, isAgent = snapshot.settings !== undefined;
  requireFormat(snapshot);
  if (enrol === undefined && !snapshot.identity) return { state: saved };
  const { store, agent } = options, secret = enrol === undefined ? null : secretOf(enrol);
  if (!store || options.token !== undefined) throw new InvalidInput("enrol needs a store, where the agent's own token is kept, and no token");
  if (!snapshot.identity && isAgent) throw new StateMismatch(`the state belongs to agent ${snapshot.agent}, who did not enrol; connect with its token, or enrol with another store`);
  const text = () => [snapshot, ...changes].map((line) => `${JSON.stringify(line)}\n`).join("");
  const write = async (identity) => { snapshot.identity = identity; await store.save(text()); };
  const ask = ({ nonce, secret: token }) => postJson({ ...options, token }, "/enrol", { nonce, ...(agent !== undefined && { agent }) });
  if (!snapshot.identity) await write(begin(secret));
  if (!snapshot.identity.token) {
    const answer = await ask(snapshot.identity).catch(async (error) => { // an enrolment that ended made no agent of this nonce: another may be tried
      if (!(error instanceof Refused) || !ENDED.includes(error.status) || !secret || secret === snapshot.identity.secret) throw error;
      await write(begin(secret));
      return ask(snapshot.identity);
    });
    const { secret: _, ...rest } = snapshot.identity;
    await write({ ...rest, agent: answer.agent, token: answer.token });
  }
  await announce(snapshot, options, write);
  return { state: isAgent ? text() : null, identity: snapshot.identity, token: snapshot.identity.token };
}
// Each start names the one before it: the server refuses the second of two that start from copies of one state (409 copied_state).
async function announce(snapshot, options, write) {
  const post = async () => {
    const { token, session: previous, next: session } = snapshot.identity;
    await postJson({ ...options, token }, "/start", { session, previous });
    const { next, ...rest } = snapshot.identity;
    await write({ ...rest, session });
  };
  try {
    if (snapshot.identity.next) await post(); // of a process that ended before it had the answer
    await write({ ...snapshot.identity, next: `${Number(snapshot.identity.session.split("-")[0]) + 1}-${randomHex(16)}` });
    await post();
  } catch (error) { if (!error.retryable) throw error; } // the next start does it
}
