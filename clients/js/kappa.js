// How much agents differ: the prior of an agent's own parameter for one κ, and the choice of κ (src/fedbandit/core/personal_prior.py).
import { cholesky, dot, forward, logDet } from "./statistics.js";
export const FIRST_CHOICE = 4; // own observations before κ is chosen for the first time
const KAPPAS = [1e-4, 1e-3, 0.01, 0.1, 1, 10, 100], FIRST_KAPPA = 1, NOISE_FLOOR = 1e-9;
const diagonal = (i, d) => i * d - i * (i - 1) / 2; // where Σ_ii stands in an upper triangle
// P = (Σ_o⁻¹ + κI)⁻¹ as an upper triangle, h = Pθ_o and log det P − log det Σ_o. With M = I + κΣ_o it is P = (I − M⁻¹)/κ, Pθ_o = M⁻¹b_o, det P = det Σ_o / det M.
export function priorOf(others, kappa, d) {
  const n = d * (d + 1) / 2, Sigma = others.slice(0, n), b = others.slice(n, n + d);
  if (kappa === 0) return { P: Sigma, h: b, change: 0 };
  const M = Sigma.map((value) => kappa * value), P = new Float64Array(n);
  for (let i = 0; i < d; i++) M[diagonal(i, d)] += 1;
  const G = cholesky(M, d), columns = Array.from({ length: d }, (_, i) => forward(G, Float64Array.from({ length: d }, (_, j) => Number(i === j)))), y = forward(G, b);
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
// The geometric mean of κ under its posterior law, given the own observations: log κ is normal around κ = 1 before them, with a standard deviation of one decade.
export function chooseKappa(others, own, d) {
  if (own.at(-3) < FIRST_CHOICE) return FIRST_KAPPA;
  const n = d * (d + 1) / 2, [count, , squares] = own.slice(-3), L = cholesky(others, d), b = others.slice(n, n + d), c = own.slice(n, n + d);
  const theta = backward(L, forward(L, b.slice()), d), fitted = times(own, theta, d), gap = c.map((value, i) => value - fitted[i]);
  const noise = others.at(-3) > 0 ? Math.max(others.at(-1) - dot(b, theta), 0) / others.at(-3) : 0, mean = squares / count;
  const scale = Math.max(noise > 0 ? noise : mean, NOISE_FLOOR * mean + 1e-300), atFleet = squares - 2 * dot(c, theta) + dot(theta, fitted);
  const weights = KAPPAS.map((kappa) => { // log of the marginal likelihood, R² integrated out, less the prior's penalty
    const { P, change } = priorOf(others, kappa, d), factor = cholesky(P.map((value, k) => value + own[k]), d), z = forward(factor, gap.slice());
    const residual = Math.max(atFleet - dot(z, z), 0);
    return 0.5 * (change + logDet(L, d) - logDet(factor, d)) - count * Math.log(count * scale + residual) - 0.5 * Math.log10(kappa / FIRST_KAPPA) ** 2;
  });
  const most = Math.max(...weights), shares = weights.map((weight) => Math.exp(weight - most));
  return Math.exp(shares.reduce((sum, share, k) => sum + share * Math.log(KAPPAS[k]), 0) / shares.reduce((a, b) => a + b));
}
