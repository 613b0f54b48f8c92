# The two commands of a newcomer are `make up` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# How many tests run side by side.
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help up test lint pytest audit format clean

help:  ## Show what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

up: $(READY)  ## Start everything for a trial; ARGS="--port 8001" passes flags on
	@exec $(BIN)/python manage.py up $(ARGS)

test: lint pytest  ## Everything that CI runs

lint: $(READY)  ## Style, types, import contracts, migrations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

pytest: $(READY)  ## The tests alone; ARGS="-k cursor" passes flags on
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

audit: $(READY)  ## Known holes in the pinned dependencies (asks the package index)
	$(BIN)/pip-audit -r requirements-dev.txt --disable-pip --no-deps

format: $(READY)  ## Put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environment; the trial's data stays
	rm -rf $(VENV)

$(READY): requirements.txt requirements-dev.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed; set PYTHON=… to one."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	    || { rm -rf $(VENV); echo "Python has no venv module; on Debian it is the package python3-venv."; exit 1; }
	@echo "Installing what the relay stands on …" >&2
	@$(BIN)/pip install -qq --disable-pip-version-check -r requirements-dev.txt -c constraints.txt
	@touch $@
