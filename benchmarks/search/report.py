"""The tables of all parts, as text, and which targets are met."""

import statistics

from contestants import FASTSCAN, OURS, PQ

# How many times as fast as FAISS's fast scan we mean to be, by bits, documents and batch.
TARGETS = {
    16: {(1_000_000, 1): 20, (1_000_000, 64): 20, (10_000_000, 64): 20},
    32: {(1_000_000, 1): 3, (1_000_000, 64): 4, (10_000_000, 64): 4},
    64: {(1_000_000, 1): 2.5, (1_000_000, 64): 3.5, (10_000_000, 64): 3},
    128: {(1_000_000, 1): 1.5, (1_000_000, 64): 2.5, (10_000_000, 64): 2.5},
}


def target(cell):
    if (cell["bits"], cell["documents"], cell["batch"], cell["data"]) == (32, 1_000_000, 1, "clustered"):
        return 10
    return TARGETS[cell["bits"]].get((cell["documents"], cell["batch"]))


def duration(seconds):
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"


def size(n):
    for unit, name in [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]:
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n:.0f} B"


def spread(seconds):
    return f"{duration(statistics.median(seconds))} ({duration(min(seconds))} .. {duration(max(seconds))})"


def ratio(cell):
    r = cell.get("ratio")
    return f"{r['median']:.2f} ({r['least']:.2f} .. {r['most']:.2f})" if r else "-"


def judged(cell, cells):
    """The ratio a target is held against. FAISS does not divide one query among threads, and on a busy machine asking
    for more only slows it; it is given its best time, by the same clock, over all numbers of threads up to ours."""
    same = ("data", "bits", "documents", "batch")
    rivals = [c for c in cells if all(c[f] == cell[f] for f in same) and c["threads"] <= cell["threads"] and FASTSCAN in c["wall"]]
    best = min(statistics.median(c[cell["clock"]][FASTSCAN]) for c in rivals if c[cell["clock"]][FASTSCAN])
    return min(cell["ratio"]["median"], best / cell["median"][OURS])


def documents(n):
    return f"{n // 1_000_000}M" if n % 1_000_000 == 0 else f"{n:,}"


def documents_of(n):
    """A power of ten on an axis."""
    return f"{n / 1e6:g}M" if n >= 1e6 else f"{n:,.0f}"


def head(cell):
    return f"{cell['data']} {cell['bits']} bits, {documents(cell['documents'])}, batch {cell['batch']}, {cell['threads']} thr."


def line(cell):
    times = ", ".join(f"{name} {duration(s)}" for name, s in cell["median"].items())
    return f"{head(cell)}: {times} by {cell['clock']}; ratio {ratio(cell)}; load {cell['load']:.1f}"


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def order(case):
    return case["documents"], case["bits"], case["data"], case.get("threads", 0), case.get("batch", 0)


def gathered(parts, key, stages=None):
    found = [item for p in parts if stages is None or p["case"]["stage"] in stages for item in p.get(key, [])]
    return sorted(found, key=order)


def markdown(parts, plots):
    cells = gathered(parts, "cells", {"scan"})
    out = ["# Exact search against FAISS and others", ""] + header(parts, cells)
    out += ["## Targets", ""] + targets(parts)[0]
    for name, caption in plots:
        out += ["", f"![{caption}]({name})"]
    if cells:
        out += scans(cells)
    sets = gathered(parts, "sets", {"scan"})
    if sets:
        out += found(sets)
    others = gathered(parts, "cells", {"others"})
    if others:
        out += libraries(others, gathered(parts, "sets", {"others"}))
    indexes = gathered(parts, "indexes")
    if indexes:
        out += lifecycle(indexes)
    return "\n".join(out) + "\n"


def header(parts, cells):
    versions = {load["version"] for s in gathered(parts, "sets") for load in s["loads"].values()}
    versions |= {i["version"] for i in gathered(parts, "indexes")}
    machines = {(p["machine"]["cpu"], p["machine"]["cores"], " ".join(p["machine"]["features"]), p["machine"]["system"]) for p in parts}
    commits, dates = sorted({p["commit"] for p in parts}), sorted(p["date"] for p in parts)
    out = [f"`make bench-search`, {len(parts)} parts from {dates[0]} to {dates[-1]}, commits {', '.join(commits)}; {'; '.join(sorted(versions))}."]
    out += [f"{cpu}, {cores} cores, {features}; {system}." for cpu, cores, features, system in sorted(machines)]
    if cells:
        least, most = min(c["load"] for c in cells), max(c["load"] for c in cells)
        out.append(
            f"Load average while measuring {least:.1f} .. {most:.1f}"
            + (": the machine had other work, so single figures wander." if most > 2.5 else ".")
        )
    out += [
        "",
        "Contestants take turns, and ratios are formed within a round. One thread is measured by its CPU time, several by "
        "the clock on the wall, which under load flatters the contestant with the shorter call; both are in the parts. "
        "`README.md` in `benchmarks/search` says what the codes are and how each part is run.",
        "",
    ]
    return out


def targets(parts):
    """A table, and the same as lines for a terminal."""
    rows = []
    cells = gathered(parts, "cells", {"scan"})
    for c in cells:
        wanted = target(c)
        if wanted is None or c["threads"] != 1 or c["data"] == "noise":
            continue
        held = judged(c, cells)
        rate = c["documents"] / c["median"][OURS] / 1e9
        limit = f"{rate:.1f} G codes/s, {rate * c['bits'] / 8:.0f} GB/s of codes"
        rows.append((f"{head(c)}", f"{wanted:g} x FAISS", f"{held:.2f} x", held >= wanted, limit))
    for s in gathered(parts, "sets", {"scan"}):
        ours, theirs = s["checked"][OURS], s["checked"].get(FASTSCAN)
        beside = f"FAISS {theirs['recall']:.4f}, at worst {theirs['least']:.2f}" if theirs else ""
        where = f"{s['data']} {s['bits']} bits, {documents(s['documents'])}"
        rows.append((f"{where}: recall", "1", f"{ours['recall']:.4f}", ours["recall"] == 1, beside))
    for c in cells:
        if c["documents"] == 10_000_000 and c["batch"] == 1 and c["threads"] == 2 and c["data"] != "noise":
            same = ("data", "bits", "documents", "batch")
            one = [d for d in cells if d["threads"] == 1 and all(d[f] == c[f] for f in same)]
            if one:
                gain = statistics.median(one[0]["wall"][OURS]) / statistics.median(c["wall"][OURS])
                rows.append((f"{head(c)}: against one", "1.7 x", f"{gain:.2f} x", gain >= 1.7, f"load {c['load']:.1f}"))
    for i in gathered(parts, "indexes"):
        where = f"index, {i['bits']} bits, {documents(i['documents'])}"
        opened = statistics.median(i["open"]["seconds"])
        rows.append((f"{where}: open", "milliseconds", duration(opened), opened < 0.02, f"first search {duration(i['open']['first_search'])}"))
        for s in i["search"]:
            one, every = s["median"]["1 %"], s["median"]["all"]
            rows.append((f"{where}, batch {s['batch']}: 1 % filter", "no slower than none", f"{one / every:.2f} of its time",
                         one <= every * 1.02, f"{duration(one)} against {duration(every)}"))
        if "first" in i:
            one, none = (statistics.median(i["first"]["1 %"][kind]) for kind in ("later", "none"))
            rows.append((f"{where}, batch 1: 1 % filter, used for the first time", "no slower than none", f"{one / none:.2f} of its time",
                         one <= none * 1.02, f"{duration(one)} against {duration(none)}"))
    text = table(["what", "target", "found", "", "beside it"], [(a, b, c, "met" if d else "**missed**", e) for a, b, c, d, e in rows])
    done = sum(row[3] for row in rows)
    lines = [f"{'met   ' if d else 'MISSED'}  {a}: {c} (target {b}){'; ' + e if e else ''}" for a, b, c, d, e in rows]
    lines.append(f"{done} of {len(rows)} targets are met")
    return [f"{done} of {len(rows)} are met. Speed is held against one thread's CPU time.", ""] + text, lines


def scans(cells):
    out = ["", "## The scan", ""]
    out.append(
        "Time a query, top 100, from the query's vector to its hits: median of the rounds (least .. most). Ratio: FAISS's "
        "time over ours, median of the rounds' own ratios (least .. most). Wall: medians by the clock, ours and FAISS's."
    )
    rows = []
    for c in cells:
        seconds = c[c["clock"]]
        wall = " / ".join(duration(statistics.median(c["wall"][n])) for n in (OURS, FASTSCAN) if n in c["wall"])
        pq = duration(c["median"][PQ]) if PQ in c["median"] else "-"
        rows.append([c["data"], c["bits"], documents(c["documents"]), c["batch"], c["threads"], c["clock"],
                     spread(seconds[OURS]), spread(seconds[FASTSCAN]), pq, ratio(c), wall])
    columns = ["codes", "bits", "documents", "batch", "threads", "clock", OURS, FASTSCAN, PQ, "ratio", "wall"]
    return out + [""] + table(columns, rows)


def found(sets):
    out = ["", "## What is found, and what it weighs", ""]
    out.append(
        "Recall: the share of returned documents that belong to the exact nearest 100, equals counting alike, mean (and "
        "least) over the queries that were checked by brute force in double precision. Error: the largest relative "
        "difference of a returned distance to the exact one of its rank. Bytes: growth of resident memory a document; "
        "memory: all that the process holds."
    )
    return out + [""] + table(["codes", "bits", "documents", "contestant", "recall", "error", "bytes", "memory", "load"], weights(sets))


def weights(sets):
    rows = []
    for s in sets:
        for name, checked in s["checked"].items():
            load = s["loads"][name]
            rows.append([s["data"], s["bits"], documents(s["documents"]), name,
                         f"{checked['recall']:.4f} ({checked['least']:.2f})", f"{checked['error']:.1e}",
                         f"{load['bytes']:.1f}" if "bytes" in load else "-",
                         size(load["resident"]) if "resident" in load else "-", duration(load["seconds"])])
    return rows


def libraries(cells, sets):
    out = ["", "## Other libraries", ""]
    out.append(
        "They take vectors, so each document is given as its decoded code, whose distances are those of the code. ScaNN "
        "scans all of them by its asymmetric hashing over the same blocks of values; USearch builds a graph."
    )
    rows = []
    for c in cells:
        for name, seconds in c[c["clock"]].items():
            rows.append([c["data"], c["bits"], documents(c["documents"]), c["batch"], c["threads"], c["clock"], name, spread(seconds)])
    out += [""] + table(["codes", "bits", "documents", "batch", "threads", "clock", "library", "time a query"], rows)
    columns = ["codes", "bits", "documents", "library", "recall", "error", "bytes", "memory", "load"]
    return out + [""] + table(columns, weights(sets))


def lifecycle(indexes):
    out = ["", "## The index on disk", ""]
    out.append("Ids, codes and one attribute a document, no text; all threads. Open: median of 21. The first search looks at every byte of the codes once.")
    rows = []
    for i in indexes:
        b = i["build"]
        rows.append([i["bits"], documents(i["documents"]), f"{duration(b['seconds'])} ({b['documents'] / b['seconds'] / 1e3:.0f} k/s)",
                     duration(b["compact"]), f"{b['total'] / b['documents']:.1f}", f"{b['bytes']['codes'] / b['documents']:.1f}",
                     spread(i["open"]["seconds"]), duration(i["open"]["first_search"]), size(i["open"].get("resident", 0)),
                     size(i.get("searched_resident", 0))])
    columns = ["bits", "documents", "build", "compact", "bytes a document", "of them packed codes", "open", "first search",
               "memory after open", "after searches"]
    out += [""] + table(columns, rows) + ["", "Time a query with filters that leave a share of the documents, wall time, median:", ""]
    rows = [[i["bits"], documents(i["documents"]), s["batch"]] + [duration(t) for t in s["median"].values()] for i in indexes for s in i["search"]]
    out += table(["bits", "documents", "batch"] + list(indexes[0]["search"][0]["median"]), rows)
    out += ["", "The first time a filter is used (documents that match are kept for later searches): one query in an index just opened, and in one "
            "asked with other filters before, beside the same query without a filter, median and range:", ""]
    rows = [[i["bits"], documents(i["documents"]), name, spread(f["opened"]), spread(f["later"]), spread(f["none"])]
            for i in indexes for name, f in i.get("first", {}).items()]
    out += table(["bits", "documents", "filter", "index just opened", "index in use", "no filter"], rows)
    out += ["", "Changes, each made durable by its commits:", ""]
    rows = []
    for i in indexes:
        where = [i["bits"], documents(i["documents"])]
        rows += [where + [f"add {a['added']:,} in {a['commits']} commits", duration(a["seconds"]), f"then {a['segments']} segments"] for a in i["add"]]
        rows += [where + [f"delete {d['deleted']:,}", duration(d["seconds"]), ""] for d in i["delete"]]
        rows.append(where + ["snapshot", duration(i["snapshot"]["seconds"]), f"{i['snapshot']['linked']} files linked"])
        rows.append(where + ["compact", duration(i["compact"]["seconds"]), ""])
        rows.append(where + ["verify", duration(i["verify"]["seconds"]), f"{i['verify']['problems']} problems"])
    return out + table(["bits", "documents", "what", "time", ""], rows)
