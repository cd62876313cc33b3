# Everything a newcomer needs. Each target sets up what it needs first and is safe to repeat.
#   make demo   a trained policy moves the embedded robot through ROS 2, and a report is written
#   make test   lint, types and every test
PYTHON ?= python3
RUN := tools/run_in_workspace.sh

.PHONY: help setup demo test test-fast lint bench docs clean

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@$(PYTHON) tools/bootstrap.py

demo: setup
	@$(RUN) sparkrt demo $(DEMO_ARGS)

test: lint
	@$(RUN) python tools/run_tests.py $(TEST_ARGS)

test-fast: setup
	@$(RUN) python -m pytest -m "not ros and not slow" $(TEST_ARGS)

lint: setup
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) python tools/generate_parameters.py --check

bench: setup
	@$(RUN) python bench/run_all.py $(BENCH_ARGS)

docs: setup
	@$(RUN) python tools/generate_parameters.py

clean:
	rm -rf .venv build install log .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
