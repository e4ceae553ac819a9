# Needs Python 3.10 or later and make. Another Python: make PYTHON=python3.12 run
PYTHON ?= python3
VENV := .venv
# Two processes, half of the tests each; whichever is through takes from the end of the other's.
PYTEST := $(VENV)/bin/python -m pytest -n 2 --dist worksteal
PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: run test test-quick test-hub lint clean help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

run: $(VENV)/.run  ## start the app and print its address
	$(VENV)/bin/python app.py

test: $(VENV)/.test  ## the whole suite
	$(PYTEST) $(ARGS)

test-quick: $(VENV)/.test  ## the suite without browser and slow tests
	$(PYTEST) -m "not browser and not slow" $(ARGS)

test-hub: $(VENV)/.test  ## the real bert-base-uncased and gpt2, fetched from the Hub
	$(VENV)/bin/python -m pytest -m hub $(ARGS)

lint: $(VENV)/.test  ## ruff and mypy
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m mypy

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info

# The stamps say what was installed from which lists; a changed list installs again.
$(VENV)/.run: requirements.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "Python 3.10 or later is needed, this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	touch $@

$(VENV)/.test: $(VENV)/.run requirements-dev.txt
	$(PIP) -r requirements-dev.txt
	touch $@
