"""The manifest of a folder of shards: which directories make up the index, and which id belongs to which."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _micpq

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """Content of ``manifest.json``."""

    #: Fingerprint of the model of all shards.
    model: str
    #: Name, documents and checksum of each shard, as it was built.
    shards: list[dict[str, Any]]

    @staticmethod
    def path(out: Path) -> Path:
        """Where the manifest of a folder is."""
        return out / "manifest.json"

    @classmethod
    def read(cls, out: Path) -> Manifest:
        """Reads and checks the manifest of a folder."""
        content = json.loads(_micpq.read_manifest(out))
        return cls(content["model"], content["shards"])

    def write(self, out: Path) -> None:
        """Checks the manifest and puts it in place in one step."""
        content = {"format": FORMAT, "routing": "crc32", "model": self.model, "shards": self.shards}
        _micpq.write_manifest(out, json.dumps(content))

    def directories(self, out: Path) -> list[Path]:
        """The directory of each shard."""
        return [out / shard["name"] for shard in self.shards]


def shard_name(generation: int, number: int, shards: int) -> str:
    """The fixed name of a shard. Every rebalancing begins a new generation beside the old one."""
    return f"shard-{generation:03}-{number:05}-of-{shards:05}"


def generation_of(manifest: Manifest) -> int:
    """The generation of the shards of a manifest."""
    return int(manifest.shards[0]["name"].split("-")[1])


def files_of(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and CRC-32 of every file below a directory, by its relative path."""
    found = {}
    for path in sorted(directory.rglob("*")):
        # tantivy's lock files are of the process that has them open.
        if path.is_file() and not path.name.endswith(".lock"):
            crc, size = 0, 0
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    crc, size = zlib.crc32(block, crc), size + len(block)
            found[path.relative_to(directory).as_posix()] = (size, crc)
    return found


def checksum(files: dict[str, tuple[int, int]]) -> str:
    """One checksum for all files: SHA-256 over their names, sizes and CRC-32s."""
    digest = hashlib.sha256()
    for name, (size, crc) in sorted(files.items()):
        digest.update(f"{name} {size} {crc:08x}\n".encode())
    return digest.hexdigest()
