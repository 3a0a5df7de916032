# `make demo` and `make test` set up what they need; both may be repeated. Debian or Ubuntu, root or sudo.
PYTHON ?= python3
VENV ?= .venv
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
AS_ROOT := $(if $(SUDO),$(SUDO) -E env "PATH=$$PATH")
BIN := $(VENV)/bin
SHELL_FILES := $(wildcard shared_env/shell/*.sh) $(wildcard tests/*/*.sh) $(wildcard examples/*.sh) .ci/run

PACKAGES := python3-venv slurmctld slurmd slurm-client munge iproute2 util-linux mount procps bsdutils \
	nftables shellcheck dash strace slurmrestd slurm-wlm-jwt-plugin openssh-server openssh-client rsync socat mmdebstrap

.PHONY: help setup demo test bench lint format clean

help:
	@echo "make demo   two nodes of a real Slurm on this machine train together"
	@echo "make test   every test, nothing skipped"
	@echo "make bench  ratios of speed, side by side, into benchmarks/RESULTS.md"
	@echo "make lint   ruff, mypy --strict, shellcheck"
	@echo "make setup  only install what these need"

setup: $(VENV)/.ready
	@missing=$$(for p in $(PACKAGES); do dpkg-query -W -f '$${Status}\n' $$p 2>/dev/null | grep -q ' installed$$' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
		echo "==> installing Debian packages:" $$missing; \
		$(SUDO) apt-get update -qq && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; \
	fi

$(VENV)/.ready: pyproject.toml Makefile
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "==> installing python3-venv"; \
		$(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -q python3-venv; }
	@echo "==> making $(VENV) with the packages of pyproject.toml [test]"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --progress-bar on --editable '.[test]'
	@touch $@

demo: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(AS_ROOT) examples/demo.sh

test: setup lint
	@echo "==> running the tests (real Slurm clusters start and stop on this machine)"
	$(AS_ROOT) $(BIN)/python -m pytest

bench: setup
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@echo "==> measuring (2 minutes; a quiet machine gives better numbers)"
	$(AS_ROOT) $(BIN)/python -m benchmarks

lint: setup
	@echo "==> linting"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	shellcheck --external-sources $(SHELL_FILES)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
