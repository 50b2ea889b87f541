# Everything a checkout needs, from an empty directory: `make demo`, `make test`. GNU make, any Python from 3.11 on.
#
# A virtual environment is a set of stamp files, each written after the step it stands for has succeeded: `made` (the
# environment itself), `extra-NAME` (paceline with that extra), `package` (paceline's own files are up to date). An
# interrupted or moved environment has no valid `made`, and is made again from nothing.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help venv demo test check prove bench dev clean FORCE

IN_VENV := $(VENV)/bin/python
# The backend that builds paceline is in the environment, pinned: nothing is fetched to build, so a rebuild is fast and
# works offline.
PIP := $(IN_VENV) -m pip --disable-pip-version-check install -qq --constraint constraints.txt --no-build-isolation
# Directories count as well: theirs is the time stamp that a deleted or renamed module changes.
SOURCES := __init__.py py.typed $(shell find core transports backends -name __pycache__ -prune -o \( -type d -o -name '*.py' \) -print)
# A process for each core, but no more than four, since each comes to need 1 GB. Each begins with a part of the tests in
# their order, and takes from the others when it is through. What comes later on the line wins: ARGS="-n 0" runs all in
# one process; --pdb does so by itself.
SPREAD := --numprocesses auto --maxprocesses 4 --dist worksteal
SAY := @printf '%s\n'

# The environment is good when its stamp names this very place, no installation into it was cut short (`started` is gone),
# and its interpreter starts; and, when the caller asked for a Python, when it is that one.
VERSION = $(shell $(1) -c 'import sys; print(sys.version)' 2>/dev/null)
FOUND := $(shell test -e $(VENV)/started || cat $(VENV)/made 2>/dev/null) $(call VERSION,$(IN_VENV))
WANTED := $(CURDIR) $(or $(call VERSION,$(if $(filter file,$(origin PYTHON)),$(IN_VENV),$(PYTHON))),nothing)
ifneq ($(FOUND),$(WANTED))
$(VENV)/made: FORCE
endif

help: ## this list
	@printf 'make TARGET [PYTHON=python3.12] [ARGS="..."]\n\n'
	@sed -n 's/^\([a-z]*\):.* ## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-8s %s\n", $$1, $$2 }'

venv: $(VENV)/made ## the virtual environment alone, in .venv

demo: $(VENV)/extra-demo $(VENV)/package ## unequal ranks train real data over TCP; ARGS="--kill 1@4s" kills one
	@$(VENV)/bin/paceline demo $(ARGS)

test: $(VENV)/extra-test $(VENV)/package ## the whole suite, on up to four cores; ARGS="-k wire -x" goes to pytest
	@$(IN_VENV) -m pytest $(SPREAD) $(ARGS)

check: $(VENV)/extra-dev $(VENV)/package ## lint, types of the installed package, tables, freshness of the diagrams
	$(IN_VENV) -m ruff check .
	$(IN_VENV) -m mypy --strict -p paceline
	$(VENV)/bin/paceline lint-tables
	$(IN_VENV) docs/generate.py --check

prove: $(VENV)/extra-test $(VENV)/package ## model checker, storms, mutants, kits, determinism; ARGS="--only mutants"
	@$(IN_VENV) tests/prove.py $(ARGS)

bench: $(VENV)/extra-test $(VENV)/package ## every benchmark, one after the other
	@for file in tests/benchmarks/*.py; do echo "== $$file"; $(IN_VENV) "$$file" $(ARGS) || exit 1; done

dev: $(VENV)/extra-dev ## an editable install with every tool, for work on paceline itself
	@$(PIP) --no-deps --editable .
	@rm -rf build *.egg-info
	@touch $(VENV)/package
	$(SAY) 'paceline in $(VENV) is this checkout itself, until make test or make check installs it again'

clean: ## remove the environment and whatever was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'paceline needs Python 3.11 or newer, and $(PYTHON) is not; name one: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '$(PYTHON) cannot make virtual environments; install its venv module (Debian, Ubuntu: apt install python3-venv)' >&2; exit 1; }
	$(SAY) 'making the virtual environment in $(VENV) ...'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) setuptools
	@printf '%s\n' '$(CURDIR)' > $@

# `build` is removed on both sides: setuptools copies into it and never out of it, so that a deleted module would live on
# in the wheel. The stamp is as old as the start of the installation, not its end: an edit made meanwhile still counts.
define INSTALL
@touch $(VENV)/started
@rm -rf build *.egg-info
@$(PIP) $(1) || { rm -f $(VENV)/started; exit 1; }
@rm -rf build *.egg-info
@mv $(VENV)/started $(VENV)/package
endef

$(VENV)/extra-%: $(VENV)/made pyproject.toml constraints.txt
	$(SAY) 'installing paceline with what "$*" needs; the first time this takes some minutes ...'
	$(call INSTALL,'.[$*]')
	@touch $@

$(VENV)/package: $(SOURCES) | $(VENV)/made
	$(SAY) 'installing paceline again: its files have changed ...'
	$(call INSTALL,--no-deps --force-reinstall .)
