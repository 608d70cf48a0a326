// Answered uploads, kept for a while: a server that was restored from an older backup gets them again, the same bytes in the same order.
import { StateMismatch } from "./errors.js";
import { bytesOf, bytesToBase64 } from "./statistics.js";
export function keep(kept, { sequence, body }, keepBytes) { // the last ones that fit, with this one
  const all = [...kept, { sequence, body: bytesToBase64(body) }];
  let total = all.reduce((n, { body: text }) => n + text.length, 0), from = 0;
  while (total > 4 / 3 * keepBytes) total -= all[from++].body.length; // base64 has 4 characters for 3 bytes
  return all.slice(from);
}
export function lacking(kept, acknowledged, answered) { // what the server had and lacks now
  const found = kept.filter(({ sequence }) => sequence > acknowledged).map(({ sequence, body }) => ({ sequence, body: bytesOf(body) }));
  if (found.length >= answered - acknowledged) return found;
  throw new StateMismatch(`the server lacks uploads that it had: it acknowledges ${acknowledged} of ${answered}, and the last ${found.length} are kept here; it was restored from an older backup, or the model was created again. restart() begins a new incarnation`);
}
