# Everything runs in .venv, which `make install` sets up and which every target below brings up to date first.
# Another interpreter: make PYTHON=python3.12, which has .venv-3.12 for itself where .venv is of another version.

PYTHON ?= python3
VENV := .venv
ifeq ($(origin PYTHON),command line)
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
WANTED := $(call VERSION_OF,$(PYTHON))
ifneq ($(filter-out $(WANTED),$(call VERSION_OF,.venv/bin/python)),)
VENV := .venv-$(WANTED)
endif
endif
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished
DOCS_STAMP := $(VENV)/.docs-installed
TORCH := $(shell sed -n '/^torch==/p' requirements-torch.lock)
LOCKS := requirements.lock requirements-torch.lock
LOCK_EXTRAS := dev flower privacy ray
PROJECTS := pyproject.toml papers/pyproject.toml benchmarks/pyproject.toml

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip leaves out bytecode (below), so what is imported first has to write it: without it, every process that imports
# torch takes four seconds more.
unexport PYTHONDONTWRITEBYTECODE
# A terminal sees pip's progress bars, a log only what goes wrong. Compiling what is never imported takes half the time.
PIP_INSTALL := $(PY) -m pip install --no-input --no-compile $(if $(MAKE_TERMOUT),,-qq)

.DEFAULT_GOAL := help
.PHONY: help install demo docs test tests test-slow test-lowest lint format types lock bench release clean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

install: $(STAMP) ## set up .venv: torch, the locked packages, personafl itself

demo: install ## train and compare on a small data set, and write a report
	@$(VENV)/bin/personafl demo

# Its packages are not among those of `make install`: tests and users do not need them.
docs: $(DOCS_STAMP) ## build the documentation site into build/site
	@$(PY) scripts/site/build.py

# Types are checked while the first tests run.
test: lint ## lint, types, the tests and the examples in docstrings
	@sh scripts/chromium.sh
	@sh scripts/nginx.sh
	@$(MAKE) --no-print-directory -j 2 types tests

# What three processes are about to import is compiled once, before they start.
tests: install
	@$(PY) -m compileall -q src papers/src benchmarks/src
	@$(PY) -c "import pyarrow, scipy.stats, sklearn, torch"
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-slow: install ## the tests that take minutes
	$(PY) -m pytest -m slow

lint: install ## check style and formatting
	$(PY) -m ruff check
	$(PY) -m ruff format --check

format: install ## rewrite the code in the project's format
	$(PY) -m ruff check --fix-only
	$(PY) -m ruff format

test-lowest: ## the lowest versions that pyproject.toml allows (not of torch), in .venv-lowest
	@sh scripts/test_lowest.sh "$(PYTHON)" "$(TORCH)"

types: install ## check types
	$(PY) -m mypy

bench: install ## measure speed on this machine
	@$(VENV)/bin/personafl bench

lock: ## write the lock files, with hashes, from what is installed in .venv now
	@$(PY) scripts/lock.py $(LOCK_EXTRAS)
	@$(PY) scripts/lock.py --alone docs
	@$(PY) scripts/lock.py --sites flower privacy

release: ## build wheels and archives into dist/, check them, and try them in a new environment
	@$(PYTHON) scripts/release.py "$(TORCH)"

clean: ## remove environments, caches and build artefacts (runs/ stays)
	rm -rf .venv .venv-* build dist */src/*.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src papers benchmarks tests scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp names the folder it was made in: an environment does not survive a move.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

# An install that was cut short may leave packages that pip takes for whole, so it starts afresh. Two installs at once
# take turns where flock exists, and the second finds its work done.
$(STAMP): $(PROJECTS) $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "personafl needs Python 3.11 or newer, and $(PYTHON) is not: name one with make PYTHON=..." >&2; exit 1; }
	@set -e; exec 9< Makefile; if command -v flock > /dev/null; then flock 9; fi; \
	made_in=$$(cat $(STAMP) 2>/dev/null || true); \
	newer=no; for file in $(PROJECTS) $(LOCKS); do test $(STAMP) -nt $$file || newer=yes; done; \
	if test "$$made_in" = "$(CURDIR)" && test $$newer = no; then exit 0; fi; \
	if test -e $(UNFINISHED) || test "$${made_in:-$(CURDIR)}" != "$(CURDIR)" || ! $(PY) -m pip --version > /dev/null 2>&1; then \
	    echo "install: new environment in $(VENV)"; \
	    rm -rf $(VENV); mkdir $(VENV); touch $(UNFINISHED); $(PYTHON) -m venv $(VENV); \
	fi; \
	rm -f $(STAMP); touch $(UNFINISHED); \
	echo "install: $(TORCH)"; $(PIP_INSTALL) $(TORCH); \
	echo "install: the other packages of requirements.lock"; $(PIP_INSTALL) --no-deps -r requirements.lock; \
	echo "install: personafl, its papers and its benchmarks"; \
	$(PIP_INSTALL) --no-deps --no-build-isolation -e . -e papers -e benchmarks; \
	rm $(UNFINISHED); echo "$(CURDIR)" > $(STAMP)

$(DOCS_STAMP): $(STAMP) requirements-docs.lock
	@echo "install: the packages of requirements-docs.lock"; $(PIP_INSTALL) --no-deps -r requirements-docs.lock
	@touch $@
