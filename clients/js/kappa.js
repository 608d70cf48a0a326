// How much agents differ: the prior of an agent's own parameter for one κ, and the choice of κ (src/fedbandit/core/kappa.py).
import { cholesky, dot, forward, logDet } from "./statistics.js";
export const FIRST_CHOICE = 16; // own observations before κ is chosen for the first time
const KAPPAS = [1e-4, 1e-3, 0.01, 0.1, 1, 10, 100], TYPICAL_SPREAD = 6, NOISE_FLOOR = 1e-9;
const diagonal = (i, d) => i * d - i * (i - 1) / 2; // where Σ_ii stands in an upper triangle
export function blockOf(stats, k, p, blocks) { // Σ and b of block k of packed sums
  const size = p * (p + 1) / 2, at = blocks * size + k * p;
  return { Sigma: stats.slice(k * size, (k + 1) * size), b: stats.slice(at, at + p) };
}
// P = (Σ_o⁻¹ + κI)⁻¹ as an upper triangle, h = Pθ_o and log det P − log det Σ_o. With M = I + κΣ_o it is P = (I − M⁻¹)/κ, Pθ_o = M⁻¹b_o, det P = det Σ_o / det M.
export function priorOf(Sigma, b, kappa) {
  const d = b.length;
  if (kappa === 0) return { P: Sigma, h: b, change: 0 };
  const M = Sigma.map((value) => kappa * value), P = new Float64Array(Sigma.length);
  for (let i = 0; i < d; i++) M[diagonal(i, d)] += 1;
  const G = cholesky(M, d), columns = Array.from({ length: d }, (_, i) => forward(G, Float64Array.from({ length: d }, (_, j) => Number(i === j)))), y = forward(G, b.slice());
  for (let i = 0, k = 0; i < d; i++) for (let j = i; j < d; j++, k++) P[k] = (Number(i === j) - dot(columns[i], columns[j])) / kappa;
  return { P, h: Float64Array.from(columns, (column) => dot(column, y)), change: -logDet(G, d) };
}
function times(triangle, x, d) { // of the symmetric matrix with this upper triangle
  const y = new Float64Array(d);
  for (let i = 0, k = 0; i < d; i++) for (let j = i; j < d; j++, k++) { y[i] += triangle[k] * x[j]; if (j > i) y[j] += triangle[k] * x[i]; }
  return y;
}
function backward(L, y, d) { // y becomes L⁻ᵀy
  for (let i = d - 1; i >= 0; i--) { for (let k = i + 1; k < d; k++) y[i] -= L[k * d + i] * y[k]; y[i] /= L[i * d + i]; }
  return y;
}
// log of the marginal likelihood of the own observations in one block, as parts that add up over blocks.
function fitOf({ Sigma, b }, { Sigma: A, b: c }) {
  const d = b.length, L = cholesky(Sigma, d), theta = backward(L, forward(L, b.slice()), d), fitted = times(A, theta, d);
  return { Sigma, b, A, L, gap: c.map((value, i) => value - fitted[i]), explained: dot(b, theta), atFleet: dot(theta, fitted) - 2 * dot(c, theta) };
}
function evidenceOf({ Sigma, b, A, L, gap }, kappa) {
  const d = b.length, { P, change } = priorOf(Sigma, b, kappa), factor = cholesky(P.map((value, k) => value + A[k]), d), z = forward(factor, gap.slice());
  return { change: change + logDet(L, d) - logDet(factor, d), square: dot(z, z) };
}
// The geometric mean of κ under its posterior law, given the own observations: before them log κ is normal around min(1, 6/d), with a standard deviation of one decade.
export function chooseKappa(others, own, d, blocks = 1) {
  const first = Math.min(1, TYPICAL_SPREAD / d), total = (values) => values.reduce((a, b) => a + b, 0);
  if (own.at(-3) < FIRST_CHOICE) return first;
  const [count, , squares] = own.slice(-3), mean = squares / count;
  const fits = Array.from({ length: blocks }, (_, k) => fitOf(blockOf(others, k, d / blocks, blocks), blockOf(own, k, d / blocks, blocks)));
  const noise = others.at(-3) > 0 ? Math.max(others.at(-1) - total(fits.map(({ explained }) => explained)), 0) / others.at(-3) : 0;
  const scale = Math.max(noise > 0 ? noise : mean, NOISE_FLOOR * mean + 1e-300), atFleet = squares + total(fits.map((fit) => fit.atFleet));
  const weights = KAPPAS.map((kappa) => { // R² integrated out, less the prior's penalty
    const parts = fits.map((fit) => evidenceOf(fit, kappa)), residual = Math.max(atFleet - total(parts.map(({ square }) => square)), 0);
    return 0.5 * total(parts.map(({ change }) => change)) - count * Math.log(count * scale + residual) - 0.5 * Math.log10(kappa / first) ** 2;
  });
  const most = Math.max(...weights), shares = weights.map((weight) => Math.exp(weight - most));
  return Math.exp(total(shares.map((share, k) => share * Math.log(KAPPAS[k]))) / total(shares));
}
