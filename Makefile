# make run: from nothing to a validated row.   make test: everything that must hold.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
# A second, small environment: the core, scores, pytest and ruff, without any deep-learning framework.
VENV_CORE ?= .venv-core
OUTPUT ?= results/first
# Our own result, beside which the table and the pages show yours.
COMPARED := submissions/cepheid/results/2x-amd-epyc-zen4/galaxy_shape-mini-closed
RUNS ?= +1
# The extras that `make test` installs, and the files that it tests: all if empty.
EXTRAS ?= torch,galsim,imagenet,translation,detection,site,keras,jax,test
TESTS ?=
# Which tests of these run; nothing after the equals sign: all.
MARKS ?= -m "not slow and not promise"
# Tests run in one process more than there are processors, since some wait; but in no more than 8.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 1 : 8)))
BIN := $(VENV)/bin
# pip's own progress on a terminal; elsewhere only what goes wrong.
PIP := -m pip --disable-pip-version-check install $(if $(MAKE_TERMOUT),,-qq) -c constraints.txt
# A plain path entry: with the default editable install a folder cepheid/ in the current directory
# would shadow ours.
EDITABLE := --config-settings editable_mode=compat --editable
LINT = $(1)/ruff check . && $(1)/ruff format --check .
PYTEST := -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder
# Many containers set it; then each of the hundreds of processes of the tests compiles every module.
unexport PYTHONDONTWRITEBYTECODE
CORE_TESTS := tests/rules tests/compliance tests/leaderboard tests/test_house.py \
	tests/test_imports.py tests/test_docstrings.py tests/test_continuous_integration.py \
	tests/tools/test_core_alone.py

.PHONY: help docs run test tests test-promises test-all test-gpu first-gpu test-core lint types check check-targets measurements repeat clean

help:
	@echo "make run            one run of galaxy_shape at mini scale, checked, with table and page"
	@echo "make run RUNS=5     all runs of a result that gets a score   (OUTPUT=$(OUTPUT))"
	@echo "make test           lint, types and all tests that take seconds; for every commit"
	@echo "make tests          the tests of these alone (TESTS='tests/rules …' chooses)"
	@echo "make test-promises  what users are promised: tutorial, new benchmark, launchers; minutes"
	@echo "make test-all       all tests, also the slow ones; nightly and before a release"
	@echo "make test-gpu       the tests that need a GPU or another accelerator"
	@echo "make first-gpu      what holds on the first one that you have, in ten minutes"
	@echo "make test-core      the tests of rules, compliance and the core, without torch or TensorFlow"
	@echo "make lint           ruff only"
	@echo "make types          mypy only"
	@echo "make docs           the documentation as a site, in build/docs"
	@echo "make check          check everything under submissions/ against the rules"
	@echo "make repeat         repeat a recorded run of each benchmark and compare it"
	@echo "make measurements   what docs/measurements records, on a quiet machine; resumes"
	@echo "make check-targets  measure again that the targets separate correct from broken models"

$(BIN)/python $(VENV_CORE)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cepheid: $(PYTHON) is too old, 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 2; }
	$(PYTHON) -m venv $(@D)/..
	@printf '[egg_info]\negg_base = %s\n' "$(abspath $(@D)/..)" > $(@D)/../build.cfg

# pip leaves the metadata of a build in the environment, so that a checkout may be read-only.
%/.installed %/.installed-run %/.installed-test: export DIST_EXTRA_CONFIG = $(abspath $(@D))/build.cfg

$(VENV)/.installed-run: setup.cfg constraints.txt | $(BIN)/python
	@echo "installing what a run needs into $(VENV) (about a minute, download time aside)"
	@$(BIN)/python $(PIP) $(EDITABLE) ".[torch,galsim,site]"
	@touch $@

$(VENV)/.installed-test: setup.cfg constraints.txt | $(BIN)/python
	@echo "installing what the tests need into $(VENV)"
	@$(BIN)/python $(PIP) $(EDITABLE) ".[$(EXTRAS)]"
	@touch $@ $(VENV)/.installed-run

$(VENV_CORE)/.installed: setup.cfg constraints.txt | $(VENV_CORE)/bin/python
	@echo "installing the core, pytest and ruff into $(VENV_CORE)"
	@$(VENV_CORE)/bin/python $(PIP) $(EDITABLE) ".[test-core]"
	@touch $@

run: $(VENV)/.installed-run
	$(BIN)/cepheid run galaxy_shape --scale mini --runs $(RUNS) --output $(OUTPUT)
	@echo
	$(BIN)/cepheid check $(OUTPUT)
	@echo
	$(BIN)/cepheid summary $(OUTPUT) \
	    $(COMPARED)
	@echo
	$(BIN)/cepheid leaderboard $(OUTPUT) \
	    $(COMPARED)
	@echo
	@echo "next: make run             one run more; with all of them the result has a score"
	@echo "      make run RUNS=5      all that are missing"
	@echo "      $(BIN)/cepheid doctor    what this machine can run, and what it lacks"

lint: $(VENV_CORE)/.installed
	$(call LINT,$(VENV_CORE)/bin)

types: $(VENV)/.installed-test
	$(BIN)/mypy

# mypy computes beside the tests, which leave a part of two processors to it.
test: $(VENV)/.installed-test
	$(call LINT,$(BIN))
	@$(BIN)/mypy & types=$$!; $(MAKE) --no-print-directory tests; tests=$$?; \
	wait $$types || { echo "mypy has found errors; they stand above"; exit 1; }; exit $$tests
	@$(BIN)/cepheid measure pending | tail -1

tests: $(VENV)/.installed-test
	$(BIN)/python $(PYTEST) $(MARKS) $(TESTS)

test-promises: $(VENV)/.installed-test
	$(BIN)/python $(PYTEST) -m "promise and not slow" $(TESTS)

test-all: types
	$(call LINT,$(BIN))
	$(BIN)/python $(PYTEST) --hypothesis-profile=explore $(TESTS)

test-gpu: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m accelerator -rs tests/accelerator

first-gpu: $(VENV)/.installed-test
	@$(BIN)/python -m tests.accelerator

docs: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml
	@echo "build/docs/index.html; for the search: python3 -m http.server --directory build/docs"

test-core: $(VENV_CORE)/.installed
	$(VENV_CORE)/bin/python $(PYTEST) -m "not slow and not promise" $(CORE_TESTS)

check: $(VENV)/.installed-run
	$(BIN)/cepheid check submissions

repeat: $(VENV)/.installed-test
	$(BIN)/cepheid measure pending --repeat

measurements: $(VENV)/.installed-run
	@PATH="$(CURDIR)/$(BIN):$$PATH" docs/measurements/record.sh

check-targets: $(VENV)/.installed-run
	for definition in benchmarks/*/benchmark.yaml; do \
		$(BIN)/cepheid measure targets $$(basename $$(dirname $$definition)) --scale mini || exit; \
	done

clean:
	rm -rf $(VENV) $(VENV_CORE) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
