"""Hugging Face BertModel, f16 + SDPA, on the same token file: clean and with dropout 0.3 in train mode.

    peer.py FOLDER [ROUNDS|turns|plain]

FOLDER as for the example `check`. Batches are sorted by length and padded to their longest document, ids are on the GPU
before the clock starts, features stay there, and of several batch sizes the fastest counts: all in the peer's favour.
CUDA events; clean and dropout interleaved; medians. With `turns` it answers each line `mean|cls clean|0.3` of standard input
with the tokens a second of one pass (turns.py). With `plain` too, but as its documentation has it: batches in the order of
the corpus, padded to their longest document, ids sent from the host and embeddings copied back batch by batch.
"""

import json
import statistics
import sys

import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

folder = sys.argv[1].rstrip("/")
which = folder.split("/")[-1]
turns = sys.argv[2:] in (["turns"], ["plain"])
plain = sys.argv[2:] == ["plain"]
rounds = int(sys.argv[2]) if len(sys.argv) > 2 and not turns else 5
SIZES = (64, 128, 256, 512) if plain else (256, 512, 1024, 2048)


def encoder():
    with open(f"{folder}/config.json") as file:
        fields = json.load(file)
    fields.update(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3, attn_implementation="sdpa")
    model = BertModel(BertConfig(**fields), add_pooling_layer=False)
    weights = {k.removeprefix("bert."): v.float() for k, v in load_file(f"{folder}/model.safetensors").items()}
    missing, _ = model.load_state_dict(weights, strict=False)
    assert not missing, missing
    return model.half().cuda()


def batches(size):
    file = load_file(f"{folder}/tokens.safetensors")
    starts = file["starts"].tolist()
    rows = [file["ids"][a:b] for a, b in zip(starts, starts[1:])]
    place = "cpu" if plain else "cuda"
    if not plain:
        rows.sort(key=len)
    packed = []
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        ids = torch.nn.utils.rnn.pad_sequence(some, batch_first=True).long().to(place)
        lengths = torch.tensor([len(one) for one in some]).to(place)
        mask = (torch.arange(ids.shape[1], device=place)[None] < lengths[:, None]).long()
        packed.append((ids, mask))
    return packed, starts[-1], len(rows)


@torch.inference_mode()
def run(model, packed, pooling="mean"):
    for ids, mask in packed:
        ids, mask = ids.cuda(), mask.cuda()
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        if pooling == "cls":
            features = states[:, 0].clone()
        else:
            weight = mask.unsqueeze(-1).to(states.dtype)
            features = (states * weight).sum(1) / weight.sum(1)
        if plain:
            features.cpu()


def timed(model, packed, pooling="mean"):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run(model, packed, pooling)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


model = encoder()
assert model.config._attn_implementation == "sdpa"
if turns:
    every = {size: batches(size) for size in SIZES}
    fastest = {}
    for line in sys.stdin:
        pooling, view = line.split()
        model.train(view != "clean")
        if line not in fastest:
            took = {s: min(timed(model, e[0], pooling) for _ in range(3)) for s, e in every.items()}
            fastest[line] = min(took, key=took.get)
            print(f"  peer {line.strip()}: " + ", ".join(f"{s} {every[s][1] / t:.0f}" for s, t in took.items()), flush=True)
        packed, tokens, _ = every[fastest[line]]
        print(tokens / timed(model, packed, pooling), flush=True)
    sys.exit()
best = {}
for size in SIZES:
    packed, tokens, documents = batches(size)
    seconds = {"clean": [], "0.3": []}
    for turn in range(rounds + 1):
        for view in seconds:
            model.train(view != "clean")
            took = timed(model, packed)
            if turn:
                seconds[view].append(took)
    for view, times in seconds.items():
        rate = tokens / statistics.median(times)
        print(f"  peer {which} batch {size} {view}: {rate:.0f} tokens/s", flush=True)
        best[view] = max(best.get(view, (0, 0)), (rate, size))
for view, (rate, size) in best.items():
    print(f"peer {which:<18} {size:>6} mean  {view:<5} {rate:>12.0f} tokens/s (transformers f16 SDPA, torch {torch.__version__})")
