"""The table of results/encode.json, as Markdown. `report.py FILE` prints it."""

import json
import statistics
import sys


def rate(row, task, amount, clock):
    values = sorted(amount / a[clock] for a in row["tasks"].get(task, []) if a[clock] > 0)
    return (statistics.median(values), values[0], values[-1]) if values else None


def peak_of(found, precision):
    return max((p["gops"] for p in found["peak"] if p.get("bare") == precision), default=None)


# Multiplications and additions of the dense layers, a token, in millions.
OPERATIONS = {"minilm": 2 * 6 * 12 * 384 * 384 / 1e6, "base": 2 * 12 * 12 * 768 * 768 / 1e6}


def text(found, results="encode"):
    m = found["machine"]
    lines = [
        "# The encoder against its peers",
        "",
        f"{m['cpu']}, {m['cores']} cores, {' '.join(m['features'])}; load {m['load'][0]:.0f} when it began. Made by `make bench-encode`.",
        "",
        "Tokens a second, median over the rounds (least to most). One thread by processor time, all threads by the clock. *Ratio* is",
        "ours over the best peer of the same precision; *of peak* the share of what bare chains of the same instructions give on one",
        "core, counting the dense layers alone. *Cosine* is the least one of four texts against our f32. Peers sort by length and pad to",
        "the longest of a batch of the size that suits them best.",
        "",
        "| encoder | text | threads | contestant | tokens/s | documents/s | ratio | of peak | cosine |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    queries, dropout = [], []
    for which, cells in found["encoders"].items():
        for threads, cell in cells.items():
            clock = "processor" if threads == "1" else "seconds"
            for kind in ("real", "synthetic"):
                rows = cell.get(kind)
                if not rows:
                    continue
                n, tokens = (cell["documents"], cell["tokens"]) if kind == "real" else (32, 2048)
                task = f"clean 0 {n}"
                rates = {name: rate(row, task, tokens, clock) for name, row in rows.items()}
                rates = {name: r for name, r in rates.items() if r}
                for name, r in sorted(rates.items(), key=lambda kv: -kv[1][0]):
                    precision = name.split("-")[1]
                    others = [v[0] for k, v in rates.items() if k.endswith(precision) and not k.startswith("micpq")]
                    ours = name.startswith("micpq")
                    ratio = f"**{r[0] / max(others):.2f}**" if ours and others else ""
                    top = peak_of(found, precision)
                    share = f"{r[0] * OPERATIONS[which] / 1e3 / top / int(threads):.0%}" if top else ""
                    about = rows[name]["self"]
                    label = name if ours else f"{name} ({about.get('version', '').split('-')[0]}, batch {about.get('batch')})"
                    lines.append(
                        f"| {which} | {kind} | {threads} | {label} | {r[0]:,.0f} ({r[1]:,.0f} to {r[2]:,.0f}) | {r[0] * n / tokens:,.0f} | {ratio} | {share} | {rows[name]['cosine']:.4f} |"
                    )
                if kind == "real":
                    for name, row in rows.items():
                        with_it = rate(row, f"dropout 0 {n}", tokens, clock)
                        if with_it:
                            dropout.append(f"| {which} | {threads} | {name} | {rates[name][0] / with_it[0]:.2f} |")
                        asked = row["tasks"].get("query 10", [])
                        if asked:
                            best = min(a["least"] for a in asked)
                            middle = statistics.median(a["median"] for a in asked)
                            queries.append(f"| {which} | {threads} | {name} | {1e3 * middle:.2f} | {1e3 * best:.2f} |")
    lines += ["", "A pass with dropout at 0.3, times a clean one:", "", "| encoder | threads | contestant | times |", "|---|---|---|---|", *dropout]
    if queries:
        lines += ["", "One query of ten tokens, milliseconds:", "", "| encoder | threads | contestant | median | least |", "|---|---|---|---|---|", *queries]
    if found.get("cold"):
        times = found["cold"]
        lines += ["", f"Cold start: `micpq encode` of one query with MiniLM, from the start of the program to its end, files in the page cache: {statistics.median(times):.0f} ms ({times[0]:.0f} to {times[-1]:.0f})."]
    lines += ["", f"Versions, every round and the peak of every product: `{results}.json`.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(text(json.load(file)))
