# Every target sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: demo test check bench lab explore format clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]" --group dev
	touch $@

demo: $(STAMP)  ## design, prove, export, train with 8 local workers, report
	$(BIN)/preduce demo

test: export OPENBLAS_NUM_THREADS = 1
test: $(STAMP)  ## the whole test suite
	$(BIN)/python -m pytest -q

check: $(STAMP)  ## style, types, layers, schema
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m topo.document.schema --check

bench: $(STAMP)  ## the benchmarks that need no root; results under benchmarks/results
	$(BIN)/python benchmarks/run.py

lab: export OMP_NUM_THREADS = 1
lab: $(STAMP)  ## four emulated nodes, shaped links, every strategy side by side (root; about 9 minutes)
	$(BIN)/python benchmarks/lab/run.py

explore: $(STAMP)  ## larger protocol configurations than the tests have time for
	$(BIN)/python benchmarks/explore.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
