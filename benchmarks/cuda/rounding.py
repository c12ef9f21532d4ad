"""What f16 costs a BERT encoder's vectors, and where: our arithmetic, step by step on the CPU, and transformers in f16, both
against transformers in f32.

    rounding.py ENCODER TEXTS.csv.gz [DOCUMENTS]

ENCODER is a Hugging Face directory with its weights in f32, TEXTS a CSV (label, text). Ours: weights of products and words
rounded to f16, norms, positions and all sums in f32, states rounded wherever the GPU stores them. Prints the error of CLS and
mean vectors over their norm; the same for the empty text, whose states amplify any rounding.
"""

import csv
import gzip
import json
import sys

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

torch.set_num_threads(1)


def half(x):
    return x.half().float()


def as_is(x):
    return x


class Forward:
    def __init__(self, config, weights):
        self.config, self.weights = config, weights

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        w, b = self.weights[f"{name}.LayerNorm.weight"], self.weights[f"{name}.LayerNorm.bias"]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, self.config["layer_norm_eps"])

    def __call__(self, ids, stored):
        heads, length = self.config["num_attention_heads"], len(ids)
        table = lambda name: self.weights[f"embeddings.{name}_embeddings.weight"]
        x = table("word")[ids] + table("position")[:length] + table("token_type")[0]
        x = stored(self.norm(x, "embeddings"))
        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}."
            part = lambda name: stored(self.linear(x, f"{at}attention.self.{name}")).view(length, heads, -1).transpose(0, 1)
            q, k, v = part("query"), part("key"), part("value")
            scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
            weight = (scores - scores.amax(-1, keepdim=True)).exp()
            context = (stored(weight) @ v) / weight.sum(-1, keepdim=True)
            context = stored(context.transpose(0, 1).reshape(length, -1))
            update = stored(self.linear(context, at + "attention.output.dense"))
            x = stored(self.norm(x + update, at + "attention.output"))
            wide = stored(torch.nn.functional.gelu(stored(self.linear(x, at + "intermediate.dense"))))
            x = stored(self.norm(x + stored(self.linear(wide, at + "output.dense")), at + "output"))
        return x


@torch.inference_mode()
def main(encoder, texts, documents=96):
    with open(f"{encoder}/config.json") as file:
        config = json.load(file)
    names = lambda k: k.removeprefix("bert.").replace("gamma", "weight").replace("beta", "bias")
    weights = {names(k): v for k, v in load_file(f"{encoder}/model.safetensors").items() if v.dtype == torch.float32}
    rounds = lambda k: "embeddings" not in k and "LayerNorm" not in k or k.endswith("word_embeddings.weight")
    tokenizer = Tokenizer.from_file(f"{encoder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(51)
    with gzip.open(texts, "rt", newline="") as file:
        rows = [""] + [row[1] for row, _ in zip(csv.reader(file), range(int(documents)))]

    def transformers():
        model = BertModel(BertConfig(**config, attn_implementation="sdpa"), add_pooling_layer=False)
        model.load_state_dict(weights, strict=False)
        return model.eval()

    exact, theirs = transformers(), transformers().half()
    ours = Forward(config, {k: half(v) if rounds(k) else v for k, v in weights.items()})
    plain = Forward(config, weights)
    ways = {
        "transformers f16": lambda ids: theirs(input_ids=ids[None]).last_hidden_state[0].float(),
        "ours f16": lambda ids: ours(ids, half),
        "ours, weights alone rounded": lambda ids: ours(ids, as_is),
        "ours, states alone rounded": lambda ids: plain(ids, half),
    }
    errors = {name: [] for name in ways}
    for encoded in tokenizer.encode_batch(rows):
        ids = torch.tensor(encoded.ids)
        right = exact(input_ids=ids[None]).last_hidden_state[0]
        for name, way in ways.items():
            states = way(ids)
            pairs = ((states[0], right[0]), (states.mean(0), right.mean(0)))
            errors[name].append([float((a - b).norm() / b.norm()) for a, b in pairs])
    for name, list_ in errors.items():
        for kind, pooling in enumerate(("CLS", "mean")):
            empty, *rest = [pair[kind] for pair in list_]
            rest.sort()
            print(f"{name:<28} {pooling:<4} median {rest[len(rest) // 2]:.1e}, largest {rest[-1]:.1e}; the empty text {empty:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
