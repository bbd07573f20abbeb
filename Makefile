# One word per chore. demo and test need nothing but python3 (3.11 or later, with venv
# and pip) and make: they set up .venv themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test check bench docs readme screenshots results dist clean

help:
	@echo "make demo    plan for the Adult data, show what more budget would buy, train"
	@echo "make test    check, then all tests"
	@echo "make check   linter, formatter, types"
	@echo "make bench   speed and memory, printed"
	@echo "make docs    check that the documents say what the code does, build the site"
	@echo "make results run the paper's evaluation (half an hour), rewrite docs/results.md"
	@echo "make readme  rewrite the outputs in README.md, the site's pages, the notebook"
	@echo "make screenshots  take the site's pictures of the page again (chromium)"
	@echo "make dist    build wheel and sdist, and try the wheel in a clean environment"
	@echo "make clean   remove what the other words made"

demo: $(VENV)/.lab
	@for command in \
	  "plan adult --split iid --epsilon 4 --cost 1000" \
	  "plan adult --split by-education --epsilon 4 --cost 1000" \
	  "frontier adult --split by-education --costs 200,500,1000" \
	  "train adult --split iid --epsilon 4 --cost 1000" \
	  "train adult --split by-education --epsilon 4 --cost 1000" \
	  "train wisdm --trust sum --epsilon 4 --cost 5000 --new-devices 10"; \
	do \
	  printf '\n$$ fedbudget %s\n\n' "$$command"; \
	  case "$$command" in "train adult --split iid"*) \
	    printf '(the first run compiles its kernels: about 15 s, once)\n\n' ;; \
	  esac; \
	  $(BIN)/fedbudget $$command || exit 1; \
	done

# On all cores, a file of tests at a time.
test: check
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

bench: $(VENV)/.dev
	@for file in planning prediction kernels calls fleet/rounds fleet/scale peers/run; do \
	  echo "== benchmarks/$$file.py"; $(BIN)/python "benchmarks/$$file.py" || exit 1; \
	done

docs: $(VENV)/.dev
	$(BIN)/python -m pytest tests/test_readme.py $(wildcard tests/test_docs*.py tests/docs)
	$(BIN)/python -m mkdocs build --quiet --strict
	@echo "site/index.html"

readme: $(VENV)/.dev
	$(BIN)/python -m tests.test_readme
	$(BIN)/python -m tests.test_docs_pages
	$(BIN)/python -m tests.test_notebook

screenshots: $(VENV)/.dev
	$(BIN)/python -m tests.ui.screenshots

# The wheel is built from the sdist, then installed with the base dependencies alone.
dist: $(VENV)/.dev
	rm -rf dist build/clean
	$(BIN)/python -m build
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip --quiet install dist/*.whl
	cd build && clean/bin/fedbudget plan --samples 1628x16 --dim 102 --loss logistic \
	  --epsilon 4 --cost 1000
	cd build && clean/bin/fedbudget doctor

results: $(VENV)/.dev
	$(BIN)/fedbudget paper --out paper
	$(BIN)/python docs/results.py paper

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
	$(PIP) install --editable '.[lab,ui,docs,dev]'
	@touch $@
