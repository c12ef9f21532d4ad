"""Runs every command and every Python block of the guide, page by page, with a tiny encoder instead of the default one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tutorials
from bench import news, write_encoder

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("MICPQ_BINARY", ROOT / "target" / "release" / "micpq"))
TUTORIALS = ["tutorial-mail", "tutorial-dedup", "tutorial-topics", "tutorial-faiss", "tutorial-bill"]
PAGES = [*TUTORIALS, "start", "install", "cli", "search", "documents", "fast", "mcp", "topics", "dedup", "watch", "methods", "python", "formats", "tuning"]
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
    tutorials.write(tmp_path)
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


def test_pages_are_in_the_summary_and_their_links_and_headings_exist():
    listed = set(re.findall(r"\((\w[\w-]*\.md)\)", (ROOT / "docs" / "SUMMARY.md").read_text()))
    assert {f"{page}.md" for page in PAGES} <= listed
    done = subprocess.run([sys.executable, ROOT / "scripts" / "guide", "check"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_wrong_link_or_heading_is_found(tmp_path):
    """The check itself: on a copy of the guide with a wrong link, a wrong heading, and a page that nothing lists."""
    for part in ["docs", "scripts"]:
        shutil.copytree(ROOT / part, tmp_path / part)
    for file in ["README.md", "Cargo.toml"]:
        (tmp_path / file).write_text((ROOT / file).read_text())
    # Links out of docs/ and scripts/ are looked up too, so the copy has what they name.
    for name in ["benchmarks", "clients", "crates", "operations", "LICENSE", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]:
        (tmp_path / name).symlink_to(ROOT / name)

    def check():
        return subprocess.run([sys.executable, tmp_path / "scripts" / "guide", "check"], text=True, capture_output=True).stderr

    assert check() == ""
    page = tmp_path / "docs" / "faq.md"
    page.write_text(page.read_text() + "[a](nowhere.md) [b](search.md#no-such-heading) [c](#nor-this)\n")
    (tmp_path / "docs" / "forgotten.md").write_text("# Forgotten\n")
    assert check().splitlines() == [
        "docs/forgotten.md is not in docs/SUMMARY.md", "docs/faq.md: there is no nowhere.md",
        "docs/faq.md: search.md has no heading #no-such-heading", "docs/faq.md: faq.md has no heading #nor-this",
    ]
