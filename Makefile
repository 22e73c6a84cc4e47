# make demo and make test are all a newcomer needs; both set up what is missing and may be run again.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
# the locked CPU build; `make REQUIREMENTS=requirements/cuda.txt ...` for another
REQUIREMENTS ?= requirements/cpu.txt
BIN := .venv/bin
MINUTES ?= 3
# threads that spin beside busy test processes cost an order of magnitude (docs/experiments/processes.md)
# the tests start many processes: each would compile the package again where bytecode is not kept
# they write, synchronise and delete small files by the thousand: in memory, where 4 GB of it are free for files and compiled
# ones may be run there
TEMPORARY := $(shell grep -qs ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts || df -k --output=avail /dev/shm 2> /dev/null | awk 'NR == 2 && $$1 > 4000000 { print "/dev/shm" }')
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(if $(TEMPORARY),PYTEST_DEBUG_TEMPROOT=$(TEMPORARY)) $(BIN)/python -m pytest -n 2

# ten ratios beside those logged: make benchmark-quick; side by side with other libraries, at length: make benchmark-training ARGUMENTS="--nanogpt PATH" (and so on, benchmarks/)
benchmark-%: setup
	$(BIN)/python -m benchmarks.$(subst -,_,$*) $(ARGUMENTS)

.PHONY: demo test test-slow test-floor installed release-check test-gpu gpu-drill drills mutants counts check docs lessons site format lint types fast setup clean

.venv/.ready: $(REQUIREMENTS) pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, found " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -r $(REQUIREMENTS)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/pyright --version > /dev/null 2>&1 || echo "pyright could not fetch Node.js: make types will try again"
	touch $@

setup: .venv/.ready

demo: setup
	@$(BIN)/python -m pellucid.demo $(if $(FRESH),--fresh) --minutes $(MINUTES)

# the network's tests run with every shape annotation checked, which compiled graphs cannot be
SHAPES := tests/model tests/conformance/test_engine_forward.py tests/laws/test_tap.py tests/laws/test_cache.py

test: setup
	$(TEST) -m "not slow and not gpu" --examples 0.1 --jaxtyping-packages=pellucid.model,beartype.beartype $(SHAPES)
	$(TEST) -m "not slow and not gpu" --examples 0.1 $(addprefix --ignore=,$(SHAPES))

# two trainings side by side, a thread each: two threads for one training are no twice as fast
test-slow: setup .venv/.docs .clients/.ready installed
	$(TEST) --dist loadgroup -m slow
	$(TEST) -m "property and not slow and not gpu"  # with all of their examples

# the wheel alone in environments of its own: with the locked versions, and with the lowest that pyproject.toml allows
installed: setup
	$(BIN)/python tests/wheel_environments.py locked lowest

test-floor: installed
	$(TEST) -n 0 -m slow tests/slow/test_installed.py

# what a release needs: tests/release_check.py says what it checks and what is left to do; it uploads nothing
release-check: setup build/release/tools/.ready
	$(BIN)/python -m tests.release_check

build/release/tools/.ready: .venv/.ready requirements/release.txt
	$(PYTHON) -m venv build/release/tools
	build/release/tools/bin/python -m pip install --disable-pip-version-check --no-deps -r requirements/release.txt
	touch $@

# on a machine with an NVIDIA GPU: make test-gpu REQUIREMENTS=requirements/cuda.txt (on another pytest finds no test)
test-gpu: setup
	$(TEST) -m gpu

# what to ask a GPU in the minutes that one is at hand; a dry run: make gpu-drill DEVICE=cpu SCALE=tiny
gpu-drill: setup
	$(BIN)/python -m benchmarks.gpu_drill --device $(or $(DEVICE),cuda) --scale $(or $(SCALE),full) --out build/gpu-drill.jsonl

# faults in real processes, at full count: make drills ARGUMENTS="--share 0.1" (tests/drills.py)
drills: setup
	OMP_NUM_THREADS=1 PYTHONPATH=src $(BIN)/python tests/drills.py $(ARGUMENTS)

# is the code tested? make mutants ARGUMENTS="reference --count 300 --seed 0" (tests/mutants.py; some minutes a room)
mutants: setup
	OMP_NUM_THREADS=1 PYTHONPATH=src nice -n 15 $(BIN)/python tests/mutants.py $(ARGUMENTS)

# how much there is to read: lines of each language, and the files that name an option of the architecture
counts: setup
	@PYTHONPATH=src $(BIN)/python tests/house/counts.py

format: setup
	$(BIN)/ruff format src tests examples docs benchmarks

lint: setup
	$(BIN)/ruff format --check src tests examples docs benchmarks
	$(BIN)/ruff check src tests examples docs benchmarks

# the source, and every line of Python in README.md and docs/*.md
types: setup
	$(BIN)/pyright
	$(BIN)/python docs/collect_python.py build/pages
	$(BIN)/pyright --pythonpath $(BIN)/python --project build/pages/pyrightconfig.json

fast: setup
	$(TEST) -q -m "not slow and not gpu"  # all in one, shapes unchecked

check: format lint types fast

docs: setup
	$(BIN)/python docs/build_mathematics.py

.venv/.docs: .venv/.ready requirements/docs.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements/docs.txt
	touch $@

# clients of other projects, with versions of their own; torch and transformers are those of .venv
.clients/.ready: .venv/.ready requirements/clients.txt
	$(PYTHON) -m venv .clients
	.clients/bin/python -m pip install --disable-pip-version-check --no-deps -r requirements/clients.txt
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(.clients/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_main.pth
	touch $@

# five pages for a class, each of a small model that is trained for it (two minutes in all): build/lessons/*.html
build/lessons/.ready: .venv/.ready docs/build_lessons.py
	$(BIN)/python docs/build_lessons.py build/lessons
	touch $@

lessons: build/lessons/.ready

# the documentation as pages that open offline: build/site/index.html
site: .venv/.docs build/lessons/.ready
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "open build/site/index.html"

clean:
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis
