"""Our exact scan against FAISS over the same codes, in one run: `make bench-search`.

Contestants are processes that hold their index and wait; each round asks every one of them in turn, so that whatever
else the machine does falls on all alike. Writes search.json and search.md into benchmarks/results.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import data
import report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
K = 100
BATCHES = (1, 64)
OURS, FASTSCAN, PQ = "micpq", "FAISS IndexPQFastScan", "FAISS IndexPQ"
# OpenMP's and rayon's threads go on spinning for some milliseconds after a call; the next contestant waits for that.
PAUSE = 0.03


class Contestant:
    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            sys.exit(f"{self.name} ended at {request}; what it said is above")
        return json.loads(line)

    def resident(self):
        """Bytes of memory it holds now; nothing where the system does not say."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024

    def worked(self):
        """Seconds its threads have had a CPU so far, to the nanosecond while they sleep; nothing where the system does
        not say."""
        try:
            tasks = list(Path(f"/proc/{self.process.pid}/task").iterdir())
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        except (OSError, ValueError, IndexError):
            return None

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def contestants(names):
    commands = {
        OURS: [ROOT / "target/release/examples/contestant"],
        FASTSCAN: [sys.executable, HERE / "faiss_contestant.py", "fastscan"],
        PQ: [sys.executable, HERE / "faiss_contestant.py", "pq"],
    }
    return [Contestant(name, commands[name]) for name in names]


def measure(case, args, folder):
    """One set of codes: every contestant loads it, is checked against brute force, and is timed."""
    names = [OURS, FASTSCAN] + ([PQ] if case["documents"] <= 1_000_000 else [])
    some = contestants(names)
    # A small set first: what libraries and thread pools take once is not the documents' weight.
    data.make(folder, case["data"], case["bits"], 10 * K, max(BATCHES), args.seed)
    for c in some:
        c.ask(do="load", dir=str(folder))
        c.ask(do="answers", queries=args.verify, k=K)
    data.make(folder, case["data"], case["bits"], case["documents"], max(BATCHES), args.seed)
    loads = {}
    for c in some:
        before = c.resident()
        loads[c.name] = c.ask(do="load", dir=str(folder))
        if before is not None:
            loads[c.name]["bytes"] = (c.resident() - before) / case["documents"]
    answers = {c.name: c.ask(do="answers", queries=args.verify, k=K) for c in some}
    checked = data.Exact(folder).judge(answers, K)
    if checked[OURS]["recall"] < 1 or checked[OURS]["error"] > data.Exact.TIE:
        sys.exit(f"micpq's answer is not that of brute force for {case}: {checked[OURS]}")
    cells = []
    large = case["documents"] > 1_000_000
    for threads in args.large_threads if large else args.threads:
        for batch in BATCHES:
            # The yardstick that scans a document at a time would take most of the run; all queries cost it the same.
            queries = lambda c: 4 if c.name == PQ else max(BATCHES)
            timed = [c for c in some if c.name != PQ or (batch == 1 and threads == 1)]
            wall, cpu = {c.name: [] for c in timed}, {c.name: [] for c in timed}
            tables = []
            for round_ in range(args.rounds + 1):
                # Who begins changes from round to round.
                for i in range(len(timed)):
                    c = timed[(i + round_) % len(timed)]
                    before = c.worked()
                    took = c.ask(do="search", batch=batch, threads=threads, queries=queries(c), k=K)
                    time.sleep(PAUSE)
                    if round_ > 0:  # the first warms caches and thread pools
                        wall[c.name].append(took["seconds"])
                        if before is not None:
                            cpu[c.name].append((c.worked() - before) / queries(c))
                        if c.name == OURS:
                            tables.append(took["tables"])
            cell = {**case, "batch": batch, "threads": threads, "load": os.getloadavg()[0]}
            # On a busy machine a short call ends before the scheduler takes its CPU away and a long one does not, which
            # flatters the faster contestant. One thread's own CPU time is free of that; of several it says nothing.
            cell["clock"] = "cpu" if threads == 1 and all(cpu.values()) else "wall"
            cell["wall"] = wall
            seconds = cell["seconds"] = cpu if cell["clock"] == "cpu" else wall
            cell["median"] = {name: statistics.median(s) for name, s in seconds.items()}
            cell["tables"] = statistics.median(tables)
            ratios = [theirs / ours for ours, theirs in zip(seconds[OURS], seconds[FASTSCAN])]
            cell["ratio"] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
            cells.append(cell)
            print(report.line(cell), flush=True)
    for c in some:
        c.close()
    return cells, {**case, "checked": checked, "loads": loads}


def machine():
    info = {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    try:
        text = Path("/proc/cpuinfo").read_text()
        field = lambda name: re.search(rf"^{name}\s*: (.*)$", text, re.M)[1]
        flags = set(field("flags").split())
        wanted = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vbmi", "avx512_vnni"]
        info["cpu"] = f"{field('model name')}, family {field('cpu family')} model {field('model')}"
        info["features"] = [f for f in wanted if f in flags]
    except (OSError, TypeError):
        info["cpu"] = platform.processor() or platform.machine()
        info["features"] = []
    return info


def commit():
    asked = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=9, help="timed rounds of every cell (9)")
    p.add_argument("--verify", type=int, default=16, help="queries compared with brute force for each set (16)")
    p.add_argument("--data", nargs="+", default=["clustered", "noise"], choices=["clustered", "noise"])
    p.add_argument("--bits", nargs="+", type=int, default=[16, 32, 64, 128], choices=[16, 32, 64, 128])
    p.add_argument("--documents", nargs="+", type=int, default=[1_000_000, 10_000_000])
    p.add_argument("--large-bits", nargs="+", type=int, default=[32, 64], help="bits above a million documents (32 64)")
    p.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    p.add_argument("--large-threads", nargs="+", type=int, default=[1, 2], help="the same above a million documents")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    args = p.parse_args()
    if args.rounds < 1 or not 1 <= args.verify <= max(BATCHES) or min(args.documents) < K or min(args.threads + args.large_threads) < 1:
        p.error(f"rounds and threads are at least 1, verify 1 to {max(BATCHES)}, documents at least {K}")
    return args


def main():
    args = arguments()
    loads = [os.getloadavg()]
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["make bench-search"] + ([f'ARGS="{" ".join(sys.argv[1:])}"'] if sys.argv[1:] else [])),
        "commit": commit(),
        "machine": machine(),
        "k": K,
        "rounds": args.rounds,
        "verified": args.verify,
        "cells": [],
        "sets": [],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for documents in args.documents:
        for bits in args.bits:
            if documents > 1_000_000 and bits not in args.large_bits:
                continue
            for kind in args.data:
                case = {"data": kind, "bits": bits, "documents": documents}
                with tempfile.TemporaryDirectory() as folder:
                    cells, checked = measure(case, args, Path(folder))
                result["cells"] += cells
                result["sets"].append(checked)
                # After every set, so that a run cut short leaves what it has.
                result["load"] = [loads[0], os.getloadavg()]
                (args.out / "search.json").write_text(json.dumps(result, indent=1) + "\n")
                (args.out / "search.md").write_text(report.markdown(result))
    print(f"written: {args.out / 'search.md'}, {args.out / 'search.json'}")


if __name__ == "__main__":
    main()
