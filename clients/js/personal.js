// Agents with parameters of their own (docs/protocol.md): what the rest of the fleet knows is the prior, all own data come on top.
const add = (a, b, sign = 1) => a.map((value, i) => value + sign * b[i]);
export class Personal {
  #basis = null; // of the last decision; null after a change
  constructor({ dim, blocks = 1, personal: { kind, kappa } }, { held = null, apart = [] } = {}) { // pieces {first, last, stats} of answered uploads: in the model, and not in it
    Object.assign(this, { blocks, p: dim / blocks, kappa: kind === "fixed" ? kappa : 1, held, apart }); // "auto": the κ that Python agents begin with
  }
  get pieces() { return this.held ? [this.held, ...this.apart] : this.apart; }
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
  // Λ = P + A block by block, as Cholesky factors L, and z = L⁻¹(Pθ_o + c); with M = I + κΣ_o it is P = (I − M⁻¹)/κ and Pθ_o = M⁻¹b_o.
  basis({ stats }, buffer, flight, { cholesky, forward, dot }) {
    if (this.#basis) return this.#basis;
    const { blocks, p } = this, own = this.own(buffer, flight), others = this.held ? add(stats, this.held.stats, -1) : stats;
    const size = p * (p + 1) / 2, factors = [], z = new Float64Array(blocks * p);
    for (let k = 0; k < blocks; k++) {
      const triangle = (sums) => sums.slice(k * size, (k + 1) * size), vector = (sums) => sums.slice(blocks * size + k * p, blocks * size + (k + 1) * p);
      const { Lambda, target } = this.#prior(triangle(others), vector(others), { cholesky, forward, dot });
      const L = cholesky(add(triangle(own), Lambda), p);
      factors.push(L);
      z.set(forward(L, add(target, vector(own))), k * p);
    }
    return this.#basis = { factors, z, n: others.at(-3) + own.at(-3) };
  }
  #prior(Sigma, b, { cholesky, forward, dot }) { // P and Pθ_o of one block
    const { p, kappa } = this;
    if (!(kappa > 0)) return { Lambda: Sigma, target: b };
    const isDiagonal = new Set(Array.from({ length: p }, (_, i) => i * p - i * (i - 1) / 2));
    const G = cholesky(Sigma.map((value, k) => kappa * value + (isDiagonal.has(k) ? 1 : 0)), p);
    const columns = Array.from({ length: p }, (_, i) => forward(G, Float64Array.from({ length: p }, (_, j) => Number(i === j))));
    const Lambda = Sigma.slice(), half = forward(G, b.slice());
    for (let i = 0, k = 0; i < p; i++) for (let j = i; j < p; j++, k++) Lambda[k] = (Number(i === j) - dot(columns[i], columns[j])) / kappa;
    return { Lambda, target: b.map((_, i) => dot(columns[i], half)) };
  }
}
