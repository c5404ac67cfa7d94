"""Vectors of texts from an encoder without a head, compared by their cosine.

The task is not trained: an encoder is trained in another task (classification, regression), which
gives vectors too. This one pools texts as sentence-transformers does, and scores vectors by the
correlation of their cosines with human judgements of pairs of sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.data import RowReader, read
from regard.errors import DataError
from regard.layers.pooling import Pooling
from regard.metrics import Pearson, Score, Spearman
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.batching import TooLong
from regard.tasks.embedder import TextEncoder, as_text
from regard.tasks.encoding import EncoderTask, headed
from regard.tasks.inputs import as_list
from regard.tasks.predictions import Prediction
from regard.text import Tokenizer


@dataclass(frozen=True)
class VectorPrediction(Prediction):
    """The vector of a text."""

    vector: tuple[float, ...]

    def __str__(self) -> str:
        return " ".join(f"{number:.7g}" for number in self.vector)


class Embedding(EncoderTask):
    """A vector for a text."""

    name = "embedding"
    prediction_type = VectorPrediction
    verbs = ("embed", "predict", "evaluate", "look")
    columns = (0, 1, 2)

    def __init__(
        self,
        model: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        kinds: Sequence[str] = ("mean",),
        normalize: bool = False,
        max_length: int | None = None,
    ):
        super().__init__(headed(model), tokenizer, max_length=max_length)
        self.pooling = Pooling(tuple(kinds), normalize, self.input_format.max_length)

    def text_encoder(self) -> TextEncoder:
        """The encoder, and how it pools a text."""
        return TextEncoder(self.encoder, self.input_format, self.pooling)

    def predict(self, texts: Any, *, too_long: TooLong = "error") -> np.ndarray:
        """The vectors of texts, (N, D), or of one text, (D,)."""
        return self.embed(texts, too_long=too_long)

    def checked(self, texts: Any) -> list[Any]:
        """Texts, each as a tuple."""
        return [(as_text(text, index),) for index, text in enumerate(as_list(texts))]

    def predictions(
        self, texts: Sequence[str], *, too_long: TooLong = "error"
    ) -> list[VectorPrediction]:
        """The vector of each text."""
        vectors = self.predict(as_list(texts), too_long=too_long)
        return [VectorPrediction(tuple(row)) for row in vectors.tolist()]

    def evaluate(
        self,
        rows: RowReader | Iterable[Sequence[Any]],
        *,
        columns: Sequence[int | str] = (),
        too_long: TooLong = "truncate",
    ) -> list[Score]:
        """Pearson's and Spearman's correlation of cosines with judgements.

        rows: (text, text, number).  columns: of a table.

        Raises:
            DataError: a row has no number in its third field.
        """
        rows = self.with_columns(rows, columns)
        rows = rows if isinstance(rows, RowReader) else read(rows)
        numbered = list(rows.numbered())
        wanted = [_number(row, rows.file_of(0), line) for line, row in numbered]
        vectors = [
            self.embed([row[side] for _, row in numbered], normalize=True, too_long=too_long)
            for side in (0, 1)
        ]
        cosines = np.einsum("nd,nd->n", *vectors)
        metrics = Pearson(), Spearman()
        for metric in metrics:
            metric.add(cosines, wanted)
        return [metric.result() for metric in metrics]

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        pooling = self.pooling
        return {**super().settings(), "kinds": list(pooling.kinds), "normalize": pooling.normalize}


def _number(row: Sequence[Any], file: str, line: int) -> float:
    if len(row) != 3:
        raise DataError(
            file,
            line,
            f"has {len(row)} fields, but these must be two texts and how alike they are.",
            "Name the three columns, such as 5,6,4.",
        )
    try:
        wanted = float(row[2])
    except ValueError:
        raise DataError(file, line, f"has {row[2]!r} where a number should be.") from None
    if not math.isfinite(wanted):
        raise DataError(file, line, f"has {row[2]!r}, but how alike two texts are must be finite.")
    return wanted
