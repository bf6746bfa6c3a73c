# Everything a newcomer needs is `make demo` and `make test`; `make help` lists the rest.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest
# What has failed, perhaps since others took the processors, is asked once more, by itself. Both results are shown.
AGAIN := $(PYTEST) --last-failed --last-failed-no-failures none --maxfail 1
TESTS_FAILED := 1# pytest's exit code

# What a build of the components and the test bed's own tools need from Debian; installed if we may and something lacks.
PACKAGES := gcc libc6-dev libseccomp-dev pkg-config python3-venv

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: setup
setup: .venv/ready .venv/libraries ## Make the virtual environment with pinnace, testbed and the developers' tools in it

.venv/ready: pyproject.toml testbed/pyproject.toml constraints.txt | packages
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./testbed
	touch $@

.venv/libraries: .venv/ready hatch_build.py $(shell find src -name '*.[ch]')
	$(BIN)/python hatch_build.py
	touch $@

.PHONY: packages
packages:
	@if command -v dpkg-query >/dev/null && ! dpkg-query --show $(PACKAGES) >/dev/null 2>&1; then \
	  if [ "$$(id -u)" = 0 ]; then \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(PACKAGES); \
	  else echo "make: please install: $(PACKAGES)" >&2; exit 1; fi; \
	fi

.PHONY: fetch
fetch: setup ## Get the upstream components (built from source where there is no internet: about 15 minutes, once)
	$(BIN)/pinnace fetch

C_FILES = $(shell find benchmarks src testbed tests -name '*.[ch]')

.PHONY: format
format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)
	$(BIN)/ruff check --fix .

UNITS := not bed and not build and not vm

.PHONY: check
check: setup ## The fast part of the tests: style, types, layers, units (two minutes)
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(PYTEST) -q -n 2 -m '$(UNITS)' || { [ $$? = $(TESTS_FAILED) ] && $(AGAIN) -q -m '$(UNITS)'; }

# Every worker has a bed; a test mostly waits, so there are more of them than processors (tests/conftest.py: who runs what).
WORKERS ?= 3
ON_BEDS := $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder
BESIDE_OTHERS := (bed or build) and not alone and not stress
ALONE := (bed or build) and alone and not stress

.PHONY: test
test: check fetch ## All tests, on a real Slurm with the real components (needs root, for the test bed)
	$(ON_BEDS) -m '$(BESIDE_OTHERS)' --durations=15 || { [ $$? = $(TESTS_FAILED) ] && $(AGAIN) -m '$(BESIDE_OTHERS)'; }
	$(PYTEST) -m '$(ALONE)' --durations=15 || { [ $$? = $(TESTS_FAILED) ] && $(AGAIN) -m '$(ALONE)'; }

.PHONY: stress
stress: setup fetch ## What `make test` does a few times, many times over (an hour)
	$(PYTEST) -m stress --durations=15

.PHONY: cgroups
cgroups: setup fetch ## Nodes with a delegated cgroup v2, in a virtual machine (half an hour; root, for debootstrap)
	$(PYTEST) -m vm --durations=5

.PHONY: sites
sites: setup fetch ## The matrix of generations of Slurm, facts of sites and models, on beds of their own (half an hour)
	$(BIN)/python -m benchmarks.sites

.PHONY: bridge-image
bridge-image: setup ## The image for `pinnace bridge --print-manifest`, as bridge.tar
	$(BIN)/python deploy/image.py bridge.tar

.PHONY: bench-image
bench-image: setup ## The image with the tools of `pinnace bench`, as bench.tar
	cp "$$($(BIN)/testbed image build bench)" bench.tar

.PHONY: demo
demo: setup fetch ## From nothing to a Slurm job over two hosts, on a test bed of its own
	$(BIN)/python examples/demo.py

.PHONY: conformance
conformance: setup fetch ## Upstream's conformance tests on a cluster of two nodes, hours; FOCUS=regex SKIP=regex PART=parallel|serial
	$(BIN)/python -m conformance --focus '$(FOCUS)' --skip '$(SKIP)' $(if $(PART),--part $(PART))

.PHONY: clean
clean: ## Remove the test bed, if one is left, and everything that is built in this directory
	if [ -x $(BIN)/testbed ]; then $(BIN)/testbed clean; fi
	find src -name '*.so' -delete
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
