"""The plan for 10^8, 10^9 and 10^10 documents, computed from measured figures.

Reads benchmarks/results/ray.json (`make bench-ray`) and the search of 10^8 codes (`make bench-search`), and writes
benchmarks/results/scale-plan.md, and its tables into docs/scale.md. What is measured and what is extrapolated stand apart. Machines and
prices are parameters; with --machines there is a worked example of a cluster of so many:

    python benchmarks/ray/plan.py --machines 16 --machine-cores 32 --price-per-hour 1.5
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import report

RESULTS = Path(__file__).resolve().parents[1] / "results"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
SCAN = "search/scan-clustered-64-100000000.json"
HOURS_PER_MONTH = 730
#: Between these lines of the page stand the tables.
BEGIN, END = "<!-- tables of make scale-plan -->", "<!-- end of the tables -->"


def parameters(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--machines", type=int, default=16, help="of the worked example")
    parser.add_argument("--example-documents", type=float, default=1e9, help="of the worked example")
    parser.add_argument("--machine-cores", type=int, default=32)
    parser.add_argument("--machine-memory-gb", type=float, default=128)
    parser.add_argument("--machine-disk-tb", type=float, default=4)
    parser.add_argument("--price-per-hour", type=float, default=1.5, help="of one machine, in any currency")
    parser.add_argument("--hours", type=float, default=24, help="in which the encoding should be done")
    parser.add_argument("--documents-per-shard", type=float, default=2e7)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--memory-share", type=float, default=0.5, help="of the memory that codes may fill; the rest caches files")
    parser.add_argument("--text-factor", type=float, default=1.0, help="tokens of a text over those of the measured texts")
    parser.add_argument("--worker-rate", type=float, help="documents/s of a core, or of a GPU, instead of the measured rate")
    parser.add_argument("--sample", type=float, default=200_000, help="documents to train on")
    parser.add_argument("--cpus-per-worker", type=int, default=7, help="what its workers leave of a machine reads")
    return parser.parse_args(given)


class Measured:
    """The figures that the plan starts from."""

    def __init__(self, ray: dict, scan: dict) -> None:
        self.machine, self.cores, self.documents, self.encoder = ray["machine"], ray["cores"], ray["documents"], ray["encoder"]
        median = statistics.median
        self.rate = median(ray["worker_documents_per_second"]["2"])
        self.overhead = median(ray["overhead_percent"]["2"])
        self.marginal = median(ray["marginal_overhead_percent"]["2"])
        self.ray_start, self.start = median(ray["ray_start_seconds"]), median(ray["start_seconds"]["2"])
        self.index_rate, self.index_start = median(ray["index_documents_per_second"]), median(ray["index_fixed_seconds"])
        self.disk, self.parts = ray["bytes_per_document"], ray["part_bytes_per_document"]
        self.sample, self.train, self.train_plain = ray["train_documents"], median(ray["train_seconds"]["ray"]), median(ray["train_seconds"]["plain"])
        self.queries = {
            int(shards): {
                kind: {
                    "plain": median(one[0] for one in rounds),
                    "ray": median(one[2] for one in rounds),
                    "overhead": median(one[2] - one[0] for one in rounds),
                }
                for kind, rounds in kinds.items()
            }
            for shards, kinds in ray["query_milliseconds"].items()
        }
        cell = next(cell for cell in scan["cells"] if cell["batch"] == 1 and cell["threads"] == 1)
        self.scan_ms = 1e3 * cell["median"]["micpq"]
        self.scan_machine = f"{scan['machine']['cpu']}, {' '.join(scan['machine']['features'])}"
        self.memory = scan["sets"][0]["loads"]["micpq"]["bytes"]

    def overhead_ms(self, shards: int) -> float:
        """What Ray adds to a query over so many shards: as measured, and past that as the measured ones grow."""
        overheads = {count: kinds["text"]["overhead"] for count, kinds in self.queries.items()}
        if shards in overheads:
            return overheads[shards]
        least, most = min(overheads), max(overheads)
        return overheads[least] + max(0.0, overheads[most] - overheads[least]) / (most - least) * (shards - least)

    def lines(self) -> list[str]:
        return [
            f"- One worker of one thread, of two on {self.machine}, encodes {self.rate:.0f} documents/s ({self.documents:,} texts of 30 to 60 words, {self.encoder}). `ray.md`",
            f"- A build on Ray takes {self.overhead:.1f} % longer than the plain program, with two workers; further documents take {self.marginal:.1f} % longer. `ray.md`",
            f"- Ray starts in {self.ray_start:.1f} s on one machine, and its workers have the first document encoded after {self.start:.1f} s. `ray.md`",
            f"- Training on {self.sample:,} texts, one epoch with twelve views of each, takes {self.train_plain:.0f} s by the plain program on {self.cores} cores, and {self.train:.0f} s on Ray with one core to train and one to encode. `ray.md`",
            f"- One task that writes a shard starts in {self.index_start:.1f} s and writes {self.index_rate:,.0f} documents/s. `ray.md`",
            f"- A document takes {self.disk:.0f} bytes on disk with its text and rerank vector, and {self.parts:.0f} bytes in the parts while the index is built. `ray.md`",
            *[
                f"- A query by text over {shards} {'shard' if shards == 1 else 'shards'} takes {of['text']['ray']:.2f} ms from call to answer, {of['text']['overhead']:.2f} ms of it Ray's; by vector {of['vector']['ray']:.2f} ms. `ray.md`"
                for shards, of in self.queries.items()
            ],
            f"- A code of 64 bits takes {self.memory:.1f} bytes in memory, and one thread searches 10^8 of them in {self.scan_ms:.1f} ms ({self.scan_machine}). `{SCAN}`",
        ]


class Plan:
    """What so many documents need, in proportion to the measured figures."""

    def __init__(self, a: argparse.Namespace, measured: Measured, documents: float, machines: int | None = None) -> None:
        self.a, self.documents = a, documents
        rate = (a.worker_rate or measured.rate) / a.text_factor
        self.core_hours = documents / rate / 3600
        self.workers = max(1, a.machine_cores // a.cpus_per_worker)
        # Cores of a machine that encode.
        encoding = min(a.machine_cores, self.workers * a.cpus_per_worker)
        self.machines = machines or max(1, math.ceil(self.core_hours / encoding / a.hours))
        self.encoding_cores = self.machines * encoding
        # On one machine, as by the plain program: most of it is the encoding of views.
        core_seconds = measured.train_plain * measured.cores * a.sample / measured.sample * a.text_factor
        self.train_hours = core_seconds / a.machine_cores / 3600
        self.start_hours = (measured.ray_start + measured.start) / 3600
        self.encode_hours = self.core_hours / self.encoding_cores
        self.shards = math.ceil(documents / a.documents_per_shard)
        in_shard = documents / self.shards
        # Every machine writes as many shards at a time as it has cores.
        turns = math.ceil(self.shards / (self.machines * a.machine_cores))
        self.index_hours = turns * (measured.index_start + in_shard / measured.index_rate) / 3600
        self.build_hours = self.train_hours + self.start_hours + self.encode_hours + self.index_hours
        self.cost = self.machines * self.build_hours * a.price_per_hour
        self.codes_gb, self.disk_tb = documents * measured.memory / 1e9, documents * measured.disk / 1e12
        self.parts_tb = documents * measured.parts / 1e12
        copies = max(1, math.ceil(self.codes_gb / (a.memory_share * a.machine_memory_gb)), math.ceil(self.disk_tb / a.machine_disk_tb))
        self.serving = a.replicas * copies
        self.scan_ms = measured.scan_ms * in_shard / 1e8
        # A query takes a core for each shard of its machine.
        self.queries = a.replicas * a.machine_cores / (self.scan_ms / 1e3 * self.shards / copies)
        # Encoding, re-ranking and the texts as measured on a small index, Ray's part, and the scan.
        self.overhead_ms = measured.overhead_ms(self.shards)
        self.latency_ms = measured.queries[1]["text"]["plain"] + self.overhead_ms + self.scan_ms
        self.month = self.serving * a.price_per_hour * HOURS_PER_MONTH

    @property
    def name(self) -> str:
        return f"10^{round(math.log10(self.documents))}"

    def building(self) -> str:
        return (
            f"| {self.name} | {self.train_hours:.1f} | {self.core_hours:,.0f} | {self.machines:,} | {self.encode_hours:.1f} | {self.index_hours:.1f} | {self.cost:,.0f} "
            f"| {self.parts_tb:,.1f} TB | {self.disk_tb:,.1f} TB |"
        )

    def searching(self) -> str:
        return (
            f"| {self.name} | {self.shards} | {self.codes_gb:,.1f} GB | {self.serving} | {self.scan_ms:.1f} ms | {self.overhead_ms:.1f} ms | {self.latency_ms:.1f} ms "
            f"| {self.queries:,.0f} | {self.month:,.0f} |"
        )


def building(plans: list[Plan]) -> list[str]:
    return [
        "| documents | hours to train | core hours to encode | machines | hours to encode | hours to write shards | cost | parts | index |",
        "|---|---|---|---|---|---|---|---|---|",
        *[plan.building() for plan in plans],
    ]


def searching(plans: list[Plan]) -> list[str]:
    return [
        "| documents | shards | codes | machines | scan of a shard | Ray's part | a query by text | queries per second | cost per month |",
        "|---|---|---|---|---|---|---|---|---|",
        *[plan.searching() for plan in plans],
    ]


def example(plan: Plan) -> list[str]:
    """The worked example, step by step."""
    a = plan.a
    rows = [
        ("training, on one machine", plan.train_hours), ("start of Ray and its workers", plan.start_hours),
        (f"encoding, on {plan.encoding_cores:,} cores", plan.encode_hours), (f"writing {plan.shards} shards", plan.index_hours),
        ("together", plan.build_hours),
    ]  # fmt: skip
    return [
        "| step | hours | money |", "|---|---|---|",
        *[f"| {step} | {hours:.2f} | {plan.machines * hours * a.price_per_hour:,.2f} |" for step, hours in rows],
        "",
        f"The job has `shards={plan.shards}, workers={plan.machines * plan.workers}, cpus_per_worker={a.cpus_per_worker}`: {plan.workers} workers a machine, and what is left of its cores reads. "
        f"The shared folder needs {plan.parts_tb + plan.disk_tb:,.1f} TB at the most. Searching takes {plan.serving} of the machines for {a.replicas} replicas: {plan.month:,.0f} a month.",
    ]


def document(a: argparse.Namespace, measured: Measured) -> tuple[str, str]:
    """The results file, and the tables for the page."""
    plans = [Plan(a, measured, documents) for documents in (1e8, 1e9, 1e10)]
    worked = Plan(a, measured, a.example_documents, a.machines)
    given = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in vars(a).items() if value is not None)
    settings = (
        f"Machines of {a.machine_cores} cores, {a.machine_memory_gb:g} GB of memory and {a.machine_disk_tb:g} TB of disk at {a.price_per_hour:g} per hour; "
        f"encoding within {a.hours:g} hours; at most {a.documents_per_shard:,.0f} documents per shard; {a.replicas} replicas; codes fill at most {100 * a.memory_share:.0f} % of a memory; "
        f"texts of {a.text_factor:g} times the measured length; training on {a.sample:,.0f} documents."
    )
    caution = (
        "In proportion to the measured figures: a core of the cluster is taken to be one of the measured machine, and the shared folder to be as fast as its disk. "
        "No run of this size was made."
    )
    text = [
        "# A plan for 10^8, 10^9 and 10^10 documents", "",
        f"`python benchmarks/ray/plan.py {given}`", "",
        "## Measured", "", *measured.lines(), "",
        "## Parameters", "", settings, "",
        "## Extrapolated", "", caution, "",
        "Building: hours to train on the sample, core hours of encoding, machines that do it in time, hours of encoding and of writing shards, cost of it all, the space of the parts in the shared folder, and of the finished index.", "",
        *building(plans), "",
        "Searching: shards, memory of all codes, machines that hold the codes in memory and the index on disk in every replica, time of one thread to search its shard, what Ray adds, a query by text from call to answer, "
        "queries per second of all machines when nothing but this search takes time, cost per month.", "",
        *searching(plans), "",
        f"## {a.machines} machines, {worked.name} documents", "",
        "Extrapolated like the rest.", "", *example(worked),
    ]
    source = "<!-- from: benchmarks/results/scale-plan.md -->"
    page = [
        "### Measured", "",
        *[f"{line.replace('`', '')} {source}" for line in measured.lines()], "",
        "### Extrapolated", "", source, settings, "", caution, "",
        source, *building(plans), "",
        source, *searching(plans), "",
        f"### {a.machines} machines, {worked.name} documents", "",
        source, *[f"{line}\n\n{source}" if line.startswith("| together") else line for line in example(worked)],
    ]
    # The comment stands right above its block.
    return "\n".join(text) + "\n", "\n".join(page).replace(f"\n{source}\n\n", f"\n{source}\n") + "\n"


def put(page: str, tables: str) -> str:
    """The page with new tables."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def main() -> None:
    a = parameters()
    measured = Measured(json.loads((RESULTS / "ray.json").read_text()), json.loads((RESULTS / SCAN).read_text()))
    text, tables = document(a, measured)
    (RESULTS / "scale-plan.md").write_text(text)
    PAGE.write_text(put(PAGE.read_text(), tables))
    print(text)


if __name__ == "__main__":
    main()
