"""Runs every command and every Python block of the guide, page by page, with a tiny encoder instead of the default one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench import news, write_encoder

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("MICPQ_BINARY", ROOT / "target" / "release" / "micpq"))
PAGES = ["start", "install", "cli", "search", "documents", "fast", "mcp", "topics", "dedup", "watch", "methods", "python", "formats", "tuning"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(page):
    return [(m[1], m[2]) for m in BLOCK.finditer((ROOT / "docs" / f"{page}.md").read_text())]


@pytest.fixture()
def folder(tmp_path):
    """A folder with what the pages assume: documents, an encoder, and `micpq` on the path."""
    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}; build it with cargo build --release --workspace")
    write_encoder(tmp_path / "models" / "all-MiniLM-L6-v2")

    def write(name, rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("news.jsonl", news())
    write("more.jsonl", news(400, 440))
    write("labelled.jsonl", [{"id": f"q{d['id']}", "text": d["text"], "label": d["label"]} for d in news(500, 520)])
    (tmp_path / "questions.txt").write_text("oil prices\nthe port strike\n")
    rows = [f"k{d['id']},{' '.join(d['text'].split()[:3])},{d['text']}" for d in news()]
    (tmp_path / "stories.csv").write_text("key,title,story\n" + "\n".join(rows) + "\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "micpq").symlink_to(BINARY)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page, folder):
    environment = {
        **os.environ, "MICPQ_MODELS": str(folder / "models"), "HOME": str(folder),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    # Python blocks of a page are one program: later blocks use the names of earlier ones.
    python = ""
    ran = 0
    for kind, code in blocks(page):
        if kind == "sh":
            done = subprocess.run(["bash", "-eu"], input=code, cwd=folder, env=environment, text=True, capture_output=True)
        elif kind == "python":
            python += code
            continue
        else:
            continue
        ran += 1
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        assert "panicked" not in done.stderr
    if python:
        done = subprocess.run([sys.executable, "-c", python], cwd=folder, env=environment, text=True, capture_output=True)
        ran += 1
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert ran > 0, f"{page} has nothing to run"


def test_the_lines_of_the_readme_run(folder):
    """As `make dist` runs them in what it packs: every line of "Start", the server and the MCP server included."""
    command = [sys.executable, ROOT / "packaging" / "readme-lines", "shell", folder / "readme", BINARY]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "lines of \"Start\" ran" in done.stdout


def test_pages_are_in_the_summary_and_their_links_resolve():
    listed = set(re.findall(r"\((\w[\w-]*\.md)\)", (ROOT / "docs" / "SUMMARY.md").read_text()))
    assert {f"{page}.md" for page in PAGES} <= listed
    for page in (ROOT / "docs").glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists() or link == "http.md", f"{page.name}: {link}"
