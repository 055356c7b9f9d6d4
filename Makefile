# Every target works in .venv, which it creates; nothing outside this folder is changed.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

LOGS ?= sample:captured/sequence_limit/server.log
OUT ?= report.html
VENV := .venv
BIN := $(VENV)/bin
HIGH_ENOUGH := import sys; sys.version_info >= (3, 11) and print(sys.executable)
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell $(name) -c '$(HIGH_ENOUGH)' 2>/dev/null)))

# uv where it is present or could be brought in, else pip: uv takes seconds for what takes pip minutes.
define install
	@if $(BIN)/uv --version >/dev/null 2>&1; then $(BIN)/uv pip install --quiet --python $(BIN)/python $(1); \
	elif uv --version >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python $(1); \
	else $(BIN)/python -m pip install --quiet $(1); fi
endef

.PHONY: help report lab test lint types floors unit notebooks bench validate registry fleet picture wheel clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: $(VENV)/.core  ## diagnose LOGS (default: a shipped sample) and write OUT (default: report.html)
	@$(BIN)/infer-diag report $(LOGS) --out "$(OUT)"

lab: $(VENV)/.lab  ## open JupyterLab on the first notebook
	@$(BIN)/jupyter lab notebooks/00_start_here.ipynb

test: lint types floors unit notebooks  ## run every check: style, types, floors, tests, browser, notebooks

lint: $(VENV)/.test  ## check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.test  ## check types
	@$(BIN)/mypy

floors: $(VENV)/.test  ## check that no module imports from a floor above its own
	@$(BIN)/lint-imports

unit: $(VENV)/.test  ## run the tests, those in a browser included
	@$(BIN)/pytest --numprocesses=auto --dist=loadfile tests

notebooks: $(VENV)/.test  ## run the notebooks and compare the outputs that they quote
	@$(BIN)/pytest --numprocesses=auto --dist=loadfile \
		--nbval-lax --nbval-current-env --nbval-cell-timeout=120 notebooks

bench: $(VENV)/.test  ## run every benchmark and write benchmarks/RESULTS.md
	@$(BIN)/python benchmarks/run_all.py

validate: $(VENV)/.test  ## analyse hundreds of fleets with planted causes (minutes), for notebooks/99_validation
	@PYTHONPATH=benchmarks $(BIN)/python -m validation

registry: $(VENV)/.core  ## write the hashes of sample_logs again, after a sample has changed
	@$(BIN)/python -c 'from pathlib import Path; from infer_diag.samples import registry_of as made; \
		folder = Path("sample_logs"); (folder / "registry.txt").write_text(made(folder))'

fleet: $(VENV)/.test  ## simulate the sample fleet again, byte for byte (minutes), and write the hashes
	@$(BIN)/python -m infer_diag.simulators.fleet sample_logs/fleet
	@$(MAKE) --no-print-directory registry

picture: $(VENV)/.test  ## draw the README's picture again (wants Chromium)
	@$(BIN)/python notebooks/picture.py

wheel: $(VENV)/.test  ## build the wheel and the source archive into dist/
	@$(BIN)/hatchling build --directory dist

clean:  ## remove the environment and what the targets wrote
	@rm -rf $(VENV) dist build artefacts "$(OUT)" .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/pyvenv.cfg:
	@if [ -z "$(PYTHON)" ]; then echo "infer_diag needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@echo "making $(VENV) with $(PYTHON)"
	@if uv --version >/dev/null 2>&1; then uv venv --quiet --allow-existing --python "$(PYTHON)" $(VENV); \
	else "$(PYTHON)" -m venv $(VENV) \
		|| { echo "no venv module here; on Debian: apt install python3-venv" >&2; rm -f $@; exit 1; }; \
		$(BIN)/python -m pip install --quiet uv || echo "uv cannot be installed here, going on with pip"; fi

$(VENV)/.core: pyproject.toml | $(VENV)/pyvenv.cfg
	$(call install,--editable .)
	@touch $@

$(VENV)/.lab: pyproject.toml | $(VENV)/pyvenv.cfg
	$(call install,--editable '.[lab]')
	@touch $(VENV)/.core $@

$(VENV)/.test: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing what the tests need"
	$(call install,--editable '.[test]')
	@touch $(VENV)/.core $(VENV)/.lab $@
