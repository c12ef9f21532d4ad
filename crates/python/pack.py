"""Packs the wheel from a library that cargo has built already.

`maturin build` compiles this crate alone, under other features than the whole workspace has, and so compiles most
dependencies a second time. Tests want the wheel of the build they have: this puts the same files where maturin puts them.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata(project: dict, version: str) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Classifier: {name}" for name in project["classifiers"]),
        *(f"Requires-Dist: {need}" for need in project["dependencies"]),
    ]
    for extra, needs in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {need}; extra == '{extra}'" for need in needs)]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", (HERE / "README.md").read_text()])


def stripped(library: Path) -> bytes:
    """The library without its line tables, which are four fifths of it; as it is where there is no `strip`."""
    tool = shutil.which("strip")
    if tool is None or sys.platform != "linux":
        return library.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / library.name
        subprocess.run([tool, "--strip-unneeded", "-o", small, library], check=True)
        return small.read_bytes()


def pack(library: Path, out: Path) -> Path:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp310-abi3-{platform}"
    info = f"micpq-{version}.dist-info"
    files = {f"micpq/{p.name}": p.read_bytes() for p in sorted((HERE / "python" / "micpq").iterdir()) if p.is_file()}
    suffix = "pyd" if sys.platform == "win32" else "abi3.so"
    files[f"micpq/_micpq.{suffix}"] = stripped(library)
    files[f"{info}/METADATA"] = metadata(project, version).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: micpq pack.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = record.encode()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"micpq-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return path


def library() -> Path:
    names = {"darwin": "lib_micpq.dylib", "win32": "_micpq.dll"}
    return ROOT / "target" / "release" / names.get(sys.platform, "lib_micpq.so")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, default=library())
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "wheels")
    arguments = parser.parse_args()
    print(pack(arguments.library, arguments.out))
