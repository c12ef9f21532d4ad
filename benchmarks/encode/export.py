"""An encoder directory to ONNX: token ids and mask in, mean-pooled vectors out; f32, and int8 as ONNX Runtime and as NNCF quantise.

    export.py ENCODER_DIR OUTPUT_DIR

OUTPUT_DIR holds calibration.json, token ids of a few texts: OpenVINO's int8 takes the ranges of its activations from them.
"""

import json
import pathlib
import sys

import numpy
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers import BertModel


class Pooled(torch.nn.Module):
    def __init__(self, directory):
        super().__init__()
        self.bert = BertModel.from_pretrained(directory, add_pooling_layer=False, attn_implementation="eager", dtype=torch.float32).eval()

    def forward(self, input_ids, attention_mask):
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return (states * mask).sum(1) / mask.sum(1)


def main():
    source, target = sys.argv[1], pathlib.Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    f32, int8 = target / "f32.onnx", target / "int8.onnx"
    if not f32.exists():
        ids = torch.ones(2, 16, dtype=torch.long)
        axes = {0: "batch", 1: "length"}
        with torch.inference_mode():
            torch.onnx.export(
                Pooled(source), (ids, ids), str(f32), dynamo=False, opset_version=17,
                input_names=["input_ids", "attention_mask"], output_names=["vectors"],
                dynamic_axes={"input_ids": axes, "attention_mask": axes, "vectors": {0: "batch"}},
            )
    if not int8.exists():
        # Seven-bit weights (reduce_range): what ONNX Runtime advises without VNNI, where eight bits saturate.
        quantize_dynamic(str(f32), str(int8), per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
    if not (target / "ov-int8.xml").exists():
        openvino_int8(f32, target)
    print(f32, int8, target / "ov-int8.xml")


def openvino_int8(f32, target):
    try:
        import nncf
        import openvino
    except ImportError as missing:
        print(f"no OpenVINO int8: {missing}", file=sys.stderr)
        return
    with open(target / "calibration.json") as file:
        rows = [numpy.array([ids]) for ids in json.load(file)]
    texts = nncf.Dataset([{"input_ids": ids, "attention_mask": numpy.ones_like(ids)} for ids in rows])
    model = openvino.Core().read_model(f32)
    model = nncf.quantize(model, texts, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(rows))
    openvino.save_model(model, target / "ov-int8.xml")


if __name__ == "__main__":
    main()
