// The radius β of a model (docs/protocol.md, "The settings of a model").
import { InvalidInput } from "./errors.js";
export function beta({ dim: d, lam, alpha, radius }, version, n, rho, ownBuffer = false) { // docs/theory.md, "The radius β"
  const { kind, noise_scale: R, theta_bound: S, action_bound: L, delta, n_agents: M, n_rounds: T } = radius;
  const { log, log1p, sqrt } = Math, bias = sqrt(lam) * S, mu = ownBuffer && M > 1 ? M : M - 1, missing = mu * alpha;
  const value = kind === "fixed" ? radius.beta : kind === "exogenous" ? bias + R * sqrt(2 * log(1 / delta) + rho)
    : kind === "counted" ? bias + R * sqrt(d * log1p(n / (d * lam)) + 2 * log(1 / delta))
    : kind === "adaptive" ? bias + R * sqrt(1 + missing) * sqrt(2 * log(2 / delta) + rho + d * log1p(missing / d))
      + R * mu * sqrt(alpha) * (1 + sqrt(2 * log((T ? 2 * T : 2 * M * (version + 1) * (version + 2)) / delta)))
    : kind === "paper" ? bias + (sqrt(1 + M * alpha) + M * sqrt(2 * alpha))
      * (R * sqrt(d * log((1 + T * L * L / (Math.min(alpha, 1) * lam)) / delta)) + bias) : NaN;
  if (!(value >= 0 && value < Infinity)) throw new InvalidInput(`no radius follows from ${JSON.stringify(radius)}`);
  return value;
}
