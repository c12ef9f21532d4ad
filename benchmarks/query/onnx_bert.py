"""A BERT directory as an ONNX model, mean-pooled: what ONNX Runtime needs, without PyTorch.

The graph is opset 20 with its own `LayerNormalization` and `Gelu`, so that ONNX Runtime runs its fused kernels. `int8` is
ONNX Runtime's dynamic quantisation, one scale per output.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.numpy import load_file


def export(directory, target):
    """Writes f32.onnx and int8.onnx below `target`."""
    target = Path(target)
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "f32.onnx").exists():
        onnx.save(graph(Path(directory)), target / "f32.onnx")
    if not (target / "int8.onnx").exists():
        quantize_dynamic(target / "f32.onnx", target / "int8.onnx", per_channel=True, weight_type=QuantType.QInt8)


def graph(directory):
    config = json.loads((directory / "config.json").read_text())
    weights = load_file(directory / "model.safetensors")
    heads, width = config["num_attention_heads"], config["hidden_size"]
    each, epsilon = width // heads, config["layer_norm_eps"]
    nodes, constants = [], {}

    def constant(name, value):
        constants[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def node(kind, inputs, **attributes):
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(name):
        return constant(name, weights[name].astype(np.float32))

    def norm(x, name):
        return node("LayerNormalization", [x, weight(f"{name}.weight"), weight(f"{name}.bias")], axis=-1, epsilon=epsilon)

    def dense(x, name):
        kernel = constant(f"{name}.kernel", weights[f"{name}.weight"].astype(np.float32).T)
        return node("Add", [node("MatMul", [x, kernel]), weight(f"{name}.bias")])

    zero, one, scale = constant("zero", np.int64(0)), constant("one", np.int64(1)), constant("scale", np.float32(each**-0.5))
    split, joined = constant("split", np.array([0, 0, heads, each])), constant("joined", np.array([0, 0, width]))
    length = node("Gather", [node("Shape", ["input_ids"]), one])
    tokens = node("Gather", [weight("embeddings.word_embeddings.weight"), "input_ids"])
    places = node("Gather", [weight("embeddings.position_embeddings.weight"), node("Range", [zero, length, one])])
    kind = constant("kind", weights["embeddings.token_type_embeddings.weight"][0].astype(np.float32))
    x = norm(node("Add", [node("Add", [tokens, kind]), places]), "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        part = lambda name: node("Reshape", [dense(x, f"{at}.attention.self.{name}"), split])
        query = node("Transpose", [part("query")], perm=[0, 2, 1, 3])
        key = node("Transpose", [part("key")], perm=[0, 2, 3, 1])
        value = node("Transpose", [part("value")], perm=[0, 2, 1, 3])
        scores = node("Softmax", [node("Mul", [node("MatMul", [query, key]), scale])], axis=-1)
        mixed = node("Transpose", [node("MatMul", [scores, value])], perm=[0, 2, 1, 3])
        mixed = dense(node("Reshape", [mixed, joined]), f"{at}.attention.output.dense")
        x = norm(node("Add", [x, mixed]), f"{at}.attention.output.LayerNorm")
        inner = node("Gelu", [dense(x, f"{at}.intermediate.dense")])
        x = norm(node("Add", [x, dense(inner, f"{at}.output.dense")]), f"{at}.output.LayerNorm")
    nodes.append(helper.make_node("ReduceMean", [x, constant("axis", np.array([1]))], ["vectors"], keepdims=0))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    out = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", width])
    graph = helper.make_graph(nodes, "bert", [ids], [out], list(constants.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
