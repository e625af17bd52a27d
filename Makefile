# Two commands matter on a fresh machine with Python 3.11 or 3.12 and g++: `make demo` and `make test`.
# The environment is made by tools/environment.py (started by tools/bootstrap.sh); nothing outside this folder changes.
#
# Settings:  make test PYTHON=python3.12   another interpreter
#            make test TORCH=2.11.0        another torch than the one pinned in requirements/torch.txt
#            make demo DEMO_STEPS=30       a shorter demo
SHELL := /bin/sh
.SHELLFLAGS := -ec
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help env demo test lint generated unit sweep conformance asan tsan bench bench-check format clean

PYTHON ?=
TORCH ?=
DEMO_STEPS ?= 240
JOBS ?= 2
BIN := .venv/bin
# Two workers share the cores, so each gets one thread; it also makes results repeatable.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

help: ## show this list
	@echo "ditorch: device-independent PyTorch. Targets:"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

env: ## create or update .venv: torch, tools, the project compiled and installed
	@PYTHON="$(PYTHON)" tools/bootstrap.sh $(if $(TORCH),--torch $(TORCH))

demo: env ## train a small GPT on the device 'dipu' beside the CPU and show where the time went
	@echo "==> demo: examples/train_gpt.py, $(DEMO_STEPS) steps"
	@KINETO_LOG_LEVEL=6 $(BIN)/python examples/train_gpt.py --steps $(DEMO_STEPS)

test: env lint generated sweep conformance unit ## everything CI checks: lint, generated files, quick sweeps, tests
	@echo "==> test: all passed"

lint: env ## ruff and mypy
	@echo "==> lint: ruff check, ruff format --check, mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

generated: env ## compare generated sources and tables in documents with what they are made from
	@echo "==> generated: compare generated files with the operator table"
	@$(BIN)/python -m diopi.generate --check
	@echo "==> generated: compare tables in documents with stored figures and declared settings"
	@$(BIN)/python benchmarks/status_table.py --check
	@$(BIN)/python tools/settings_tables.py --check

unit: env ## pytest
	@echo "==> unit: pytest with $(JOBS) workers"
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS)

sweep: env ## PyTorch's operator database on the device, quick form, on aliases and with copies
	@echo "==> sweep: OpInfo, quick, kernels run on aliases of device memory"
	@$(ONE_THREAD) DIPU_HOST_ALIAS=1 $(BIN)/ditorch torch-tests --device dipu --quick
	@echo "==> sweep: OpInfo, quick, kernels run on copies"
	@$(ONE_THREAD) DIPU_HOST_ALIAS=0 $(BIN)/ditorch torch-tests --device dipu --quick

conformance: env ## the conformance suites: DIOPI on the simulated chip (quick form), dlinfer's vendors for the CPU
	@echo "==> conformance: diopi conformance --vendor host --quick"
	@$(ONE_THREAD) $(BIN)/diopi conformance --vendor host --quick
	@echo "==> conformance: dlinfer conformance, vendors ref and cpp"
	@$(ONE_THREAD) $(BIN)/dlinfer conformance --vendor ref --workers 0
	@$(ONE_THREAD) $(BIN)/dlinfer conformance --vendor cpp --workers 0

asan: env ## tests of the device with the C++ compiled under AddressSanitizer; TESTS="..." chooses others
	@$(ONE_THREAD) $(BIN)/python tools/sanitize.py address $(TESTS)

tsan: env ## the same under ThreadSanitizer
	@$(ONE_THREAD) $(BIN)/python tools/sanitize.py thread $(TESTS)

bench: env ## time per operator and per training step, relative to the CPU
	@echo "==> bench: benchmarks/device_overhead.py, one thread"
	@$(ONE_THREAD) $(BIN)/python benchmarks/run.py device_overhead --json benchmarks/results/device_overhead.json

bench-check: env ## the cheap benchmarks against their stored figures: a fifth worse, or a target missed, fails
	@echo "==> bench-check: benchmarks/check.py, one thread"
	@$(ONE_THREAD) $(BIN)/python benchmarks/check.py

format: env ## rewrite the Python sources in the house's format
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean: ## remove .venv, build/ and caches
	@echo "==> clean: remove .venv, build and caches"
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
