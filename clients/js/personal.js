// Agents with parameters of their own (docs/protocol.md): what the rest of the fleet knows is the prior, all own data come on top.
import { toText } from "./statistics.js";
const add = (a, b, sign = 1) => a.map((value, i) => value + sign * b[i]);
export class Personal {
  #basis = null; // of the last decision; null after a change
  constructor({ dim, personal: { kind, kappa } }, { held = null, apart = [] } = {}) { // pieces {first, last, stats} of answered uploads: in the model, and not in it
    Object.assign(this, { dim, kappa: kind === "fixed" ? kappa : 1, held, apart }); // "auto": the κ that Python agents begin with
  }
  get pieces() { return this.held ? [this.held, ...this.apart] : this.apart; }
  toJSON() { return { held: this.held && toText(this.held), apart: this.apart.map(toText) }; }
  changed() { this.#basis = null; }
  answered({ sequence, stats }) { // the server has merged this upload
    if (!this.pieces.some(({ last }) => last >= sequence)) this.apart = [...this.apart, { first: sequence, last: sequence, stats }];
  }
  take(acknowledged, excluded) { // a new model holds the uploads up to this one, or none; a piece that it holds in part is the fleet's from now on
    const inside = this.pieces.filter(({ last }) => last <= acknowledged), apart = this.pieces.filter(({ first }) => first > acknowledged);
    const joined = inside.length ? { first: inside[0].first, last: inside.at(-1).last, stats: inside.map(({ stats }) => stats).reduce((a, b) => add(a, b)) } : null;
    Object.assign(this, excluded ? { held: null, apart: joined ? [joined, ...apart] : apart } : { held: joined, apart });
    this.changed();
  }
  own(buffer, flight) { // the lifetime sums
    const sent = flight && this.pieces.every(({ last }) => last < flight.sequence) ? [flight] : [];
    return [...this.pieces, ...sent].reduce((total, { stats }) => add(total, stats), buffer);
  }
  // Λ = P + A as its Cholesky factor L, and z = L⁻¹(Pθ_o + c); with M = I + κΣ_o it is P = (I − M⁻¹)/κ and Pθ_o = M⁻¹b_o.
  basis({ stats }, buffer, flight, { cholesky, forward, dot }) {
    if (this.#basis) return this.#basis;
    const { dim: d, kappa } = this, own = this.own(buffer, flight), others = this.held ? add(stats, this.held.stats, -1) : stats.slice();
    const n = d * (d + 1) / 2, isDiagonal = new Set(Array.from({ length: d }, (_, i) => i * d - i * (i - 1) / 2));
    const Lambda = own.slice(), target = others.slice(n, -3);
    if (kappa > 0) {
      const G = cholesky(others.map((value, k) => kappa * value + (isDiagonal.has(k) ? 1 : 0)), d);
      const columns = Array.from({ length: d }, (_, i) => forward(G, Float64Array.from({ length: d }, (_, j) => Number(i === j))));
      const b = forward(G, target.slice());
      for (let i = 0, k = 0; i < d; i++) for (let j = i; j < d; j++, k++) Lambda[k] += (Number(i === j) - dot(columns[i], columns[j])) / kappa;
      columns.forEach((column, i) => { target[i] = dot(column, b); });
    } else for (let k = 0; k < n; k++) Lambda[k] += others[k];
    const L = cholesky(Lambda, d), z = forward(L, target.map((value, i) => value + own[n + i]));
    return this.#basis = { L, z, n: others.at(-3) + own.at(-3) };
  }
}
