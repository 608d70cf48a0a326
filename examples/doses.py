"""Doses: twelve clinics with 25 patients each learn the right dose.

    python examples/doses.py

The data are synthetic; this is not medical advice. A patient's benefit rises with the dose until side effects dominate;
the best dose depends on age and kidney function. Twenty-five patients are too few for one clinic to learn it, three
hundred are enough. Only sums leave a clinic. Of the values of β and λ that we tried, these are best for learning alone.
"""

from __future__ import annotations

import numpy as np
from fleets import WAYS, around, compare, options, save, three_fleets, titled

from fedbandit.experiments.output.figures import panels

N_CLINICS, N_PATIENTS = 12, 25
DOSES = np.linspace(0.0, 1.0, 6)  # of the largest that is allowed
NOISE = 0.3  # patients differ by more than age and kidneys


def features(age: float, kidneys: float) -> np.ndarray:
    """A row for each dose, (6, 5): benefit is linear in these, though not in the dose."""
    return np.array([[1.0, dose, dose**2, dose * age, dose * kidneys] for dose in DOSES])


# Benefit = 1.6·dose − 1.6·dose² − 0.5·dose·age + 0.5·dose·kidneys: best at 0.5 for the average patient.
THETA = np.array([0.0, 1.6, -1.6, -0.5, 0.5])


def play(seed: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """What each patient missed for each way to learn, and what was possible, (clinics, patients); messages."""
    patient_rng, noise_rng, order_rng = np.random.default_rng(seed).spawn(3)
    age, kidneys = patient_rng.uniform(-1, 1, size=(2, N_CLINICS, N_PATIENTS))
    noise = NOISE * noise_rng.normal(size=(N_CLINICS, N_PATIENTS))
    fleets = three_fleets(N_CLINICS, dim=5, alpha=0.5, beta=0.3, lam=0.003)
    missed = {fleet.name: np.empty((N_CLINICS, N_PATIENTS)) for fleet in fleets}
    missed["possible"] = np.empty((N_CLINICS, N_PATIENTS))
    for n in range(N_PATIENTS):
        for m in order_rng.permutation(N_CLINICS):
            X = features(age[m, n], kidneys[m, n])
            benefit = X @ THETA
            missed["possible"][m, n] = benefit.max()
            for fleet in fleets:
                decision = fleet.agents[m].choose(X)
                missed[fleet.name][m, n] = benefit.max() - benefit[decision.index]
                fleet.observe(m, decision, benefit[decision.index] + noise[m, n])
    return missed, {fleet.name: fleet.n_messages for fleet in fleets}


def main() -> None:
    chosen = options("Doses: twelve clinics, 25 patients each.", "doses.svg")
    n_seeds = 4 if chosen.quick else 60
    runs = [play(seed) for seed in range(n_seeds)]
    missed = {name: np.array([found[name] for found, _ in runs]) for name in WAYS}
    possible = np.mean([found["possible"] for found, _ in runs])
    print(
        f"{N_CLINICS} clinics, {N_PATIENTS} patients each, {n_seeds} seeds; the best doses would bring {possible:.2f}"
    )
    for name, values in missed.items():
        total = values.mean(axis=(1, 2))
        right = 100 * (values < 0.02).mean(axis=(1, 2))
        n_messages = np.mean([messages[name] for _, messages in runs])
        print(
            f"  {name:10}  benefit missed per patient {around(total, digits=3)}, "
            f"dose as good as the best {around(right, ' %')}, {n_messages:,.0f} messages"
        )

    figure, (axis,) = panels(1, 1, width=7.5, height=3.8)
    by_patient = {name: values.mean(axis=1) for name, values in missed.items()}
    compare(axis, np.arange(1, N_PATIENTS + 1), by_patient)
    axis.set_ylim(bottom=0.0)
    axis.set(xlabel="patient of a clinic, in order of arrival", ylabel=f"benefit missed (of {possible:.2f} on average)")
    titled(axis, "Doses: what a patient misses because the clinic is still learning")
    save(figure, chosen.figure, f"examples/doses.py · synthetic patients · {n_seeds} seeds, shade: 95 % interval")


if __name__ == "__main__":
    main()
