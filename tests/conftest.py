"""Settings shared by every test.

Warnings are errors (see pyproject.toml). Each test folder is a package, so that helpers are imported as
`from tests.builders import make_agent`, in child processes too.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

# Set before NumPy loads: two pytest workers with two BLAS threads each would fight over two cores.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")  # figures are drawn without a screen

# dev looks for new counterexamples at every run; ci tries the same examples each time, so that a red run is
# always about the change at hand. No deadline in either: the first call of a compiled function is slow.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
# mutants: like ci, and the first counterexample will do (see tests/mutants).
settings.register_profile("mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(autouse=True)
def numpy_handles_errors_as_at_its_start() -> Iterator[None]:
    """Tests raise exceptions anywhere, also where NumPy is about to restore how it handles floating-point errors."""
    yield
    import numpy as np  # after the variables above are set

    np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
    np.seterrcall(None)
