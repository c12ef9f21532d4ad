#!/usr/bin/env bash
# Builds the example `check` and gathers in FOLDER what benchmarks/cuda/run.sh needs on another machine: `check`, and a
# folder for every encoder (MiniLM 46 MB, BERT-base 219 MB).
#   gather.sh FOLDER
# Wants python3 with numpy, safetensors and tokenizers (PYTHON names another), and encoders where `micpq encoder pull`
# puts them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1
python=${PYTHON:-python3}
shared=${MICPQ_SHARED:-$root/../shared}
models=${MICPQ_MODELS:-$HOME/.cache/micpq/models}
mkdir -p "$folder"
(cd "$root" && cargo build --release --workspace --bins)
objcopy --strip-debug "$root/target/release/check" "$folder/check"
for encoder in all-MiniLM-L6-v2 bert-base-uncased; do
  to=$folder/$encoder
  mkdir -p "$to"
  for file in config.json tokenizer.json sentence_bert_config.json; do
    [ ! -f "$models/$encoder/$file" ] || cp -f "$models/$encoder/$file" "$to/"
  done
  for end in json safetensors; do cp -f "$shared/goldens/$encoder.$end" "$to/goldens.$end"; done
  [ -f "$to/tokens.safetensors" ] || "$python" "$root/benchmarks/cuda/tokens.py" "$models/$encoder/tokenizer.json" \
    "$shared/data/agnews/train.csv.gz" "$to/tokens.safetensors"
  # What the GPU rounds to f16 anyway goes as f16; biases, norms and positions stay: rounding the norms alone would put
  # BERT-base's empty text 4e-3 off. The pooler is not used.
  [ -f "$to/model.safetensors" ] || "$python" - "$models/$encoder/model.safetensors" "$to/model.safetensors" <<'PYTHON'
import sys
import numpy
from safetensors.numpy import load_file, save_file
tensors = {k: v for k, v in load_file(sys.argv[1]).items() if v.dtype == numpy.float32}
used = {k: v for k, v in tensors.items() if "pooler" not in k and not k.startswith("cls.")}
wide = lambda k: k.endswith("word_embeddings.weight") or ("embeddings" not in k and "LayerNorm" not in k and k.endswith(".weight"))
save_file({k: v.astype(numpy.float16) if wide(k) else v for k, v in used.items()}, sys.argv[2])
PYTHON
  chmod u+w "$to"/*
done
du -sh "$folder"
