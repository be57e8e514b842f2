# Everything sets itself up from a bare Python >= 3.10: the first target that needs it builds .venv.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
EXTRAS = vision,report
THREADS ?= 1
TORCH ?= torch
# each process takes whole stretches of the suite, so that what the tests of a file share is mostly made once
# One more than two cores: tests wait for the processes that they start.
SPLIT = -n 3 --dist worksteal
# hundreds of processes that tests start read what the first has compiled, also where a shell forbids to write that down
TESTED = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$(THREADS) $(RUN) -m pytest

.PHONY: demo demo-gpus matrices test test-fast test-card card-mutants slow-tests test-torch check site gpu bench docs clean

demo: $(VENV)/.demo  ## the ladder on real data: plain training against every technique, measured
	$(RUN) -m snugfit ladder examples/digits_vit.py:model --data digits --out runs/demo --overwrite \
		--epochs 5 --lr 2e-3 --lr-schedule cosine --warmup-steps 60 --sgd-lr 0.05

demo-gpus: $(VENV)/.demo  ## four processes on this CPU: memory by process, predicted beside measured
	PYTHONPATH=src:. $(RUN) -m benchmarks.demo_gpus --out runs/demo-gpus

test: $(VENV)/.dev  ## the whole test suite; THREADS=2: with two threads of computation in each process
	$(TESTED) $(SPLIT)

test-fast: $(VENV)/.dev  ## what a change most likely breaks, in under 90 seconds on two cores
	$(TESTED) $(SPLIT) -m "not slow"

slow-tests: $(VENV)/.dev  ## times the whole suite, and writes down what test-fast leaves out
	mkdir -p build
	$(TESTED) $(SPLIT) --junitxml build/tests.xml
	$(RUN) tests/slow_tests.py build/tests.xml

test-card: $(VENV)/.dev  ## what needs a card, on the pretend card (or a GPU, where there is one); part of make test
	$(TESTED) -n 2 tests/gpu tests/cpu/pretend_card

card-mutants: $(VENV)/.dev  ## takes out each wait and event of the copying code, and says which the tests notice
	OMP_NUM_THREADS=1 $(RUN) tests/card_mutants.py --write

matrices: $(VENV)/.dev  ## every model by every way to share it out, and every configuration by short recordings
	WHOLE_MATRIX=1 $(TESTED) tests/cpu/techniques/test_ranks_matrix.py tests/cpu/simulator/test_equal_blocks.py

test-torch:  ## the whole test suite with another torch, in an environment of its own: make test-torch VERSION=2.11.0
	@test -n "$(VERSION)" || { echo "say which torch: make test-torch VERSION=2.11.0" >&2; exit 2; }
	$(MAKE) test VENV=.venv-torch-$(VERSION) TORCH=torch==$(VERSION)

check: $(VENV)/.dev site  ## lint, formatting, types, which room may import which, the container file, and that the site builds
	$(RUN) -m ruff check src tests benchmarks examples
	$(RUN) -m ruff format --check src tests benchmarks examples
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/hadolint Containerfile

site: $(VENV)/.dev  ## the documentation as a site in build/site; a link that leads nowhere ends it
	$(VENV)/bin/zensical build --strict

gpu:  ## what needs a CUDA device, with the interpreter and packages at hand; installs nothing, does what is missing
	@status=0; \
	PYTHONPATH=src:. $(PYTHON) -m pytest tests/gpu || status=$$?; \
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.gpu --device cuda || status=$$?; \
	exit $$status

bench: $(VENV)/.dev  ## regenerate benchmarks/results on this CPU, in under 15 minutes on two cores
	$(RUN) -m benchmarks.gpu --device cpu --minutes 10.5 --rows 90 --again
	$(RUN) -m benchmarks.techniques --pairs 6

docs: $(VENV)/.dev  ## regenerate what holds numbers or repeats the code, from results and docstrings
	$(RUN) -m benchmarks.technique_pages
	$(RUN) -m benchmarks.report
	$(RUN) -m benchmarks.documents

clean:
	rm -rf $(VENV) .venv-torch-* runs build .cache

$(VENV)/bin/python:
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 10), 'snugfit needs Python 3.10 or newer'"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet -e '.[$(EXTRAS)]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet -e '.[$(EXTRAS),text,lowbit,dev]' '$(TORCH)'
	touch $@ $(VENV)/.demo
