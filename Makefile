# Two commands do everything: `make train` and `make test`. Both set up a virtual environment first.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
RECIPE ?= recipes/bipedal_ppo.toml
BIN := $(VENV)/bin

.PHONY: train test lint bench scaling clean

train: $(VENV)/.train  ## install, then train BipedalWalker
	$(BIN)/erl train $(RECIPE)

test: lint  ## ruff, mypy, and all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## benchmarks/results.md on this machine, half an hour; PEER=, RLLIB= pythons with these
	$(BIN)/python benchmarks/run.py $(if $(PEER),--peer $(PEER)) $(if $(RLLIB),--rllib $(RLLIB))

scaling: $(VENV)/.test  ## benchmarks/scaling.md on this machine, ten minutes
	$(BIN)/python benchmarks/scaling.py

# Torch comes first, by itself: TORCH= takes another version or build.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"

$(VENV)/.train: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[fast,export]"
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[fast,test,dev]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
