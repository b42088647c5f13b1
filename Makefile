# Set-up, checks and the demo. `make demo` and `make test` work on a bare machine with Python 3.11 or newer.
#   PYTHON=...       the Python to build .venv with
#   TORCH_INDEX=...  an extra package index that carries the CPU build of torch
#   WORKERS=...      processes that share the tests, 2 if not said; a file's tests stay in one, 0: no processes

VENV := .venv
BIN := $(VENV)/bin
TORCH_INDEX ?=
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
INDEX_OPTION := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)

export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo test test-all lint clean

demo: setup
	$(BIN)/python examples/quickstart/demo.py

test: setup
	$(PYTEST) -m "not slow"

test-all: setup
	$(PYTEST) --hypothesis-profile "drawn anew"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info

# Stamp files: a step runs again only when what it installs has changed.
$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 with venv found; set PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Without an index that has the CPU build, the default build works too, at several times the size.
$(VENV)/.torch: requirements/torch.txt $(VENV)/.created
	@echo "installing torch"; $(BIN)/python -m pip install --quiet $(INDEX_OPTION) -r requirements/torch.txt || { \
	  echo "make: no CPU build of torch on the configured indexes; taking the default build" \
	    "(set TORCH_INDEX=... to avoid its CUDA libraries)"; \
	  sed 's/+cpu//' requirements/torch.txt > $(VENV)/torch.txt && \
	  $(BIN)/python -m pip install --quiet $(INDEX_OPTION) -r $(VENV)/torch.txt; }
	@touch $@

$(VENV)/.installed: requirements/lock.txt pyproject.toml $(VENV)/.torch
	@echo "installing the other packages"; $(BIN)/python -m pip install --quiet -r requirements/lock.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@
