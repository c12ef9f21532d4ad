"""A model: what turns text and vectors into codes."""

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

    :func:`train` makes one, :meth:`load` reads one from a directory, ``index.model`` is the one of an index.

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
        """A FAISS product quantizer (``IndexPQ``, ``IndexPQFastScan``, alone or in an ``IndexIDMap``) as a model, with its
        codes, and its ids where it has some."""
        native, codes, ids = _micpq.Model.from_faiss(_inputs.path(path))
        return cls(native), codes, ids

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a model directory; one already there is replaced."""
        self._native.save(_inputs.path(path))

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self._native.bits

    @property
    def code_bytes(self) -> int:
        """Bytes of a code."""
        return self._native.code_bytes

    @property
    def inputs(self) -> int:
        """Values in a feature vector."""
        return self._native.inputs

    @property
    def takes_text(self) -> bool:
        """Whether it has an encoder of its own, or was trained on vectors that were brought."""
        return self._native.takes_text

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that tell it from every other model."""
        return self._native.fingerprint

    @property
    def config(self) -> dict[str, Any]:
        """How it was made, and what it expects."""
        found: dict[str, Any] = json.loads(self._native.config)
        return found

    @property
    def metrics(self) -> dict[str, Any]:
        """Curves, codeword usage and seconds of its training."""
        return json.loads(self._native.metrics) or {}

    @property
    def codebooks(self) -> npt.NDArray[np.float32]:
        """The codewords, ``[books, words, dim]``."""
        return self._native.codebooks().reshape(self._native.shape)

    def features(self, texts: Data, *, progress: Progress = False, **corpus: Any) -> npt.NDArray[np.float32]:
        """Feature vectors of texts by the model's own encoder, ``[n, inputs]``."""
        documents = _inputs.documents(texts, corpus, name="texts")
        return self._native.features_of(documents, reporter(progress))

    def encode(
        self, texts: Data | None = None, *, features: Any = None, progress: Progress = False, **corpus: Any
    ) -> npt.NDArray[np.uint8]:
        """Packed codes of texts, or of feature vectors: ``uint8 [n, code_bytes]``, the low nibble the even book.

        >>> import numpy, micpq
        >>> vectors = numpy.random.default_rng(0).normal(size=(200, 8)).astype("float32")
        >>> model = micpq.train(features=vectors, bits=16, epochs=2)
        >>> model.encode(features=vectors[:3]).shape
        (3, 2)
        """
        if (texts is None) == (features is None):
            raise ConfigError("encode takes texts or features, one of the two")
        if features is not None:
            return self._native.encode_vectors(_inputs.vectors(features, width=self.inputs))
        documents = _inputs.documents(texts, {"allow_empty_text": True, **corpus}, name="texts")
        return self._native.encode_texts(documents, reporter(progress))

    def refine(self, features: Any) -> npt.NDArray[np.float32]:
        """Refined vectors: what codewords, and a FAISS index exported from here, are measured in."""
        return self._native.refine(_inputs.vectors(features, width=self.inputs))

    def nearest(
        self, codes: Any, queries: Any, k: int = 10, *, distance: str | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The ``k`` nearest of some codes for every query vector, exactly: distances and row numbers, ``[queries, k]`` each
        (fewer columns where there are fewer codes).

        >>> import numpy, micpq
        >>> vectors = numpy.random.default_rng(0).normal(size=(200, 8)).astype("float32")
        >>> model = micpq.train(features=vectors, bits=16, epochs=2)
        >>> distances, rows = model.nearest(model.encode(features=vectors), vectors[:2], k=5)
        >>> distances.shape, rows.dtype
        ((2, 5), dtype('int64'))
        """
        return Flat(self, codes).search(queries, k, distance=distance)

    def to_faiss(
        self, path: str | os.PathLike[str], codes: Any, *, ids: Any = None, fastscan: bool = False
    ) -> None:
        """Writes codes as a file that ``faiss.read_index`` reads, and the refinement beside it (``PATH.refine.npz``).

        FAISS is asked with refined vectors: ``index.search(model.refine(x), k)``. Its distances are those of
        ``distance="squared"``.
        """
        packed = _inputs.codes(codes, self.code_bytes)
        if ids is not None:
            ids = np.ascontiguousarray(ids, dtype=np.int64)
            if ids.shape != (len(packed),):
                raise InputError(f"there are {ids.shape} ids for {len(packed)} codes; give one for each")
        self._native.write_faiss(_inputs.path(path), packed, ids, bool(fastscan))

    def __repr__(self) -> str:
        return f"Model({self.bits} bits, vectors of {self.inputs} values, {self.fingerprint})"


class Flat:
    """Codes in memory, searched exactly: an index without files, for codes of vectors.

    >>> import numpy, micpq
    >>> vectors = numpy.random.default_rng(0).normal(size=(200, 8)).astype("float32")
    >>> model = micpq.train(features=vectors, bits=16, epochs=2)
    >>> flat = micpq.Flat(model, model.encode(features=vectors))
    >>> distances, rows = flat.search(vectors[:2], k=5)
    >>> len(flat), rows.shape
    (200, (2, 5))
    """

    def __init__(self, model: Model, codes: Any) -> None:
        if not isinstance(model, Model):
            raise ArgumentError(f"model is a micpq.Model, not {type(model).__name__}")
        self.model = model
        self._native = model._native.flat(_inputs.codes(codes, model.code_bytes))

    def __len__(self) -> int:
        return len(self._native)

    def search(
        self, queries: Any, k: int = 10, *, distance: str | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The ``k`` nearest codes of every query vector: distances and row numbers, ``[queries, k]`` each (fewer columns
        where there are fewer codes). Equal distances are ordered by row."""
        k = _inputs.count(k, "k")
        if k == 0:
            raise ConfigError("k is 0; ask for at least one neighbour")
        return self._native.search(_inputs.vectors(queries, "queries", self.model.inputs), k, distance)


def train(
    data: Data | None = None,
    *,
    features: Any = None,
    views: Any = None,
    bits: int = 32,
    validation: Data | None = None,
    progress: Progress = False,
    **options: Any,
) -> Model:
    """Trains a model on texts, without labels, or on vectors of any encoder.

    :param data: texts: a list or iterator of strings or dictionaries, a pandas, polars or arrow table, or a path.
    :param features: instead of texts, vectors ``[n, width]`` of whatever encoder: sentence-transformers, OpenAI, CLIP.
    :param views: other vectors of the same documents, a list of arrays ``[n, width]`` (of changed texts, or of the encoder
        with dropout). Without them, noise with the spread of the vectors takes their place (``noise``, 0.5 of it). For
        texts, how the encoder makes them: ``"full:8"`` (the default; ``"full:16"`` with CLS), ``"last2:16"``, or ``"noise:12"``,
        which encodes a text once and loses some tenths of a point.
    :param bits: length of a code: 16, 32, 64 or 128.
    :param validation: labelled documents by whose P@100 the best epoch is chosen.
    :param progress: ``True`` for a bar, or a function called with ``(kind, text, number)``.
    :param options: ``method`` ("micpq" unless said; "opq" keeps more of float search's order, see the guide on systems),
        ``input`` ("encoder", or "tfidf" for those that take words), ``encoder`` (a name, a Hugging Face directory, or a
        function from texts to vectors), ``pooling``, ``max_tokens``, ``clean``, ``unit_length``, ``dropout``, ``preset``,
        ``sample``, ``cache``, ``seed``, ``epochs``, ``patience`` and every other option of the method by its name in ``config.json``; and those of reading: ``text_field``, ``id_field``, ``label_field``, ...

    Ctrl-C raises ``KeyboardInterrupt``; the same call goes on where it was.

    >>> import micpq
    >>> model = micpq.train(NEWS, bits=16, encoder=ENCODER, epochs=2, seed=1)
    >>> model.metrics["epochs"]
    2
    """
    corpus, rest = _inputs.split_corpus(options)
    if isinstance(views, str):
        rest["views"], views = views, None
    bits = _inputs.count(bits, "bits")
    said = _inputs.options({"bits": bits, **{n: v for n, v in rest.items() if not callable(v)}})
    report = reporter(progress)
    if features is not None:
        if data is not None or validation is not None:
            raise ConfigError("train takes texts or features, one of the two")
        array = _inputs.vectors(features)
        given = None
        if views is not None:
            rows, width = array.shape
            given = [_inputs.vectors(v, f"views[{i}]", width, rows) for i, v in enumerate(views)]
        return Model(_micpq.train_vectors(array, said, given, report))
    if data is None:
        raise ConfigError("train needs texts, or features=vectors")
    if views is not None:
        raise ConfigError("views of texts are made by the encoder, as in views=\"noise:12\"; arrays of views go with features")
    documents = _inputs.documents(data, {"unique_ids": False, **corpus}, name="texts")
    if callable(rest.get("encoder")):
        encoder = rest.pop("encoder")
        texts = documents.texts()
        array = _inputs.vectors(encoder(texts), "the encoder's result", rows=len(texts))
        said = _inputs.options({"bits": bits, **rest})
        return Model(_micpq.train_vectors(array, said, None, report))
    judged = None if validation is None else _inputs.documents(validation, {"unique_ids": False, **corpus}, name="validation")
    return Model(_micpq.train(documents, said, judged, report))
