# Each target has its own environment, .venv/<name>, so that none depends on what another has installed.
# It is made again when pyproject.toml or its constraints change, and costs nothing otherwise.
#
#   make test ARGS="-k order"      passes arguments on; so does make demo
#   make test ARGS="-n 0 --pdb"    the tests in one process
#   make test PYTHON=python3.12    another interpreter; after `make clean`

PYTHON ?= python3
ARGS ?=

.PHONY: demo test bounds test-gpu integration vision cluster fuzz docs lint format wheel sbom bench-convert bench-cpu bench-gpu clean

demo: .venv/demo/.stamp
	.venv/demo/bin/gdsload demo $(ARGS)

# Three processes are what two cores are busy with: tests also wait. All tests of a file run in one of them, or fixtures
# of the file are made in each. Whatever the environment says, compiled modules are kept, or each process compiles all
# tests again; and threads that wait sleep, since other processes want the core.
PROCESSES := -n 3 --dist loadfile --no-loadscope-reorder
test bounds: export PYTHONDONTWRITEBYTECODE :=
test bounds: export OMP_WAIT_POLICY := passive
test: .venv/test/.stamp
	.venv/test/bin/python -m pytest $(PROCESSES) $(ARGS)

# The tests with the lowest versions that pyproject.toml claims. Gigabytes: builds of torch that are not the newest may
# be had with CUDA alone.
bounds: .venv/bounds/.stamp
	.venv/bounds/bin/python -W error -c "from gdsload import *"
	.venv/bounds/bin/python -m pytest $(PROCESSES) $(ARGS)

# On a machine with GPUs, in the Python at hand; a skip for want of one of these is a failure. A whole run is recorded.
REQUIRE ?= cuda,cufile,two
test-gpu:
	GDSLOAD_REQUIRE=$(REQUIRE) $(PYTHON) tools/gpu_suite.py $(ARGS)

# Frameworks that a loader is handed to. Their own warnings are not our business.
integration: .venv/integration/.stamp
	GDSLOAD_SUITE=integration .venv/integration/bin/python -m pytest -W default tests/integration $(ARGS)

# torchvision's and albumentations' transforms, by themselves: tests/vision/conftest.py says why.
vision: .venv/vision/.stamp
	GDSLOAD_SUITE=vision .venv/vision/bin/python -m pytest -W default tests/vision $(ARGS)

# Conversions on Dask and Ray, as they come: clusters of two workers on this machine.
cluster: .venv/cluster/.stamp
	GDSLOAD_SUITE=cluster .venv/cluster/bin/python -m pytest -W default tests/cluster $(ARGS)

# Random inputs for what reads strangers' bytes, in as many processes as there are targets, one after the other.
fuzz: .venv/fuzz/.stamp
	.venv/fuzz/bin/python -m tests.fuzz --runs 100000 $(ARGS)

# The site, in dist/site. A warning is a failure: a link that leads nowhere, a name that is gone. Links to other sites
# are tried by make docs ARGS="-b linkcheck", which needs the network.
docs: .venv/docs/.stamp
	.venv/docs/bin/python -m sphinx -W --keep-going -q -c docs -b html . dist/site $(ARGS)

lint: .venv/lint/.stamp
	.venv/lint/bin/ruff check
	.venv/lint/bin/ruff format --check
	.venv/lint/bin/mypy
	$(if $(wildcard tests/typing),.venv/lint/bin/mypy tests/typing)
	.venv/lint/bin/lint-imports --no-logo
	.venv/lint/bin/python tools/limits.py

format: .venv/lint/.stamp
	.venv/lint/bin/ruff check --fix
	.venv/lint/bin/ruff format

# The package as users get it: the wheel is built from the sdist, and runs where there is nothing else.
wheel: .venv/build/.stamp
	rm -rf dist .venv/empty
	.venv/build/bin/python -m build --outdir dist .
	$(PYTHON) -m venv .venv/empty
	.venv/empty/bin/python $(INSTALL) dist/gdsload-*.whl
	cd .venv/empty && bin/python -W error -c "from gdsload import *; print(__version__)"
	cd .venv/empty && bin/python -W error -c "$(CHECK_WHEEL)"
	cd .venv/empty && bin/python -m gdsload --help

# An SBOM of what users install, dist/sbom.json, and the table of docs/licences.md. pip resolves that, and installs
# nothing, but must be offered the torch that users get: PIP_CONFIG_FILE=/dev/null, where yours is offered CPU builds.
sbom: .venv/sbom/.stamp
	.venv/sbom/bin/python tools/sbom.py --out dist/sbom.json

# One peer wants older versions of what the others share. The table of benchmarks/README.md is replaced.
RECORD := benchmarks/results/cpu.json
bench-cpu: .venv/bench/.stamp .venv/mosaicml/.stamp
	.venv/bench/bin/python -m benchmarks.cpu --out $(RECORD) --python mosaicml=.venv/mosaicml/bin/python $(ARGS)
	.venv/bench/bin/python -m benchmarks.table $(RECORD) --write benchmarks/README.md

CONVERT_RECORD := benchmarks/results/convert.json
CSV_RECORD := benchmarks/results/convert-csv.json
bench-convert: .venv/bench/.stamp .venv/mosaicml/.stamp
	.venv/bench/bin/python -m benchmarks.convert --out $(CONVERT_RECORD) --kinds array images --python mosaicml=.venv/mosaicml/bin/python $(ARGS)
	.venv/bench/bin/python -m benchmarks.convert.table $(CONVERT_RECORD) --write benchmarks/convert/README.md
	.venv/bench/bin/python -m benchmarks.convert --out $(CSV_RECORD) --kinds table $(ARGS)
	.venv/bench/bin/python -m benchmarks.convert.table $(CSV_RECORD) --write benchmarks/convert/README.md --mark csv

# On a machine with a GPU, in the Python at hand; benchmarks/gpu/peers.txt is what it needs besides torch and cupy.
LOADERS := benchmarks/results/gpu-loaders.json
bench-gpu:
	$(PYTHON) -m benchmarks.gpu.suite --out $(LOADERS) $(ARGS)
	$(PYTHON) -m benchmarks.gpu.suite.table $(LOADERS) --write benchmarks/gpu/README.md

clean:
	rm -rf .venv dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# -qq: errors only. The rest of what pip says drowns what the targets say.
PIP := -m pip install -qq --disable-pip-version-check
INSTALL := $(PIP) -c constraints.txt

# Type checkers of users look for py.typed, and the version is written in two places.
define CHECK_WHEEL
import gdsload, importlib.metadata as metadata, importlib.resources as resources; \
assert gdsload.__version__ == metadata.version('gdsload'), 'gdsload.__version__ differs from the wheel\'s'; \
assert resources.files(gdsload).joinpath('py.typed').is_file(), 'py.typed is not in the wheel'
endef

.venv/%/.stamp: pyproject.toml constraints.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) -e '.[$*]'
	touch $@

# Not the pattern above: the builder must not find gdsload installed.
.venv/build/.stamp: constraints.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) build
	touch $@

# Nor the pattern: gdsload need not be installed for this, and a venv's own pip may be too old to report licences.
.venv/sbom/.stamp: constraints.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) cyclonedx-python-lib packaging 'pip>=25'
	touch $@

# Not the pattern either: constraints.txt does not hold here, nor below.
.venv/bounds/.stamp: pyproject.toml constraints-lowest.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) -c constraints-lowest.txt -e '.[test]'
	touch $@

.venv/mosaicml/.stamp: benchmarks/mosaicml.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) -r benchmarks/mosaicml.txt
	touch $@
