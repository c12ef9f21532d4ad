"""Contestants over the same codes in memory, in turns: the scan, and how it grows."""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import data
import report
from contestants import FASTSCAN, OURS, PQ, SCANN, USEARCH, Contestant

K = 100
BATCHES = (1, 64)
# OpenMP's and rayon's threads go on spinning for some milliseconds after a call; the next contestant waits for that.
PAUSE = 0.03


def load(names, case, args, folder):
    """Every contestant with its documents, what that weighs, and its answers judged by brute force."""
    some = [Contestant(name) for name in names]
    # A small set first: what libraries and thread pools take once is not the documents' weight.
    data.make(folder, case["data"], case["bits"], 10 * K, max(BATCHES), args.seed)
    verify = min(args.verify, 4) if case["documents"] > 20_000_000 else args.verify
    for c in some:
        c.ask(do="load", dir=str(folder))
        c.ask(do="answers", queries=verify, k=K)
    data.make(folder, case["data"], case["bits"], case["documents"], max(BATCHES), args.seed)
    loads = {}
    for c in some:
        before = c.resident()
        loads[c.name] = c.ask(do="load", dir=str(folder))
        if before is not None:
            loads[c.name]["bytes"] = (c.resident() - before) / case["documents"]
            loads[c.name]["resident"] = c.resident()
    answers = {c.name: c.ask(do="answers", queries=verify, k=K) for c in some}
    checked = data.Exact(folder).judge(answers, K)
    if checked[OURS]["recall"] < 1 or checked[OURS]["error"] > data.Exact.TIE:
        sys.exit(f"micpq's answer is not that of brute force for {case}: {checked[OURS]}")
    return some, {**case, "checked": checked, "verified": verify, "loads": loads}


def cell(some, case, batch, threads, rounds):
    """Times of all contestants in turns, by the clock on the wall and by the CPU they took."""
    # The yardstick that scans a document at a time would take most of the run; all queries cost it the same.
    queries = lambda c: 4 if c.name == PQ else max(BATCHES)
    timed = [c for c in some if c.name != PQ or (batch == 1 and threads == 1)]
    wall, cpu = {c.name: [] for c in timed}, {c.name: [] for c in timed}
    tables = []
    for round_ in range(rounds + 1):
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
                    tables.append(took.get("tables", 0.0))
    found = {**case, "batch": batch, "threads": threads, "load": os.getloadavg()[0], "wall": wall, "cpu": cpu}
    # On a busy machine a short call ends before the scheduler takes its CPU away and a long one does not, which flatters
    # the faster contestant. One thread's own CPU time is free of that; of several it says nothing.
    found["clock"] = "cpu" if threads == 1 and all(cpu.values()) else "wall"
    seconds = found[found["clock"]]
    found["median"] = {name: statistics.median(s) for name, s in seconds.items()}
    found["tables"] = statistics.median(tables)
    if FASTSCAN in seconds:
        ratios = [theirs / ours for ours, theirs in zip(seconds[OURS], seconds[FASTSCAN])]
        found["ratio"] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    print(report.line(found), flush=True)
    return found


def measure(case, args, names):
    """One set of codes, all batches and numbers of threads."""
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        some, checked = load(names, case, args, Path(folder))
        cells = [cell(some, case, batch, threads, args.rounds) for threads in args.threads for batch in BATCHES]
        for c in some:
            c.close()
    return {"cells": cells, "sets": [checked]}


def against_faiss(case, args):
    return measure(case, args, [OURS, FASTSCAN] + ([PQ] if case["documents"] <= 1_000_000 else []))


def against_others(case, args):
    """Libraries that take vectors: they are given every document's decoded vector, whose distances are those of its
    code. Which of them take part is what can be imported."""
    names = [OURS]
    for name, module in [(SCANN, "scann"), (USEARCH, "usearch")]:
        try:
            __import__(module)
            names.append(name)
        except ImportError as problem:
            print(f"{name} does not take part: {problem}", flush=True)
    return measure(case, args, names)
