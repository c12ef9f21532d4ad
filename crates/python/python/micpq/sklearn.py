"""scikit-learn's conventions over micpq: a transformer from texts or vectors to codes.

>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.neighbors import KNeighborsClassifier
>>> from micpq.sklearn import MICPQ
>>> texts, labels = [d["text"] for d in NEWS], [d["label"] for d in NEWS]
>>> coder = MICPQ(bits=16, encoder=ENCODER, epochs=3, output="refined")
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
    """Learns codes of texts, or of vectors ``[n, width]``.

    :param bits: length of a code: 16, 32, 64 or 128.
    :param encoder: a name, a Hugging Face directory, or a function from texts to vectors; not used for vectors.
    :param epochs: most epochs; the trainer's own number unless given.
    :param seed: decides everything random.
    :param output: ``"codes"`` for packed codes (uint8), ``"words"`` for the word of every book (uint8), ``"refined"`` for the
        vectors before they are rounded (float32).
    :param options: any other option of :func:`micpq.train`, as a dictionary.
    """

    def __init__(
        self,
        bits: int = 32,
        *,
        encoder: Any = None,
        epochs: int | None = None,
        seed: int = 0,
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
        """Learns from texts or vectors; labels are not looked at."""
        if self.output not in ("codes", "words", "refined"):
            raise ConfigError(f"output is {self.output!r}; it is \"codes\", \"words\" or \"refined\"")
        options = {"bits": self.bits, "seed": self.seed, **(self.options or {})}
        if self.epochs is not None:
            options["epochs"] = self.epochs
        if self._is_text(X):
            if self.encoder is not None:
                options["encoder"] = self.encoder
            self.model_: Model = train(X, **options)
        else:
            self.model_ = train(features=X, **options)
        self.n_features_in_ = self.model_.inputs
        return self

    def _vectors(self, X: Any) -> Any:
        if not self._is_text(X):
            return X
        return self.encoder(list(X)) if callable(self.encoder) else self.model_.features(X)

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Codes, words or refined vectors of texts or vectors."""
        check_is_fitted(self, "model_")
        vectors = self._vectors(X)
        if self.output == "refined":
            return self.model_.refine(vectors)
        codes = self.model_.encode(features=vectors)
        if self.output == "codes":
            return codes
        books, words, _ = self.model_._native.shape
        bits = words.bit_length() - 1
        spread = np.unpackbits(codes, axis=1, bitorder="little")[:, : books * bits].reshape(len(codes), books, bits)
        return np.packbits(spread, axis=2, bitorder="little")[:, :, 0]

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Names of the columns."""
        check_is_fitted(self, "model_")
        books, _, dim = self.model_._native.shape
        width = {"codes": self.model_.code_bytes, "words": books, "refined": books * dim}[self.output]
        return np.array([f"{self.output}{i}" for i in range(width)], dtype=object)
