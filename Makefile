# Two commands are all that a newcomer needs: `make serve` and `make test`.
# ENGINE=cpu or ENGINE=gpu overrides what is found; ARGS goes to the command: make serve ARGS="--port 9000".

PYTHON ?= python3
VENV   ?= .venv
ENGINE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
ARGS   ?=

BIN     := $(VENV)/bin
RUNTIME := $(VENV)/.installed-$(ENGINE)
DEV     := $(VENV)/.installed-dev
PYTEST  := $(BIN)/python -m pytest
TOGETHER := $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help install serve experiment test lint types bench docs clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | column -t -s'|'

install: $(RUNTIME) ## Install Stillframe and its engine (CPU, or GPU where there is one) into .venv

serve: $(RUNTIME) ## Run the gateway on http://127.0.0.1:8000/v1
	@exec $(BIN)/stillframe serve $(ARGS)

experiment: $(RUNTIME) ## Run the controlled experiment A-H on the real engine
	@exec $(BIN)/stillframe experiment $(ARGS)

test: $(RUNTIME) $(DEV) ## Run every test that this machine can
# The real engine's tests have all cores to themselves, or time runs out on them.
# Status 5: ARGS names no test of that half.
	@$(TOGETHER) -m "not vllm" $(ARGS); others=$$?; \
	$(TOGETHER) -m vllm $(ARGS); engine=$$?; \
	for ended in $$others $$engine; do [ $$ended = 0 ] || [ $$ended = 5 ] || exit $$ended; done; \
	[ "$$others$$engine" != 55 ]

lint: $(DEV) ## Check style, formatting and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(RUNTIME) $(DEV) ## Check types
	$(BIN)/basedpyright

bench: $(RUNTIME) $(DEV) ## Measure what the gateway adds
	$(BIN)/stillframe bench $(ARGS)

docs: $(RUNTIME) ## Write the tables of docs/ anew from the settings and metrics
	$(BIN)/python -m app.docs

clean: ## Remove what was installed and built here
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 15) else \
	"Stillframe needs Python 3.11 to 3.14; %s is %d.%d. Choose another: make PYTHON=python3.11 ..." % (sys.executable, v[0], v[1]))'
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	{ echo "$(PYTHON) has no venv module; install it (Debian: apt install python3-venv)."; exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 { print $$4 }'); if [ "$$free" -lt 8000000 ]; then \
	echo "The engine needs about 8 GB of disk; $$((free / 1000)) MB are free here. Free some space, or set VENV to a folder on another disk."; exit 1; fi
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-cpu: requirements/torch.txt requirements/cpu.txt pyproject.toml | $(BIN)/python
	@echo "Installing the CPU engine; a few minutes the first time."
	$(PIP) install -r requirements/torch.txt -c requirements/cpu.txt
	$(PIP) install --no-deps -r requirements/cpu.txt
	$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/.installed-gpu: requirements/gpu.txt pyproject.toml | $(BIN)/python
	@echo "Installing the GPU engine; some minutes the first time."
	$(PIP) install -r requirements/gpu.txt
	$(PIP) install --no-deps -e .
	@touch $@

$(DEV): requirements/dev.txt $(RUNTIME)
	$(PIP) install --no-deps -r requirements/dev.txt
	@touch $@
