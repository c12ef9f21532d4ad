"""Models: training, encoding, codes in memory."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _inputs, _micpq
from ._inputs import Data
from ._progress import Progress, reporter
from .errors import ArgumentError, ConfigError, InputError


class Model:
    """A trained model.

    :func:`train` trains one, :meth:`load` reads one from a directory, ``index.model`` is the model of an index.

    >>> import micpq
    >>> model = micpq.train(NEWS, encoder=ENCODER, bits=16, epochs=3)
    >>> model
    Model(16 bits, vectors of 32 values, ...)
    >>> codes = model.encode(["crude oil barrel", "bank loan"])
    >>> codes.dtype, codes.shape
    (dtype('uint8'), (2, 2))
    """

    def __init__(self, native: _micpq.Model) -> None:
        if not isinstance(native, _micpq.Model):
            raise ArgumentError("a Model comes from micpq.train, micpq.Model.load or index.model")
        self._native = native

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """Reads a model directory.

        >>> import micpq
        >>> micpq.train(NEWS, encoder=ENCODER, bits=16, epochs=1).save("model")
        >>> micpq.Model.load("model").bits
        16
        """
        return cls(_micpq.Model.load(_inputs.path(path)))

    @classmethod
    def from_faiss(cls, path: str | os.PathLike[str]) -> tuple[Model, npt.NDArray[np.uint8], npt.NDArray[np.int64] | None]:
        """Reads a FAISS product quantizer (``IndexPQ``, ``IndexPQFastScan``, alone or in an ``IndexIDMap``). Returns the
        model, the codes, and the ids if there are any."""
        native, codes, ids = _micpq.Model.from_faiss(_inputs.path(path))
        return cls(native), codes, ids

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a model directory. A model that exists there is replaced."""
        self._native.save(_inputs.path(path))

    @property
    def bits(self) -> int:
        """Bits per code."""
        return self._native.bits

    @property
    def code_bytes(self) -> int:
        """Bytes per packed code."""
        return self._native.code_bytes

    @property
    def inputs(self) -> int:
        """Values per embedding."""
        return self._native.inputs

    @property
    def takes_text(self) -> bool:
        """Whether the model encodes texts. A model of user vectors does not."""
        return self._native.takes_text

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides a code, 16 hex digits."""
        return self._native.fingerprint

    @property
    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``: shape, distance, embedding and training options."""
        config: dict[str, Any] = json.loads(self._native.config)
        return config

    @property
    def metrics(self) -> dict[str, Any]:
        """Curves, codeword use and seconds of the training."""
        return json.loads(self._native.metrics) or {}

    @property
    def codebooks(self) -> npt.NDArray[np.float32]:
        """Codewords, ``[num_codebooks, codebook_size, dim]``."""
        return self._native.codebooks().reshape(self._native.shape)

    def embeddings(self, texts: Data, *, progress: Progress = False, **corpus: Any) -> npt.NDArray[np.float32]:
        """Embeddings of texts by the model's encoder, ``float32 [n, inputs]``."""
        documents = _inputs.documents(texts, corpus, name="texts")
        return self._native.embeddings(documents, reporter(progress))

    def encode(
        self, texts: Data | None = None, *, embeddings: Any = None, progress: Progress = False, **corpus: Any
    ) -> npt.NDArray[np.uint8]:
        """Packed codes of texts, or of embeddings: ``uint8 [n, code_bytes]``. With 16 codewords per codebook, the low half of
        a byte is the even codebook.

        >>> import numpy, micpq
        >>> vectors = numpy.random.default_rng(0).normal(size=(200, 8)).astype("float32")
        >>> model = micpq.train(embeddings=vectors, bits=16, epochs=2)
        >>> model.encode(embeddings=vectors[:3]).shape
        (3, 2)
        """
        if (texts is None) == (embeddings is None):
            raise ConfigError("encode takes texts or embeddings; pass one of the two")
        if embeddings is not None:
            return self._native.encode_vectors(_inputs.vectors(embeddings, width=self.inputs))
        documents = _inputs.documents(texts, {"allow_empty_text": True, **corpus}, name="texts")
        return self._native.encode_texts(documents, reporter(progress))

    def project(self, vectors: Any) -> npt.NDArray[np.float32]:
        """Projects embeddings into the space of the codewords, ``float32 [n, num_codebooks * dim]``. An exported FAISS index
        is searched with such vectors."""
        return self._native.project(_inputs.vectors(vectors, "vectors", self.inputs))

    def nearest(
        self, codes: Any, queries: Any, k: int | None = None, *, distance: str | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Finds the exact ``k`` nearest codes of every query vector. Returns distances and row numbers, ``[queries, k]`` each
        (fewer columns if there are fewer codes).

        >>> import numpy, micpq
        >>> vectors = numpy.random.default_rng(0).normal(size=(200, 8)).astype("float32")
        >>> model = micpq.train(embeddings=vectors, bits=16, epochs=2)
        >>> distances, rows = model.nearest(model.encode(embeddings=vectors), vectors[:2], k=5)
        >>> distances.shape, rows.dtype
        ((2, 5), dtype('int64'))
        """
        return Flat(self, codes).search(queries, k, distance=distance)

    def to_faiss(
        self, path: str | os.PathLike[str], codes: Any, *, ids: Any = None, fastscan: bool = False
    ) -> None:
        """Writes codes as a file for ``faiss.read_index``, and the projection beside it (``PATH.projection.npz``).

        FAISS takes projected vectors as queries: ``index.search(model.project(x), k)``. Its distances are those of
        ``distance="squared"``.
        """
        packed = _inputs.codes(codes, self.code_bytes)
        if ids is not None:
            ids = np.ascontiguousarray(ids, dtype=np.int64)
            if ids.shape != (len(packed),):
                raise InputError(f"ids has shape {ids.shape} for {len(packed)} codes; give one for each")
        self._native.write_faiss(_inputs.path(path), packed, ids, bool(fastscan))

    def __repr__(self) -> str:
        return f"Model({self.bits} bits, vectors of {self.inputs} values, {self.fingerprint})"


class Flat:
    """Codes in memory, searched exactly by vectors. It has no files.

    >>> import numpy, micpq
    >>> vectors = numpy.random.default_rng(0).normal(size=(200, 8)).astype("float32")
    >>> model = micpq.train(embeddings=vectors, bits=16, epochs=2)
    >>> flat = micpq.Flat(model, model.encode(embeddings=vectors))
    >>> distances, rows = flat.search(vectors[:2], k=5)
    >>> len(flat), rows.shape
    (200, (2, 5))
    """

    def __init__(self, model: Model, codes: Any) -> None:
        if not isinstance(model, Model):
            raise ArgumentError(f"model must be a micpq.Model, not {type(model).__name__}")
        self.model = model
        self._native = model._native.flat(_inputs.codes(codes, model.code_bytes))

    def __len__(self) -> int:
        return len(self._native)

    def search(
        self, queries: Any, k: int | None = None, *, distance: str | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Finds the ``k`` nearest codes of every query vector. Returns distances and row numbers, ``[queries, k]`` each (fewer
        columns if there are fewer codes). Equal distances are ordered by row."""
        k = _inputs.count_or_default(k, "k")
        if k == 0:
            raise ConfigError("k is 0; ask for at least one neighbour")
        return self._native.search(_inputs.vectors(queries, "queries", self.model.inputs), k, distance)


def train(
    data: Data | None = None,
    *,
    embeddings: Any = None,
    views: Any = None,
    bits: int | None = None,
    validation: Data | None = None,
    progress: Progress = False,
    **options: Any,
) -> Model:
    """Trains a model on texts, without labels, or on vectors of any encoder.

    :param data: texts: a list or iterator of strings or dictionaries, a pandas, polars or arrow table, or a path.
    :param embeddings: instead of texts, vectors ``[n, width]`` of any encoder: sentence-transformers, OpenAI, CLIP.
    :param views: for embeddings, other vectors of the same documents: a list of arrays ``[n, width]``, such as embeddings of
        shortened texts or with dropout. Default: the vectors with noise of 0.5 times their spread (``noise``). For texts, how
        the encoder computes views: ``"noise:12"`` (default of "distilled"), which needs about one pass per text, ``"full:8"``
        (default of "micpq"; ``"full:16"`` with CLS pooling), or ``"last2:16"``.
    :param bits: bits per code: 16, 32, 64 or 128. Default: 64.
    :param validation: labelled documents. The epoch with the highest P@100 on them is chosen.
    :param progress: ``True`` for a bar, or a function called with ``(kind, text, number)``.
    :param options: ``method`` ("distilled" by default: one code for the particular document and for its kind; "micpq" is the
        paper's, see docs/methods.md), ``input``
        ("encoder", or "tfidf" for methods that take keywords), ``encoder`` (a name, a Hugging Face directory, or a function
        from texts to vectors), ``precision`` ("auto" by default, which is int8; "f32", "bf16"), ``device`` ("auto", "cpu",
        "cuda:0"), ``pooling`` ("auto" by default: as the encoder's directory says, with its dense layers, normalisation and
        prompts; "cls", "mean", "max", "mean_sqrt_len" or "lasttoken" for raw token states), ``dimensions`` (use only the first
        values of a vector), ``query_prompt``, ``document_prompt``, ``max_tokens``, ``clean``, ``unit_length``, ``dropout``, ``preset``, ``sample``, ``cache``, ``seed``,
        ``epochs``, ``patience``, and every other option of the method by its name in ``config.json``; and the options of
        reading a corpus: ``text_field``, ``id_field``, ``label_field``, ``on_error``, ...

    Ctrl-C raises ``KeyboardInterrupt``. The same call continues the training.

    >>> import micpq
    >>> model = micpq.train(NEWS, bits=16, encoder=ENCODER, epochs=2, seed=1)
    >>> model.config["method"]
    'distilled'
    """
    corpus, rest = _inputs.split_corpus(options)
    if isinstance(views, str):
        rest["views"], views = views, None
    bits = _inputs.count_or_default(bits, "bits")
    settings = _inputs.options({"bits": bits, **{n: v for n, v in rest.items() if n != "encoder" or not callable(v)}})
    report = reporter(progress)
    if embeddings is not None:
        if data is not None or validation is not None:
            raise ConfigError("train takes texts or embeddings; pass one of the two")
        array = _inputs.vectors(embeddings)
        given = None
        if views is not None:
            rows, width = array.shape
            given = [_inputs.vectors(v, f"views[{i}]", width, rows) for i, v in enumerate(views)]
        return Model(_micpq.train_vectors(array, settings, given, report))
    if data is None:
        raise ConfigError("train needs texts, or embeddings=VECTORS")
    if views is not None:
        raise ConfigError("views of texts come from the encoder, as in views=\"noise:12\"; arrays of views go with embeddings")
    documents = _inputs.documents(data, {"unique_ids": False, **corpus}, name="texts")
    if callable(rest.get("encoder")):
        encoder = rest.pop("encoder")
        texts = documents.texts()
        array = _inputs.vectors(encoder(texts), "the encoder's result", rows=len(texts))
        return Model(_micpq.train_vectors(array, settings, None, report))
    labelled = None
    if validation is not None:
        labelled = _inputs.documents(validation, {"unique_ids": False, **corpus}, name="validation")
    return Model(_micpq.train(documents, settings, labelled, report))
