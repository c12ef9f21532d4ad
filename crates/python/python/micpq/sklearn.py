"""A scikit-learn transformer from texts or vectors to codes.

>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.neighbors import KNeighborsClassifier
>>> from micpq.sklearn import MICPQ
>>> texts, labels = [d["text"] for d in NEWS], [d["label"] for d in NEWS]
>>> coder = MICPQ(bits=16, encoder=ENCODER, epochs=3, output="projected")
>>> chain = make_pipeline(coder, KNeighborsClassifier(5)).fit(texts, labels)
>>> bool(chain.score(texts, labels) > 0.5)
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin  # type: ignore[import-untyped,unused-ignore]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped,unused-ignore]

from ._model import Model, train
from .errors import ConfigError


class MICPQ(TransformerMixin, BaseEstimator):  # type: ignore[misc,unused-ignore]
    """Trains a model of the method MICPQ on texts or on vectors ``[n, width]``, and transforms them to codes.

    :param bits: bits per code: 16, 32, 64 or 128. Default: 64.
    :param encoder: a name, a Hugging Face directory, or a function from texts to vectors. Vectors do not need it.
    :param epochs: maximum number of epochs. Default: the method's.
    :param seed: the same seed gives the same model.
    :param output: ``"codes"`` for packed codes (uint8 ``[n, code_bytes]``), ``"codewords"`` for the number of the codeword in
        every codebook (uint8 ``[n, num_codebooks]``), ``"projected"`` for the vectors before quantization (float32
        ``[n, num_codebooks * dim]``).
    :param options: any other option of :func:`micpq.train`, as a dictionary.
    """

    def __init__(
        self,
        bits: int | None = None,
        *,
        encoder: Any = None,
        epochs: int | None = None,
        seed: int | None = None,
        output: str = "codes",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.bits = bits
        self.encoder = encoder
        self.epochs = epochs
        self.seed = seed
        self.output = output
        self.options = options

    def _is_text(self, X: Any) -> bool:
        if isinstance(X, np.ndarray):
            return X.ndim == 1
        first = next(iter(X), None) if hasattr(X, "__iter__") else None
        return isinstance(first, (str, dict))

    def fit(self, X: Any, y: Any = None) -> MICPQ:
        """Trains on texts or vectors. ``y`` is ignored."""
        if self.output not in ("codes", "codewords", "projected"):
            raise ConfigError(f"output is {self.output!r}; it must be \"codes\", \"codewords\" or \"projected\"")
        options = {"method": "micpq", "bits": self.bits, "seed": self.seed, **(self.options or {})}
        if self.epochs is not None:
            options["epochs"] = self.epochs
        if self._is_text(X):
            if self.encoder is not None:
                options["encoder"] = self.encoder
            self.model_: Model = train(X, **options)
        else:
            self.model_ = train(embeddings=X, **options)
        self.n_features_in_ = self.model_.inputs
        return self

    def _vectors(self, X: Any) -> Any:
        if not self._is_text(X):
            return X
        return self.encoder(list(X)) if callable(self.encoder) else self.model_.embeddings(X)

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Codes, codewords or projected vectors, as ``output`` says."""
        check_is_fitted(self, "model_")
        vectors = self._vectors(X)
        if self.output == "projected":
            return self.model_.project(vectors)
        codes = self.model_.encode(embeddings=vectors)
        if self.output == "codes":
            return codes
        num_codebooks, codebook_size, _ = self.model_._native.shape
        # A codeword is packed in 1, 4 or 8 bits (docs/format.md).
        bits = 1 if codebook_size == 2 else 4 if codebook_size <= 16 else 8
        unpacked = np.unpackbits(codes, axis=1, bitorder="little")[:, : num_codebooks * bits]
        # [n, num_codebooks, bits] -> [n, num_codebooks]
        return np.packbits(unpacked.reshape(len(codes), num_codebooks, bits), axis=2, bitorder="little")[:, :, 0]

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Names of the output columns: ``codes0``, ``codes1``, ..."""
        check_is_fitted(self, "model_")
        num_codebooks, _, dim = self.model_._native.shape
        widths = {"codes": self.model_.code_bytes, "codewords": num_codebooks, "projected": num_codebooks * dim}
        return np.array([f"{self.output}{i}" for i in range(widths[self.output])], dtype=object)
