# Every command of the project. Recipes use relative paths only: the clone may lie below a path with spaces.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Where it is set, every process compiles our modules again: 1.45 CPU seconds for a command instead of 1.06.
unexport PYTHONDONTWRITEBYTECODE

# Groups of Python packages that `make setup` installs: runtime dev quality airflow.
GROUPS ?= runtime dev
# Arguments for the command behind a target: make test ARGS="-k broker -x"
ARGS ?=

.PHONY: help setup setup-runtime setup-airflow setup-dev demo demo-change demo-workloads demo-cdc test test-all test-kills test-cluster test-tables test-stack test-containers test-cdc test-hosts test-airflow-package test-bare test-observability check docs docs-check pictures reference up down bench bench-peers bench-growth bench-console bench-derived bench-scale bench-rules bench-run bench-identities bench-gold-keys bench-start bench-shared bench-load bench-fleet golden golden-record budgets lock jars-lock clean

help: ## show this list
	@echo "Headrace: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 16

setup: ## install Python packages and jars; others: make setup GROUPS="runtime dev quality airflow"
	@bash infra/setup.sh $(GROUPS)

setup-runtime:
	@bash infra/setup.sh runtime

setup-airflow:
	@bash infra/setup.sh runtime quality airflow

# Tests compare verdicts with those of Great Expectations, and load the DAGs.
setup-dev:
	@bash infra/setup.sh runtime dev quality airflow

demo: setup-runtime ## set up, then a year of real flights from Kafka to gold, audited
	@.venv/bin/headrace demo $(ARGS)

demo-change: setup-runtime ## after make demo: ship a wrong rule, compare, promote, roll back; replay three days; audit
	@.venv/bin/headrace demo-change

demo-workloads: setup-runtime ## known workloads of stream processors from Kafka to gold, each compared with an oracle
	@HEADRACE_STATE="$${HEADRACE_STATE:-.headrace-workloads}" HEADRACE_DATASETS=tests/workloads/datasets \
		.venv/bin/headrace demo-workloads $(ARGS)

demo-cdc: setup-runtime ## a PostgreSQL database mirrored by Debezium: 200,000 changes, kills, audited against it; needs Debian's postgresql
	@PYTHONPATH=tests .venv/bin/python -m cdc.demo $(ARGS)

# The groups of tests, what each needs and how it runs: infra/test_groups.py.
TESTS := .venv/bin/python -m infra.test_groups

test: setup-dev ## set up, then the tests, with a real kill, an Airflow flow, a cluster; some: make test ARGS="tests/unit -k jars"
	@$(if $(ARGS),.venv/bin/python -m pytest $(ARGS),$(TESTS) fast)

test-all: setup-dev ## every group of tests, one table; after an interruption it goes on from there; hours
	@$(TESTS)

test-kills: setup-dev ## the tests of minutes: kills of drivers, jobs, runner and broker at each step; prints its measurements
	@$(TESTS) kills $(ARGS)

test-cluster: setup-dev ## a standalone cluster, YARN with HDFS, tables on S3: executors, workers, drivers die; one table, half an hour
	@$(TESTS) standalone,yarn,s3

test-tables: setup-dev ## the other tests of minutes: tables, parity on Spark, the console in a browser
	@$(TESTS) tables $(ARGS)

test-stack: setup-dev ## the whole platform through Airflow: REST, browser, faults; about half an hour
	@$(TESTS) stack $(ARGS)

test-airflow-package: setup-dev ## an Airflow without Headrace's code and state folder: stream, plans, approval, audit by a connection
	@$(TESTS) airflow-package $(ARGS)

test-observability: setup-dev ## alert rules, a scrape, an alert and the dashboard with the real Prometheus and Alertmanager
	@$(TESTS) observability $(ARGS)

test-containers: setup-dev ## docker compose up in a fresh clone; the ledger on a real PostgreSQL server; needs a Docker engine
	@$(TESTS) containers $(ARGS)

test-cdc: setup-dev ## a PostgreSQL database and its mirror by Debezium, audited against it; needs Debian's postgresql
	@$(TESTS) cdc $(ARGS)

test-hosts: setup-dev ## two runner hosts, one stopped, cut off, killed; a shared volume; NFS; needs root, iproute2, PostgreSQL, User-Mode Linux
	@$(TESTS) hosts $(ARGS)

test-bare: setup-dev ## the README's commands in a bare Debian container, as an ordinary user; needs a Docker engine
	@$(TESTS) bare $(ARGS)

check: setup-dev stack-check chart-check docs-check ## style and types: ruff, mypy; the compose stack; the Helm chart; the documentation
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/python tests/architecture/measure.py

# MkDocs' packages are locked, so its theme's advice to move to another generator is no news at each build.
MKDOCS := NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs

docs: setup-dev ## serve the documentation as a site, http://127.0.0.1:8000
	@$(MKDOCS) serve $(ARGS)

pictures: setup-dev ## take the pictures of docs/pictures again, from a platform that runs; needs Chromium
	@$(TESTS) stack tests/stack/test_in_the_browser.py $(ARGS)
	@for each in docs/pictures/*.png; do cp "build/screenshots/$${each##*/}" docs/pictures/; done

reference: setup-dev ## write docs/reference and the index of decisions from the code
	@PYTHONPATH=. .venv/bin/python tests/reference_pages.py

docs-check: setup-dev ## build that site into .cache/site; a broken link or anchor is an error
	@$(MKDOCS) build --quiet

.PHONY: stack-demo stack-faults stack-check chart-check

stack-demo: setup-runtime ## flights through a compose stack; backfill, replay, release by Airflow's REST API; a month: ARGS="--to 2013-02-01"
	@.venv/bin/python -m stack_tools.demo $(ARGS)

stack-faults: setup-runtime ## kill, pause, cut off, starve, fill, replace the stack's containers under load; audit after each
	@.venv/bin/python -m stack_tools.faults $(ARGS)

stack-check: setup-dev ## check docker-compose.yml, image files and their settings; needs no engine
	@.venv/bin/python -m stack_tools.check

chart-check: setup-dev ## lint and render the Helm chart of infra/kubernetes, check what comes out; needs no cluster
	@.venv/bin/python -m stack_tools.chart

up: setup-airflow ## start the broker, the streams and Airflow with its page
	@.venv/bin/headrace up --airflow $(ARGS)

down: setup-runtime ## stop Airflow, drain the streams, then stop the broker
	@.venv/bin/headrace down $(ARGS)

bench: setup-runtime ## measure events/s, latency, cold start, audit; ARGS="sustained rebuild --runs 3 --baseline FILE"; an hour
	@.venv/bin/headrace bench run $(ARGS)

bench-peers: setup-airflow ## measure hand-written jobs, and Flink, next to the platform: the same topic, the same tables
	@bash infra/setup_flink.sh
	@.venv/bin/headrace bench peers $(ARGS)

bench-growth: setup-dev ## measure how the platform's own costs grow with 100,000 commits of history
	@PYTHONPATH=tests .venv/bin/python tests/speed/growth_speed.py $(ARGS)

bench-console: setup-dev ## measure the console's pages at 100,000 runs of history: milliseconds, against the goal
	@PYTHONPATH=tests:tests/unit .venv/bin/python tests/speed/console_speed.py $(ARGS)

bench-identities: setup-dev ## measure how long a run takes to find its duplicates among 100 million identities
	@PYTHONPATH=tests .venv/bin/python tests/speed/identity_speed.py $(ARGS)

bench-gold-keys: setup-dev ## measure what runs of few changed rows write to a gold table of 1,000,000 random keys
	@PYTHONPATH=tests .venv/bin/python tests/speed/gold_keys_speed.py $(ARGS)

bench-start: setup-runtime ## measure a driver's start next to the least that Spark takes; ARGS="ad_events --rounds 3"
	@.venv/bin/python tests/speed/start_speed.py $(ARGS)

bench-shared: setup-dev ## measure 20 datasets of a record a second in one driver, then quiet: memory, cores, age; ARGS="--datasets 20"
	@PYTHONPATH=tests:tests/recovery .venv/bin/python tests/speed/shared_speed.py $(ARGS)

bench-load: setup-runtime ## measure a load of 20,000,000 rows from files, seven minutes; ARGS="--files 2 --rows 100000"
	@PYTHONPATH=.:tests .venv/bin/python tests/speed/load_speed.py $(ARGS)

bench-fleet: setup-dev ## measure commits, leases and publications of 1,000 datasets at 10,000 runs an hour; needs Debian's postgresql
	@PYTHONPATH=.:tests:tests/recovery .venv/bin/python tests/speed/fleet_speed.py $(ARGS)

bench-run: setup-dev ## measure what one live run of a few thousand rows costs, by step, in seconds and CPU
	@PYTHONPATH=tests:tests/parity .venv/bin/python tests/speed/run_cost.py $(ARGS)

bench-derived: setup-dev ## measure what a derived run costs the driver of a cluster, with few and many grains
	@PYTHONPATH=tests:tests/cases:tests/recovery:tests/parity:tests/speed .venv/bin/python tests/speed/derived_driver.py $(ARGS)

bench-scale: setup-dev ## measure a driver's CPU and heap for few and many records, and what a second worker gains
	@PYTHONPATH=tests:tests/recovery .venv/bin/python tests/speed/scale_speed.py $(ARGS)

bench-rules: setup-dev ## measure the cost of 20 row rules in refine, as a ratio
	@PYTHONPATH=tests:tests/parity .venv/bin/python tests/speed/rule_cost.py

golden: setup-runtime ## compare what the product computes with the recorded outputs of demo, plans, workloads; some: ARGS="demo posts"
	@.venv/bin/python tests/golden/compare.py $(ARGS)

golden-record: setup-runtime ## record these outputs, after a change that was meant to change them
	@.venv/bin/python tests/golden/compare.py --record $(ARGS)

# Rounds of `make budgets`: each measures both trees, about ten minutes.
ROUNDS ?= 3
budgets: setup-dev ## compare drain, p95 and run cost with another clone: make budgets BASE=/path/to/clone ROUNDS=1
	@[ -n "$(BASE)" ] || { echo "headrace: BASE is missing, nothing was measured; make budgets BASE=/path/to/clone"; exit 2; }
	@.venv/bin/python tests/golden/budgets.py "$(BASE)" --rounds $(ROUNDS) $(ARGS)

lock: ## regenerate requirements/*.lock; newer versions: make lock ARGS=--upgrade
	@bash infra/lock.sh $(ARGS)

jars-lock: setup-runtime ## regenerate infra/jars/jars.lock from infra/jars/jars.in
	@.venv/bin/python -m infra.jars.fetch --lock

clean: ## stop everything, remove what set-up created; the state folder (.headrace) stays
	@if [ -x .venv/bin/headrace ]; then .venv/bin/headrace down || true; fi
	@rm -rf .venv .jars .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build ./*.egg-info
	@find include spark_jobs infra dags airflow_package tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "cleaned; the state folder is unchanged"
