"""One peer of `make bench-encode`: encodes token sequences when told to, and says how long it took.

    peer.py NAME ENCODER_DIR ONNX_DIR SEQUENCES.json THREADS

NAME is torch-f32, torch-bf16, torch-int8, st-f32 (sentence-transformers), ort-f32, ort-int8, ov-f32, ov-bf16 or ov-int8. Tasks
and answers are those of the example `encoding`. Sequences are sorted by length and padded to the longest of their batch, as sentence-transformers does; of the
batch sizes below, the fastest on the first sequences is taken. Padding is the peer's own matter; tokens count once.
"""

import json
import os
import sys
import time

name, encoder, onnx, sequences, threads = sys.argv[1:6]
threads = int(threads)
os.environ["OMP_NUM_THREADS"] = str(threads)

import numpy as np  # noqa: E402

library, precision = name.split("-")


def torch_model():
    import torch
    from transformers import BertModel

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = BertModel.from_pretrained(encoder, add_pooling_layer=False, attn_implementation="sdpa", dtype=dtype).eval()
    if precision == "int8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)

    def run(ids, mask, train=False):
        with torch.inference_mode():
            ids, mask = torch.from_numpy(ids), torch.from_numpy(mask)
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(-1).to(states.dtype)
            return ((states * weight).sum(1) / weight.sum(1)).float().numpy()

    return run, torch.__version__


def st_model():
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    whole = sentence_transformers.SentenceTransformer(encoder, device="cpu").eval()
    # Transformer and pooling; scaling to unit length, where a model has it, is left out like everywhere here.
    parts = list(whole.children())[:2]

    def run(ids, mask):
        with torch.inference_mode():
            features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            for part in parts:
                features = part(features)
            return features["sentence_embedding"].numpy()

    return run, sentence_transformers.__version__


def ort_model():
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(f"{onnx}/{precision}.onnx", options, providers=["CPUExecutionProvider"])

    def run(ids, mask):
        return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    return run, onnxruntime.__version__


def ov_model():
    import openvino

    core = openvino.Core()
    between = "bf16" if precision == "bf16" else "f32"
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": between, "NUM_STREAMS": "1"})
    path = f"{onnx}/ov-int8.xml" if precision == "int8" else f"{onnx}/f32.onnx"
    compiled = core.compile_model(core.read_model(path), "CPU")
    request = compiled.create_infer_request()

    def run(ids, mask):
        return request.infer({"input_ids": ids, "attention_mask": mask})[compiled.output(0)]

    return run, openvino.__version__


run, version = {"torch": torch_model, "st": st_model, "ort": ort_model, "ov": ov_model}[library]()
with open(sequences) as file:
    sequences = json.load(file)


def batches(rows, size):
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        longest = len(rows[part[-1]])
        ids, mask = np.zeros((len(part), longest), np.int64), np.zeros((len(part), longest), np.int64)
        for at, i in enumerate(part):
            ids[at, : len(rows[i])] = rows[i]
            mask[at, : len(rows[i])] = 1
        yield part, ids, mask


def encode(rows, size):
    out = [None] * len(rows)
    for part, ids, mask in batches(rows, size):
        for i, vector in zip(part, run(ids, mask)):
            out[i] = vector
    return out


def processor():
    t = os.times()
    return t.user + t.system


best = None
for size in [8, 32]:
    encode(sequences[:size], size)
    begun = processor()
    encode(sequences[:64], size)
    took = processor() - begun
    if best is None or took < best[0]:
        best = (took, size)
size = best[1]
print(json.dumps({"version": version, "batch": size}), flush=True)
for line in sys.stdin:
    task, *numbers = line.split()
    numbers = [int(n) for n in numbers]
    spent, begun, more = processor(), time.perf_counter(), {}
    if task == "clean":
        encode(sequences[numbers[0] : numbers[1]], size)
    elif task == "query":
        ids = np.array([sequences[0][: numbers[0]]], np.int64)
        mask, times = np.ones_like(ids), []
        for _ in range(220):
            once = time.perf_counter()
            run(ids, mask)
            times.append(time.perf_counter() - once)
        times = sorted(times[20:])
        more = {"median": times[100], "least": times[0]}
    elif task == "vectors":
        more = {"vectors": [v.tolist() for v in encode(sequences[numbers[0] : numbers[1]], size)]}
    print(json.dumps({"seconds": time.perf_counter() - begun, "processor": processor() - spent, **more}), flush=True)
