"""Token file for the GPU benchmark: the first documents of a CSV (label, text, ...) as BERT token ids.

    tokens.py TOKENIZER.json TEXTS.csv.gz OUT.safetensors [DOCUMENTS] [LONGEST]
"""

import csv
import gzip
import sys

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer


def main(tokenizer, texts, out, documents=20000, longest=51):
    encode = Tokenizer.from_file(tokenizer)
    encode.no_padding()
    encode.enable_truncation(int(longest))
    with gzip.open(texts, "rt", newline="") as file:
        rows = [row[1] for row, _ in zip(csv.reader(file), range(int(documents)))]
    ids = [one.ids for one in encode.encode_batch(rows)]
    starts = numpy.cumsum([0] + [len(one) for one in ids]).astype(numpy.int32)
    save_file({"ids": numpy.concatenate(ids).astype(numpy.int32), "starts": starts}, out)
    print(f"{len(ids)} documents, {starts[-1]} tokens, {starts[-1] / len(ids):.1f} a document, longest {max(map(len, ids))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
