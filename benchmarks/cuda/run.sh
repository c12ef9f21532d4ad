#!/usr/bin/env bash
# Checks and times the GPU encoder and its peer on a machine with an NVIDIA GPU.
#   run.sh FOLDER ENCODER... [-- options of the example `check`]
# FOLDER holds the built example `check` and a folder for every ENCODER; benchmarks/cuda/gather.sh makes it.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1; shift
encoders=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do encoders+=("$1"); shift; done
[ $# -eq 0 ] || shift
python=$(command -v python3)
libraries=$("$python" -c 'import glob, sysconfig; print(":".join(glob.glob(sysconfig.get_path("purelib") + "/nvidia/*/lib")))')
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.used --format=csv,noheader
ours=$(mktemp); theirs=$(mktemp); status=0
for encoder in "${encoders[@]}"; do
  "$folder/check" "$folder/$encoder" "$@" 2>&1 | tee -a "$ours"; [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
  [ -n "${NO_PEER:-}" ] || "$python" "$here/peer.py" "$folder/$encoder" "${ROUNDS:-5}" 2>&1 | tee -a "$theirs"
done
echo "=== summary"
grep -E "error|golden|Cls|same:|all agree|of peak|%" "$ours"
grep -E "^peer" "$theirs"
exit "$status"
