"""Title to page on Debian's translated manual pages: the one-line description of a page finds the page.

    python3 benchmarks/languages/run.py --micpq target/release/micpq

Downloads the packages manpages-de, -fr, -ja and -zh with apt-get, builds an index of each language three times (the detected
language, any, and English), searches the descriptions, and writes benchmarks/results/languages.md.
"""

import argparse
import gzip
import json
import re
import subprocess
import tempfile
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "languages.md"
PACKAGES = {"de": "manpages-de", "fr": "manpages-fr", "ja": "manpages-ja", "zh": "manpages-zh"}
#: Folders of the languages below usr/share/man.
FOLDERS = {"de": "de", "fr": "fr", "ja": "ja", "zh": "zh_CN"}


def plain(page):
    """The words of a manual page, without its macros."""
    lines = []
    for line in page.splitlines():
        if line.startswith(('.\\"', "'\\\"")):
            continue
        if line.startswith((".", "'")):
            parts = line.split(None, 1)
            line = parts[1] if len(parts) > 1 and parts[0] in (".SH", ".SS", ".B", ".I", ".BR", ".IR", ".TP", ".PP") else ""
            line = ("\n\n# " + line + "\n") if parts[:1] in ([".SH"], [".SS"]) else line
        line = re.sub(r"\\f(\[[^]]*\]|.)|\\s[-+]?\d|\\[&|^/,]", "", line)
        line = line.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\").replace('"', "")
        lines.append(re.sub(r"\\\(..|\\\[[^]]*\]|\\\*.", " ", line))
    return "\n".join(lines)


def pages(folder):
    """(id, title, text) of every page: the title is the description after the dash, which the text is without."""
    found, seen = [], set()
    for path in sorted(folder.glob("man*/*.gz")):
        if path.is_symlink():
            continue
        page = gzip.open(path, "rt", encoding="utf-8", errors="replace").read()
        match = re.search(r"^\.SH\s+\S.*\n(.+?\s(?:\\-|\\\(em|-)\s*(.+))$", page, re.M)
        if not match:
            continue
        title = plain(match[2]).strip()
        text = plain(page.replace(match[1], "", 1)).strip()
        if len(title) >= 6 and len(text) >= 400 and title not in seen:
            seen.add(title)
            found.append((path.name.removesuffix(".gz"), title, text))
    return found


def measure(micpq, index, queries, flags):
    """Recall@1, recall@10 and mean reciprocal rank over the first ten."""
    out = subprocess.run(
        [micpq, "search", index, "--queries", queries, "-k", "10", "--ids", "--json", "--quiet", *flags],
        check=True, capture_output=True, text=True,
    ).stdout
    ranks, places = {}, {}
    for line in out.splitlines():
        hit = json.loads(line)
        query = hit["query"]
        places[query] = places.get(query, 0) + 1
        if str(hit["id"]) == str(query):
            ranks[query] = places[query]
    total = len(Path(queries).read_text().splitlines())
    return [sum(rank <= n for rank in ranks.values()) / total for n in (1, 10)] + [sum(1 / r for r in ranks.values()) / total]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micpq", default="target/release/micpq")
    parser.add_argument("--pages", type=int, default=400, help="pages per language")
    parser.add_argument("--packages", help="folder with the packages; default: apt-get download")
    args = parser.parse_args()
    micpq = str(Path(args.micpq).resolve())
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        source = Path(args.packages) if args.packages else work
        for code, package in PACKAGES.items():
            if not args.packages:
                subprocess.run(["apt-get", "download", package], cwd=work, check=True, capture_output=True)
            deb = next(source.glob(f"{package}_*.deb"))
            subprocess.run(["dpkg", "-x", deb, work / code], check=True)
            every = pages(work / code / "usr/share/man" / FOLDERS[code])
            some = every[:: max(1, len(every) // args.pages)][: args.pages]
            corpus, queries = work / f"{code}.jsonl", work / f"{code}-titles.jsonl"
            corpus.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, _, text in some))
            queries.write_text("".join(json.dumps({"id": i, "text": title}) + "\n" for i, title, _ in some))
            model = None
            for language in ("auto", "any", "en"):
                index = str(work / f"{code}-{language}.micpq")
                command = [micpq, "build", str(corpus), "--language", language, "--quiet", "-o", index]
                # One model serves all three.
                command += ["--model", model] if model else ["--views", "noise:12", "--cache", str(work / "cache")]
                subprocess.run(command, check=True, capture_output=True)
                model = model or index + "/model"
                info = json.loads(subprocess.run([micpq, "index", "info", index, "--json"], check=True, capture_output=True).stdout)
                wrote = info["language"]
                for name, flags in [("BM25", ["--hybrid", "1"]), ("hybrid 0.5", ["--hybrid", "0.5"]), ("codes, re-ranked", [])]:
                    if name == "codes, re-ranked" and language != "auto":
                        continue
                    one, ten, mrr = measure(micpq, index, str(queries), flags)
                    shown = f"{wrote} (auto)" if language == "auto" else wrote
                    rows.append(f"| {code} | {len(some)} | {shown} | {name} | {one:.3f} | {ten:.3f} | {mrr:.3f} |")
                    print(rows[-1], flush=True)
    head = (
        "# Title to page\n\nDebian's translated manual pages: the description of a page (its title) is the query, the page without it the answer. "
        "all-MiniLM-L6-v2, 64 bits, made by `python3 benchmarks/languages/run.py`.\n\n"
        "| pages | number | language of the index | search | recall@1 | recall@10 | MRR@10 |\n|---|---|---|---|---|---|---|\n"
    )
    RESULTS.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
