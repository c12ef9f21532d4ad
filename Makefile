# Everything a person or a machine does with micpq. `make demo` and `make test` work on a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
MICPQ := target/release/micpq
# Where shared corpora, goldens and weights lie, when they are at hand.
MICPQ_SHARED ?= $(abspath ../shared)
export MICPQ_SHARED

.PHONY: help build demo test fmt lint unit encoders bench-search bench-encode clean

help:  ## what there is to do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

build:  ## the release binary, target/release/micpq
	@command -v $(CARGO) >/dev/null || { echo "Rust is needed: install rustup, then 'rustup toolchain install stable'"; exit 1; }
	$(CARGO) build --release -p micpq-cli

demo: build  ## fetch news of 1987, train, index, answer questions, leave you at a prompt
	@scripts/demo

test: fmt lint unit  ## format, lints, every test

fmt:
	$(CARGO) fmt --all --check

# Warnings are errors here and only here: a compiler of tomorrow must not break a user's build.
lint:
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

# The real encoders where shared/ is at hand; without them the tests that need them say that they skipped.
encoders:
	@if [ -x "$(MICPQ_SHARED)/models/get" ]; then "$(MICPQ_SHARED)/models/get" >/dev/null; \
	else echo "skipped: no encoders beside this checkout; tests that need real weights will say so"; fi

unit: encoders
	$(CARGO) test --release --workspace

# ARGS go to the harness: make bench-search ARGS="--bits 64 --documents 1000000".
bench-search: .venv/faiss  ## our exact scan against FAISS, into benchmarks/results/search.md
	$(CARGO) build --release -p micpq --example contestant
	.venv/bin/python benchmarks/search/bench.py $(ARGS)

.venv/faiss: benchmarks/search/requirements.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# ARGS go to the harness: make bench-encode ARGS="--encoders minilm --threads 1 --quick".
bench-encode: encoders .venv/encode  ## our encoder against PyTorch, ONNX Runtime and OpenVINO, into benchmarks/results/encode.md
	$(CARGO) build --release --workspace --examples
	.venv/bin/python benchmarks/encode/bench.py $(ARGS)

.venv/encode: benchmarks/encode/requirements.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean:  ## what the build and the demo made
	$(CARGO) clean
	rm -rf work
