# Every target sets up what it needs, so `make demo` and `make test` work from a clean clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
ARCHIVE := $(VENV)/spark-classes.jsa
BENCH_ARGS ?=
SOAK_ARGS ?= --minutes 5
DEMO_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2
STRESS_SHARE ?= 0.3
KERNEL_TESTS := tests/unit/testing tests/unit/epoch/test_rehearsal.py tests/unit/operators/aggregate
SERVERS ?= $(HOME)/.cache/millrace/servers
PEERS := $(patsubst src/millrace_lab/environments/%.txt,%,$(wildcard src/millrace_lab/environments/*.txt))

# Hundreds of processes import Millrace in a run of the tests: each would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv java chromium servers demo test stress kernels unit model lint wheel docs bench peers soak report lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## create .venv from requirements.lock, with Millrace and its lab editable

$(STAMP): requirements.lock pyproject.toml src/millrace_lab/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "could not create $(VENV); on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing requirements.lock into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --editable . --editable src/millrace_lab
	@touch $@

java: ## check for Java 17 or newer; install it where possible
	@scripts/ensure-java

chromium: ## check for Chromium, in which the tests look at the pages; install it where possible
	@scripts/ensure-chromium

servers: $(STAMP) ## install the servers that `make stress` talks to, outside of the tree
	@mkdir -p $(SERVERS)
	@scripts/servers/minio $(SERVERS)
	@scripts/servers/postgres
	@scripts/servers/redis
	@scripts/servers/prometheus
	@scripts/servers/hdfs $(SERVERS) $$(basename $(VENV)/lib/python*/site-packages/pyspark/jars/hadoop-client-api-*.jar .jar | sed 's/.*-//')
	@scripts/servers/kubernetes $(SERVERS)
	@scripts/servers/kafka $(SERVERS) $$($(BIN)/python -c 'from millrace.spark.kafka import coordinates; print(*coordinates())')

demo: java $(STAMP) ## run the demonstration
	@$(BIN)/millrace demo $(DEMO_ARGS)

test: java chromium $(STAMP) ## lint, then run the tests
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint kernels $(ARCHIVE)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) $(PYTEST_ARGS)

stress: java chromium servers $(ARCHIVE) ## run a share of the long matrices that `make test` leaves out; all with STRESS_SHARE=1
	@MILLRACE_SERVERS=$(SERVERS) MILLRACE_STRESS_SHARE=$(STRESS_SHARE) HYPOTHESIS_PROFILE=stress $(BIN)/python -m pytest --numprocesses $(WORKERS) -m "stress or property" $(PYTEST_ARGS)

$(ARCHIVE): $(STAMP) tests/class_archive.py
	@echo "making $@, with which Java starts in half the time"
	@$(BIN)/python -m tests.class_archive >$@.log 2>&1 || { cat $@.log >&2; exit 1; }
	@test -e $@ || { cat $@.log >&2; echo "no $@: the tests take longer" >&2; }

kernels: $(STAMP) ## compile the kernels, which the tests' processes would each do again
	@echo "compiling kernels, by running tests that use nearly all of them"
	@$(BIN)/python -m pytest --numprocesses 0 --quiet --no-header --no-summary $(KERNEL_TESTS)

unit: $(STAMP) ## run the tests that need no Spark
	@$(BIN)/python -m pytest -m "(unit or property or model or simulation) and not stress" $(PYTEST_ARGS)

model: $(STAMP) ## check the protocol's model in its full bounds
	@$(BIN)/python -m tests.model

lint: $(STAMP) ## ruff check, ruff format --check, mypy --strict, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict
	@$(BIN)/lint-imports --no-logo

wheel: $(STAMP) ## build the wheel that users install, into dist
	@$(BIN)/python -m hatchling build --target wheel --directory dist

docs: $(STAMP) ## build the documentation into build/docs
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "build/docs/index.html"

bench: java $(STAMP) ## run the benchmarks; choose with BENCH_ARGS
	@$(BIN)/millrace bench all $(BENCH_ARGS)

peers: $(PEERS:%=.peers/%/.stamp) ## create the environments of other stream processors, for `millrace bench peers`

.peers/%/.stamp: src/millrace_lab/environments/%.txt
	@rm -rf .peers/$*
	@mkdir -p .peers
	@$(PYTHON) -m venv .peers/$*
	@echo "installing $< into .peers/$*"
	@.peers/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

soak: java $(STAMP) ## disturb a query for some minutes; choose with SOAK_ARGS
	@$(BIN)/millrace soak $(SOAK_ARGS)

report: $(STAMP) ## rebuild the benchmark pages from src/millrace_lab/results
	@$(BIN)/millrace bench report --readme README.md

lock: $(STAMP) ## resolve requirements.lock again
	@$(BIN)/uv pip compile pyproject.toml src/millrace_lab/pyproject.toml --extra dev --extra docs --extra serve --extra postgres --extra delta --extra iceberg --extra redis --extra rocksdb \
	  --universal --python-version 3.11 --upgrade --quiet --no-header --no-emit-index-url --no-emit-find-links \
	  --no-annotate --no-emit-package millrace \
	  --output-file requirements.lock
	@for peer in $(PEERS); do \
	  $(BIN)/uv pip compile src/millrace_lab/environments/$$peer.in --python-version 3.11 --upgrade --quiet --no-header --no-emit-index-url \
	    --no-emit-find-links --no-annotate --output-file src/millrace_lab/environments/$$peer.txt || exit 1; \
	done

clean: ## remove .venv, .peers, caches and build output
	@rm -rf $(VENV) .peers build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -rf metastore_db spark-warehouse artifacts derby.log
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
