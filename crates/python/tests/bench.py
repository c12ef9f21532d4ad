"""A tiny random BERT encoder and a corpus of generated news, like those of the command line's tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

TOPICS = {
    "oil": "oil crude barrel opec pipeline refinery drilling".split(),
    "bank": "bank rate loan credit deposit interest dollar".split(),
    "crop": "wheat corn harvest drought farm grain cocoa".split(),
    "ship": "ship port strike dock cargo tanker union".split(),
}
COMMON = "the of and said year new price market".split()
HIDDEN, INNER, POSITIONS = 32, 64, 32


def news(start: int = 0, end: int = 400) -> list[dict]:
    """Documents with id, text, label and year. Two thirds of the words of a text come from its topic."""
    rows = []
    for i in range(start, end):
        draw = np.random.default_rng(i)
        label = list(TOPICS)[i % 4]
        words = [str(draw.choice(COMMON if draw.random() < 1 / 3 else TOPICS[label])) for _ in range(12)]
        rows.append({"id": i, "text": " ".join(words), "label": label, "year": 1987 + i % 3})
    return rows


def write_encoder(folder: Path) -> Path:
    """Writes a Hugging Face directory of a BERT with two layers."""
    folder.mkdir(parents=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(w for words in TOPICS.values() for w in words), *COMMON]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
                "intermediate_size": INNER, "vocab_size": len(vocabulary), "max_position_embeddings": POSITIONS,
                "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
            }
        )
    )
    shapes = {
        "embeddings.word_embeddings.weight": (len(vocabulary), HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    norms = ["embeddings"]
    for layer in range(2):
        at = f"encoder.layer.{layer}."
        for part, outputs, inputs in [
            ("attention.self.query", HIDDEN, HIDDEN), ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN), ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", INNER, HIDDEN), ("output.dense", HIDDEN, INNER),
        ]:
            shapes[f"{at}{part}.weight"] = (outputs, inputs)
            shapes[f"{at}{part}.bias"] = (outputs,)
        norms += [at + "attention.output", at + "output"]
    for norm in norms:
        shapes[f"{norm}.LayerNorm.weight"] = (HIDDEN,)
        shapes[f"{norm}.LayerNorm.bias"] = (HIDDEN,)
    draw = np.random.default_rng(7)
    header, body = {}, b""
    for name, shape in shapes.items():
        scale = 1.0 if "word_embeddings" in name else 0.1
        values = (scale * draw.uniform(-1, 1, shape) + name.endswith("LayerNorm.weight")).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), len(body) + len(values)]}
        body += values
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
    return folder
