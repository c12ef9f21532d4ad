"""Files of a corpus or a snapshot, on this machine or in an object store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pyarrow import fs

from ..errors import InputError, StorageError

#: Endings of the files that are read from a folder.
ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
PACKED = (".gz", ".zst")


def resolve(place: str | os.PathLike[str], filesystem: Any = None) -> tuple[fs.FileSystem, str]:
    """The file system and the path in it: of a local path, a URL, or a path in a given Arrow or fsspec file system."""
    text = os.fspath(place)
    if filesystem is not None:
        if not isinstance(filesystem, fs.FileSystem):
            filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
        return filesystem, text.split("://", 1)[-1]
    if "://" not in text:
        return fs.LocalFileSystem(), os.path.abspath(text)
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(text)
        return found
    except (ValueError, NotImplementedError):
        # A scheme that Arrow does not know; fsspec knows more.
        import fsspec

        inner, path = fsspec.core.url_to_fs(text)
        return fs.PyFileSystem(fs.FSSpecHandler(inner)), path


class CorpusFile(NamedTuple):
    """A file of a corpus."""

    path: str
    size: int
    #: Changes when the file is written again: the time of its last change in ns, or what an object store has instead.
    version: str


#: What file systems of fsspec call the version of a file, best first.
_VERSIONS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated")


def corpus_files(filesystem: fs.FileSystem, path: str) -> list[CorpusFile]:
    """The files of a corpus, in the order of their names."""
    try:
        info = filesystem.get_file_info(path)
        if info.type == fs.FileType.File:
            return [CorpusFile(path, info.size, _versions(filesystem, path).get(path) or _time(info))]
        if info.type != fs.FileType.Directory:
            raise InputError(f"{path}: there is no such file or folder; give a file, a folder or a URL")
        entries = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    except OSError as problem:
        raise StorageError(f"{path}: {problem}") from None

    def is_corpus(name: str) -> bool:
        for ending in PACKED:
            name = name.removesuffix(ending)
        return name.lower().endswith(ENDINGS) and not PurePosixPath(name).name.startswith(("_", "."))

    found = [entry for entry in entries if entry.type == fs.FileType.File and is_corpus(entry.path)]
    if not found:
        raise InputError(f"{path}: holds no file that ends in {', '.join(ENDINGS)} (or these with .gz or .zst)")
    versions = _versions(filesystem, path)
    return sorted(CorpusFile(entry.path, entry.size, versions.get(entry.path) or _time(entry)) for entry in found)


def _time(entry: fs.FileInfo) -> str:
    return "" if entry.mtime_ns is None else str(entry.mtime_ns)


def _versions(filesystem: fs.FileSystem, path: str) -> dict[str, str]:
    """The versions of files below a path, where the file system is one of fsspec: Arrow does not pass on what it knows."""
    handler = getattr(filesystem, "handler", None)
    if not isinstance(handler, fs.FSSpecHandler):
        return {}
    found = handler.fs.find(path, detail=True)
    known = {name: next((str(info[key]) for key in _VERSIONS if info.get(key)), "") for name, info in found.items()}
    return known


@contextlib.contextmanager
def local_copy(filesystem: fs.FileSystem, path: str) -> Iterator[Path]:
    """A file of any file system as a local file. A remote one is copied for as long as it is read."""
    if isinstance(filesystem, fs.LocalFileSystem):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="micpq-") as folder:
        target = Path(folder) / PurePosixPath(path).name
        download(filesystem, path, target)
        yield target


def download(filesystem: fs.FileSystem, path: str, target: Path) -> tuple[int, int]:
    """Copies a file of any file system to a local path, syncs it, and returns its size and CRC-32."""
    size, crc = 0, 0
    with filesystem.open_input_stream(path) as remote, target.open("wb") as local:
        while block := remote.read(1 << 20):
            local.write(block)
            size, crc = size + len(block), zlib.crc32(block, crc)
        local.flush()
        os.fsync(local.fileno())
    return size, crc


def upload(source: Path, filesystem: fs.FileSystem, path: str) -> None:
    """Copies a local file to any file system."""
    filesystem.create_dir(str(PurePosixPath(path).parent), recursive=True)
    with source.open("rb") as local, filesystem.open_output_stream(path) as remote:
        shutil.copyfileobj(local, remote, 1 << 20)


def put_in_place(staged: Path, target: Path) -> None:
    """Renames a finished directory to its place, unless another attempt was faster. Attempts give the same content, and their
    staged directories have names of their own: Ray may run a task twice at once when it has lost a machine for dead."""
    try:
        os.rename(staged, target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(staged, ignore_errors=True)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file beside its place, syncs it and renames it."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)
