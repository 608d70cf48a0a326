// Agents with parameters of their own (docs/protocol.md): what the rest of the fleet knows is the prior, all own data come on top.
import { FIRST_CHOICE, blockOf, chooseKappa, priorOf } from "./kappa.js";
import { cholesky, forward, toText } from "./statistics.js";
const add = (a, b, sign = 1) => a.map((value, i) => value + sign * b[i]);
export class Personal {
  #basis = null; // of the last decision; null after a change
  constructor({ dim, blocks = 1, personal: { kind, kappa } }, { held = null, apart = [], kappa: chosen = null, next = FIRST_CHOICE } = {}) { // pieces {first, last, stats} of answered uploads: in the model, and not in it
    Object.assign(this, { dim, blocks, isFixed: kind === "fixed", kappa: kind === "fixed" ? kappa : chosen, next, held, apart }); // κ is null where it is to be chosen
  }
  get pieces() { return this.held ? [this.held, ...this.apart] : this.apart; }
  toJSON() { return { held: this.held && toText(this.held), apart: this.apart.map(toText), kappa: this.kappa, next: this.next }; }
  changed() { this.#basis = null; }
  answered({ sequence, stats }) { // the server has merged this upload
    if (!this.pieces.some(({ last }) => last >= sequence)) this.apart = [...this.apart, { first: sequence, last: sequence, stats }];
  }
  take(acknowledged, excluded) { // a new model holds the uploads up to this one, or none; a piece that it holds in part is the fleet's from now on
    const inside = this.pieces.filter(({ last }) => last <= acknowledged), apart = this.pieces.filter(({ first }) => first > acknowledged);
    const joined = inside.length ? { first: inside[0].first, last: inside.at(-1).last, stats: inside.map(({ stats }) => stats).reduce((a, b) => add(a, b)) } : null;
    Object.assign(this, excluded ? { held: null, apart: joined ? [joined, ...apart] : apart } : { held: joined, apart });
    if (!this.isFixed) this.kappa = null;
    this.changed();
  }
  own(buffer, flight) { // the lifetime sums
    const sent = flight && this.pieces.every(({ last }) => last < flight.sequence) ? [flight] : [];
    return [...this.pieces, ...sent].reduce((total, { stats }) => add(total, stats), buffer);
  }
  // Λ = P + A as its Cholesky factors L, block by block, and z = L⁻¹(Pθ_o + c). κ is chosen again for each model, and when the own observations have doubled.
  basis({ stats }, buffer, flight) {
    if (this.#basis) return this.#basis;
    const { dim, blocks } = this, p = dim / blocks, own = this.own(buffer, flight), others = this.held ? add(stats, this.held.stats, -1) : stats.slice();
    if (!this.isFixed && (this.kappa === null || own.at(-3) >= this.next)) this.kappa = chooseKappa(others, own, dim, blocks);
    while (this.next <= own.at(-3)) this.next *= 2;
    const factors = [], z = new Float64Array(dim);
    for (let k = 0; k < blocks; k++) {
      const { Sigma, b } = blockOf(others, k, p, blocks), { Sigma: A, b: c } = blockOf(own, k, p, blocks), { P, h } = priorOf(Sigma, b, this.kappa);
      factors.push(cholesky(add(P, A), p));
      z.set(forward(factors[k], add(h, c)), k * p);
    }
    return this.#basis = { factors, z, n: others.at(-3) + own.at(-3) };
  }
}
