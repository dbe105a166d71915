# Headrace. `make demo` and `make test` each work as the very first command on a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check bench bench-cluster bench-strategies

help:  ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 10

# Of sagemaker-train the tests run what its containers run; what else it needs excludes our releases.
# Of mlflow they run the server and its page; it excludes our pyarrow, and what it needs is named in dev.
setup: $(STAMP)  ## Make .venv with everything that development needs

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[examples,dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps sagemaker-train mlflow mlflow-tracing
	@touch $(STAMP)

demo: $(STAMP)  ## Train scene segmentation from a real S3 server on two ranks (4 to 7 minutes)
	$(BIN)/python examples/demo.py

# A worker that the timeout ended is not replaced: xdist 3.8 gives the new one no shutdown, and hangs.
PYTEST := $(BIN)/python -m pytest
# Those of surface are in `make check`.
ABREAST := --ignore tests/surface -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: $(STAMP)  ## Run the tests, but for the long ones of whole clusters and sweeps
	$(PYTEST) $(ABREAST) -m "not alone and not long"

test-all: $(STAMP)  ## Run all tests, as CI does
	$(PYTEST) $(ABREAST) -m "not alone" --long
	$(PYTEST) -m alone $$(grep -rl mark.alone tests/*/)

check: $(STAMP)  ## Lint, types, layers, documentation, written surfaces
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest -q tests/surface

# litdata asks for torchvision, which it does not use here and which would bring CUDA.
$(VENV)/.bench: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps litdata
	$(BIN)/python -m pip install --quiet -c constraints.txt lightning-utilities requests tifffile
	@touch $@

bench: $(VENV)/.bench  ## Measure what docs/benchmarks.md reports (about half an hour)
	$(BIN)/python benchmarks/all.py

bench-cluster: $(STAMP)  ## Measure what docs/offload.md reports (two hours; four of them need root)
	$(BIN)/python benchmarks/cluster/mix.py
	$(BIN)/python benchmarks/cluster/blur.py
	$(BIN)/python benchmarks/cluster/sharing.py
	$(BIN)/python benchmarks/cluster/transfer.py
	$(BIN)/python benchmarks/cluster/faults.py
	$(BIN)/python benchmarks/cluster/case_b.py

bench-strategies: $(STAMP)  ## Measure what docs/strategies.md reports (ten minutes; needs FUSE)
	$(BIN)/python benchmarks/strategies/run.py
