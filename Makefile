# Targets with a `##` comment are listed by `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit check bench peers drills fuzz boards board-pictures clean services third-party

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV_STAMP): $(STAMP) pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

setup: $(DEV_STAMP) ## build .venv with everything for development

demo: $(STAMP) ## simulator, master, two workers and the page: the default sweep, and where it bends
	$(BIN)/tokswarm demo

services: ## install the real servers the tests use (Debian, as root), else say what is skipped
	@sh tests/install-services.sh

third-party: ## install the endpoint that others wrote and the tests run against (LiteLLM's proxy)
	@PYTHON=$(PYTHON) sh tests/install-third-party.sh

test: $(DEV_STAMP) services third-party ## everything CI runs: lint, types, unit and integration tests
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --reruns 2 --reruns-delay 2

unit: $(DEV_STAMP) ## the fast tests alone
	$(BIN)/python -m pytest -q tests/unit

check: $(DEV_STAMP) ## formatting, lint, types
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

boards: $(DEV_STAMP) ## build the boards and alert rules in dashboards/ again from src/tokswarm/grafana
	$(BIN)/python -m tokswarm.grafana.build dashboards

board-pictures: $(DEV_STAMP) services ## draw docs/boards/*.png with runs of now (five minutes)
	$(BIN)/python benchmarks/board_pictures.py

bench: $(DEV_STAMP) ## the receive path against the bound and the openai SDK (needs cc)
	$(BIN)/python benchmarks/receive_path.py

peers: $(DEV_STAMP) ## other load generators beside ours, on one core (needs cc, and a few GB for their venvs)
	$(BIN)/python benchmarks/peers.py $(if $(SERVER),--server $(SERVER))

drills: $(DEV_STAMP) ## what takes minutes: whole traces, outages, a million requests, ten thousand slow streams, 1,000 arrivals a second (needs cc)
	$(BIN)/python -m pytest -q -s tests/drills
	$(BIN)/python benchmarks/soak.py $(if $(SERVER),--server $(SERVER))
	$(BIN)/python benchmarks/slow_streams.py $(if $(SERVER),--server $(SERVER))
	$(BIN)/python benchmarks/arrivals.py $(if $(SERVER),--server $(SERVER))

fuzz: $(DEV_STAMP) ## ten minutes of fuzzing the readers of foreign bytes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	$(BIN)/python tests/fuzz/fuzz.py

clean: ## remove what was built
	rm -rf $(VENV) .venv-litellm .venv-guidellm .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache
