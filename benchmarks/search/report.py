"""The table of a run, as text."""

import statistics

OURS, FASTSCAN, PQ = "micpq", "FAISS IndexPQFastScan", "FAISS IndexPQ"

# How many times as fast as FAISS's fast scan we mean to be, by bits and batch.
TARGETS = {(16, 1): 20, (16, 64): 20, (32, 1): 3, (32, 64): 4, (64, 1): 2.5, (64, 64): 3.5, (128, 1): 1.5, (128, 64): 2.5}


def duration(seconds):
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def spread(cell, name):
    seconds = cell["seconds"].get(name)
    if not seconds:
        return "-"
    return f"{duration(cell['median'][name])} ({duration(min(seconds))} .. {duration(max(seconds))})"


def ratio(cell):
    r = cell["ratio"]
    return f"{r['median']:.2f} ({r['least']:.2f} .. {r['most']:.2f})"


def undisturbed(cell):
    """The ratio of the least times: what it is when nothing else runs, as far as a round was left alone."""
    return f"{min(cell['seconds'][FASTSCAN]) / min(cell['seconds'][OURS]):.2f}"


def judged(cell, cells):
    """The ratio a target is held against. FAISS does not divide one query among threads, and on a busy machine asking
    for two only slows it; it is given its best time, by the same clock, over all numbers of threads up to ours."""
    same = ("data", "bits", "documents", "batch")
    rivals = [c for c in cells if all(c[f] == cell[f] for f in same) and c["threads"] <= cell["threads"]]
    clock = "seconds" if cell["clock"] == "cpu" else "wall"
    best = min(statistics.median(c[clock][FASTSCAN]) for c in rivals)
    return min(cell["ratio"]["median"], best / cell["median"][OURS])


def met(cell, cells):
    target = TARGETS[cell["bits"], cell["batch"]]
    found = judged(cell, cells)
    return f"{found:.2f} of {target:g}: {'met' if found >= target else '**missed**'}"


def documents(n):
    return f"{n // 1_000_000}M" if n % 1_000_000 == 0 else f"{n:,}"


def head(cell):
    return f"{cell['data']} {cell['bits']} bits, {documents(cell['documents'])}, batch {cell['batch']}, {cell['threads']} thr."


def line(cell):
    times = ", ".join(f"{name} {duration(s)}" for name, s in cell["median"].items())
    return f"{head(cell)}: {times}; ratio {ratio(cell)}; load {cell['load']:.1f}"


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def markdown(result):
    m = result["machine"]
    versions = {s["loads"][name]["version"] for s in result["sets"] for name in s["loads"]}
    least, most = min(c["load"] for c in result["cells"]), max(c["load"] for c in result["cells"])
    out = [
        "# Exact scan against FAISS",
        "",
        f"`{result['command']}`, {result['date']}, commit {result['commit']}; {'; '.join(sorted(versions))}.",
        f"{m['cpu']}, {m['cores']} cores, {' '.join(m['features'])}; {m['system']}, Python {m['python']}.",
        f"Load average while measuring {least:.1f} .. {most:.1f}: "
        + ("the machine had other work, so single figures wander; " if most > 2.5 else "")
        + "contestants take turns, and ratios are formed within a round. One thread is measured by its CPU time; "
        "several by the clock on the wall, which under load flatters the contestant with the shorter call.",
        "",
        f"Time a query, top {result['k']}, from the query's vector to its hits: median of {result['rounds']} rounds "
        "(least .. most). Ratio: FAISS's time over ours, median of the rounds' own ratios (least .. most); of the "
        "least: FAISS's least time over our least. "
        "Held against the target is the lesser of it and FAISS's best median over any number of threads up to ours, "
        "divided by our median. `README.md` in `benchmarks/search` says what the codes are.",
        "",
    ]
    rows = [
        [c["data"], str(c["bits"]), documents(c["documents"]), str(c["batch"]), str(c["threads"]), c["clock"],
         spread(c, OURS), spread(c, FASTSCAN), duration(c["median"][PQ]) if PQ in c["median"] else "-", ratio(c),
         undisturbed(c), met(c, result["cells"])]
        for c in result["cells"]
    ]
    columns = ["codes", "bits", "documents", "batch", "threads", "clock", OURS, FASTSCAN, PQ]
    columns += ["ratio", "of the least", "held against target"]
    out += table(columns, rows)
    out += ["", "## What is found, and what it weighs", ""]
    out += [
        f"Recall: the share of returned documents that belong to the exact nearest {result['k']}, equals counting alike, "
        f"over {result['verified']} queries, against brute force in double precision. Error: the largest relative "
        "difference of a returned distance to the exact one of its rank. Bytes: growth of resident memory a document.",
        "",
    ]
    rows = []
    for s in result["sets"]:
        for name, checked in s["checked"].items():
            load = s["loads"][name]
            weight = f"{load['bytes']:.1f}" if "bytes" in load else "-"
            rows.append([s["data"], str(s["bits"]), documents(s["documents"]), name, f"{checked['recall']:.4f}",
                         f"{checked['error']:.1e}", weight, f"{load['seconds']:.2f} s"])
    out += table(["codes", "bits", "documents", "contestant", "recall", "error", "bytes", "load"], rows)
    out += ["", "## Targets", ""] + verdict(result["cells"])
    return "\n".join(out) + "\n"


def verdict(cells):
    missed = [c for c in cells if judged(c, cells) < TARGETS[c["bits"], c["batch"]]]
    lines = []
    for clock, meaning in [("cpu", "one thread, by CPU time"), ("wall", "by the clock on the wall, bent by the load")]:
        of = [c for c in cells if c["clock"] == clock]
        if of:
            lines.append(f"{sum(c not in missed for c in of)} of {len(of)} cells reach their target ({meaning}).")
    lines.append("")
    for c in missed:
        target = TARGETS[c["bits"], c["batch"]]
        rate = c["documents"] / c["median"][OURS] / 1e9
        tables = c["tables"] / c["median"][OURS]
        lines.append(
            f"- {head(c)}: {judged(c, cells):.2f} of {target:g}. We pass {rate:.2f} G codes/s "
            f"({rate * c['bits'] / 8:.1f} GB/s of codes); the query's table is {tables:.0%} of the time."
        )
    return lines
