# `make demo` and `make test` do all their own set-up; repeated, they cost nothing but their own work.
#
# Needs: Python >= 3.11 with venv, and a network for the first run.
# The torch that is pinned here is the one that the tests were made with; pip takes it from where it takes everything.
# For another build of it (CPU only, CUDA, ROCm): make demo TORCH_PIP_ARGS="--index-url URL".

TORCH := torch==2.13.0
TORCH_PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PROBE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$name -c '$(PROBE)' >/dev/null 2>&1 && { echo $$name; break; }; done)

# Several processes share the cores: one thread each, or they wait for one another.
export OMP_NUM_THREADS := 1

.PHONY: help setup demo test lint types format wheel clean

help:
	@echo "make demo    train a small language model over three nodes on this machine"
	@echo "make test    format, lint, types, tests, and the wheel tried in a clean environment"
	@echo "make lint    format, lint and types only        make format   put the code in shape"
	@echo "make setup   only make $(VENV)                    make clean    remove what make made"

$(VENV)/torch.stamp: Makefile
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv found; name one: make PYTHON=/path/to/python" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH_PIP_ARGS) "$(TORCH)"
	@touch $@

$(VENV)/ready.stamp: $(VENV)/torch.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]" "$(TORCH)"
	@touch $@

setup: $(VENV)/ready.stamp

demo: setup
	$(BIN)/brigade demo

lint: setup types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2
	$(BIN)/python .ci/try_wheel.py

wheel: setup
	$(BIN)/python -m build --outdir dist

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
