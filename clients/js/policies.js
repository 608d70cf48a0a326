// Policies that tell their probabilities, and the random numbers behind them (docs/protocol.md, "Random numbers").
import { InvalidInput } from "./errors.js";
const MASK = (1n << 64n) - 1n, STEP = 0x9e3779b97f4a7c15n, MARGIN = 1e-12;
export const mix64 = (z) => {
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return z ^ (z >> 31n);
};
export const splitmix64 = (seed, n) => mix64((seed + (BigInt(n) + 1n) * STEP) & MASK); // output n = 0, 1, …
export function keyOf(seed, agent, incarnation, purpose) {
  let value = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode([seed, purpose, incarnation, agent].join("\0"))) value = ((value ^ BigInt(byte)) * 0x100000001b3n) & MASK;
  return mix64(value);
}
export class CounterRandom { // draws of one agent for one purpose, by decision number: nothing is advanced
  constructor(seed, agent, incarnation, purpose) { this.key = keyOf(seed, agent, incarnation, purpose); }
  bits(number, i = 0) { return splitmix64(splitmix64(this.key, number), i); }
  uniform(number, i = 0) { return Number(this.bits(number, i) >> 11n) * 2 ** -53; }
  index(number, n, i = 0) { return Math.min(Math.floor(this.uniform(number, i) * n), n - 1); }
  normals(number, n) {
    const seed = splitmix64(this.key, number), unit = (i) => Number(splitmix64(seed, i) >> 11n) * 2 ** -53;
    return Float64Array.from({ length: n }, (_, i) => {
      const first = i - (i % 2), radius = Math.sqrt(-2 * Math.log(1 - unit(first))), angle = 2 * Math.PI * unit(first + 1);
      return radius * (i % 2 ? Math.sin(angle) : Math.cos(angle));
    });
  }
}
export const isCertain = ({ policy = "ucb", explore = 0 }) => policy === "ucb" && explore === 0;
export const firstBest = (scores) => {
  const best = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  return scores.findIndex((score) => score >= best - MARGIN * Math.abs(best));
};
export function best(scores, k) { // the index of the largest, or of the k largest; of those within the margin the first
  const n = scores.length;
  if (k !== undefined && !(Number.isSafeInteger(k) && k >= 1 && k <= n)) throw new InvalidInput(`need k between 1 and the ${n} actions there are, got ${k}`);
  const rest = k > 1 ? scores.slice() : scores, chosen = [];
  while (chosen.length < (k ?? 1)) {
    let most = -Infinity, index = 0, isNumber = true;
    for (let i = 0; i < n; i++) { if (rest[i] > most) most = rest[i]; isNumber &&= !Number.isNaN(rest[i]); }
    if (!isNumber || !Number.isFinite(most)) throw new InvalidInput("the scores of these actions overflow");
    while (!(rest[index] >= most - MARGIN * Math.abs(most))) index++;
    chosen.push(index);
    if (k > 1) rest[index] = -Infinity;
  }
  return chosen;
}
function inverseGap(means, gamma) {
  const best = firstBest(means), p = means.map((mean) => 1 / (means.length + gamma * Math.max(means[best] - mean, 0)));
  p[best] = 1 - p.reduce((sum, each, k) => (k === best ? sum : sum + each), 0);
  return p;
}
function pick(p, u) {
  let sum = 0;
  for (let k = 0; k < p.length; k++) if ((sum += p[k]) > u) return k;
  return p.findLastIndex((each) => each > 0);
}
// The decision of an agent {agent, incarnation, beta} under settings: all = [{x, mean, score}], n observations in the model, whiten(x) = L⁻¹x.
export function draw(settings, { agent, incarnation, beta }, all, n, number, whiten) {
  const { policy = "ucb", explore = 0, gamma = "auto", propensity_samples: samples = 100, policy_seed: seed = 0, dim } = settings;
  const K = all.length, random = (purpose) => new CounterRandom(seed, agent, incarnation, purpose), means = all.map(({ mean }) => mean);
  const coin = explore > 0 ? random("explore") : null, explored = coin && coin.uniform(number, 0) < explore ? coin.index(number, K, 1) : null;
  const told = (index, p, score) => ({ index, score, policy, propensity: p === null ? null : explore / K + (1 - explore) * p });
  if (policy === "inverse-gap") {
    const p = inverseGap(means, gamma === "auto" ? Math.sqrt((n * K) / dim) : gamma);
    const index = explored ?? pick(p, random("policy").uniform(number));
    return told(index, p[index], means[index]);
  }
  if (policy === "thompson") {
    const white = all.map(({ x }) => whiten(x)), product = (row, z, from) => row.reduce((sum, w, j) => sum + w * z[from + j], 0);
    const scoresOf = (z, from) => means.map((mean, k) => mean + beta * product(white[k], z, from));
    const scores = scoresOf(random("policy").normals(number, dim), 0), sampled = firstBest(scores), index = explored ?? sampled;
    if (samples === 0) return told(index, null, scores[index]);
    const z = random("propensity").normals(number, samples * dim);
    let hits = index === sampled ? 1 : 0;
    for (let s = 0; s < samples; s++) if (firstBest(scoresOf(z, s * dim)) === index) hits++;
    return told(index, hits / (samples + 1), scores[index]);
  }
  const scores = all.map(({ score }) => score), best = firstBest(scores), index = explored ?? best;
  return told(index, index === best ? 1 : 0, scores[index]);
}
