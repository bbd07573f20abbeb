# One word per chore. demo and test need nothing but python3 (3.11 or later, with venv
# and pip) and make: they set up .venv themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test check bench docs readme clean

help:
	@echo "make demo    plan for the Adult data, show what more budget would buy, train"
	@echo "make test    check, then all tests"
	@echo "make check   linter, formatter, types"
	@echo "make bench   speed and memory, printed"
	@echo "make docs    check that the documents say what the code does"
	@echo "make readme  rewrite the outputs shown in README.md"
	@echo "make clean   remove what the other words made"

demo: $(VENV)/.lab
	@for command in \
	  "plan adult --split iid --epsilon 4 --cost 1000" \
	  "plan adult --split by-education --epsilon 4 --cost 1000" \
	  "frontier adult --split by-education --costs 200,500,1000" \
	  "train adult --split iid --epsilon 4 --cost 1000" \
	  "train adult --split by-education --epsilon 4 --cost 1000"; \
	do \
	  printf '\n$$ fedbudget %s\n\n' "$$command"; \
	  case "$$command" in "train adult --split iid"*) \
	    printf '(the first run compiles its kernels: about 15 s, once)\n\n' ;; \
	  esac; \
	  $(BIN)/fedbudget $$command || exit 1; \
	done

test: check
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.dev
	@for file in planning prediction kernels peers/run; do \
	  echo "== benchmarks/$$file.py"; $(BIN)/python "benchmarks/$$file.py" || exit 1; \
	done

docs: $(VENV)/.dev
	$(BIN)/python -m pytest tests/test_readme.py $(wildcard tests/test_docs*.py tests/docs)

readme: $(VENV)/.dev
	$(BIN)/python -m tests.test_readme

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or later is needed: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp says which extras are installed; it is redone when pyproject.toml changes.
$(VENV)/.lab: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[lab]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[lab,dev]'
	@touch $@
