"""The plan for 10^8, 10^9 and 10^10 documents, computed from measured figures.

Reads benchmarks/results/ray.json (`make bench-ray`) and the search of 10^8 codes (`make bench-search`), and writes
benchmarks/results/scale-plan.md. What is measured and what is extrapolated stand apart in it. Machines and prices are parameters:

    python benchmarks/ray/plan.py --machine-cores 32 --price-per-hour 1.5
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
SCAN = "search/scan-clustered-64-100000000.json"
HOURS_PER_MONTH = 730


def parameters() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--machine-cores", type=int, default=32)
    parser.add_argument("--machine-memory-gb", type=float, default=128)
    parser.add_argument("--machine-disk-tb", type=float, default=4)
    parser.add_argument("--price-per-hour", type=float, default=1.5, help="of one machine, in any currency")
    parser.add_argument("--hours", type=float, default=24, help="in which the encoding should be done")
    parser.add_argument("--documents-per-shard", type=float, default=1e8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--memory-share", type=float, default=0.5, help="of the memory that codes may fill; the rest caches files")
    parser.add_argument("--text-factor", type=float, default=1.0, help="tokens of a text over those of the measured texts")
    parser.add_argument("--worker-rate", type=float, help="documents/s of a core, or of a GPU, instead of the measured rate")
    return parser.parse_args()


class Measured:
    """The figures that the plan starts from."""

    def __init__(self) -> None:
        ray = json.loads((RESULTS / "ray.json").read_text())
        scan = json.loads((RESULTS / SCAN).read_text())
        self.machine, self.documents, self.encoder = ray["machine"], ray["documents"], ray["encoder"]
        self.rate = statistics.median(ray["worker_documents_per_second"]["2"])
        self.overhead = statistics.median(
            100 * (on_ray / plain - 1) for on_ray, plain in zip(ray["ray_build_seconds"]["2"], ray["plain_build_seconds"]["2"])
        )
        self.index_rate = self.documents / statistics.median(ray["index_seconds"]["1"])
        self.disk, self.parts = ray["bytes_per_document"], ray["part_bytes_per_document"]
        self.query = statistics.median(on_ray - plain for plain, on_ray in ray["query_milliseconds"]["2"])
        cell = next(cell for cell in scan["cells"] if cell["batch"] == 1 and cell["threads"] == 1)
        self.scan_ms = 1e3 * cell["median"]["micpq"]
        self.scan_machine = f"{scan['machine']['cpu']}, {' '.join(scan['machine']['features'])}"
        self.memory = scan["sets"][0]["loads"]["micpq"]["bytes"]

    def lines(self) -> list[str]:
        return [
            f"- One worker of one thread, of two on {self.machine}, encodes {self.rate:.0f} documents/s ({self.documents:,} texts of 30 to 60 words, {self.encoder}). `ray.md`",
            f"- A build on Ray takes {self.overhead:.1f} % longer than the plain program, with two workers. `ray.md`",
            f"- One task writes a shard of {self.documents:,} documents at {self.index_rate:,.0f} documents/s. `ray.md`",
            f"- A document takes {self.disk:.0f} bytes on disk with its text and rerank vector, and {self.parts:.0f} bytes in the parts while the index is built. `ray.md`",
            f"- Ray adds {self.query:.2f} ms to a query over two shards. `ray.md`",
            f"- A code of 64 bits takes {self.memory:.1f} bytes in memory, and one thread searches 10^8 of them in {self.scan_ms:.1f} ms ({self.scan_machine}). `{SCAN}`",
        ]


def plan(a: argparse.Namespace, measured: Measured, documents: float) -> tuple[str, str]:
    """The rows of building and of searching."""
    rate = (a.worker_rate or measured.rate) / a.text_factor
    core_hours = documents / rate / 3600
    machines = max(1, math.ceil(core_hours / a.machine_cores / a.hours))
    hours = core_hours / a.machine_cores / machines
    shards = math.ceil(documents / a.documents_per_shard)
    in_shard = documents / shards
    # Every machine writes as many shards at a time as it has cores.
    turns = math.ceil(shards / (machines * a.machine_cores))
    index_hours = turns * in_shard / measured.index_rate / 3600
    cost = machines * (hours + index_hours) * a.price_per_hour
    codes, disk = documents * measured.memory / 1e9, documents * measured.disk / 1e12
    copies = max(1, math.ceil(codes / (a.memory_share * a.machine_memory_gb)), math.ceil(disk / a.machine_disk_tb))
    serving = a.replicas * copies
    scan = measured.scan_ms * in_shard / 1e8
    # A query takes a core for each shard of its machine.
    queries = a.replicas * a.machine_cores / (scan / 1e3 * shards / copies)
    power = f"10^{round(math.log10(documents))}"
    build = (
        f"| {power} | {core_hours:,.0f} | {machines:,} | {hours:.1f} | {index_hours:.1f} | {cost:,.0f} | {documents * measured.parts / 1e12:,.1f} TB | {disk:,.1f} TB |"
    )
    month = serving * a.price_per_hour * HOURS_PER_MONTH
    search = f"| {power} | {shards} | {codes:,.1f} GB | {serving} | {scan:.1f} ms | {queries:,.0f} | {month:,.0f} |"
    return build, search


def main() -> None:
    a, measured = parameters(), Measured()
    rows = [plan(a, measured, documents) for documents in (1e8, 1e9, 1e10)]
    given = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in vars(a).items() if value is not None)
    text = [
        "# A plan for 10^8, 10^9 and 10^10 documents", "",
        f"`python benchmarks/ray/plan.py {given}`", "",
        "## Measured", "", *measured.lines(), "",
        "## Parameters", "",
        f"Machines of {a.machine_cores} cores, {a.machine_memory_gb:g} GB of memory and {a.machine_disk_tb:g} TB of disk at {a.price_per_hour:g} per hour; "
        f"encoding within {a.hours:g} hours; at most {a.documents_per_shard:,.0f} documents per shard; {a.replicas} replicas; codes fill at most {100 * a.memory_share:.0f} % of a memory; "
        f"texts of {a.text_factor:g} times the measured length.", "",
        "## Extrapolated", "",
        "In proportion to the measured figures: a core of the cluster is taken to be one of the measured machine, and the shared folder to be as fast as its disk. No run of this size was made.", "",
        "Building: core hours of encoding, machines that do it in time, hours of encoding and of writing shards, cost, the space of the parts in the shared folder, and of the finished index.", "",
        "| documents | core hours | machines | hours to encode | hours to write shards | cost | parts | index |",
        "|---|---|---|---|---|---|---|---|",
        *[build for build, _ in rows], "",
        "Searching: shards, memory of all codes, machines that hold the codes in memory and the index on disk in every replica, time of one thread to search its shard, queries per second of all machines "
        "when nothing but this search takes time, cost per month.", "",
        "| documents | shards | codes | machines | scan of a shard | queries per second | cost per month |",
        "|---|---|---|---|---|---|---|",
        *[search for _, search in rows],
    ]
    (RESULTS / "scale-plan.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
