"""The plan for 10^8, 10^9 and 10^10 documents, computed from measured figures (benchmarks/results/ray.json).

Measured: documents per second of a worker, bytes per document on disk, overhead of a query. Everything else is extrapolated from
them by the arithmetic below, or is a parameter. Prices are parameters, not facts.

    python benchmarks/ray/plan.py --machine-cores 32 --price-per-hour 1.5
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

MEASURED = Path(__file__).resolve().parents[1] / "results" / "ray.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machine-cores", type=int, default=32)
    parser.add_argument("--machine-memory-gb", type=float, default=128)
    parser.add_argument("--price-per-hour", type=float, default=1.5, help="of one machine, in any currency")
    parser.add_argument("--hours", type=float, default=24, help="in which the encoding should be done")
    parser.add_argument("--code-bytes", type=int, default=8)
    parser.add_argument("--documents-per-shard", type=float, default=1e8, help="documents a machine holds")
    a = parser.parse_args()
    measured = json.loads(MEASURED.read_text())
    rate = statistics.median(measured["worker_documents_per_second"]["1"])
    disk = measured["bytes_per_document_on_disk"]
    print(f"Measured: {rate:.4g} documents/s on one core, {disk:.0f} bytes per document on disk (texts and int8 rerank vectors included).")
    print(f"Parameters: machines of {a.machine_cores} cores and {a.machine_memory_gb:g} GB at {a.price_per_hour:g} per hour, encoding in {a.hours:g} hours.")
    print("Extrapolated: every row below, in proportion; no run of this size was made.\n")
    print("| documents | core hours to encode | machines to encode | cost of encoding | codes in memory | on disk | shards | machines to serve |")
    print("|---|---|---|---|---|---|---|---|")
    for documents in (1e8, 1e9, 1e10):
        core_hours = documents / rate / 3600
        machines = math.ceil(core_hours / a.machine_cores / a.hours)
        # 12 bytes: the code and the order of insertion, as benchmarks/results/search.md measures for 8-byte codes.
        memory = documents * (a.code_bytes + 4) / 1e9
        shards = math.ceil(documents / a.documents_per_shard)
        serving = max(1, math.ceil(memory / (0.5 * a.machine_memory_gb)), math.ceil(shards / 4))
        cost = core_hours / a.machine_cores * a.price_per_hour
        print(
            f"| 10^{round(math.log10(documents))} | {core_hours:,.0f} | {machines} | {cost:,.0f} | {memory:,.0f} GB | {documents * disk / 1e12:,.2f} TB "
            f"| {shards} | {serving} |"
        )


if __name__ == "__main__":
    main()
