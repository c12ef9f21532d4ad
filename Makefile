# Every task of micpq. `make demo` and `make test` work on a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
MICPQ := target/release/micpq
PYTHON := $(CURDIR)/.venv/python-tests/bin/python
# Folder of shared corpora, golden files and weights. It may be absent.
MICPQ_SHARED ?= $(abspath ../shared)
export MICPQ_SHARED

.PHONY: help build demo test steps fmt features lint words modules figures unit contract page pictures javascript javascript-types mcp backups python ray ray-wheel ray-openapi adapters arm wasm wasm-check encoders rustdoc package lean deny \
  test-crash soak fuzz sanitize miri sbom lock bench-search bench-encode bench-serve bench-query bench-build bench-query-encoder bench-web bench-ray scale-plan bench-languages bench-dedup bench-topics bench-guide-search encoder-goldens clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

build:  ## build the release binary, target/release/micpq
	@command -v $(CARGO) >/dev/null || { echo "make: Rust is not installed; install rustup, then run 'rustup toolchain install stable'"; exit 1; }
	$(CARGO) build --release --workspace

demo: build  ## fetch news of 1987, train, index, answer queries, end at a prompt
	@scripts/demo

test:  ## check format, lints, words and figures, run every test, and list what was skipped
	@mkdir -p target
	@set +e; $(MAKE) --no-print-directory steps 2>&1 | tee target/test.log; status=$${PIPESTATUS[0]}; \
	scripts/skipped target/test.log; exit $$status

# One after the other, quick checks first.
steps: fmt features lint words modules figures package wasm-check unit arm contract page javascript mcp backups python ray adapters charts

# `cargo fmt` does not look into the macro that declares the methods.
fmt:  ## check the format of the Rust code
	$(CARGO) fmt --all --check
	rustfmt --edition 2024 --check crates/methods/src/*.rs

features:  ## check that every crate is compiled with the features of the workspace
	scripts/check-features

# Warnings are errors only here: a newer compiler must not break a user's build.
lint:  ## clippy, with warnings as errors
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

words:  ## check that no retired word of docs/glossary.md is used
	scripts/check-words

modules:  ## check that no modules of a crate need each other
	scripts/check-modules

figures:  ## check that every figure of the README and the guide is in a results file
	scripts/check-figures --self-test
	scripts/check-figures

# Outside `test`: a newer compiler may find new warnings in the documentation, and a new advisory may appear on any day. The front of a
# module names its private parts, for who reads the source.
rustdoc:  ## build the API documentation of the libraries, with warnings as errors
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --no-deps --workspace --exclude micpq-cli --exclude micpq-python

# Every crate that can be published, packed as a registry would take it.
PUBLISHED := kernels web cuda engine train methods paper serve mcp backups cli
package:  ## pack every published crate
	$(CARGO) package --quiet --no-verify --allow-dirty -p micpq $(foreach crate,$(PUBLISHED),-p micpq-$(crate))

# A release alone runs these (.github/workflows/publish.yml). ARGS=--dry-run tries them.
.PHONY: publish-crates publish-npm
publish-crates:  ## hand every published crate to crates.io, each after those it depends on
	$(CARGO) publish $(ARGS) -p micpq $(foreach crate,$(PUBLISHED),-p micpq-$(crate))

publish-npm:  ## hand the JavaScript client to npm
	cd clients/javascript && npm publish --access public $(ARGS)

lean:  ## check the library without CUDA, Parquet, HDF5 and the hub
	$(CARGO) check --release -p micpq --no-default-features
	@! $(CARGO) tree -p micpq --no-default-features -e normal --prefix none | grep -E '^(arrow[a-z-]*|cudarc|hdf5-pure|libloading|parquet|ureq|zip) '

deny:  ## check licences and advisories of the dependencies (cargo-deny)
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "skipped: cargo-deny is not installed, so licences and advisories were not checked"; fi

# Fetches the real encoders if the shared folder exists. Without them, tests that need real weights say that they skip.
encoders:
	@if [ -x "$(MICPQ_SHARED)/models/get" ]; then "$(MICPQ_SHARED)/models/get" >/dev/null; \
	else echo "skipped: no encoders in $(MICPQ_SHARED); tests that need real weights say so"; fi

# Passing tests show their output too: it says what they skip. Panics of dependencies that tests provoke are left out.
unit: encoders  ## run the Rust tests
	RUST_BACKTRACE=0 $(CARGO) test --release --workspace -- --show-output 2>&1 | grep -v '/registry/src/'

# Needs the Debian packages qemu-user and gcc-aarch64-linux-gnu, and `rustup target add aarch64-unknown-linux-gnu`.
arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := aarch64-linux-gnu-gcc
arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := qemu-aarch64 -L /usr/aarch64-linux-gnu
arm:  ## run the tests of the kernels for 64-bit Arm, emulated
	@if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null && [ -d "$$(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu" ]; then \
	  $(CARGO) test --release --target aarch64-unknown-linux-gnu -p micpq-kernels --lib; \
	else echo "skipped: qemu-aarch64, aarch64-linux-gnu-gcc or Rust's library for Arm is not installed, so the Arm kernels were not tested"; fi

# The short forms of these run in `unit`. Power cuts on real file systems need root, mkfs.ext4, mkfs.xfs and mkfs.btrfs.
test-crash:  ## kill the program, fail its I/O and cut its power, about an hour; results in docs/reliability.md
	MICPQ_POWER_ROUNDS=60 $(CARGO) test --release -p micpq-engine --lib -- power --nocapture
	MICPQ_KILLS=1000 MICPQ_SERVER_KILLS=200 MICPQ_FAULTS=1000000 MICPQ_SERVER_FAULTS=20 MICPQ_CUTS=100 MICPQ_HISTORY_SECONDS=120 \
	$(CARGO) test --release --workspace --test whole -- crash:: --nocapture --test-threads 1

# DURATION=3600 is the long form.
soak: DURATION ?= 60
soak:  ## mixed and hostile load on a server for DURATION seconds (60): memory, descriptors, files and log stay flat; ten million codes in 128 MiB
	MICPQ_SOAK_SECONDS=$(DURATION) $(CARGO) test --release --workspace --test whole -- soak:: --ignored --nocapture
	$(CARGO) test --release --workspace --test memory_limit -- --ignored --nocapture

# Needs `rustup toolchain install nightly` and `cargo install cargo-fuzz`. The bounds are those of crates/fuzz/src/lib.rs.
TARGETS ?= filter cursor corpus npy vectors faiss blocks model encoder http
fuzz: DURATION ?= 60
fuzz:  ## search for hostile input with libFuzzer, DURATION seconds (60) for each of TARGETS
	@$(CARGO) +nightly fuzz --version >/dev/null || { echo "make: nightly Rust or cargo-fuzz is not installed"; exit 1; }
	for target in $(TARGETS); do mkdir -p fuzz/corpus/$$target && \
	  $(CARGO) +nightly fuzz run $$target fuzz/corpus/$$target crates/fuzz/seeds/$$target -- \
	    -max_total_time=$(DURATION) -malloc_limit_mb=192 -rss_limit_mb=4096 -timeout=20 -max_len=65536 -verbosity=0 -print_final_stats=1 || exit 1; done

# Both need `rustup toolchain install nightly`; Miri also its components miri and rust-src.
sanitize:  ## run the tests of the kernels under AddressSanitizer
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test --release --target x86_64-unknown-linux-gnu --target-dir target/sanitize -p micpq-kernels --lib

# SIMD instructions are not interpreted: Miri runs the references and the layout of packed codes.
miri:  ## interpret the reference code of the kernels with Miri
	MIRIFLAGS=-Zmiri-env-forward=MICPQ_SIMD MICPQ_SIMD=reference PROPTEST_CASES=2 \
	$(CARGO) +nightly miri test --target-dir target/miri -p micpq-kernels --lib -- scan::layout scan::topk scan::bound lanes

sbom:  ## write a bill of materials of every crate (cargo-cyclonedx)
	@if $(CARGO) cyclonedx --version >/dev/null 2>&1; then $(CARGO) cyclonedx --format json --all; \
	else echo "skipped: cargo-cyclonedx is not installed, so no bill of materials was written"; fi

# Needs uv. A requirements.txt says what is meant, the lock beside it what is installed: all of it, so pip looks for nothing else
# (--no-deps). It would take a newer release than the lock's for a package that another one wants with extras, and refuse its hash.
lock:  ## write the lock files of the Python packages that tests and benchmarks use
	for folder in crates/serve crates/mcp/tests crates/backups/tests crates/python/tests crates/python/tests_ray \
	  crates/python/tests_adapters benchmarks/search benchmarks/serve; do (cd $$folder && \
	  UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile -q --universal --python-version 3.11 --generate-hashes requirements.txt -o requirements.lock); done

# What is handed out, for each of ARCHITECTURES, and the tests of it. Needs the targets of rustup, root, and the Debian packages
# binutils, buildah, mmdebstrap and qemu-user. The first time it compiles everything once for each of two targets per architecture.
.PHONY: dist dist-tools dist-clean
ARCHITECTURES ?= x86_64 aarch64
dist: dist-tools  ## build and test static programs, wheels, Debian packages and container images, into target/packages
	for arch in $(ARCHITECTURES); do for step in program deb image check-program wheel check-wheel; do packaging/$$step $$arch; done; done
	packaging/check-deb
	packaging/check-image
	packaging/source
	cd target/packages && sha256sum micpq-* micpq_* > SHA256SUMS && cat SHA256SUMS

dist-tools: .venv-dist/made
	rustup target add $(foreach arch,$(ARCHITECTURES),$(arch)-unknown-linux-musl $(arch)-unknown-linux-gnu)

.venv-dist/made: packaging/requirements.txt
	python3 -m venv .venv-dist
	.venv-dist/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

dist-clean:  ## remove what `make dist` compiled; target/packages stays
	rm -rf target/dist

# The Helm chart with helm (GOBIN=$PWD/target/tools/bin go install helm.sh/helm/v3/cmd/helm@latest), the formula with Debian's ruby.
.PHONY: charts formula
charts: .venv-charts/made  ## lint the Helm chart and the Homebrew formula; says what it skips
	.venv-charts/bin/python packaging/check-chart
	packaging/check-formula

.venv-charts/made: packaging/charts-requirements.txt
	python3 -m venv .venv-charts
	.venv-charts/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

formula:  ## write the Homebrew formula of what `make dist` packed, into target/packages/micpq.rb
	packaging/formula target/packages/SHA256SUMS target/packages/micpq.rb

# mdBook is compiled once, which takes minutes. The search of the guide needs the encoder, as every build of an index does.
.PHONY: site
MDBOOK := target/tools/bin/mdbook
SITE := target/site
site: encoders $(MDBOOK) .venv-http/made build  ## build the guide as a site that micpq searches in the browser, into target/site/html
	scripts/guide check
	mkdir -p $(SITE)
	scripts/guide pages $(SITE)/src
	scripts/guide sections $(SITE)/sections.jsonl
	scripts/guide prose $(SITE)/prose.jsonl
	$(MICPQ) build $(SITE)/sections.jsonl --bits 128 --quiet --force -o $(SITE)/guide.micpq
	$(MICPQ) distill $(SITE)/guide.micpq --corpus $(SITE)/prose.jsonl --code-width 256 --quiet
	$(MICPQ) export $(SITE)/guide.micpq --to web --title "The guide of micpq" --quiet -o $(SITE)/src/find
	$(MDBOOK) build
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then .venv-http/bin/python scripts/check-site $(SITE)/html; \
	else echo "skipped: chromium or chromedriver is not installed, so the search of the guide was not tried"; fi

$(MDBOOK):
	$(CARGO) install mdbook --version 0.5.4 --locked --no-default-features --features search --root target/tools

# Needs what `site` makes.
bench-guide-search: site  ## measure how well the search of the guide finds pages, into benchmarks/results/guide-search.md
	benchmarks/guide-search/run $(MICPQ) $(SITE)/guide.micpq --results benchmarks/results/guide-search.md

# Types for systems on which nothing is run here. C code of dependencies is compiled, nothing is linked. Windows needs the Debian packages
# gcc-mingw-w64-x86-64-posix and g++-mingw-w64-x86-64-posix; macOS a Mac, or another compiler of C for it.
.PHONY: check-foreign
FOREIGN ?= x86_64-pc-windows-gnu
check-foreign:  ## check that the program compiles for FOREIGN (x86_64-pc-windows-gnu), without linking or running it
	@if [ "$(FOREIGN)" = x86_64-pc-windows-gnu ] && ! command -v x86_64-w64-mingw32-gcc >/dev/null; then \
	  echo "skipped: x86_64-w64-mingw32-gcc is not installed, so nothing was checked for $(FOREIGN)"; \
	else rustup target add $(FOREIGN) && $(CARGO) check --release --target $(FOREIGN) -p micpq-cli; fi

# Schemathesis generates requests from the server's OpenAPI description and sends them to the running binary.
contract: .venv-http/made  ## check the server against its OpenAPI description (schemathesis)
	MICPQ_SCHEMATHESIS=$(abspath .venv-http/bin/schemathesis) \
	$(CARGO) test --release --workspace --test whole -- serve::answers_match_the_openapi_description

# Needs the Debian packages chromium and chromium-driver. SCREENSHOTS=folder stores screenshots.
page: .venv-http/made  ## test the web page in Chromium
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
	  MICPQ_BROWSER_PYTHON=$(abspath .venv-http/bin/python) $(if $(SCREENSHOTS),MICPQ_SCREENSHOTS=$(abspath $(SCREENSHOTS))) \
	  $(CARGO) test --release --workspace --test whole -- serve::the_page_works query_encoder::the_page; \
	else echo "skipped: chromium or chromedriver is not installed, so the web page was not tested"; fi

# Needs Node and npm. `unit` builds the program.
javascript:  ## test the JavaScript client against a running server
	@if command -v npm >/dev/null; then cd clients/javascript && npm ci --silent --no-audit --no-fund && npm run --silent check && npm test --silent; \
	else echo "skipped: npm is not installed, so the JavaScript client was not tested"; fi

# The official client of the protocol in an environment of its own.
mcp: .venv-mcp/made build  ## test `micpq mcp` with the official MCP client
	cd crates/mcp/tests && MICPQ_BINARY=$(CURDIR)/$(MICPQ) $(CURDIR)/.venv-mcp/bin/python -m pytest -q -p no:cacheprovider

.venv-mcp/made: crates/mcp/tests/requirements.lock
	python3 -m venv .venv-mcp
	.venv-mcp/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# moto is an S3 on this machine.
backups: .venv-backups/made  ## test backups in a bucket of S3 (moto)
	MICPQ_MOTO=$(abspath .venv-backups/bin/moto_server) $(CARGO) test --release --workspace --test whole -- stored::a_bucket

.venv-backups/made: crates/backups/tests/requirements.lock
	python3 -m venv .venv-backups
	.venv-backups/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

javascript-types: build  ## write the types of the JavaScript client from the OpenAPI description
	cd clients/javascript && npm ci --silent --no-audit --no-fund && $(CURDIR)/$(MICPQ) serve --openapi | node generate.js

# Needs `rustup target add wasm32-unknown-unknown`. The file is committed, so that a build of micpq does not need it.
WASM := target/wasm32-unknown-unknown/wasm/web.wasm
WASM_COMPILER := $(shell cat crates/web/page/compiler.txt 2>/dev/null)
wasm:  ## make the WebAssembly of web exports anew
	RUSTFLAGS="-C target-feature=+simd128 --remap-path-prefix=$(CURDIR)=/micpq" \
	$(CARGO) build --profile wasm --target wasm32-unknown-unknown -p micpq-web
	cp $(WASM) crates/web/page/micpq.wasm
	rustc --version > crates/web/page/compiler.txt

# Another compiler makes other bytes, so only the one that made the file can tell whether it is of these sources.
wasm-check:  ## check that the committed WebAssembly is made of the sources beside it
	@if [ ! -d "$$(rustc --print sysroot)/lib/rustlib/wasm32-unknown-unknown" ]; then \
	  echo "skipped: Rust's library for wasm32-unknown-unknown is not installed, so the WebAssembly was not made again"; \
	elif [ "$$(rustc --version)" != "$(WASM_COMPILER)" ]; then \
	  echo "skipped: the WebAssembly was made by $(WASM_COMPILER), this is $$(rustc --version)"; \
	else mkdir -p target && cp crates/web/page/micpq.wasm target/committed.wasm && $(MAKE) --no-print-directory wasm && \
	  cmp target/committed.wasm crates/web/page/micpq.wasm || { echo "make: run make wasm and commit crates/web/page/micpq.wasm"; exit 1; }; fi

# Needs what `page` needs, and the index of `make demo`.
pictures: .venv-http/made build  ## take the pictures of the README from the index of the demo
	.venv-http/bin/python crates/serve/page/tests/pictures.py $(MICPQ) work/demo/news.micpq docs

.venv-http/made: crates/serve/requirements.lock
	python3 -m venv .venv-http
	.venv-http/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# ARGS go to the harness: make bench-serve ARGS="--documents 100000 --parts ours,report". All parts take about 45 minutes.
bench-serve: .venv-peers/made  ## measure the server against pgvector and milvus-lite, into benchmarks/results/serve.md
	@command -v wrk >/dev/null || { echo "make: wrk is not installed; run apt-get install wrk"; exit 1; }
	$(CARGO) build --release --workspace
	$(CARGO) build --release --workspace --bin fill
	.venv-peers/bin/python benchmarks/serve/bench.py $(ARGS)

# ARGS go to the harness: make bench-dedup ARGS="--documents 40000". Needs the shared corpora.
bench-dedup: encoders .venv-dedup/made build  ## find planted duplicates beside semhash and MinHash, into benchmarks/results/dedup.md
	.venv-dedup/bin/python benchmarks/dedup/bench.py $(ARGS)

.venv-dedup/made: benchmarks/dedup/requirements.txt
	python3 -m venv .venv-dedup
	.venv-dedup/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# ARGS go to the harness: make bench-topics ARGS="--corpora agnews --without bertopic". Needs the shared corpora.
bench-topics: encoders .venv-topics/made build  ## find topics beside MiniBatchKMeans and BERTopic, into benchmarks/results/topics.md
	.venv-topics/bin/python benchmarks/topics/bench.py $(ARGS)

# BERTopic without its dependencies: they include PyTorch, which precomputed embeddings do not need.
.venv-topics/made: benchmarks/topics/requirements.txt
	python3 -m venv .venv-topics
	.venv-topics/bin/pip install --quiet --disable-pip-version-check -r $<
	.venv-topics/bin/pip install --quiet --disable-pip-version-check --no-deps bertopic==0.17.4
	@touch $@

# ARGS go to the harness: make bench-query-encoder ARGS="--seeds 1 --only stories". Needs the stories of `make demo` and the shared corpora.
bench-query-encoder: encoders build  ## measure the fast query encoder beside the full one, into benchmarks/results/query-encoder.md
	$(CARGO) build --release --workspace --bin query_encoder
	python3 benchmarks/query-encoder/run.py --shared $(MICPQ_SHARED) $(ARGS)

# Needs what `page` needs, and the index of `make demo`.
bench-web: .venv-http/made build  ## measure a web export of the demo's index in Chromium, into benchmarks/results/web.md
	[ -f work/demo/news.micpq/model/query_encoder.safetensors ] || $(MICPQ) distill work/demo/news.micpq
	rm -rf work/web && $(MICPQ) export work/demo/news.micpq --to web --title "News of 1987" -o work/web
	python3 benchmarks/query-encoder/expected.py $(MICPQ) work/demo work/web-expected.json
	.venv-http/bin/python crates/web/page/tests/browser.py work/web work/web-expected.json --results benchmarks/results/web.md

# ARGS go to the harness: make bench-query ARGS="--corpus stories.jsonl --index news.micpq --rounds 5". Default: the demo's index.
bench-query: encoders .venv-query/made .venv/python build  ## measure a text query against ONNX Runtime with FAISS, LanceDB and Qdrant's client, into benchmarks/results/query.md
	rm -rf target/wheels
	$(PYTHON) -m maturin build --quiet --release --manifest-path crates/python/Cargo.toml --out target/wheels
	.venv-query/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall target/wheels/micpq-*.whl
	.venv-query/bin/python benchmarks/query/bench.py $(ARGS)

# ARGS go to the harness: make bench-build ARGS="--documents 20000 --rounds 3". Default: the demo's stories, three rounds.
bench-build: encoders .venv-query/made build  ## measure building an index against ONNX Runtime with FAISS and LanceDB, into benchmarks/results/build.md
	.venv-query/bin/python benchmarks/build/bench.py $(ARGS)

.venv-query/made: benchmarks/query/requirements.txt
	python3 -m venv .venv-query
	.venv-query/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv-peers/made: benchmarks/serve/requirements.lock
	python3 -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# Builds one wheel for Python 3.10 and later, and tests it in an environment with the packages it works with.
python: .venv/python  ## test the Python package: wheel, types, tests, every command of the guide
	rm -rf target/wheels
	$(PYTHON) -m maturin build --quiet --release --manifest-path crates/python/Cargo.toml --out target/wheels
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall target/wheels/micpq-*.whl
	cd crates/python && MYPYPATH=python $(PYTHON) -m mypy --strict python/micpq tests/typed.py && $(PYTHON) -m pytest -q -rs

.venv/python: crates/python/tests/requirements.lock
	python3 -m venv .venv/python-tests
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# The wheel in an environment of its own with Ray: two nodes of real processes on this machine. MICPQ_RAY_ROUNDS=20 is the long form.
RAY_PYTHON := $(CURDIR)/.venv-ray/bin/python
ray: .venv-ray/made build  ## test micpq.ray with real Ray processes
	@if [ -x $(RAY_PYTHON) ]; then $(MAKE) --no-print-directory ray-wheel && \
	  cd crates/python/tests_ray && MICPQ_BINARY=$(CURDIR)/$(MICPQ) $(RAY_PYTHON) -m pytest -q -rs -W ignore -p no:cacheprovider; \
	else echo "skipped: Ray cannot be installed here, so micpq.ray was not tested"; fi

ray-wheel: .venv-ray/made
	rm -rf target/wheels
	$(RAY_PYTHON) -m maturin build --quiet --release --manifest-path crates/python/Cargo.toml --out target/wheels
	$(RAY_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall target/wheels/micpq-*.whl

# Ray has no wheel for some systems. Then there is no environment, and `ray` says that it skips.
.venv-ray/made: crates/python/tests_ray/requirements.lock
	python3 -m venv .venv-ray
	@if .venv-ray/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<; then touch $@; else rm -rf .venv-ray; fi

ray-openapi: build .venv-ray/made  ## write the OpenAPI description of micpq.ray.serve from that of the server
	PYTHONPATH=crates/python/python/micpq/ray $(RAY_PYTHON) -c "import _openapi, pathlib; \
	_openapi.write(pathlib.Path('$(MICPQ)'), pathlib.Path('crates/python/python/micpq/ray/openapi.json'))"

# The adapters with the test suites of LangChain and Haystack.
ADAPTERS_PYTHON := $(CURDIR)/.venv-adapters/bin/python
adapters: .venv-adapters/made  ## test the adapters for LangChain, LlamaIndex and Haystack
	rm -rf target/wheels
	$(ADAPTERS_PYTHON) -m maturin build --quiet --release --manifest-path crates/python/Cargo.toml --out target/wheels
	$(ADAPTERS_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall target/wheels/micpq-*.whl
	cd crates/python/tests_adapters && MICPQ_BINARY=$(CURDIR)/$(MICPQ) $(ADAPTERS_PYTHON) -m pytest

.venv-adapters/made: crates/python/tests_adapters/requirements.lock
	python3 -m venv .venv-adapters
	.venv-adapters/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# ARGS go to the harness: make bench-ray ARGS="--documents 20000".
bench-ray: encoders ray-wheel  ## measure Ray against the plain program, into benchmarks/results/ray.md, and compute the plan of docs/scale.md
	$(RAY_PYTHON) benchmarks/ray/bench.py $(ARGS)
	$(MAKE) --no-print-directory scale-plan ARGS=

# ARGS are machines and prices: make scale-plan ARGS="--machine-cores 64 --price-per-hour 3".
scale-plan:  ## compute the plan for 10^8 to 10^10 documents from the results, into benchmarks/results/scale-plan.md and docs/scale.md
	python3 benchmarks/ray/plan.py $(ARGS)

bench-languages: build  ## title to page on Debian's translated manual pages, into benchmarks/results/languages.md
	@python3 benchmarks/languages/run.py --micpq $(MICPQ)

# ARGS go to the harness: make bench-search ARGS="scan --bits 64 --documents 1000000"; ARGS=--help lists the stages.
bench-search: .venv/peers build  ## measure search against FAISS and others, into benchmarks/results/search.md
	$(CARGO) build --release --workspace --bin contestant --bin keeper
	.venv/bin/python benchmarks/search/bench.py $(ARGS)

# ScaNN and USearch have no wheel for some systems. They take part if they install.
.venv/peers: benchmarks/search/requirements.lock benchmarks/search/optional.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r benchmarks/search/requirements.lock
	@while read -r peer; do .venv/bin/pip install --quiet --disable-pip-version-check "$$peer" \
	  || echo "$$peer does not install here, so it does not take part"; done < benchmarks/search/optional.txt
	@touch $@

# ARGS go to the harness: make bench-encode ARGS="--encoders minilm --threads 1 --quick".
bench-encode: encoders .venv/encode  ## measure the encoder against PyTorch, candle, ONNX Runtime and OpenVINO, into benchmarks/results/encode.md
	$(CARGO) build --release --workspace --bins
	.venv/bin/python benchmarks/encode/bench.py $(ARGS)

# Makes the small random encoders anew with the packages of today, in double precision, and compares the engine with them.
encoder-goldens: .venv-encoders/made  ## compare every architecture with transformers, sentence-transformers and model2vec
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	.venv-encoders/bin/python crates/engine/tests/encoders/make.py "$$folder"; \
	MICPQ_ENCODER_GOLDENS="$$folder" $(CARGO) test --release -p micpq-engine --test encoders -- --nocapture

.venv-encoders/made: crates/engine/tests/encoders/requirements.txt
	python3 -m venv .venv-encoders
	.venv-encoders/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv/encode: benchmarks/encode/requirements.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean:  ## remove the output of the build and of the demo
	$(CARGO) clean
	rm -rf work
