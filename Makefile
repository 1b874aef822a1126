# `make demo` and `make test` set everything up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_OUT := demo-out

.PHONY: setup browser demo test lint clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || { \
	  echo "ling2-migrate needs Python 3.12 or later; \`$(PYTHON)\` is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install one (pyenv, uv or your system's packages), then: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.12"; \
	  exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[model,tpu,dev]'
	touch $@

demo: setup
	rm -rf $(DEMO_OUT)
	@$(BIN)/ling2-migrate run migration_tests/fixtures/ant_pretrain --upstream 0.2.5 --out $(DEMO_OUT); \
	  status=$$?; [ $$status -le 1 ] || exit $$status

# The tests of the report page need Chromium; without one they are skipped, and say so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  echo "installing Chromium" && { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null; } || \
	  echo "no Chromium here: the tests of the report page in a browser are skipped"

# The kernels' tests run JAX in the test process, and its threads do not go with the forks of the codemods' workers.
test: setup browser
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore=migration_tests/kernels
	$(BIN)/python -m pytest -n 2 --dist worksteal migration_tests/kernels

lint: setup
	$(BIN)/black --check --quiet codemods scripts migration_tests target
	$(BIN)/ruff check codemods scripts migration_tests target
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(DEMO_OUT)
