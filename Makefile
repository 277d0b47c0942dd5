# Every target sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: demo test test-computing test-others check bench lab explore format clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]" --group dev
	touch $@

demo: $(STAMP)  ## design, prove, export, train with 8 local workers, report
	$(BIN)/preduce demo

# The suite runs as two halves side by side: what only computes, in one process; and everything that is not named here,
# which is what starts processes and waits. Each half's output comes in one piece, and either failing fails the whole.
COMPUTING := tests/schedulers tests/topo tests/verify

test: export OPENBLAS_NUM_THREADS = 1
test: $(STAMP)  ## the whole test suite
	@echo "two halves side by side; the output of each comes when it ends"
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target test-computing test-others

test-computing: $(STAMP)
	$(BIN)/python -m pytest -q $(COMPUTING)

test-others: $(STAMP)
	$(BIN)/python -m pytest -q $(COMPUTING:%=--ignore=%)

check: $(STAMP)  ## style, types, layers, schema
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m preduce.topo.document.schema --check

bench: $(STAMP)  ## the benchmarks that need no root; results under benchmarks/results
	$(BIN)/python -m benchmarks.run

lab: export OMP_NUM_THREADS = 1
lab: $(STAMP)  ## four emulated nodes, shaped links, every strategy side by side (root; about 9 minutes)
	$(BIN)/python -m benchmarks.lab.run

explore: $(STAMP)  ## larger protocol configurations than the tests have time for
	$(BIN)/python -m benchmarks.explore

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
