# Everything here installs the environment first if it is not there, on CPython
# 3.11 or else 3.10. `make test PYTHON=python3.10` (a name or a path) takes another
# one, in an environment of its own, .venv-python3.10.
#
#   make swarm            run the swarm with its defaults; ARGS='--seed=1 ...'
#   make run              any agent, topology and engine;
#                         ARGS='impala:cartpole --topology=swarm', ARGS=--help
#   make test             the fast suite: units, wiring, a run of each topology;
#                         ARGS='-k rpc ...'
#   make test-all         the rest: every cell, every command, killed nodes
#   make test-learning    real runs that have to learn: minutes
#   make test-next        what needs no Reverb, on the next Python (3.13)
#   make test-extras      sinks, ONNX, sweeps and notebooks, with packages of their own
#   make extras           those packages, in .venv-extras
#   make site             the docs as pages, in build/site
#   make chaos            kill and stop nodes of four systems at random
#   make soak             an hour of Ape-X and of IMPALA: does anything grow?
#   make cluster-demo     three hosts on this machine, of which one is lost, in
#                         Ape-X, IMPALA, swarm and gossip; ARGS=--only=apex
#   make results          every table and plot of docs/results/; resumable
#                         ARGS='--study=apex_cartpole --seeds=10 --jobs=1'
#   make evaluate RUN=... play the best policy of a run
#   make docs             write what is read from the code into the docs
#   make bench            speed and memory, as ratios in one run
#   make doctor           versions, what is wrong, and the fix
#   make check            format, lint, types, tests
#   make clean            remove caches;  make distclean: .venv* too

SHELL := /bin/sh
# Any Python from 3.7 on, which finds the CPython that .venv is made with. Looked for by each
# recipe: the first may be of an activated .venv that distclean deletes.
FINDER = $(shell command -v python3 || echo python)
# From the command line only: a shell may have a PYTHON of its own.
ifeq ($(origin PYTHON),command line)
  VENV := .venv-$(notdir $(PYTHON))
  NAMED := --python=$(PYTHON)
else
  VENV := .venv
endif
BIN := $(VENV)/bin
ARGS ?=
RUN ?=
LOCK_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help environment swarm run results chaos soak cluster-demo evaluate docs site extras \
  test test-all test-learning test-next test-extras bench doctor \
  check format lint types lock clean distclean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

environment:
	@$(FINDER) requirements/environment.py $(NAMED)

swarm: environment
	@$(BIN)/python launch/run_swarm.py --lp_launch_type=local_mp $(ARGS)

run: environment
	@$(BIN)/python launch/run.py $(ARGS)

results: environment
	@$(BIN)/python studies/results.py --publish $(ARGS)

chaos: environment
	@$(BIN)/python tests/faults/chaos.py $(ARGS)

soak: environment
	@$(BIN)/python tests/faults/soak.py $(ARGS)

cluster-demo: environment
	@$(BIN)/python tests/faults/cluster_demo.py $(ARGS)

evaluate:
	@test -n '$(RUN)' || { \
	  echo 'Which run? make evaluate RUN=runs/NAME. There are:' >&2; \
	  ls -d runs/*/ >&2 2>/dev/null || echo '  none yet: make swarm' >&2; \
	  exit 2; }
	@$(FINDER) requirements/environment.py $(NAMED)
	@$(BIN)/python launch/evaluate.py '$(RUN)' $(ARGS)

test: environment
	@$(BIN)/python -m pytest -m 'not long' $(ARGS)

test-all: environment
	@$(BIN)/python -m pytest -m long $(ARGS)

test-learning: environment
	@$(BIN)/python -m pytest -o addopts=--import-mode=importlib tests/learning $(ARGS)

# Left out is what compares with Acme, TRFL or TensorFlow Probability.
test-next:
	@$(FINDER) requirements/environment.py next $(NAMED)
	@$(subst .venv,.venv-next,$(BIN))/python -m pytest -m 'not long' tests/environment_loops \
	  tests/agents $(patsubst %,--ignore=tests/agents/%,acme test_policy_gradient.py \
	  test_ppo.py test_ppo_config.py test_ppo_learner.py test_rollouts.py \
	  test_vtrace.py) $(ARGS)

extras:
	@$(FINDER) requirements/environment.py extras $(NAMED)

test-extras: extras
	@$(subst .venv,.venv-extras,$(BIN))/python -m pytest -o \
	  addopts=--import-mode=importlib tests/extras $(ARGS)

site:
	@$(FINDER) requirements/environment.py site $(NAMED)
	@$(subst .venv,.venv-site,$(BIN))/python -m mkdocs build --strict --site-dir build/site $(ARGS)

docs: environment
	@$(BIN)/python studies/render_docs.py

bench: environment
	@failed=0; for script in tests/benchmarks/bench_*.py; do \
	  echo "== $$script"; $(BIN)/python "$$script" $(ARGS) || failed=1; \
	done; exit $$failed

doctor:
	@test -x $(BIN)/python || { \
	  echo '$(VENV) is not there: make environment' >&2; exit 1; }
	@$(BIN)/python requirements/doctor.py

check: environment lint types test test-all

lint: environment
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: environment
	@$(BIN)/mypy

format: environment
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# The header and the index are left out, so that the file is the same wherever it
# is made.
lock: environment
	cd requirements && PATH="$(CURDIR)/$(BIN):$$PATH" uv pip compile \
	  --python-version 3.10 --override overrides.txt --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header $(LOCK_ARGS) \
	  requirements.in -o lock.txt

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-*
