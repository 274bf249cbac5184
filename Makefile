# Each target works as the first command in a fresh clone: it needs make and Python 3.11 to 3.13.
#
# Settings: PYTHON=python3.12   the interpreter that the environment is made with
#           CORPUS=file PORT=7650 DATA=folder            for `make run`
#           SLOW=1 TESTS='tests/index -k recall'         for `make test`
#           UPGRADE=1                                    for `make lock`
# pip's own variables work too: PIP_EXTRA_INDEX_URL may name an index of CPU-only torch wheels.

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PORT ?= 7650
TESTS ?=

.DEFAULT_GOAL := help
.PHONY: help run test lint format bench lock clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

run: $(VENV)/.ready-to-run  ## Index the standard library's documentation (or CORPUS) and serve it
	@$(BIN)/lamina demo --port $(PORT) $(if $(CORPUS),--corpus "$(CORPUS)") $(if $(DATA),--data "$(DATA)")

test: lint  ## Lint, then run the tests; SLOW=1 adds those that take minutes
	$(BIN)/python -m pytest $(TESTS)

lint: $(VENV)/.ready-to-test  ## Check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.ready-to-test  ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.ready-to-test  ## Measure again what the README claims (takes long; needs wrk)
	$(BIN)/python -m benchmarks

lock: $(VENV)/bin/python  ## Write constraints.txt anew from pyproject.toml; UPGRADE=1 moves its pins
	$(INSTALL) --target build/uv uv
	build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --all-extras \
		--no-annotate --no-header --no-config $(if $(UPGRADE),--upgrade) \
		--output-file constraints.txt pyproject.toml

clean:  ## Remove the environment and everything that was built in it
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { \
		echo "Lamina needs Python 3.11, 3.12 or 3.13; this machine's is `python3 --version 2>&1`." >&2; \
		echo "Install one of them, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { \
		echo "Lamina needs Python 3.11, 3.12 or 3.13, not `$(PYTHON) --version 2>&1`." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "$(PYTHON) lacks venv or ensurepip; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "Making a Python environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-to-run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what the service needs (once; about 330 MB on disk, without torch)"
	@$(INSTALL) --constraint constraints.txt --editable '.[cpu,service]'
	@touch $@

$(VENV)/.ready-to-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what the tests need (once; includes torch)"
	@$(INSTALL) --constraint constraints.txt --editable '.[cpu,service,parquet,training,dev]'
	@touch $@ $(VENV)/.ready-to-run
