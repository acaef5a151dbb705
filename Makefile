# Two commands set everything up on a fresh machine with Python 3.11+ and a C++ compiler:
#   make demo    trains on the built-in dataset
#   make test    runs the tests of every part but the slowest; make test-all runs those too, make test-long every case
# `make help` lists the rest. What is installed is pinned by constraints.txt; stamp files make a second call quick.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
PEERS ?= .peers
PYKEEN ?= .peers-pykeen
PEER_PACKAGES := torch torchdata numpy pydantic pyyaml scipy pandas dgl psutil setuptools
# What is compiled of each kernel (CMakeLists.txt): for this machine alone unless all was asked for once.
GB_VARIANTS ?= native
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint $(CONSTRAINTS)
# The versions of a GPU machine, for `make rehearse`.
REHEARSAL := build/rehearsal
CORE_SOURCES := $(wildcard src/graphbraid/csrc/*.* src/graphbraid/csrc/*/* cmake/*) CMakeLists.txt pyproject.toml
CPP_FILES := $(wildcard cmake/*.cpp $(foreach room,csrc csrc/*,$(addprefix src/graphbraid/$(room)/*.,cpp h inl)))
# Each test process may use all cores for its kernels, so threads that wait must sleep, not spin. Bytecode is kept,
# whatever the environment says: to compile all modules takes longer than most tests, in each process that one starts.
PYTEST := OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# One more than the cores of a small machine: many tests wait for processes, links and signals.
TEST_PROCESSES ?= 3
# Where `make peers` has been run, conversions are checked on DGL itself, too.
ifneq ($(wildcard $(PEERS)/.installed),)
export GRAPHBRAID_DGL_PYTHON ?= $(abspath $(PEERS))/bin/python
endif
PYTEST_PARALLEL := $(PYTEST) --dist worksteal -n $(TEST_PROCESSES)

.PHONY: help demo test test-slow test-all test-long variants lint format types docs sanitize fuzz wheel wheel-pure wheel-aarch64 test-oldest test-newest constraints rehearse wheels peers peers-pykeen clean

help: ## show this
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(VENV)/.installed ## train on the built-in dataset
	$(BIN)/graphbraid train

test: $(VENV)/.installed-test ## run the tests but the slowest
	$(PYTEST_PARALLEL) -m "not slow"

test-slow: $(VENV)/.installed-test ## run the slow tests, which `make test` leaves out
	$(PYTEST_PARALLEL) -m "slow and not long" --hypothesis-profile some

test-all: $(VENV)/.installed-test ## run every test, of products of parameters each value twice
	$(PYTEST_PARALLEL) -m "not long" --hypothesis-profile some

test-long: $(VENV)/.installed-test ## run every test with every case and many random examples
	$(PYTEST_PARALLEL) --hypothesis-profile many

variants: GB_VARIANTS := all
variants: $(VENV)/.installed-test ## run the tests of the kernels under each kernel variant
	PYTHON=$(BIN)/python scripts/test_variants.sh

lint: $(VENV)/.installed-dev ## check style: ruff and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

format: $(VENV)/.installed-dev ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

types: $(VENV)/.installed-dev ## check types with mypy, strictly
	$(BIN)/mypy

docs: $(VENV)/.installed-dev ## build the documentation into site/ and check it, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python scripts/site/check.py site

sanitize: $(VENV)/.installed-test ## run the C++ core under the address, undefined-behaviour and thread sanitizers
	PYTHON=$(BIN)/python scripts/sanitize.sh $(SANITIZERS)

fuzz: $(VENV)/.installed-test ## call everything with what nobody should give it
	PYTHON=$(BIN)/python scripts/fuzz.sh

wheel: $(VENV)/.installed-dev ## build a manylinux wheel into dist/ and check it without a compiler
	PYTHON=$(BIN)/python scripts/check_wheel.sh

wheel-pure: $(VENV)/.installed-dev ## build the wheel without kernels into dist/ and check it, as macOS and Windows take it
	GB_VARIANTS=none PYTHON=$(BIN)/python scripts/check_wheel.sh

wheel-aarch64: $(VENV)/.installed-dev ## cross-compile the wheel for Linux on aarch64; HEADERS=FOLDER has that Python's headers
	PYTHON=$(BIN)/python scripts/wheel_aarch64.sh

# Both ends of what pyproject.toml allows, each in an environment of its own. The interpreters of Triton 3.5 and 3.6
# convert arrays of one number: NumPy warns of that, and from 2.4 on refuses it.
OLDEST := torch==2.9.1 torch-geometric==2.6.1 'numpy<2.4'
REHEARSED := -W "ignore:Conversion of an array:DeprecationWarning"
NEWEST := torch torch-geometric

test-oldest: export PYTEST_ADDOPTS := $(REHEARSED)
test-oldest: ## run the quick tests with the oldest PyTorch and PyG
	$(call test_with,oldest,$(OLDEST))

test-newest: ## run the quick tests with the newest PyTorch and PyG
	$(call test_with,newest,$(NEWEST))

# Installs $(2) first: all other packages are those of constraints.txt, but for what belongs to PyTorch, and NumPy if $(2) names it.
define test_with
	mkdir -p build/$(1)
	grep -vE '^(torch|torch-geometric|triton$(if $(findstring numpy,$(2)),|numpy))==' constraints.txt >build/$(1)/constraints.txt
	$(MAKE) VENV=build/$(1)/venv CONSTRAINTS=build/$(1)/constraints.txt build/$(1)/venv/.tools
	build/$(1)/venv/bin/python -m pip --disable-pip-version-check install --constraint build/$(1)/constraints.txt $(2)
	SKBUILD_BUILD_DIR=build/$(1)/kernels $(MAKE) VENV=build/$(1)/venv CONSTRAINTS=build/$(1)/constraints.txt test
endef

constraints: ## rewrite constraints.txt from the newest versions that fit, in a fresh environment
	PYTHON=$(PYTHON) scripts/pin_constraints.sh

rehearse: ## run on the CPU what a GPU machine will run, with its versions of PyTorch, Triton and PyG
	mkdir -p $(REHEARSAL)
	grep -vE "^($$(sed -nE 's/==.*//p' benchmarks/gpu/versions.txt | paste -sd'|'))==" constraints.txt \
	  | cat - benchmarks/gpu/versions.txt >$(REHEARSAL)/constraints.txt
	SKBUILD_BUILD_DIR=$(REHEARSAL)/kernels $(MAKE) VENV=$(REHEARSAL)/venv CONSTRAINTS=$(REHEARSAL)/constraints.txt \
	  $(REHEARSAL)/venv/.installed-test
	$(subst $(BIN),$(REHEARSAL)/venv/bin,$(PYTEST_PARALLEL)) $(REHEARSED) -m "not slow or interpreted and not long"
	$(subst $(BIN),$(REHEARSAL)/venv/bin,$(PYTEST)) $(REHEARSED) tests/ops/test_triton.py tests/sampling/test_triton_sampler.py
	PYTHON=$(REHEARSAL)/venv/bin/python OUT=$(REHEARSAL)/results benchmarks/gpu_suite.sh --smoke

wheels: ## download into .whl what a GPU machine without a network lacks, for benchmarks/gpu_suite.sh
	benchmarks/gpu/wheels.sh

peers: $(PEERS)/pyg/.installed ## make the environment of DGL and GraphBolt, and PyG's sampler, which benchmarks compare with

peers-pykeen: $(PYKEEN)/.installed ## make the environment of PyKEEN, which knowledge graphs are compared with

clean: ## remove everything made here, the environments too
	rm -rf $(VENV) $(PEERS) $(PYKEEN) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -f src/graphbraid/_native*.so

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "graphbraid needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..." >&2; exit 1; }
	@command -v c++ >/dev/null || { echo "graphbraid needs a C++ compiler; on Debian: apt-get install g++" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' || \
	  { echo "the kernels need Python's headers; on Debian: apt-get install python3-dev" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "on Debian: apt-get install python3-venv" >&2; exit 1; }
	touch $@

# Of their own: DGL's last packages stop at an older PyTorch. PyG is measured in the project's environment.
$(PEERS)/.installed: benchmarks/peers/constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --constraint $< $(PEER_PACKAGES)
	$(PEERS)/bin/python -c 'import dgl.graphbolt'
	touch $@

# PyG samples by torch-sparse, which needs torch-scatter. Only PyG's benchmarks have this folder on their path.
$(PEERS)/pyg/.installed: $(PEERS)/.installed $(VENV)/.installed-test
	$(PIP_INSTALL) --no-deps --no-build-isolation --target $(PEERS)/pyg torch-scatter==2.1.2 torch-sparse==0.6.18
	touch $@

$(PYKEEN)/.installed: benchmarks/peers/constraints-pykeen.txt
	$(PYTHON) -m venv $(PYKEEN)
	$(PYKEEN)/bin/python -m pip --disable-pip-version-check install --constraint $< pykeen
	touch $@

# setuptools is PyTorch's, which would replace Python's own while the kernels are compiled.
$(VENV)/.tools: $(VENV)/.created constraints.txt
	$(PIP_INSTALL) --upgrade setuptools scikit-build-core nanobind cmake ninja
	touch $@

# Before what needs it, and alone: its pin decides which build is taken, and all else must agree with it. The kernels are
# not compiled against it, so with --jobs=2 it is installed while they are compiled. Where GB_ALL_PACKAGES is given, as CI
# does, so is everything that is pinned.
$(VENV)/.torch: $(VENV)/.tools
	@echo "installing PyTorch" >&2
	$(subst --quiet,,$(PIP_INSTALL)) torch
	$(if $(GB_ALL_PACKAGES),$(PIP_INSTALL) --no-deps --requirement $(CONSTRAINTS))
	touch $@

# Changes only where another value asks for variants that the last build may lack.
$(VENV)/.variants: FORCE | $(VENV)/.created
	@grep -sqx -e all -e '$(GB_VARIANTS)' $@ || echo '$(GB_VARIANTS)' >$@

FORCE:

# With the pinned build tools, in a folder that is kept, so a rebuild is quick. Installed without what it needs.
$(VENV)/.kernels: $(VENV)/.tools $(VENV)/.variants $(CORE_SOURCES)
	GB_VARIANTS="$$(cat $(VENV)/.variants)" $(BIN)/python scripts/with_progress.py "compiling the kernels" \
	  $(subst --quiet,--verbose,$(PIP_INSTALL)) --no-deps --no-build-isolation --editable .
	touch $@

# What graphbraid needs, by its name as it is installed: its path would build it anew.
$(VENV)/.installed: $(VENV)/.torch $(VENV)/.kernels
	$(PIP_INSTALL) graphbraid
	touch $@

$(VENV)/.installed-test: $(VENV)/.torch $(VENV)/.kernels
	$(PIP_INSTALL) 'graphbraid[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: $(VENV)/.torch $(VENV)/.kernels
	$(PIP_INSTALL) 'graphbraid[dev]'
	touch $@ $(VENV)/.installed-test $(VENV)/.installed
