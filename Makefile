# Set-up, the main job and the tests. As root on a fresh Debian 12 or 13:
#   make run     set up, build the VM bed once, run a storm through the mlx5 driver (on hardware where there is some)
#   make test    everything above and all tests
# Both are safe to repeat.

SHELL := /bin/bash
PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := build/.setup
NATIVE := harness/gdrstorm/engine/_native.abi3.so
PACKAGES := python3 python3-venv python3-dev python3-pyverbs ibverbs-providers libibverbs1 gcc libc6-dev make mmdebstrap \
	debian-archive-keyring zstd iproute2 kmod
SCENARIO ?= storm/private-buffer

.PHONY: setup packages native bed run test test-unit test-vm test-gpu lint bench matrix clean

setup: $(SETUP) $(NATIVE)

# Only what is missing is installed; without root it is named instead.
packages:
	@missing=$$(for p in $(PACKAGES); do dpkg-query -W -f='$${Status}\n' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
		echo "== installing Debian packages:" $$missing; \
		if [ "$$(id -u)" != 0 ]; then echo "not root: run 'apt-get install $$(echo $$missing)' first" >&2; exit 2; fi; \
		apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; \
	fi

$(SETUP): pyproject.toml | packages
	@echo "== making the virtual environment $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	@echo "== installing Python packages"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -e '.[dev,nvml]'
	@mkdir -p build && touch $@

$(NATIVE): $(wildcard native/src/*.c native/src/*.h native/include/*.h native/cffi_build.py) | $(SETUP)
	@echo "== building the native engine"
	$(BIN)/python native/cffi_build.py

native: $(NATIVE)

bed: setup
	$(BIN)/gdrstorm bed build

# On a machine with a GPU or an RDMA device that can do it the storm runs there; else in the VM bed.
run: bed
	$(BIN)/gdrstorm run $(SCENARIO)

lint: setup
	$(BIN)/ruff check harness tests native tools
	$(BIN)/ruff format --check harness tests native tools
	$(BIN)/mypy --strict -p gdrstorm

test-unit: setup
	$(BIN)/python -m pytest -m "not vm and not hardware"

test-vm: bed
	$(BIN)/python -m pytest -m vm

test: lint test-unit test-vm

test-gpu: setup
	GDRSTORM_HARDWARE=1 $(BIN)/python -m pytest -m hardware tests/hardware

bench: bed
	$(BIN)/python -m tests.bench

matrix: bed
	GDRSTORM_MATRIX=full $(BIN)/python -m pytest -m vm -s tests/vm/test_policy_matrix.py

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis harness/*.egg-info $(NATIVE)
	find harness tests native -name __pycache__ -type d -prune -exec rm -rf {} +
