"""Plots of all parts as SVG, drawn by hand: lines on logarithmic axes, and bars against targets."""

import math
import statistics
from html import escape

import report
from contestants import FASTSCAN, OURS

COLOURS = {OURS: "#0b6e4f", FASTSCAN: "#c44536"}
SHADES = {16: "#08519c", 32: "#3182bd", 64: "#0b6e4f", 128: "#c44536"}
STYLE = "font-family='system-ui, sans-serif' font-size='12' fill='#222'"


def write(parts, folder):
    """Writes what the parts allow; returns names and captions."""
    cells = report.gathered(parts, "cells", {"scan"})
    drawn = []
    for name, caption, make in [
        ("search-ratio.svg", "How many times as fast as FAISS's fast scan, one thread", lambda: ratios(cells)),
        ("search-growth.svg", "Time a query against the number of documents, codes of our model, one thread, batch 64", lambda: growth(cells)),
        ("search-filter.svg", "Time a query with filters, index on disk", lambda: filters(report.gathered(parts, "indexes"))),
    ]:
        text = make()
        if text:
            (folder / name).write_text(text)
            drawn.append((name, caption))
    return drawn


def page(width, height, title, body):
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
    back = f"<rect width='{width}' height='{height}' fill='white'/>"
    return "\n".join([head, back, label(16, 24, title, weight="bold"), *body, "</svg>\n"])


def label(x, y, text, anchor="start", weight="normal", turn=None):
    turned = f" transform='rotate({turn} {x:.1f} {y:.1f})'" if turn else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' {STYLE} text-anchor='{anchor}' font-weight='{weight}'{turned}>{escape(str(text))}</text>"


def rule(x1, y1, x2, y2, colour="#ddd", width=1, dash=""):
    dashed = f" stroke-dasharray='{dash}'" if dash else ""
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' stroke-width='{width}'{dashed}/>"


def curve(points, colour, dash=""):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f" stroke-dasharray='{dash}'" if dash else ""
    dots = [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in points]
    return [f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'{dashed}/>", *dots]


class Axes:
    """A frame with logarithmic axes."""

    def __init__(self, xs, ys, x_text, y_text, width=640, height=400):
        self.left, self.right, self.top, self.bottom = 80, width - 150, 44, height - 50
        self.x = (math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs))))
        self.y = (math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))))
        self.body = []
        for power in range(self.x[0], self.x[1] + 1):
            x = self.at(10.0**power, 1)[0]
            self.body += [rule(x, self.top, x, self.bottom), label(x, self.bottom + 18, x_text(10.0**power), "middle")]
        for power in range(self.y[0], self.y[1] + 1):
            y = self.at(1, 10.0**power)[1]
            self.body += [rule(self.left, y, self.right, y), label(self.left - 8, y + 4, y_text(10.0**power), "end")]

    def at(self, x, y):
        share = lambda v, ends: (math.log10(v) - ends[0]) / max(ends[1] - ends[0], 1)
        return (self.left + share(x, self.x) * (self.right - self.left), self.bottom - share(y, self.y) * (self.bottom - self.top))


def ratios(cells):
    """Bars by bits, batch and documents, a mark where the target is."""
    chosen = [c for c in cells if c["threads"] == 1 and c["data"] != "noise" and report.target(c)]
    if not chosen:
        return None
    chosen.sort(key=lambda c: (c["documents"], c["batch"], c["bits"], c["data"]))
    top, left, height, width = 48, 250, 20, 760
    scale = lambda v: left + max(math.log2(max(v, 0.5)) + 1, 0) * (width - left - 60) / 7.5
    body = [rule(scale(v), top - 8, scale(v), top + height * len(chosen)) for v in (1, 2, 4, 8, 16, 32, 64)]
    body += [label(scale(v), top - 12, f"{v}x", "middle") for v in (1, 2, 4, 8, 16, 32, 64)]
    for i, c in enumerate(chosen):
        y, held, wanted = top + i * height, report.judged(c, cells), report.target(c)
        body.append(label(16, y + 14, f"{c['data']}, {c['bits']} bits, {report.documents(c['documents'])}, batch {c['batch']}"))
        colour = COLOURS[OURS] if held >= wanted else "#8fb8a8"
        body.append(f"<rect x='{scale(0.5):.1f}' y='{y + 3}' width='{max(scale(held) - scale(0.5), 1):.1f}' height='{height - 6}' fill='{colour}'/>")
        body.append(rule(scale(wanted), y + 1, scale(wanted), y + height - 1, "#000", 2))
        body.append(label(scale(max(held, wanted)) + 6, y + 14, f"{held:.1f}"))
    title = "Times as fast as FAISS IndexPQFastScan; black: the target (one thread, CPU time, top 100)"
    return page(width, top + height * len(chosen) + 16, title, body)


def growth(cells):
    chosen = [c for c in cells if c["threads"] == 1 and c["batch"] == 64 and c["data"] == "model"]
    if len({c["documents"] for c in chosen}) < 2:
        return None
    times = [c["median"][name] for c in chosen for name in (OURS, FASTSCAN)]
    axes = Axes([c["documents"] for c in chosen], times, report.documents_of, report.duration)
    body, y = axes.body, 60
    for bits in sorted({c["bits"] for c in chosen}):
        for name, dash in [(OURS, ""), (FASTSCAN, "5 4")]:
            points = [axes.at(c["documents"], c["median"][name]) for c in chosen if c["bits"] == bits]
            body += curve(points, SHADES[bits], dash)
            body += [rule(axes.right + 12, y - 4, axes.right + 36, y - 4, SHADES[bits], 2, dash)]
            body += [label(axes.right + 42, y, f"{'micpq' if name == OURS else 'FAISS'} {bits}")]
            y += 18
    return page(640, 400, "Time a query (CPU), one thread, batch 64, by documents; codes of our model", body)


def filters(indexes):
    if not indexes:
        return None
    shares = {"0.01 %": 1e-4, "1 %": 1e-2, "10 %": 0.1, "50 %": 0.5, "all": 1.0}
    chosen = [(i, s) for i in indexes for s in i["search"]]
    times = [statistics.median(t) for _, s in chosen for t in s["wall"].values()]
    axes = Axes(list(shares.values()), times, lambda v: f"{v:.2%}".rstrip("0%").rstrip(".") + " %", report.duration)
    body, y = axes.body, 60
    for at, (i, s) in enumerate(chosen):
        colour = list(SHADES.values())[at // 2 % 4]
        dash = "" if s["batch"] == 1 else "5 4"
        body += curve([axes.at(share, s["median"][name]) for name, share in shares.items()], colour, dash)
        body += [rule(axes.right + 12, y - 4, axes.right + 36, y - 4, colour, 2, dash)]
        body += [label(axes.right + 42, y, f"{report.documents(i['documents'])}, batch {s['batch']}")]
        y += 18
    return page(640, 400, "Time a query by the share of documents a filter leaves (index on disk, wall time)", body)
