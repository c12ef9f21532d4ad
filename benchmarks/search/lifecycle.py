"""An index on disk from its first document to its last: build, open, search, filter, add, delete, compact."""

import os
import statistics
import tempfile
import time
from pathlib import Path

import data
from contestants import Contestant

K = 100
PAUSE = 0.03
# Filters by the share of documents they leave, and none.
FILTERS = {"all": None, "50 %": "share:half", "10 %": "share:tenth", "1 %": "share:hundredth", "0.01 %": "share:tenthousandth"}


def measure(case, args):
    found = {**case, "load": os.getloadavg()[0]}
    documents = case["documents"]
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        folder = Path(scratch)
        data.make(folder, case["data"], case["bits"], documents, 64, args.seed)
        index = str(folder / "index")
        keeper = Contestant("index")
        told = keeper.ask(do="build", dir=str(folder), index=index)
        found["build"] = told
        print(f"{documents:,} documents in {told['seconds']:.1f} s, compacted in {told['compact']:.1f} s", flush=True)
        keeper.close()

        # A process of its own, so that what it holds is what reading takes.
        keeper = Contestant("index")
        before = keeper.resident()
        found["open"] = keeper.ask(do="open", dir=str(folder), index=index, times=21)
        if before is not None:
            found["open"]["resident"] = keeper.resident() - before
        found["version"] = found["open"].pop("version")
        print(f"opened in {1e3 * statistics.median(found['open']['seconds']):.2f} ms", flush=True)
        found["search"] = [filtered(keeper, batch, args.rounds) for batch in (1, 64)]
        found["first"] = first(keeper, args.rounds)
        if before is not None:
            found["searched_resident"] = keeper.resident() - before

        found["add"] = [keeper.ask(do="add", count=n, commits=c) for n, c in [(1, 1), (1000, 1), (100_000, 1), (1000, 100)]]
        found["delete"] = [keeper.ask(do="delete", count=n) for n in (1, 1000, 100_000) if n < documents // 2]
        for told in found["add"] + found["delete"]:
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in told.items()), flush=True)
        found["snapshot"] = keeper.ask(do="backup", to=str(folder / "copy"))
        found["compact"] = keeper.ask(do="compact")
        found["verify"] = keeper.ask(do="verify")
        keeper.close()
    return {"indexes": [found]}


def filtered(keeper, batch, rounds):
    """Search with and without filters, in turns."""
    wall, cpu = {name: [] for name in FILTERS}, {name: [] for name in FILTERS}
    for round_ in range(rounds + 1):
        for name, text in FILTERS.items():
            before = keeper.worked()
            took = keeper.ask(do="search", batch=batch, queries=64, k=K, filter=text)
            time.sleep(PAUSE)
            if round_ > 0:
                wall[name].append(took["seconds"])
                if before is not None:
                    cpu[name].append((keeper.worked() - before) / 64)
    found = {"batch": batch, "wall": wall, "cpu": cpu, "median": {n: statistics.median(s) for n, s in wall.items()}}
    print(f"batch {batch}: " + ", ".join(f"{n} {1e6 * s:.0f} us" for n, s in found["median"].items()), flush=True)
    return found


def first(keeper, rounds):
    """The first search with a filter: in an index just opened, and in one that was asked with other filters before."""
    found = {}
    for name, text in FILTERS.items():
        if text is None:
            continue
        asked = []
        for _ in range(rounds):
            asked.append(keeper.ask(do="first", k=K, filter=text))
            time.sleep(PAUSE)
        found[name] = {kind: [a[kind] for a in asked] for kind in asked[0]}
    print("first time: " + ", ".join(f"{n} {1e6 * statistics.median(a['later']):.0f} us" for n, a in found.items()), flush=True)
    return found
