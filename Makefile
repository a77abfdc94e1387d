# make run: from nothing to a validated row.   make test: everything that must hold.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
OUTPUT ?= results/first
RUNS ?= +1
BIN := $(VENV)/bin
# pip's own progress on a terminal; elsewhere only what goes wrong.
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(if $(MAKE_TERMOUT),,-qq) -c constraints.txt
# A plain path entry: with the default editable install an empty tools/ in the current directory
# would shadow ours.
EDITABLE := --config-settings editable_mode=compat --editable

.PHONY: help run test lint check check-targets clean

help:
	@echo "make run            one run of galaxy_shape at mini scale, checked, with table and page"
	@echo "make run RUNS=5     all runs of a result that gets a score   (OUTPUT=$(OUTPUT))"
	@echo "make test           lint, types and all tests"
	@echo "make lint           ruff and mypy only"
	@echo "make check          check everything under submissions/ against the rules"
	@echo "make check-targets  measure again that the targets separate correct from broken models"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cepheid: $(PYTHON) is too old, 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: setup.cfg constraints.txt | $(BIN)/python
	@echo "installing what a run needs into $(VENV) (about a minute, download time aside)"
	@$(PIP) $(EDITABLE) ".[torch,galsim,site]"
	@touch $@

$(VENV)/.installed-test: setup.cfg constraints.txt | $(BIN)/python
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) $(EDITABLE) ".[torch,galsim,imagenet,translation,site,keras,test]"
	@touch $@ $(VENV)/.installed-run

run: $(VENV)/.installed-run
	$(BIN)/cepheid run galaxy_shape --scale mini --runs $(RUNS) --output $(OUTPUT)
	@echo
	$(BIN)/cepheid check $(OUTPUT)
	@echo
	$(BIN)/cepheid summary $(OUTPUT)
	@echo
	$(BIN)/cepheid leaderboard $(OUTPUT)
	@echo
	@echo "next: make run             one run more; with all of them the result has a score"
	@echo "      make run RUNS=5      all that are missing"
	@echo "      $(BIN)/cepheid run --help"

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

check: $(VENV)/.installed-run
	$(BIN)/cepheid check submissions

check-targets: $(VENV)/.installed-run
	for definition in benchmarks/*/benchmark.yaml; do \
		$(BIN)/cepheid measure targets $$(basename $$(dirname $$definition)) --scale mini || exit; \
	done

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
