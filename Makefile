# `make demo` and `make test` set up all they need; `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test faults soak lint format corpus fuzz bench clean

help:  ## Show what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/installed  ## Install three example skills into .demo/skills, and run a script of one
	rm -rf .demo
	$(BIN)/trio-skills install examples/skills --to .demo/skills
	.demo/skills/word-count/bin/word-count README.md

test: .venv/developing corpus lint  ## Check everything: style, types, imports, unit and property tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

faults: .venv/developing  ## Print what becomes of every fault, in every phase, in every kind of sandbox
	$(BIN)/python -m tests.faults

soak: .venv/developing  ## Install 20,000 times, and see that nothing grows
	$(BIN)/python -m bench soak

lint: .venv/developing  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find trio_skills bench -name '*.py' -exec \
	  $(BIN)/flake8-async --enable=ASYNC,ASYNC910,ASYNC911,ASYNC912,ASYNC913 {} +
	$(BIN)/mypy
	$(BIN)/lint-imports
	if command -v shellcheck >/dev/null; then shellcheck trio_skills/*.sh; fi

format: .venv/developing  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

corpus: .venv/developing  ## Download the published skills that the tests install
	$(BIN)/python -m tests.corpus

fuzz: .venv/developing  ## Run the property tests for longer
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n 2 property_tests

bench: .venv/developing  ## Measure
	$(BIN)/python -m bench core

clean:  ## Remove everything that the other targets made
	rm -rf .venv .demo .corpus .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("needs Python 3.11 or later: make PYTHON=python3.11 …" \
	  if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/developing: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@ .venv/installed
