# Every target sets up what it needs in .venv and says what it does.
# On a fresh Debian machine python3 (3.10 or newer) and python3-venv are enough.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# pip would compile every module of torch and its like: half a minute, and most are never imported
INSTALL := -m pip --disable-pip-version-check --quiet install --no-compile
FUZZ_SECONDS ?= 120
# branches are counted, so that the fuzzer sees what is new, and every access to memory is checked; a stable
# compiler can do both, the second one when told that it is another
FUZZ_RUSTFLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Zsanitizer=address
FUZZ_HOST = $(shell PATH="$(dir $(CARGO)):$$PATH" rustc -vV | sed -n 's/^host: //p')
# more processes than cores: many tests wait for processes and servers of their own
PYTEST_ARGS ?= -n $(shell expr $$(nproc 2>/dev/null || echo 2) \* 2) --dist worksteal
# whoever asks for no bytecode would have each of a thousand processes compile torch's modules again
unexport PYTHONDONTWRITEBYTECODE
# they share the cores: threads of their own would wait for each other, a hundred times as long
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
SLOWEST := --durations 60 --durations-min 0.5
PROSE := README.md CONTRIBUTING.md ARCHITECTURE.md $(wildcard docs/*.md docs/tutorials/*.md)
QUICK := not slow and not data and not process and not browser and not timing and not torch and not xla
# the tests that run torch have an environment of their own: nothing else may come to need it
TORCH ?= torch==2.13.0
TORCH_VENV := .venv-torch
# torch_xla works with the torch of its own number alone
XLA ?= torch==2.9.0 torch_xla==2.9.0
XLA_VENV := .venv-xla
# they start processes that compute
TORCH_PYTEST_ARGS ?= -n 2 --dist worksteal
# rustup does not always tell the shell
CARGO  := $(shell PATH="$$PATH:$$HOME/.cargo/bin" command -v cargo)

.DEFAULT_GOAL := help
.PHONY: help demo monitor-demo check test test-unit test-timing test-torch test-cluster test-xla torch-env cluster-env xla-env python native lint format docs site new-pattern new-rule fuzz clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(VENV)/.core native ## Analyse the bundled sample trace
	@echo "==> torchtriage demo"
	@$(BIN)/torchtriage demo

# with torch where make test-torch has put it, else with a model of numpy; one thread each, for a calm picture
monitor-demo: $(VENV)/.monitor ## A model server with faults to inject, watched live in a browser
	@echo "==> examples/monitor_demo.py"
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		$(if $(wildcard $(TORCH_VENV)/.dev),$(TORCH_VENV)/bin/python,$(BIN)/python) examples/monitor_demo.py

test: test-unit test-timing ## Run the checks, then every test

check: lint ## Checks, and the quick tests of what a change touches: two minutes at most
	@echo "==> pytest, of what has changed"
	@$(BIN)/python ci/touched.py | xargs env $(ONE_THREAD) $(BIN)/python -m pytest -q -m "$(QUICK)" $(PYTEST_ARGS)

test-unit: lint native
	@if [ -n "$(CARGO)" ]; then \
		echo "==> cargo test" && cd native && PATH="$(dir $(CARGO)):$$PATH" cargo test --quiet --offline; fi
	@echo "==> pytest"
	@$(ONE_THREAD) $(BIN)/python -m pytest -m "not timing" $(PYTEST_ARGS) $(SLOWEST)

test-timing: $(VENV)/.dev native ## Run the tests held to a clock: nothing else may run beside them
	@echo "==> pytest -m timing: nothing else runs beside these"
	@$(BIN)/python -m pytest -m timing

test-torch: $(TORCH_VENV)/.dev native ## Run the tests that need torch, in .venv-torch
	@echo "==> pytest -m torch"
	@$(ONE_THREAD) $(TORCH_VENV)/bin/python -m pytest -m torch $(TORCH_PYTEST_ARGS) $(SLOWEST)

test-cluster: cluster-env ## Run the tests that need Ray
	@echo "==> pytest: the Ray engine on a cluster of two nodes"
	@$(BIN)/python -m pytest tests/diagnose/ranks/test_ray.py

test-xla: xla-env $(VENV)/.dev ## Run the tests that need torch_xla, which is in .venv-xla
	@echo "==> pytest -m xla"
	@$(BIN)/python -m pytest -m xla $(TORCH_PYTEST_ARGS)

torch-env: $(TORCH_VENV)/.dev

cluster-env: $(VENV)/.dev
	@$(BIN)/python $(INSTALL) --editable '.[cluster]'

xla-env: $(XLA_VENV)/.made ## Install torch_xla into .venv-xla: 7 GB, three minutes

native: | $(BIN)/python ## Build the native scanner where cargo is; everything works without
	@$(BIN)/python native/build.py

lint: $(VENV)/.dev ## Style, types and the import contract
	@mkdir -p build
	@echo "==> ruff check"
	@$(BIN)/ruff check .
	@echo "==> ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "==> mypy --strict"
	@$(BIN)/mypy
	@echo "==> lint-imports"
	@$(BIN)/lint-imports >build/lint-imports.log || { cat build/lint-imports.log; exit 1; }
	@echo "==> codespell"
	@$(BIN)/codespell
	@echo "==> proselint"
	@$(BIN)/proselint --output-format compact check $(PROSE)

format: $(VENV)/.dev ## Rewrite the code as ruff wants it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.core ## Write the generated pages again: command line, columns, patterns
	@PYTHONPATH=. $(BIN)/python docs/build.py

site: $(VENV)/.dev docs ## Build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "==> build/site/index.html"

new-pattern: $(VENV)/.core ## Write module and test of a pattern: make new-pattern NAME=sync/some-name
	@$(BIN)/python tools/scaffold.py pattern "$(NAME)"

new-rule: $(VENV)/.core ## Write a lint rule, beside a pattern (NAME=some-name) or new (NAME=sync/some-name)
	@$(BIN)/python tools/scaffold.py rule "$(NAME)"

fuzz: $(VENV)/.fuzz native ## Feed broken input to the readers, two minutes each
	@if [ -n "$(CARGO)" ]; then \
		echo "==> fuzzing the native scanner for $(FUZZ_SECONDS) s" && cd native && \
		PATH="$(dir $(CARGO)):$$PATH" RUSTC_BOOTSTRAP=1 RUSTFLAGS="$(FUZZ_RUSTFLAGS)" \
		ASAN_OPTIONS=malloc_context_size=4:quarantine_size_mb=16 cargo run --quiet --offline \
		--profile fuzz --bin fuzz --target $(FUZZ_HOST) -- $(FUZZ_SECONDS); fi
	@echo "==> fuzzing the trace reader for $(FUZZ_SECONDS) s"
	@mkdir -p fuzz/corpus fuzz/crashes
	@$(BIN)/python fuzz/fuzz_reader.py -max_total_time=$(FUZZ_SECONDS) \
		-artifact_prefix=fuzz/crashes/ fuzz/corpus

clean: ## Remove the environment, caches and build outputs
	rm -rf $(VENV) $(TORCH_VENV) $(XLA_VENV) build dist native/target src/torchtriage/core/trace/*torchtriage_native.* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# a Python that environments can be made with
python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "torchtriage needs python3: apt-get install python3 python3-venv, or pass PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "torchtriage needs Python 3.10 or newer, found $$($(PYTHON) --version): pass PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot create virtual environments: apt-get install python3-venv" >&2; exit 2; }

# every environment is made by one rule alone: make torch-env may run beside make demo
$(BIN)/python: | python
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "==> installing torchtriage into $(VENV)"
	@$(BIN)/python $(INSTALL) --editable .
	@touch $@

$(VENV)/.monitor: pyproject.toml | $(BIN)/python
	@echo "==> installing torchtriage and what its monitor can send to into $(VENV)"
	@$(BIN)/python $(INSTALL) --editable '.[monitor]'
	@touch $@ $(VENV)/.core

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "==> installing torchtriage and its development tools into $(VENV)"
	@$(BIN)/python $(INSTALL) --editable '.[dev]' --editable packages/torchtriage-benchmark
	@touch $@ $(VENV)/.core

# torch first: a range would take the newest build with gigabytes of CUDA packages
$(TORCH_VENV)/.dev: pyproject.toml | python
	@echo "==> installing torchtriage, $(TORCH) and what its tests drive into $(TORCH_VENV)"
	@$(PYTHON) -m venv $(TORCH_VENV)
	@$(TORCH_VENV)/bin/python $(INSTALL) '$(TORCH)'
	@$(TORCH_VENV)/bin/python $(INSTALL) --editable '.[dev,dev-torch]' --editable packages/torchtriage-benchmark
	@touch $@

# torchtriage itself is not installed there: its processes are started from here
$(XLA_VENV)/.made: | python
	@echo "==> installing $(XLA) into $(XLA_VENV)"
	@$(PYTHON) -m venv $(XLA_VENV)
	@$(XLA_VENV)/bin/python $(INSTALL) $(XLA) 'transformers>=4.57,<5'
	@touch $@

$(VENV)/.fuzz: pyproject.toml | $(BIN)/python
	@echo "==> installing torchtriage and atheris into $(VENV)"
	@$(BIN)/python $(INSTALL) --editable '.[fuzz]' || { \
		echo "atheris, the fuzzer, could not be installed for $$($(BIN)/python --version): nothing was fuzzed" >&2; exit 1; }
	@touch $@ $(VENV)/.core
