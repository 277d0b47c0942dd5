# Every target sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := bash
.SHELLFLAGS := -o pipefail -c
STAMP := $(VENV)/.stamp

PARTS := conformance processes proofs commands running strategies devices others training

.PHONY: demo test $(PARTS:%=test-%) check docs bench lab papers gpu faults explore mutants format clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]" --group dev
	touch $@

demo: $(STAMP)  ## design, prove, export, train with 8 local workers, report
	$(BIN)/partreduce demo

# The suite runs in parts, three side by side, each a process of its own (tests/README.md). The longest come first, so that no core idles at the end:
# conformance waits for hosts that are cut off. What only computes gives way to the others. Parts are folders; a new one falls to `running` or `others`.
# Pretended devices go apart, since they reach so far below torch that a mistake may end their process. Lines interleave, each with its part's name; any
# failing fails the whole. Bytecode is kept even where it is switched off: the processes that tests start would compile all sources again.
test-proofs: FILES = tests/topo tests/verify tests/schedulers
test-training: FILES = $(addprefix tests/runtime/processes/,test_training.py)
test-processes: FILES = $(addprefix tests/runtime/,processes) --ignore=tests/runtime/processes/test_training.py
test-conformance: FILES = $(addprefix tests/runtime/,conformance launcher state)
test-strategies: FILES = $(addprefix tests/runtime/,strategies sharding)
test-devices: FILES = $(addprefix tests/runtime/,devices)
test-running: FILES = tests/runtime $(foreach folder,processes conformance launcher state strategies sharding devices,--ignore=tests/runtime/$(folder))
test-commands: FILES = tests/partreduce
test-others: FILES = $(filter-out $(addprefix tests/,topo verify runtime partreduce schedulers helpers __pycache__),$(patsubst %/,%,$(wildcard tests/*/)))
test-proofs test-commands: NICE = nice -n 5

test: export OPENBLAS_NUM_THREADS = 1
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)  ## the whole test suite
	@rm -f build/test-*.txt; status=0; \
	$(MAKE) --no-print-directory --jobs=3 --keep-going $(PARTS:%=test-%) || status=$$?; \
	echo; for part in $(PARTS); do echo "test-$$part: $$(tail -n 1 build/test-$$part.txt)"; done; exit $$status

$(PARTS:%=test-%): $(STAMP)
	@mkdir -p build && PYTHONUNBUFFERED=1 $(NICE) $(BIN)/python -m pytest $(FILES) 2>&1 | tee build/$@.txt | sed -u 's/^/$@ | /'

check: $(STAMP)  ## style, types, layers, schema, links between documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m partreduce.topo.document.schema --check
	$(BIN)/python -m docs.links

docs: $(STAMP)  ## the documentation as a site: build/site/index.html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	$(BIN)/python -m docs.build_site

bench: $(STAMP)  ## the benchmarks that need no root; results under benchmarks/results
	$(BIN)/python -m benchmarks.run

lab: export OMP_NUM_THREADS = 1
lab: $(STAMP)  ## four emulated nodes, shaped links, every strategy side by side (root; about 9 minutes)
	$(BIN)/python -m benchmarks.lab.run

papers: export OMP_NUM_THREADS = 1
papers: $(STAMP)  ## a paper's metrics beside ours, in the lab (root): make papers PAPER=pipe-sgd MINUTES=40
	$(BIN)/python -m benchmarks.papers $(PAPER) $(if $(MINUTES),--minutes $(MINUTES))

# With the machine's own python3 and torch: the virtual environment holds a CPU build.
gpu:  ## the CUDA path on this machine's GPU, stage by stage; says why it skips where there is none (about ten minutes)
	@PYTHONPATH=. $(PYTHON) -m benchmarks.gpu $(STAGES)

faults: export OMP_NUM_THREADS = 1
faults: $(STAMP)  ## every strategy kind under every fault at random instants: make faults MINUTES=10 (links and disks need root)
	$(BIN)/python -m benchmarks.faults.run --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

explore: $(STAMP)  ## larger protocol configurations than the tests have time for
	$(BIN)/python -m benchmarks.explore

mutants: $(STAMP)  ## small changes to the code that tests must notice: make mutants FILE=partreduce/schedulers/protocols/hop.py SAMPLE=200 SEED=0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group mutants
	nice $(BIN)/python -m benchmarks.mutants $(FILE:%=--file %) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
