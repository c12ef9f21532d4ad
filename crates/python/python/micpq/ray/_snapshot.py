"""Snapshots of a folder of shards in any file system, and their restoration."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path, PurePosixPath
from typing import Any

import ray
from pyarrow import fs

from .. import _inputs, _micpq
from .._model import Model
from ..errors import ConfigError, Error, FormatError
from ._calls import get
from ._files import download, put_in_place, resolve, sync_folder, upload, write_whole
from ._manifest import Manifest, checksum, files_of

_RECORD = "snapshot.json"

#: Of the record. Format 1 had no folder of each copy.
FORMAT = 2

#: In a folder that is being restored: what from.
_RESTORING = ".restoring.json"


@ray.remote(max_retries=3, num_cpus=0.5)
def _save(directory: str, filesystem: Any, place: str, call: str) -> dict[str, Any]:
    """Copies one commit of a shard to a folder of its own in ``place``, and returns its record with size and CRC-32 of every file.
    Ray may run a task twice at once when it has lost a machine for dead, and two attempts may copy two commits."""
    name = Path(directory).name
    target = f"{name}.{call}.{uuid.uuid4().hex}"
    folder = Path(directory).with_name(f".snapshot.{Path(directory).name}.{uuid.uuid4().hex}")
    folder.mkdir()
    # Whoever clears up knows by the lock that this process is at work.
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy = folder / "copy"
        _micpq.Index.open(Path(directory)).backup(copy)
        files = files_of(copy)
        for file in files:
            upload(copy / file, filesystem, f"{place}/{target}/{file}")
        documents = len(_micpq.Shard.open(copy))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    return {"name": name, "folder": target, "documents": documents, "checksum": checksum(files), "files": files}


def _clear(source: Path) -> None:
    """Removes what killed snapshots left: its hard links keep the space of segments that are long merged."""
    for folder in source.glob(".snapshot.*"):
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # Another snapshot is being taken.
            pass
        finally:
            os.close(lock)


@ray.remote(max_retries=3, num_cpus=0.5)
def _load(filesystem: Any, place: str, target: str, files: dict[str, tuple[int, int]]) -> None:
    """Copies a shard back and compares every file with the record. It appears whole or not at all."""
    final = Path(target)
    if final.exists():
        # A killed restore of this snapshot put it there, and it was whole then.
        return
    staged = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
    try:
        for name, (size, crc) in files.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            if download(filesystem, f"{place}/{name}", staged / name) != (size, crc):
                raise FormatError(f"{place}/{name} is damaged: its size or checksum is another; take another snapshot")
        for folder in {(staged / name).parent for name in files} | {staged}:
            sync_folder(folder)
        put_in_place(staged, final)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def snapshot(out: str | os.PathLike[str], to: str | os.PathLike[str], *, filesystem: Any = None) -> Manifest:
    """Copies a folder of shards to a folder of any file system or object store. Searches and changes may go on: of every shard
    one commit is copied. The snapshot is complete when its ``snapshot.json`` is there.

    :param to: a path, a URL, or a path in ``filesystem``.
    :param filesystem: an Arrow or fsspec file system.
    """
    source = _inputs.path(out, "out").absolute()
    target, place = resolve(to, filesystem)
    _expect_none(target, place, to)
    _clear(source)
    call = uuid.uuid4().hex
    while True:
        manifest = Manifest.read(source)
        tasks = [_save.remote(str(d), target, place, call) for d in manifest.directories(source)]
        try:
            shards = get(tasks)
            break
        except Error:
            if Manifest.read(source).shards == manifest.shards:
                raise
            # The shards were moved meanwhile: the new ones are copied.
    # Also what tasks of killed attempts left in the meantime.
    _clear(source)
    _remove_others(target, place, call, {shard["folder"] for shard in shards})
    _expect_none(target, place, to)
    record = {"format": FORMAT, "model": manifest.model, "shards": shards}
    staged = f"{place}/.{_RECORD}.{call}"
    with target.open_output_stream(staged) as stream:
        stream.write(json.dumps(record, indent=1).encode())
    target.move(staged, f"{place}/{_RECORD}")
    return Manifest(manifest.model, _listed(shards))


def _expect_none(target: fs.FileSystem, place: str, to: str | os.PathLike[str]) -> None:
    if target.get_file_info(f"{place}/{_RECORD}").is_file:
        raise ConfigError(f"{to} already holds a snapshot; name another place")


def _remove_others(target: fs.FileSystem, place: str, call: str, kept: set[str]) -> None:
    """Removes what other attempts of the tasks of this call have copied."""
    for entry in target.get_file_info(fs.FileSelector(place)):
        name = PurePosixPath(entry.path).name
        if f".{call}." in name and name not in kept:
            target.delete_dir(entry.path)


def _listed(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The shards of a record as a manifest lists them."""
    return [{key: shard[key] for key in ("name", "documents", "checksum")} for shard in shards]


def snapshots(place: str | os.PathLike[str], *, filesystem: Any = None) -> list[str]:
    """The names of the complete snapshots in a folder."""
    target, path = resolve(place, filesystem)
    entries = target.get_file_info(fs.FileSelector(path, allow_not_found=True))
    names = [PurePosixPath(entry.path).name for entry in entries if entry.type == fs.FileType.Directory]
    return sorted(name for name in names if target.get_file_info(f"{path}/{name}/{_RECORD}").is_file)


def restore(source: str | os.PathLike[str], out: str | os.PathLike[str], *, filesystem: Any = None) -> Manifest:
    """Copies a snapshot back to a folder that is empty or missing. A call that was killed goes on with the next one, if that is of
    the same snapshot."""
    target = _inputs.path(out, "out").absolute()
    if Manifest.path(target).exists():
        raise ConfigError(f"{target} already holds shards; name another place")
    reader, place = resolve(source, filesystem)
    try:
        with reader.open_input_stream(f"{place}/{_RECORD}") as stream:
            text = stream.read()
        record = json.loads(text)
    except (OSError, ValueError) as problem:
        raise FormatError(f"{source} holds no complete snapshot: {problem}") from None
    if record.get("format") != FORMAT:
        raise FormatError(f"{source} is a snapshot of format {record.get('format')}, and this program reads {FORMAT}; use the micpq that took it")
    target.mkdir(parents=True, exist_ok=True)
    shards = record["shards"]
    _claim(target, os.fspath(source), hashlib.sha256(text).hexdigest())
    get([_load.remote(reader, f"{place}/{s['folder']}", str(target / s["name"]), s["files"]) for s in shards])
    model = target / "model"
    if not model.exists():
        staged = target / f".model.{uuid.uuid4().hex}"
        shutil.copytree(target / shards[0]["name"] / "model", staged)
        put_in_place(staged, model)
    if Model.load(model).fingerprint != record["model"]:
        raise ConfigError(f"{model} is another model than that of the snapshot; restore to an empty folder")
    for leftover in [*target.glob(".shard-*"), *target.glob(".model.*")]:
        shutil.rmtree(leftover, ignore_errors=True)
    manifest = Manifest(record["model"], _listed(shards))
    write_whole(target / "snapshot.json", json.dumps({"from": os.fspath(source)}).encode())
    manifest.write(target)
    (target / _RESTORING).unlink(missing_ok=True)
    return manifest


def _claim(target: Path, source: str, digest: str) -> None:
    """Records which snapshot is restored to a folder, or refuses one that holds shards of something else."""
    place = target / _RESTORING
    try:
        begun = json.loads(place.read_text())
    except (FileNotFoundError, ValueError):
        begun = None
    if begun is not None and begun["record"] != digest:
        raise ConfigError(f"{target} holds a part of another snapshot, {begun['from']}; restore that one, or name another folder")
    if begun is None:
        if any(target.glob("shard-*")):
            raise ConfigError(f"{target} holds shards that no restore put there; name another folder")
        write_whole(place, json.dumps({"from": source, "record": digest}).encode())
