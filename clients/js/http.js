// One HTTP request, its errors by name, and the pause between attempts.
import { ImplausibleUpload, NotReachable, Refused, SequenceConflict, SequenceGap, StaleIncarnation, Unauthenticated } from "./errors.js";
const REFUSALS = { unauthenticated: Unauthenticated, sequence_conflict: SequenceConflict, sequence_gap: SequenceGap, stale_incarnation: StaleIncarnation, implausible_upload: ImplausibleUpload };
export const sleep = (ms, sleepers) => new Promise((resolve) => {
  const wake = () => { clearTimeout(timer); resolve(sleepers.delete(wake)); }, timer = setTimeout(wake, Math.min(ms, 2 ** 31 - 1));
  sleepers.add(wake);
});
export async function call({ url, model, token, timeout = 10_000, fetch = globalThis.fetch }, path, { method, body, headers } = {}) {
  let response, bytes, said, address = `${url.replace(/\/+$/, "")}/v1/models/${encodeURIComponent(model)}${path}`;
  headers = { Authorization: `Bearer ${token}`, ...(body && { "Content-Type": "application/vnd.fedbandit.v1+msgpack" }), ...headers };
  const late = new AbortController(), timer = setTimeout(() => late.abort(), timeout); // Node does not keep AbortSignal.timeout alive
  try {
    response = await fetch(address, { method, body, headers, cache: "no-store", signal: late.signal });
    bytes = new Uint8Array(await response.arrayBuffer());
  } catch (cause) { throw new NotReachable(`no answer from ${url}: ${cause.message}`, { cause, retryable: true }); } finally { clearTimeout(timer); }
  const { status } = response, [after, etag] = ["Retry-After", "ETag"].map((name) => response.headers.get(name));
  if (response.ok || status === 304) return { status, bytes, etag, rewards: Number(response.headers.get("Fedbandit-Rewards") ?? 0) };
  try { said = JSON.parse(new TextDecoder().decode(bytes)); } catch { said = null; } // perhaps a proxy's page
  const retryAfter = after && (/^\d+$/.test(after) ? Number(after) : (Date.parse(after) - Date.now()) / 1000) || 0;
  const retryable = status >= 500 || [408, 425, 429].includes(status), Kind = retryable ? NotReachable : REFUSALS[said?.error] ?? Refused;
  throw new Kind(said?.message ?? `the server answered ${status}`, { status, code: said?.error, retryable, retryAfter });
}
export async function postJson(options, path, body) { // a JSON call; the object that it answers
  const { bytes } = await call(options, path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  try { return JSON.parse(new TextDecoder().decode(bytes)); } catch { throw new NotReachable(`${options.url} answered with something else than JSON`, { retryable: true }); }
}
