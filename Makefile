# Every target sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := bash
.SHELLFLAGS := -o pipefail -c
STAMP := $(VENV)/.stamp

.PHONY: demo test test-slow all-parts check docs bench lab papers gpu faults explore mutants format clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]" --group dev
	touch $@

demo: $(STAMP)  ## design, prove, export, train with 8 local workers, report
	$(BIN)/partreduce demo

# Two parts side by side, each with its summary at the end. Simulated devices reach so far below torch that a mistake may end their process, so they have
# one of their own. The other files are dealt out to two processes more than there are processors, because many tests wait.
# Bytecode is kept even where it is switched off: the processes that tests start would compile all sources again.
PROCESSES ?= $(shell expr $$(nproc) + 2)
PARTS := files devices
FILES_devices := tests/runtime/devices
FILES_files := tests --ignore=$(FILES_devices) --numprocesses=$(PROCESSES) --dist=loadfile --no-loadscope-reorder

test test-slow: export OPENBLAS_NUM_THREADS = 1
test test-slow: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)  ## the tests that a change has to pass, in minutes
	@$(MAKE) --no-print-directory all-parts CHOICE="not slow"

test-slow: $(STAMP)  ## all other tests: more seeds, larger sizes, longer runs (tests/slow.toml)
	@$(MAKE) --no-print-directory all-parts CHOICE=slow

all-parts:
	@rm -f build/test-*.txt; status=0; \
	$(MAKE) --no-print-directory --jobs=$(words $(PARTS)) --keep-going $(PARTS:%=part-%) || status=$$?; \
	echo; for part in $(PARTS); do echo "$$part: $$(tail -n 1 build/test-$$part.txt)"; done; exit $$status

part-%:
	@mkdir -p build && PYTHONUNBUFFERED=1 $(BIN)/python -m pytest $(FILES_$*) -m "$(CHOICE)" 2>&1 | tee build/test-$*.txt | sed -u 's/^/$* | /'

check: $(STAMP)  ## style, types, layers, schema, links between documents, names and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m partreduce.topo.document.schema --check
	$(BIN)/python -m docs.links
	$(BIN)/python -m docs.words

docs: $(STAMP)  ## the documentation as a site: build/site/index.html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	$(BIN)/python -m docs.build_site

# The benchmarks that need no root, in a bounded size: the seconds after which each is stopped, and its arguments. `scale`: rules, certificates and
# failure plans in seconds; `forgery`: of forged certificates no false claim is confirmed, of honest ones every claim is; `overhead`: P-Reduce costs
# little more than a bare all_reduce (loopback); `codecs`: what coded sums cost on loopback, next to the fp32 ring.
BENCH := benchmarks/results/bench
EVERY_BENCH := scale forgery overhead codecs
BENCHES := $(EVERY_BENCH)
BENCH_scale := 300 scale --sizes 1e3 --repeats 1 -o $(BENCH)/scale
BENCH_forgery := 120 forgery --attempts 20000 --seed 0
BENCH_overhead := 240 transport p_reduce --megabytes 8 40 --workers 2 --turns 7 -o $(BENCH)/overhead
BENCH_codecs := 180 transport sums --turns 5 -o $(BENCH)/codecs

bench: $(STAMP)  ## the benchmarks that need no root, one after another (about 10 minutes): make bench BENCHES="scale codecs"
	@$(MAKE) --no-print-directory --jobs=1 --keep-going $(BENCHES:%=bench-%)

bench-%:
	$(if $(BENCH_$*),,$(error no benchmark $*; there are $(EVERY_BENCH)))
	@mkdir -p $(BENCH)
	PYTHONUNBUFFERED=1 timeout --foreground --kill-after=5 $(firstword $(BENCH_$*)) $(BIN)/python -m benchmarks.$(wordlist 2,99,$(BENCH_$*)) 2>&1 | tee $(BENCH)/$*.txt

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
