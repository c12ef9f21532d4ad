"""An index of generated news, and the program that serves it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("MICPQ_BINARY", ROOT / "target" / "release" / "micpq"))
sys.path.insert(0, str(ROOT / "crates" / "python" / "tests"))


class Program:
    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {"MICPQ_MODELS": str(folder / "models"), "HOME": str(folder), "PATH": os.environ["PATH"]}

    def run(self, *arguments: str) -> str:
        command = [str(BINARY), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> list:
        return [json.loads(line) for line in self.run(*arguments, "--json").splitlines()]


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    from bench import news, write_encoder

    assert BINARY.is_file(), f"no {BINARY}; build it with cargo build --release --workspace"
    folder = tmp_path_factory.mktemp("micpq-mcp")
    write_encoder(folder / "models" / "tiny")
    (folder / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in news()))
    program = Program(folder)
    flags = "--encoder tiny --precision f32 --bits 16 --hidden 32 --epochs 2 --views noise:4 --cache cache"
    program.run("build", "news.jsonl", *flags.split(), "-o", "news.micpq")
    return program
