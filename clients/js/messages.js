// MessagePack and the messages of docs/protocol.md: writes maps of str, bin, whole numbers and floats; reads everything.
import { FormatError, InvalidInput, UnsupportedFormat } from "./errors.js";
import { unpackStats } from "./statistics.js";
const crypto = globalThis.crypto ?? (await import("node:crypto")).webcrypto; // Node 18 has no global one
export const randomHex = (n) => Array.from(crypto.getRandomValues(new Uint8Array(n)), (byte) => byte.toString(16).padStart(2, "0")).join("");
export const digest = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)).slice(0, 16);
export class Float { constructor(value) { this.value = value; } } // a number that is a float on the wire
const method = (verb, kind, log2) => `${verb}${log2 === 3 && kind !== "Float" ? "Big" : ""}${kind}${8 << log2}`; // of a DataView
export function encode(map) {
  const out = [0x80 | Object.keys(map).length];
  const number = (tag, kind, log2, value, view = new DataView(new ArrayBuffer(1 << log2))) => {
    view[method("set", kind, log2)](0, value);
    out.push(tag, ...new Uint8Array(view.buffer));
  };
  const natural = (n, tag, log2 = n < 2 ** 8 ? 0 : n < 2 ** 16 ? 1 : n < 2 ** 32 ? 2 : 3) => // tag: of the one with 1 byte
    number(tag + log2, "Uint", log2, log2 === 3 ? BigInt(n) : n);
  const put = (value) => {
    if (value instanceof Float) return number(0xcb, "Float", 3, value.value);
    if (Number.isSafeInteger(value) && value >= 0) return value < 128 ? out.push(value) : natural(value, 0xcc);
    const isText = typeof value === "string", bytes = isText ? new TextEncoder().encode(value) : value;
    if (!(bytes instanceof Uint8Array)) throw new InvalidInput(`cannot encode ${value}`);
    if (isText && bytes.length < 32) out.push(0xa0 | bytes.length); else natural(bytes.length, isText ? 0xd9 : 0xc4);
    for (const byte of bytes) out.push(byte);
  };
  Object.entries(map).flat().forEach(put);
  return Uint8Array.from(out);
}
export function decode(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  const skip = (n) => { if (at + n > bytes.length) throw new FormatError("message ends early"); at += n; return at - n; };
  const number = (log2, kind = "Uint") => Number(view[method("get", kind, log2)](skip(1 << log2)));
  const bin = (n) => bytes.slice(skip(n), at);
  const str = (n, utf8 = bin(n)) => {
    try { return new TextDecoder("utf-8", { fatal: true }).decode(utf8); } catch { throw new FormatError("text is not UTF-8"); }
  };
  const array = (n, depth) => { const all = []; while (n-- > 0) all.push(take(depth + 1)); return all; };
  const map = (n, depth) => { const all = new Map(); while (n-- > 0) all.set(take(depth + 1), take(depth + 1)); return all; };
  const take = (depth) => {
    const tag = number(0);
    if (depth > 16 || tag === 0xc1) throw new FormatError("nested too deeply, or no MessagePack");
    if (tag < 0x80 || tag >= 0xe0) return tag < 0x80 ? tag : tag - 256;
    if (tag < 0xc0) return tag < 0x90 ? map(tag & 15, depth) : tag < 0xa0 ? array(tag & 15, depth) : str(tag & 31);
    if (tag < 0xc4) return tag === 0xc0 ? null : tag === 0xc3;
    if (tag < 0xca) return tag < 0xc7 ? bin(number(tag - 0xc4)) : bin(number(tag - 0xc7) + 1); // or an extension, skipped
    if (tag < 0xcc) return new Float(number(tag - 0xc8, "Float"));
    if (tag < 0xd4) return tag < 0xd0 ? number(tag - 0xcc) : number(tag - 0xd0, "Int");
    if (tag < 0xdc) return tag < 0xd9 ? bin((1 << (tag - 0xd4)) + 1) : str(number(tag - 0xd9));
    return tag < 0xde ? array(number(tag - 0xdb), depth) : map(number(tag - 0xdd), depth);
  };
  const message = take(0);
  if (at !== bytes.length || !(message instanceof Map)) throw new FormatError("not one MessagePack map");
  return message;
}
export function decodeReply(bytes) {
  const message = decode(bytes), text = (value) => typeof value === "string", bin = (value) => value instanceof Uint8Array;
  const natural = (value) => Number.isSafeInteger(value) && value >= 0, optional = (value) => value === undefined || natural(value);
  const field = (key, fits) => { if (!fits(message.get(key))) throw new FormatError(`reply: bad ${key}`); return message.get(key); };
  const v = field("v", natural), dim = field("dim", natural), blocks = v === 2 ? message.get("blocks") : 1; // version 2: of a model with blocks
  if (![1, 2].includes(v) || !Number.isSafeInteger(blocks)) throw new UnsupportedFormat(`a reply of version ${v}; this client knows 1, and 2 with blocks`);
  if (v === 2 && !(blocks > 1 && dim % blocks === 0)) throw new FormatError(`reply: ${blocks} blocks of dim ${dim}`);
  return { agent: field("agent", text), version: field("version", natural), acknowledged: field("acknowledged", natural),
    stats: unpackStats(field("stats", bin), dim, blocks), blocks, settings: field("settings", text), excluded: message.get("excluded") === true,
    epoch: field("epoch", optional) ?? 0, clock: field("clock", optional) ?? 0 };
}
