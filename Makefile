# The two main commands are `make demo` and `make test`. Both first install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Not ?=, as `clean` and `wheels` delete these folders: only the command line of make may name others.
DATA :=
OUT := demo
DIST := dist
SECONDS ?= 60
RUNS ?=
ARGS ?=
NEWEST_PYTHON ?= $(shell for found in python3.13 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.13.*/bin/python; do \
	$$found -c '' 2>/dev/null && echo $$found && break; done)
NEWEST := .venv-newest
NATIVE := $(shell find src -path '*/native/*.[ch]' -o -path '*/native/build.py') src/resnet_tpu/system/c_libraries.py
# Python compiles what it imports. pip would compile everything: 50 of its 115 seconds of CPU time.
PIP_INSTALL := pip install --quiet --no-compile
# The TPU compilers that users may have: those pinned by jax 0.12.0, 0.11.2 and 0.10.2. The first compiles real steps.
LIBTPUS := $(addprefix $(VENV)/libtpus/,0.0.50.1 0.0.48.1 0.0.42.1)
# The compiler for NVIDIA GPUs of the installed JAX release, without the packages needed to run on one.
CUDA := $(VENV)/cuda
# One process per core. Files keep their order: those with few tests take longest, and must not all come last.
PARALLEL := -n auto --dist=loadfile --no-loadscope-reorder
IN_MINUTES := 'not long and not slow and not tpu and not gpu'
# What newer compilers may break.
COMPILED := $(addprefix tests/,models kernels training/test_golden_parity.py training/test_loop.py checkpoints serving)
# The tests mostly compile networks that run once. XLA ends the program at an option that it does not know, and the
# second is gone from the jaxlib that requirements.lock has for Python 3.12 and newer. Called when it is installed.
QUICK = --xla_backend_optimization_level=0$(shell $(1)/python -c 'from importlib.metadata import version; \
	print(" --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else "")')

# Tests start many processes: where this is set, as in many containers, each would compile all modules again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all test-peers test-newest test-slow fuzz check-tpu check-gpu wheels release-check lint format docs pages bench lock clean

demo: $(VENV)/installed  ## train, evaluate and predict on scanned digits; or on your photos: make demo DATA=folder
	$(BIN)/resnet-tpu demo --output_dir='$(OUT)' $(if $(DATA),--data_dir='$(DATA)')

test: $(VENV)/installed  ## all tests except the long and slow ones, in minutes; the long ones: make test ARGS=-mlong
	XLA_FLAGS='$(call QUICK,$(BIN))' $(BIN)/python -m pytest -m $(IN_MINUTES) $(PARALLEL) --durations=20 $(ARGS)

test-all: $(VENV)/installed  ## all tests except the slow ones, with networks compiled as for users
	$(BIN)/python -m pytest -m 'not slow and not tpu and not gpu' $(PARALLEL) --durations=20 $(ARGS)

test-newest:  ## the same on Python 3.13 with the newest releases in the allowed ranges; what they may break, compiled as for users
ifeq ($(NEWEST_PYTHON),)
	@echo "test-newest is skipped: no Python 3.13, neither on the PATH nor among pyenv's"
else
	$(MAKE) $(NEWEST)/installed
	$(NEWEST)/bin/python -m pytest -m $(IN_MINUTES) $(PARALLEL) --durations=10 $(ARGS) $(COMPILED)
	XLA_FLAGS='$(call QUICK,$(NEWEST)/bin)' $(NEWEST)/bin/python -m pytest -m $(IN_MINUTES) $(PARALLEL) --durations=10 $(ARGS) \
		$(addprefix --ignore=,$(COMPILED))
endif

test-peers: $(VENV)/peers/installed $(VENV)/beam/installed  ## what others made, read and written by ours: TensorFlow, emulators, types of services; and hosts on a network
	XLA_FLAGS='$(call QUICK,$(VENV)/peers/bin)' PYTHONPATH=src $(VENV)/peers/bin/python -m pytest -m 'peer or network' $(PARALLEL) --durations=10 $(ARGS)
	PYTHONPATH=src $(VENV)/beam/bin/python -m pytest -m peer --durations=10 $(ARGS) tests/data/prepare/test_beam.py || [ $$? = 5 ]

test-slow: $(VENV)/installed  ## the slow ones
	$(BIN)/python -m pytest -m slow $(PARALLEL) $(ARGS)

fuzz: $(VENV)/fuzz/installed  ## everything that reads what others wrote, for SECONDS each, or with RUNS inputs, the same every time
	PYTHONPATH=src $(VENV)/fuzz/bin/python tests/fuzz/run.py $(if $(RUNS),--runs $(RUNS),--seconds $(SECONDS))

check-tpu: $(VENV)/installed $(LIBTPUS)  ## compile a ResNet-50's step, with each kind of block once, for TPUs that are not here, and a small one with every libtpu that people get; minutes, and Linux on x86-64; whole ones: ARGS=-mtpu
	PYTHONPATH=$(CURDIR)/$(firstword $(LIBTPUS)) LIBTPUS='$(LIBTPUS)' $(BIN)/python -m pytest -m 'tpu and not slow' --durations=10 $(ARGS)

check-gpu: $(VENV)/installed $(CUDA)/installed  ## compile the real ResNet-50 for GPUs that are not here; minutes, and Linux on x86-64
	PYTHONPATH=$(CURDIR)/$(CUDA) $(BIN)/python -m pytest -m gpu --durations=10 $(ARGS)

# jaxlib, which is required anyway, needs the same glibc. auditwheel rejects a wheel that needs a newer one.
wheels: $(VENV)/installed  ## what is published, in dist/: the sdist, and of it a wheel for this processor's Linux that holds the libraries in C and libjpeg-turbo
	rm -rf '$(DIST)'
	$(BIN)/python -m build --outdir '$(DIST)/local' .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_27_$$(uname -m) --only-plat --wheel-dir '$(DIST)' '$(DIST)'/local/*.whl
	mv '$(DIST)'/local/*.tar.gz '$(DIST)'
	rm -r '$(DIST)/local'

release-check: $(VENV)/installed  ## make wheels, install and run them on all Pythons found; minutes, with downloads
	$(BIN)/python -m pytest tests/test_release.py --verbose $(ARGS)

lint: $(VENV)/installed  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed  ## the pages of docs/ and benchmarks/ as a site in site/; fails on dead links
	$(BIN)/sphinx-build --quiet --fail-on-warning --builder html docs site

pages: $(VENV)/installed  ## docs/commands.md, models.md, options.md, recipes.md and reference.md, written from the code
	$(BIN)/python docs/pages.py

bench: $(VENV)/installed  ## short forms of the benchmarks, with the peers that are installed
	for name in flowers variants tf1_reader augment prepare bigtable gcs pieces epoch ceiling; do $(BIN)/python -m benchmarks.$$name --quick || [ $$? = 2 ] || exit 1; done
	for what in masks compact sizes; do $(BIN)/python -m benchmarks.pruned $$what --quick || exit 1; done
	for what in input wait step serve; do $(BIN)/resnet-tpu bench $$what --quick || exit 1; done

lock:  ## resolve the pinned versions again from pyproject.toml; needs uv
	uv pip compile pyproject.toml --universal --python-version 3.11 --extra demo --extra onnx --extra serve --extra gcp --extra hub \
		--group dev --no-annotate --quiet --no-emit-index-url --no-emit-find-links --no-header --upgrade --output-file requirements.lock

clean:
	rm -rf $(VENV) $(NEWEST) '$(OUT)' site jupyter_execute

$(VENV)/installed: requirements.lock pyproject.toml hatch_build.py $(NATIVE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m $(PIP_INSTALL) --requirement requirements.lock
	$(BIN)/python -m $(PIP_INSTALL) --no-deps --editable .
	touch $@

# An environment on top of the other one: plugins that come with a fuzzer would take part in every test, and TensorFlow
# would be imported wherever it is found.
define layer
	$(BIN)/python -m venv $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/installed.pth"
endef
define install_group
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["$(1)"], sep="\n")' \
		| $(@D)/bin/python -m $(PIP_INSTALL) $(2) --requirement /dev/stdin
endef

$(VENV)/fuzz/installed: $(VENV)/installed pyproject.toml
	$(layer)
	$(call install_group,fuzz,--constraint requirements.lock)
	touch $@

$(VENV)/peers/installed: $(VENV)/installed pyproject.toml
	$(layer)
	$(call install_group,peers,--constraint requirements.lock)
	$(call install_group,peers-alone,--no-deps)
	touch $@

$(VENV)/beam/installed: $(VENV)/installed pyproject.toml
	$(layer)
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["beam"], sep="\n")' \
		| $(@D)/bin/python -m $(PIP_INSTALL) --requirement /dev/stdin
	touch $@

$(NEWEST)/installed: pyproject.toml hatch_build.py $(NATIVE)
	rm -rf $(NEWEST)
	$(NEWEST_PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m $(PIP_INSTALL) --upgrade pip
	$(NEWEST)/bin/python -m $(PIP_INSTALL) --group dev --editable '.[demo,onnx,serve,gcp,hub]'
	touch $@

# Each in its own folder, which comes first on Python's path.
$(VENV)/libtpus/%: $(VENV)/installed
	rm -rf $@
	$(BIN)/python -m $(PIP_INSTALL) --no-deps --target $@ libtpu==$*
	touch $@

$(CUDA)/installed: $(VENV)/installed
	rm -rf $(CUDA)
	$(BIN)/python -c 'import jaxlib; print(*(f"jax-cuda13-{part}=={jaxlib.__version__}" for part in ("plugin", "pjrt")))' \
		| xargs $(BIN)/python -m $(PIP_INSTALL) --no-deps --target $(CUDA)
	touch $@
