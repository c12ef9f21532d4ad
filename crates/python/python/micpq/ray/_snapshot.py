"""Snapshots of a folder of shards in any file system, and their restoration."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import ray

from .. import _inputs, _micpq
from ..errors import ConfigError, FormatError
from ._calls import get
from ._files import download, resolve, upload, write_whole
from ._manifest import Manifest, checksum, files_of

_RECORD = "snapshot.json"


@ray.remote(max_retries=3, num_cpus=0.5)
def _save(directory: str, filesystem: Any, place: str) -> dict[str, Any]:
    """Copies one commit of a shard to the file system. Its record lists size and CRC-32 of every file."""
    with tempfile.TemporaryDirectory(prefix=".micpq-", dir=Path(directory).parent) as folder:
        copy = Path(folder) / "copy"
        _micpq.Index.open(Path(directory)).backup(copy)
        files = files_of(copy)
        for name in files:
            upload(copy / name, filesystem, f"{place}/{name}")
        documents = len(_micpq.Shard.open(copy))
    return {"name": PurePosixPath(place).name, "documents": documents, "checksum": checksum(files), "files": files}


@ray.remote(max_retries=3, num_cpus=0.5)
def _load(filesystem: Any, place: str, target: str, files: dict[str, tuple[int, int]]) -> None:
    """Copies a shard back and compares every file with the record. It appears whole or not at all."""
    final = Path(target)
    if final.exists():
        return
    staged = final.with_name(f".{final.name}")
    shutil.rmtree(staged, ignore_errors=True)
    for name, (size, crc) in files.items():
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        download(filesystem, f"{place}/{name}", staged / name)
        content = (staged / name).read_bytes()
        if len(content) != size or zlib.crc32(content) != crc:
            raise FormatError(f"{place}/{name} is damaged: its size or checksum is another; take another snapshot")
    os.rename(staged, final)


def snapshot(out: str | os.PathLike[str], to: str | os.PathLike[str], *, filesystem: Any = None) -> Manifest:
    """Copies a folder of shards to a folder of any file system or object store. Searches and changes may go on: of every shard
    one commit is copied. The snapshot is complete when its ``snapshot.json`` is there.

    :param to: a path, a URL, or a path in ``filesystem``.
    :param filesystem: an Arrow or fsspec file system.
    """
    source = _inputs.path(out, "out").absolute()
    manifest = Manifest.read(source)
    target, place = resolve(to, filesystem)
    if target.get_file_info(f"{place}/{_RECORD}").is_file:
        raise ConfigError(f"{to} already holds a snapshot; name another place")
    tasks = [_save.remote(str(d), target, f"{place}/{d.name}") for d in manifest.directories(source)]
    record = {"format": 1, "model": manifest.model, "shards": get(tasks)}
    target.create_dir(place, recursive=True)
    with target.open_output_stream(f"{place}/{_RECORD}") as stream:
        stream.write(json.dumps(record, indent=1).encode())
    return manifest


def restore(source: str | os.PathLike[str], out: str | os.PathLike[str], *, filesystem: Any = None) -> Manifest:
    """Copies a snapshot back to a folder that is empty or missing. A call that was killed goes on with the next one."""
    target = _inputs.path(out, "out").absolute()
    if Manifest.path(target).exists():
        raise ConfigError(f"{target} already holds shards; name another place")
    reader, place = resolve(source, filesystem)
    try:
        with reader.open_input_stream(f"{place}/{_RECORD}") as stream:
            record = json.loads(stream.read())
    except (OSError, ValueError) as problem:
        raise FormatError(f"{source} holds no complete snapshot: {problem}") from None
    target.mkdir(parents=True, exist_ok=True)
    shards = record["shards"]
    get([_load.remote(reader, f"{place}/{s['name']}", str(target / s["name"]), s["files"]) for s in shards])
    model = target / "model"
    if not model.exists():
        staged = target / ".model"
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(target / shards[0]["name"] / "model", staged)
        os.rename(staged, model)
    manifest = Manifest(record["model"], [{key: s[key] for key in ("name", "documents", "checksum")} for s in shards])
    write_whole(target / "snapshot.json", json.dumps({"from": os.fspath(source)}).encode())
    manifest.write(target)
    return manifest
