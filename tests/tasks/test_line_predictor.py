"""Predictions of lines and rows: what is blank, a pair, or too long; and as columns of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from regard.data.text_chunks import Chunk
from regard.errors import TextError
from regard.tasks.line_predictor import LinePredictor, prediction_columns
from regard.tasks.task import Prediction

TEXTS = ["ab", " ", "a\tb", "too long", ("x\ty",), ("p", "q"), "bad", ("", " "), "much too long"]
OUTPUTS = ["ab", "", "('a', 'b')", "too long", "x\ty", "('p', 'q')", "bad", "", "much too long"]


@dataclass(frozen=True)
class Found(Prediction):
    label: str
    scores: dict[str, float]


class Reader:
    """A task that reads up to five letters, and cannot read "bad"."""

    decodes, reads_pairs, prediction_type, limited = False, True, Found, "question"

    def token_limit(self, **options: Any) -> int:
        return 5

    def over_limit(self, texts: list[Any], **options: Any) -> dict[int, int]:
        if "bad" in texts:
            raise TextError(texts.index("bad"), "is bad.", "Mend it.")
        return {n: len(text) for n, text in enumerate(texts) if len(text) > 5}

    def predict(self, texts: list[Any], *, return_proba: bool, too_long: str) -> list[Found]:
        assert return_proba
        return [Found(f"{text}", {too_long: 1.0}) for text in texts]


@pytest.mark.parametrize("too_long", ["error", "truncate"])
def test_each_line_has_its_own_result_or_error(too_long):
    predictor = LinePredictor(Reader(), too_long, {})
    results, errors = predictor.predict_each(Chunk(10, TEXTS, "file"))
    wrong = {6: "file:17: is bad. Mend it."}
    if too_long == "error":
        wrong |= {3: "14: has a question of 8 tokens", 8: "19: has a question of 13 "}
    assert errors.keys() == wrong.keys()
    assert all(said in str(errors[index]) for index, said in wrong.items())
    for index, (source, text) in enumerate(zip(TEXTS, OUTPUTS, strict=True)):
        expected = {"number": 10 + index, "source": source, "truncated": index in (3, 8)}
        expected |= {
            "text": text,
            "label": text or None,
            "scores": {too_long: 1.0} if text else None,
        }
        assert results[index] == (None if index in errors else expected)
    assert predictor.counts == {"texts": 9, "truncated": 2 if len(wrong) == 1 else 0}
    before, error = predictor.predict(Chunk(10, TEXTS, "file"))
    assert before == results[: min(errors)] and str(error) == str(errors[min(errors)])
    assert predictor.predict(Chunk(0, ["a"], "file"))[1] is None and predictor.limit == 5


def test_a_prediction_has_a_column_for_each_number():
    number = {"text": "0.1", "source": "a", "value": 0.123, "proba": {"x": 1.0}, "other": 2}
    assert prediction_columns(number) == {"prediction": 0.123, "proba.x": 1.0, "other": 2}
