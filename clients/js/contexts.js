// Contexts of models with one block per arm: read once, scored in every block, without a row per arm.
import { InvalidInput } from "./errors.js";
import { forward } from "./statistics.js";
const LARGEST = 1e70;
export function readContext({ dim, blocks = 1, arms, features }, context, bias) { // its p numbers
  if (blocks === 1) throw new InvalidInput("chooseContext needs a model with one block per arm (blocks); choose takes rows");
  const p = dim / blocks, isList = Array.isArray(context) || ArrayBuffer.isView(context);
  const given = isList ? Array.from(context) : byName(context, arms && features ? features.slice(0, p).map((name) => name.split("@")[0]) : null);
  const expected = isList && bias ? p - 1 : p;
  if (given.length !== expected || !given.every((value) => typeof value === "number" && Math.abs(value) <= LARGEST)) {
    throw new InvalidInput(`need a context of ${expected} finite numbers, got ${given.length}; ${bias ? "a constant 1 joins them, bias: false takes all of them" : "bias: true adds a constant 1"}`);
  }
  return Float64Array.from(given.length < p ? [...given, 1] : given);
}
function byName(context, names) { // the column "1" is a constant
  if (context === null || typeof context !== "object") throw new InvalidInput(`need a context as a list of numbers or an object, got ${context}`);
  if (!names) throw new InvalidInput("the model's columns have no names (name@arm); pass the context as a list");
  const inputs = names.filter((name) => name !== "1"), got = Object.keys(context);
  if (got.length !== inputs.length || !inputs.every((name) => Object.hasOwn(context, name))) throw new InvalidInput(`need a context with ${inputs.join(", ")}, got ${got.join(", ")}`);
  return names.map((name) => (name === "1" ? 1 : context[name]));
}
export function readArms({ blocks, arms: names }, arms) { // the blocks of the arms on offer, in their order
  if (arms === undefined || arms === null) return null; // all of them
  if (!Array.isArray(arms) || !arms.length) throw new InvalidInput("need arms as a list of names or numbers, with one at least");
  const found = arms.map((arm) => (typeof arm === "string" ? (names ?? []).indexOf(arm) : arm));
  found.forEach((block, i) => {
    if (!(Number.isSafeInteger(block) && block >= 0 && block < blocks)) throw new InvalidInput(`need arms ${names ? `among ${names.slice(0, 10).join(", ")}${blocks > 10 ? ", …" : ""}, or ` : "as "}numbers from 0 to ${blocks - 1}, got ${arms[i]}`);
  });
  if (new Set(found).size !== found.length) throw new InvalidInput("need every arm at most once");
  return found;
}
// Mean, width and score of one context in each of these blocks, or in all (null); the arrays of the last call are used again.
export function scored({ model: { factors, z }, layout: { p, blocks: all }, beta }, values, blocks, last) {
  const n = blocks ? blocks.length : all, found = last?.scores.length === n ? last : { y: new Float64Array(p), means: new Float64Array(n), widths: new Float64Array(n), scores: new Float64Array(n) };
  const { y, means, widths, scores } = found;
  for (let k = 0; k < n; k++) {
    const block = blocks ? blocks[k] : k, from = block * p;
    let mean = 0, square = 0;
    y.set(values);
    forward(factors[block], y, p);
    for (let i = 0; i < p; i++) { mean += z[from + i] * y[i]; square += y[i] * y[i]; }
    means[k] = mean;
    widths[k] = square ** 0.5;
    scores[k] = mean + beta * widths[k];
  }
  return found;
}
