# make setup | demo | test | lint | man | sample | picture | golden | bench | clean
# Every path below is relative, so a checkout in a folder with spaces works.

PY := .venv/bin/python

.PHONY: setup demo test lint man sample picture golden bench clean

setup: .venv/ready-dev

# The stamps name what is installed: `run` to use rolloutfs, `dev` to work on it as well.
.venv/ready-run: pyproject.toml scripts/setup
	@scripts/setup run

.venv/ready-dev: pyproject.toml scripts/setup tests/interop/npm/package-lock.json
	@scripts/setup dev

demo: .venv/ready-run
	@scripts/demo

test: setup
	$(PY) -m pytest --numprocesses=auto --dist=loadfile $(ARGS)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(wildcard core rolloutfs tests scripts bench)

man: setup
	$(PY) -m scripts.man

sample: setup
	$(PY) -m scripts.sample_archive

picture: setup
	$(PY) -m scripts.picture

golden: setup
	ROLLOUTFS_RENEW_GOLDEN=1 $(PY) -m pytest -q tests/core/test_golden.py

bench: setup
	$(PY) -m bench $(ARGS)

clean:
	rm -rf .venv .codex-interop build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
