# Every target sets up .venv by itself; nothing else is needed than python3 >= 3.11, g++ and make.
# `make study`, `make demo` and `make docs` install what they need and no more; the other targets the tools of development too.
.PHONY: setup light study demo test test-slow test-torch test-torch-versions test-versions test-aarch64 fuzz faults \
  sanitize lint bench bench-cuda notebooks docs clean
.DEFAULT_GOAL := help
# What every process of a test or a study imports is compiled once, where the environment asks for no bytecode too.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.lowprec-stamp
LIGHT := $(VENV)/.lowprec-light-stamp
DOCS := $(VENV)/.lowprec-docs-stamp
KERNELS := $(wildcard kernels/CMakeLists.txt kernels/cpu/*/*.cpp kernels/cpu/*/*.h kernels/include/lowprec/*.h kernels/cuda/*.cu*)
CXX ?= g++

help:
	@echo "make study      train the digits model under four precisions: table, picture, results/"
	@echo "make demo       thirty seconds: formats, rounding, a sum that stagnates"
	@echo "make test       all tests but the slow ones;  make test-slow  the slow ones too"
	@echo "make test-torch  models captured from PyTorch, in an environment of its own"
	@echo "make test-torch-versions  part of them on the oldest and the last three minor versions of PyTorch (gigabytes)"
	@echo "make test-versions  part of them on the oldest dependencies and the newest Python;  make fuzz  two minutes of fuzzing"
	@echo "make test-aarch64  part of them under qemu, on a wheel for aarch64 that is cross-compiled here (Debian)"
	@echo "make faults     plants the faults of tests/faults.toml one at a time: its room's tests must see each"
	@echo "make lint       ruff, mypy --strict, clang-format"
	@echo "make sanitize   the kernel tests under the address and undefined-behaviour sanitizers (slow to build)"
	@echo "make bench-cuda  those of the GPU"
	@echo "make bench      ratio benchmarks;  make notebooks  executes the notebooks;  make docs  the site"

define INSTALL
	@command -v $(CXX) >/dev/null || { echo "lowprec needs a C++ compiler: install g++ (Debian, Ubuntu: apt-get install g++) and run make again."; exit 1; }
	@python=$$(for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	    command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done); \
	  [ -n "$$python" ] || { echo "lowprec needs Python 3.11 or later; no such python3 was found on the path."; exit 1; }; \
	  [ -x $(PY) ] || $$python -m venv $(VENV)
	@echo "Installs lowprec and what it needs into $(VENV) and compiles its kernels: some minutes, this once."
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable
endef

# The kernels are compiled for this machine alone. Of bytecode only what a study needs is made: a quarter of the whole.
$(LIGHT): pyproject.toml $(KERNELS)
	$(INSTALL) ".[study]" --no-compile --config-settings=cmake.define.LOWPREC_ISAS=best
	$(PY) -c "import ipu_core.__main__, ipu_core.study.command, rich.live, rich.progress, rich.table"
	@touch $@

$(STAMP): pyproject.toml $(KERNELS)
	$(INSTALL) ".[dev]" --config-settings=cmake.define.LOWPREC_ISAS=all
	@touch $@ $(LIGHT) $(DOCS)

# The site needs no tools of development.
$(DOCS): pyproject.toml $(KERNELS)
	$(INSTALL) ".[docs]" --config-settings=cmake.define.LOWPREC_ISAS=best
	@touch $@ $(LIGHT)

light: $(LIGHT)

setup: $(STAMP)

study: light
	$(PY) -m ipu_core study $(ARGS)

demo: light
	$(PY) -m ipu_core demo

test: setup
	$(PY) -m pytest -q -m "not slow" -n auto --dist worksteal

test-slow: setup
	$(PY) -m pytest -q

# The tests of captured models and of torch's arrays, in an environment of its own: PyTorch and the packages whose models they take.
TORCH_VENV := .venv-torch
test-torch: setup
	[ -x $(TORCH_VENV)/bin/python ] || $(PY) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[test,torch]" \
	  transformers timm torchvision mlp-mixer-pytorch torch_geometric diffusers equinox flax
	$(TORCH_VENV)/bin/python -m pytest -q tests/ipu_core/frontends/test_torch_*.py \
	  tests/ipu_core/frontends/test_jax_architectures.py tests/test_first_hour.py \
	  tests/lowprec/test_interoperation.py "tests/test_docs.py::test_snippets_run[how-to/arrays.md]" \
	  "tests/test_docs.py::test_snippets_run[how-to/torch.md]" "tests/test_docs.py::test_snippets_run[how-to/poptorch.md]" $(ARGS)

# The same without the packages, on the oldest PyTorch that is declared and the last three minor versions.
test-torch-versions: setup
	$(PY) -m tests.versions torch

# Part of the suite on the oldest dependencies that are declared, and on the newest Python there is.
test-versions: setup
	$(PY) -m tests.versions $(ARGS)

# Part of the suite under qemu, on a wheel for aarch64 that is cross-compiled.
test-aarch64: setup
	$(PY) -m tests.aarch64 $(ARGS)

fuzz: setup
	$(PY) -m tests.fuzz $(ARGS)

# The faults of tests/faults.toml, planted one at a time: each is caught by the tests of its room.
faults: setup
	$(PY) -m tests.faults $(ARGS)

# The kernel tests on a module of its own, built with the address and undefined-behaviour sanitizers.
sanitize: setup
	$(PY) tests/sanitize.py $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $$(find kernels -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

# OPENBLAS_* would choose a slower sgemm on some machines.
bench: setup
	env -u OPENBLAS_CORETYPE $(PY) -m tests.benchmarks $(ARGS)

# Every family's bits on a GPU and times as fractions of a copy's, where there is one (the extra `cuda`): a report to paste.
bench-cuda: setup
	$(PY) -m lowprec.testing gpu

# The site, in build/site: every warning is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet -f notebooks/docs/mkdocs.yml
	@echo "built: build/site/index.html"

notebooks: setup
	$(PY) -m pytest -q tests/notebooks -m "slow or not slow"

clean:
	rm -rf build dist $(VENV) $(TORCH_VENV)
