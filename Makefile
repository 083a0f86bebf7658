# Each target makes its own environment (.venv) the first time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

# The tests start hundreds of Python processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# `make test WORKERS=2` (and test-full) runs the tests file by file on so many processes, for most of them wait for
# processes, in the order of tests/file_order.txt; what holds figures of a load, drives a browser or starts a cluster
# has the cores for itself, at the end.
WORKERS ?= 1
MEASURES := $(addprefix tests/profiling/test_,\
	ab.py kernel_load.py measuring.py split_is_perf_analyzers.py stability.py streams.py)
ALONE := tests/cli/test_compared.py tests/cli/test_demo.py tests/live/test_live_edit.py tests/faults/test_faults.py tests/notebooks \
	tests/distributed/test_ray_sweeps.py tests/distributed/test_remote_generators.py $(MEASURES)
# A process that dies is not replaced: pytest-xdist would wait for ever. What was not run is told (tests/conftest.py).
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 $(ALONE:%=--ignore=%)

# Runs the tests that $(1) selects.
define run_tests
$(if $(filter 1,$(WORKERS)),$(BIN)/python -m pytest $(1),status=0; set -x; \
	$(BIN)/python -m pytest $(1) $(SPREAD) || status=1; $(BIN)/python -m pytest $(1) $(ALONE) || status=1; exit $$status)
endef

.PHONY: demo test test-full soak lab check bench models gpu-check gpu-archive clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -e '.[samples,lab,dev]'
	touch $(STAMP)

env: $(STAMP)

# The main job on real models: serve, sweep, choose, export. Writes runs/demo/summary.json.
demo: $(STAMP)
	$(BIN)/workbench demo

models: $(STAMP)
	$(BIN)/workbench models build

test: $(STAMP)
	@$(call run_tests,)

# Adds the heavy ones (the real tritonserver, perf_analyzer) and the long proofs at a tenth of their size or less.
test-full: $(STAMP)
	@$(call run_tests,-m full)

# The long proofs at full size: 10,000 random histories of each scheduler, the engine's own among them; 200,000 mutated
# requests; each way in which a model's process can fail, 50 times; a sweep that is killed, 20 times.
soak: $(STAMP)
	WORKBENCH_HISTORIES=$${WORKBENCH_HISTORIES:-10000} WORKBENCH_FUZZ=$${WORKBENCH_FUZZ:-200000} \
	WORKBENCH_FAULTS=$${WORKBENCH_FAULTS:-50} WORKBENCH_KILLS=$${WORKBENCH_KILLS:-20} \
	WORKBENCH_RACES=$${WORKBENCH_RACES:-40} $(BIN)/python -m pytest -m soak --timeout 3600

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check workbench tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py

lab: $(STAMP)
	$(BIN)/jupyter lab notebooks

bench: $(STAMP)
	for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python $$f --quick || exit 1; done

# One NVIDIA machine, step by step (docs/gpu_check.md). Exit code 2: nothing failed, but not everything could be shown.
gpu-check: $(STAMP)
	PYTHONPATH=benchmarks $(BIN)/python -m gpu.check --out artifacts/gpu

# The same for a machine with numpy, torch and onnxruntime only, as one file: `python gpu_check.zip`.
gpu-archive: $(STAMP)
	PYTHONPATH=benchmarks $(BIN)/python -m gpu.archive --to artifacts/gpu_check.zip

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache runs artifacts
