# Two commands do all their own set-up: `make demo` and `make test`. `make help` lists the others.
VENV ?= .venv
BIN := $(VENV)/bin
CLASSES := build/spark.jsa
BUILT := setup.py packaging/constraints-dev.txt formats/winkformats/version.py $(wildcard formats/winkformats/*.[ch])
GO ?= go
PYTHON ?= python3
# What limits the memory of a process is left out: the sanitizers map terabytes.
SANITIZED := $(addprefix tests/formats/test_,native_hostile.py native.py hashing.py kvscan.py table.py) \
  $(addprefix tests/container/test_,both_paths.py catalog_together.py directories.py container_hostile.py) \
  --deselect tests/container/test_container_hostile.py::test_numbers_that_make_no_sense_under_right_checksums
SCRIPTS := examples/train.py examples/word_count.py examples/crawl_pipeline.py examples/crawl_queue.py scripts/demo.py scripts/demo_remote.py scripts/house.py scripts/versions.py scripts/sanitized.py $(wildcard packaging/*.py)

# A run starts hundreds of Pythons: compiled modules and rewritten asserts must be kept for them.
export PYTHONDONTWRITEBYTECODE :=
# Threads of BLAS spin while they wait, and no test has work for them.
export OPENBLAS_NUM_THREADS ?= 1
# Of pytest: two more than two or three cores, for those that have Spark and mounts often wait.
WORKERS = $(shell n=$$(nproc); echo $$((n > 3 ? 5 : n + 2)))
# Where there is room for it, temporary files of test-fast are in memory: no sync waits for a disk.
IN_MEMORY = $(shell [ -w /dev/shm ] && df --output=avail /dev/shm | awk 'NR == 2 && $$1 > 2e6 { print "TMPDIR=/dev/shm" }')

.DEFAULT_GOAL := help
.PHONY: help demo demo-remote demo-pipeline demo-queue test test-all test-fast test-bindings test-c test-versions test-skew test-ledgerq test-broker test-browser test-stores test-tools wheels test-wheel test-sdist soak mutants lint collect format bench bench-quick bench-all performance clean distclean system-run system-test

help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

demo: system-run $(VENV)/.ready-run ## pack a directory, mount, grep, Spark, reindex (DIR=... takes another)
	@$(BIN)/python -m scripts.demo $(if $(DIR),"$(DIR)")

demo-remote: system-run $(VENV)/.ready-test ## a container on object storage: push, ls, cat, mount, Spark, pull
	@$(BIN)/python -m scripts.demo_remote $(if $(DIR),"$(DIR)")

demo-pipeline: system-run $(VENV)/.ready-pipeline ## the pipeline of Spark, on pages of this machine
	@$(BIN)/python examples/crawl_pipeline.py $(if $(DIR),"$(DIR)")

demo-queue: system-run $(VENV)/.ready-run ## crawlers, ring buffers, a queue, a data set, Spark
	@$(BIN)/python examples/crawl_queue.py $(if $(DIR),"$(DIR)")

test: $(VENV)/.ready-test ## format, lint, types, all tests (PYTEST='-k spark' for some of them)
	@$(MAKE) --no-print-directory -j3 lint $(CLASSES) collect
	$(BIN)/python -m pytest -n $(WORKERS) --durations=25 $(PYTEST)

test-all: $(VENV)/.ready-test ## the tests with all their cases: those that `make test` leaves out, too; half an hour
	@$(MAKE) --no-print-directory test PYTEST='--all $(PYTEST)'

test-fast: $(VENV)/.ready-test ## formats, containers, data sets: no mount, no JVM
	$(IN_MEMORY) $(BIN)/python -m pytest -n 2 --hypothesis-profile=fast -m "not mount and not spark and not slow" $(PYTEST)

# Compiles the tests: once, not in each worker.
collect: $(VENV)/.ready-test
	@found=$$($(BIN)/python -m pytest --collect-only -qq 2>&1) || { echo "$$found"; exit 1; }

lint: system-test $(VENV)/.ready-test ## only format, lint, types
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/mypy --strict $(SCRIPTS)
	MYPYPATH=benchmarks $(BIN)/mypy --strict benchmarks/*.py

test-bindings: $(VENV)/.ready-test ## all tests of the mount through libfuse 2
	WINKMOUNT_BINDING=fusepy $(BIN)/python -m pytest -n 2 tests/mount $(PYTEST)

test-c: $(VENV)/.ready-test ## the C sources under ASAN and UBSAN (gcc), with hostile arrays and containers
	$(BIN)/python -m scripts.sanitized $(SANITIZED) $(PYTEST)

test-ledgerq: $(VENV)/.ready-test ## winkfs and LedgerQ on one queue: LEDGERQ=FOLDER of its sources, GO=go
	LEDGERQ='$(LEDGERQ)' GO='$(GO)' $(BIN)/python -m pytest tests/stores/ledgerq_real.py $(PYTEST)

test-versions: ## the tests with each Python here, with the lowest dependencies, and bare (VERSIONS='3.13 bare')
	@python3 -m scripts.versions $(VERSIONS)

test-skew: system-run ## the release before and this clone take turns on the same files (OLD=REV: another commit; WRITE=1)
	@$(IN_MEMORY) python3 tests/skew/run.py $(if $(OLD),--old $(OLD)) $(if $(WRITE),--write)

soak: lint ## 20 minutes of random work on mounts (SOAK='--seed 7 --operations 1000000 -k model')
	$(BIN)/python -m pytest --soak -m soak --durations=0 $(SOAK)

test-tools: $(VENV)/.ready-tools ## docs/tools.md and tests/tools, with Ray and PyTorch too: these are gigabytes
	$(BIN)/python -m pytest -n 2 --all --durations=10 tests/tools tests/test_docs_blocks.py -k tool $(PYTEST)

test-broker: $(VENV)/.ready-test ## trials on folders of a RabbitMQ that is started on 127.0.0.1, in 5 minutes
	@scripts/system-packages broker
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input pika
	$(BIN)/python -m pytest tests/stores/broker_trials.py --durations=5 $(PYTEST)

test-browser: $(VENV)/.ready-test ## the page of `winkfs report` in Chromium; SHOTS=DIR keeps the pictures
	@scripts/system-packages browser
	WINKFS_SCREENSHOTS='$(SHOTS)' $(BIN)/python -m pytest --all tests/report/test_screenshots.py $(PYTEST)

test-stores: $(VENV)/.ready-test ## remote check against rclone, s3rver, juicefs, Azurite, where these are installed (CONTRIBUTING.md)
	$(BIN)/python -m pytest tests/remote/store_trials.py --durations=5 $(PYTEST)

wheels: ## the source distribution and the wheel for x86-64 in dist/, audited
	@$(PYTHON) packaging/wheels.py

test-wheel: ## the wheel of dist/, installed: tests of the formats, the README's blocks (PYTHON=python3.13)
	@$(PYTHON) packaging/test_wheel.py dist/*.whl

test-sdist: ## the source distribution of dist/, unpacked without git: make test-fast in it
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; \
	tar -xzf dist/*.tar.gz -C "$$place" --strip-components 1; $(MAKE) -C "$$place" test-fast

mutants: $(VENV)/.ready-test ## plant bugs, one at a time: each must fail the test that is named for it
	@$(BIN)/python tests/simulated/mutants.py

format: $(VENV)/.ready-test ## put the sources into their form
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready-bench ## winkfs beside all its rivals, in 20 minutes (BENCH='--only put,get')
	@$(BIN)/python benchmarks/suite.py $(BENCH)

bench-quick: $(VENV)/.ready-bench ## the same with small sizes, in 3 minutes
	@$(BIN)/python benchmarks/suite.py --quick $(BENCH)

bench-all: $(VENV)/.ready-bench ## all benchmarks of benchmarks/ at full size, one after the other: hours
	@set -e; for bench in benchmarks/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench; done

performance: $(VENV)/.ready-test ## docs/performance.md, its figures and the README, from the kept results
	@$(BIN)/python benchmarks/performance.py

clean: ## remove what was made, except the virtual environment
	@for at in build/demo/mnt build/demo-remote/mnt; do if mountpoint -q $$at; then fusermount3 -u $$at; fi; done
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV) *.egg-info

# Not stamped: what the machine has is not ours to remember, and looking takes no time.
system-run system-test: system-%:
	@scripts/system-packages $*

$(VENV)/.ready-run: pyproject.toml scripts/venv $(BUILT) | system-run
	@scripts/venv $(VENV) spark
	@touch $@

$(VENV)/.ready-pipeline: pyproject.toml scripts/venv $(BUILT) | system-run
	@scripts/venv $(VENV) pipeline
	@touch $(VENV)/.ready-run $@

$(VENV)/.ready-test: pyproject.toml scripts/venv $(BUILT) | system-test
	@scripts/venv $(VENV) dev
	@touch $(VENV)/.ready-run $(VENV)/.ready-pipeline $@

$(VENV)/.ready-tools: pyproject.toml scripts/venv $(BUILT) | system-test
	@scripts/venv $(VENV) dev,tools
	@touch $(VENV)/.ready-run $(VENV)/.ready-pipeline $(VENV)/.ready-test $@

# Spark's classes, for the JVMs of the tests
$(CLASSES): tests/jvm.py $(VENV)/.ready-test
	@PYTHONPATH=. $(BIN)/python tests/jvm.py $@

$(VENV)/.ready-bench: pyproject.toml scripts/venv $(BUILT) | system-run
	@scripts/venv $(VENV) bench
	@touch $@
