# Everything is installed into .venv in this folder; nothing else is touched.
.DEFAULT_GOAL := help
# Else each of the hundreds of processes that tests start would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo docs test search check bench chaos simulate image interop interop-kafka interop-delta clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## real data in one table: Spark reads the history, workers with rebalances the present; checked
	@tools/install demo
	@.venv/bin/python -m demo

docs: ## the documentation site, in site/
	@tools/install docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

test: ## the checks and the whole test suite
	@tools/install dev demo docs
	@{ tools/debian kcat chromium && tools/checkers && tools/kubeconform; } & programs=$$!; \
	.venv/bin/python -m tests.prepare & prepared=$$!; \
	$(MAKE) --no-print-directory check && wait $$programs && wait $$prepared
	.venv/bin/pytest -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# What fails is shown as its smallest example, without the logs of all others; Hypothesis looks for it for five minutes.
search: ## the property tests with new random examples, half an hour (SEARCH_TIMES=10: ten times as many); `make test` repeats the same ones
	@tools/install dev demo
	HYPOTHESIS_PROFILE=search .venv/bin/pytest -m hypothesis -n 2 --dist worksteal --show-capture=no \
	-o faulthandler_timeout=$$((1800 * $${SEARCH_TIMES:-1})) $(ARGS)

check: ## formatting, lint, types, import contracts
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: ## side-by-side benchmarks, printed as ratios
	@tools/install bench demo
	@.venv/bin/python -m bench

chaos: ## break the system on purpose, count missing and doubled records (ARGS="--long", "--soak 30m", "--list", ...)
	@tools/install dev demo
	@.venv/bin/python -m chaos $(ARGS)

simulate: ## the worker's protocol through 100,000 schedules of failures, and its mutations (ARGS="--help")
	@tools/install dev
	@.venv/bin/python -m tests.framework.simulation.nightly $(ARGS)

image: ## the instructions of deploy/docker/Dockerfile, in an empty directory; its size, and a worker of it
	@tools/install dev demo
	@.venv/bin/python tools/dockerfile.py $(ARGS)

interop: ## real clients' own test suites against our broker (ARGS="--list", "--only SUITE")
	@tools/install dev demo
	@tools/debian kcat
	@.venv/bin/python -m interop $(ARGS)

interop-kafka: ## the framework against Apache Kafka itself, fetched from Maven Central
	@tools/install dev demo
	@.venv/bin/python -m interop.kafka $(ARGS)

interop-delta: ## changes into Delta itself, by the Spark engine and by workers, which are killed around a MERGE
	@tools/install dev demo
	@.venv/bin/python -m interop.delta $(ARGS)

clean: ## remove everything that was built, and the demo's files
	rm -rf .venv .kmr build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
