# Everything a person or a machine does with micpq. `make demo` and `make test` work on a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
MICPQ := target/release/micpq
PYTHON := $(CURDIR)/.venv/python-tests/bin/python
# Where shared corpora, goldens and weights lie, when they are at hand.
MICPQ_SHARED ?= $(abspath ../shared)
export MICPQ_SHARED

.PHONY: help build demo test fmt lint unit contract page python arm encoders bench-search bench-encode bench-serve clean

help:  ## what there is to do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

build:  ## the release binary, target/release/micpq
	@command -v $(CARGO) >/dev/null || { echo "Rust is needed: install rustup, then 'rustup toolchain install stable'"; exit 1; }
	$(CARGO) build --release --workspace

demo: build  ## fetch news of 1987, train, index, answer questions, leave you at a prompt
	@scripts/demo

test: fmt lint unit arm contract page python  ## format, lints, every test

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

# Debian's names: qemu-user and gcc-aarch64-linux-gnu; rustup target add aarch64-unknown-linux-gnu.
arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := aarch64-linux-gnu-gcc
arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := qemu-aarch64 -L /usr/aarch64-linux-gnu
arm:  ## the kernels' tests for 64-bit Arm, emulated
	@if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null && [ -d "$$(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu" ]; then \
	  $(CARGO) test --release --target aarch64-unknown-linux-gnu -p micpq-kernels --lib; \
	else echo "skipped: qemu-aarch64, aarch64-linux-gnu-gcc or Rust's library for Arm are not installed, so the loops for Arm were not run"; fi

# Requests made up from the server's own description, against the running binary.
contract: .venv-http/made  ## the server keeps to its OpenAPI description (schemathesis)
	MICPQ_SCHEMATHESIS=$(abspath .venv-http/bin/schemathesis) \
	$(CARGO) test --release --workspace --test whole -- serve::the_description_is_kept

# Debian's names: chromium and chromium-driver. SCREENSHOTS=folder keeps what was seen.
page: .venv-http/made  ## the page, driven in a real Chromium
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
	  MICPQ_BROWSER_PYTHON=$(abspath .venv-http/bin/python) $(if $(SCREENSHOTS),MICPQ_SCREENSHOTS=$(abspath $(SCREENSHOTS))) \
	  $(CARGO) test --release --workspace --test whole -- serve::the_page_works; \
	else echo "skipped: chromium and chromedriver are not installed, so the page was not driven"; fi

.venv-http/made: crates/serve/requirements.txt
	python3 -m venv .venv-http
	.venv-http/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# wrk and the peers: make bench-serve ARGS="--documents 100000 --parts ours,report". About 45 minutes for all of it.
bench-serve: .venv-peers/made  ## the server under load, beside pgvector and milvus-lite, into benchmarks/results/serve.md
	@command -v wrk >/dev/null || { echo "wrk is needed: apt-get install wrk"; exit 1; }
	$(CARGO) build --release --workspace
	$(CARGO) build --release --workspace --example fill
	.venv-peers/bin/python benchmarks/serve/bench.py $(ARGS)

.venv-peers/made: benchmarks/serve/requirements.txt
	python3 -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# One wheel for every Python from 3.10 on, in an environment of its own beside the packages it is tested against.
python: .venv/python  ## the Python package: wheel, types, tests, and every command of the guide
	rm -rf target/wheels
	$(PYTHON) -m maturin build --quiet --release --manifest-path crates/python/Cargo.toml --out target/wheels
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall target/wheels/micpq-*.whl
	cd crates/python && MYPYPATH=python $(PYTHON) -m mypy --strict python/micpq tests/typed.py && $(PYTHON) -m pytest -q

.venv/python: crates/python/tests/requirements.txt
	python3 -m venv .venv/python-tests
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# ARGS go to the harness: make bench-search ARGS="scan --bits 64 --documents 1000000"; ARGS=--help lists the stages.
bench-search: .venv/peers build  ## our exact search against FAISS and others, into benchmarks/results/search.md
	$(CARGO) build --release --workspace --example contestant --example keeper
	.venv/bin/python benchmarks/search/bench.py $(ARGS)

# ScaNN and USearch have no wheel for every system: they take part where they install.
.venv/peers: benchmarks/search/requirements.txt benchmarks/search/optional.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r benchmarks/search/requirements.txt
	@while read -r peer; do .venv/bin/pip install --quiet --disable-pip-version-check "$$peer" \
	  || echo "$$peer does not install here: it does not take part"; done < benchmarks/search/optional.txt
	@touch $@

# ARGS go to the harness: make bench-encode ARGS="--encoders minilm --threads 1 --quick".
bench-encode: encoders .venv/encode  ## our encoder against PyTorch, candle, ONNX Runtime and OpenVINO, into benchmarks/results/encode.md
	$(CARGO) build --release --workspace --examples
	.venv/bin/python benchmarks/encode/bench.py $(ARGS)

.venv/encode: benchmarks/encode/requirements.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean:  ## what the build and the demo made
	$(CARGO) clean
	rm -rf work
