# Every target installs what it needs into .venv; when nothing changed that costs one look at the stamp.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_CASE := fixtures/convert/argparse_functions
DEMO_OUT := build/demo
DEMO_ARGS := --epochs 2

.PHONY: demo test test-all lint goldens bench clean

demo: $(STAMP)  ## convert a fixture, show diff and report, run the result on two CPU ranks
	@mkdir -p $(DEMO_OUT)
	@cp $(DEMO_CASE)/before.py $(DEMO_OUT)/train.py
	cd $(DEMO_OUT) && ../../$(BIN)/ddpify train.py --diff
	cd $(DEMO_OUT) && CUDA_VISIBLE_DEVICES= ../../$(BIN)/ddpify train.py -o train_ddp.py --verify -- $(DEMO_ARGS)

test: $(STAMP)  ## what every change must pass; tests that start ranks come alone, for those use all cores
	$(BIN)/python -m pytest -m "not slow and not torchrun" -n 2 --dist loadfile
	$(BIN)/python -m pytest -m "not slow and torchrun"

test-all: $(STAMP)  ## every fixture at every world size too
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

goldens: $(STAMP)  ## rewrite the expected outputs; read the diff before you commit it
	$(BIN)/python -m pytest -q -k golden -m "not torchrun and not slow" --update-golden
	git diff --stat -- fixtures

bench: $(STAMP)
	$(BIN)/python tests/bench.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml tests/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint tests/constraints.txt --editable ".[dev,verify]"
	@touch $@
