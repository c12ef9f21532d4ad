#!/usr/bin/env bash
# Checks and times the GPU encoder and its peer on a machine with an NVIDIA GPU.
#   run.sh FOLDER [options of the example `check`]
# FOLDER holds the built example `check`, and what it and peer.py read: config.json, model.safetensors, goldens.json,
# goldens.safetensors, tokens.safetensors. benchmarks/cuda/gather.sh makes it.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1; shift
python=$(command -v python3)
libraries=$("$python" -c 'import glob, sysconfig; print(":".join(glob.glob(sysconfig.get_path("purelib") + "/nvidia/*/lib")))')
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.used --format=csv,noheader
ours=$(mktemp); theirs=$(mktemp)
"$folder/check" "$folder" "$@" 2>&1 | tee "$ours"; status=${PIPESTATUS[0]}
if [ -z "${NO_PEER:-}" ]; then
  for which in minilm base; do "$python" "$here/peer.py" "$folder" "$which" 2>&1 | tee -a "$theirs"; done
fi
echo "=== summary"
grep -E "error|golden|Cls|same:|all agree|of peak|^(minilm|base) .*%" "$ours"
grep -E "^peer" "$theirs"
exit "$status"
