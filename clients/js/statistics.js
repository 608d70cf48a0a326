// Statistics: a Float64Array in the order of the wire. Σ's upper triangle by rows, b, n_obs, Σr, Σr²; in a model with K blocks
// (one per arm) the K upper triangles one after another. A model without blocks has one block of all columns.
import { FormatError, InvalidInput, NotOneBlock } from "./errors.js";
const triangle = (d) => d * (d + 1) / 2;
export const lengthOf = (dim, blocks) => blocks * triangle(dim / blocks) + dim + 3;
export const sum = (...parts) => parts.filter(Boolean).reduce((a, b) => a.map((value, i) => value + b[i]));
export class Layout { // where the numbers of a model with K blocks of p columns stand
  constructor({ dim, blocks = 1, arms }) {
    if (!(Number.isSafeInteger(blocks) && blocks >= 1 && dim % blocks === 0)) throw new InvalidInput(`need dim as a multiple of blocks, got dim ${dim} and blocks ${blocks}`);
    if (blocks > 1 && arms && arms.length !== blocks) throw new InvalidInput(`need one name for each of ${blocks} arms, got ${arms.length}`);
    Object.assign(this, { dim, blocks, p: dim / blocks, size: triangle(dim / blocks), length: lengthOf(dim, blocks) });
  }
  blank(lam = 0, stats = new Float64Array(this.length)) {
    for (let block = 0; block < this.blocks; block++) for (let i = 0, k = block * this.size; i < this.p; k += this.p - i++) stats[k] = lam;
    return stats;
  }
  Sigma(stats, block) { return stats.subarray(block * this.size, (block + 1) * this.size); } // a view: its upper triangle
  b(stats, block, at = this.blocks * this.size + block * this.p) { return stats.subarray(at, at + this.p); } // a view
  part(z, block) { return this.blocks === 1 ? z : z.subarray(block * this.p, (block + 1) * this.p); } // of a vector (d)
  absorb(stats, { block, values }, reward, k = 0) {
    const Sigma = this.Sigma(stats, block), b = this.b(stats, block), n = this.length;
    for (let i = 0; i < values.length; i++) for (let j = i; j < values.length; j++) Sigma[k++] += values[i] * values[j];
    values.forEach((value, i) => { b[i] += reward * value; });
    [1, reward, reward * reward].forEach((value, i) => { stats[n - 3 + i] += value; });
  }
  row(x) { // the block of a row (d), and its numbers there; a row of zeros is in the first block
    if (this.blocks === 1) return { block: 0, values: x };
    const filled = new Set();
    x.forEach((value, i) => { if (value !== 0) filled.add(Math.floor(i / this.p)); });
    if (filled.size > 1) throw new NotOneBlock(`need every row in one of the ${this.blocks} blocks of ${this.p} columns and zeros elsewhere, got numbers in the blocks ${[...filled].slice(0, 5).join(", ")}`);
    const [block = 0] = filled;
    return { block, values: x.slice(block * this.p, (block + 1) * this.p) };
  }
  touched(stats, found = []) { // the blocks in which Σ or b is not zero, ascending
    for (let block = 0; block < this.blocks; block++) {
      let some = this.b(stats, block).some((value) => value !== 0);
      for (let i = 0, k = block * this.size; i < this.p && !some; k += this.p - i++) some = stats[k] !== 0;
      if (some) found.push(block);
    }
    return found;
  }
  short(stats) { // what an upload carries: the touched blocks as little-endian uint32, and their sums
    const found = this.touched(stats), view = new DataView(new ArrayBuffer(4 * found.length)), { size, p } = this;
    const numbers = new Float64Array(found.length * (size + p) + 3);
    found.forEach((block, i) => {
      view.setUint32(4 * i, block, true);
      numbers.set(this.Sigma(stats, block), i * size);
      numbers.set(this.b(stats, block), found.length * size + i * p);
    });
    numbers.set(stats.subarray(-3), numbers.length - 3);
    return { touched: new Uint8Array(view.buffer), numbers };
  }
  widened(stats, to) { // the same sums for a layout with more blocks at the end
    const wider = to.blank();
    wider.set(stats.subarray(0, this.blocks * this.size));
    wider.set(stats.subarray(this.blocks * this.size, -3), to.blocks * to.size);
    wider.set(stats.subarray(-3), to.length - 3);
    return wider;
  }
}
// Whether settings are earlier ones with arms added at the end (`fedbandit models widen`).
export const isWidened = (old, now) => old.blocks > 1 && now.blocks > old.blocks && old.dim / old.blocks === now.dim / now.blocks
  && Array.isArray(old.arms) && Array.isArray(now.arms) && old.arms.every((arm, i) => arm === now.arms[i]);
export function packStats(stats, view = new DataView(new ArrayBuffer(8 * stats.length))) {
  stats.forEach((value, i) => view.setFloat64(8 * i, value, true));
  return new Uint8Array(view.buffer);
}
export function unpackStats(bytes, d, blocks = 1) {
  if (bytes.length !== 8 * lengthOf(d, blocks) || d < 1) throw new FormatError(`${bytes.length} bytes of statistics for dim ${d} in ${blocks} block(s)`);
  const view = new DataView(bytes.buffer, bytes.byteOffset), stats = new Float64Array(bytes.length / 8).map((_, i) => view.getFloat64(8 * i, true));
  if (stats.every(Number.isFinite) && Number.isSafeInteger(stats.at(-3)) && stats.at(-3) >= 0) return stats;
  throw new FormatError("statistics that are not finite, or with n_obs that is no whole number");
}
export const bytesToBase64 = (bytes) => { let text = ""; for (const byte of bytes) text += String.fromCharCode(byte); return btoa(text); };
export const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
export const toBase64 = (stats) => bytesToBase64(packStats(stats));
export const toText = (piece) => ({ ...piece, stats: toBase64(piece.stats) });
export const fromBase64 = (text, d, blocks) => unpackStats(bytesOf(text), d, blocks);
// ---- linear algebra: L lower triangular, d × d, by rows ----
export function cholesky(stats, d, L = new Float64Array(d * d)) { // of their Σ
  for (let j = 0, at = 0; j < d; j++) for (let i = j; i < d; i++) {
    let s = stats[at++]; // Σ_ji = Σ_ij
    for (let k = 0; k < j; k++) s -= L[i * d + k] * L[j * d + k];
    if (i === j && !(stats[at - 1] > 0)) throw new FormatError("Sigma is not positive definite");
    L[i * d + j] = i > j ? s / L[j * d + j] : Math.sqrt(Math.max(s, d * Number.EPSILON * stats[at - 1])); // rounding may cancel a small ridge
  }
  return L;
}
export function forward(L, y, d = y.length) { // y becomes L⁻¹y
  for (let i = 0, at = 0; i < d; i++, at += d) {
    let rest = y[i];
    for (let k = 0; k < i; k++) rest -= L[at + k] * y[k];
    y[i] = rest / L[at + i];
  }
  return y;
}
export function rankOne(L, v, d = v.length) { // L becomes the factor of LLᵀ + vvᵀ, in O(d²); v is used up
  for (let k = 0; k < d; k++) {
    const old = L[k * d + k], c = Math.hypot(old, v[k]) / old, s = v[k] / old;
    L[k * d + k] = c * old;
    for (let i = k + 1; i < d; i++) v[i] = c * v[i] - s * (L[i * d + k] = (L[i * d + k] + s * v[i]) / c);
  }
}
export function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}
export const logDet = (L, d, over) => Array.from({ length: d }, (_, i) => 2 * Math.log(L[i * d + i] / (over?.[i * d + i] ?? 1))).reduce((a, b) => a + b); // of LLᵀ, less another's
