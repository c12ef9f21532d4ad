#!/usr/bin/env bash
# Builds the example `check` and gathers in FOLDER (53 MB) what benchmarks/cuda/run.sh needs on another machine.
#   gather.sh FOLDER
# Wants python3 with numpy, safetensors and tokenizers (PYTHON names another), and MiniLM where `micpq pull` puts it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1
python=${PYTHON:-python3}
shared=${MICPQ_SHARED:-$root/../shared}
model=${MICPQ_MODELS:-$HOME/.cache/micpq/models}/all-MiniLM-L6-v2
mkdir -p "$folder"
(cd "$root" && cargo build --release -p micpq-cuda --example check)
objcopy --strip-debug "$root/target/release/examples/check" "$folder/check"
cp -f "$model/config.json" "$folder/"
for end in json safetensors; do cp -f "$shared/goldens/all-MiniLM-L6-v2.$end" "$folder/goldens.$end"; done
[ -f "$folder/tokens.safetensors" ] || "$python" "$root/benchmarks/cuda/tokens.py" "$model/tokenizer.json" \
  "$shared/data/agnews/train.csv.gz" "$folder/tokens.safetensors"
# Halved to f16, which is what the GPU rounds them to anyway.
[ -f "$folder/model.safetensors" ] || "$python" - "$model/model.safetensors" "$folder/model.safetensors" <<'P'
import sys
import numpy
from safetensors.numpy import load_file, save_file
save_file({k: v.astype(numpy.float16) for k, v in load_file(sys.argv[1]).items() if v.dtype == numpy.float32}, sys.argv[2])
P
chmod u+w "$folder"/*
du -sh "$folder"
