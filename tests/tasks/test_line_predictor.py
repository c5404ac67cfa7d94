"""Predictions of lines and rows: what is blank, a pair, or too long; and as columns of a table."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from regard.data.text_chunks import Chunk
from regard.errors import TextError
from regard.tasks.line_predictor import LinePredictor, prediction_columns
from regard.tasks.task import Prediction

TEXTS = ["ab", " ", "a\tb", "too long", ("x\ty",), ("p", "q"), "bad", ("", " "), "much too long"]
READ = ["ab", ("a", "b"), "too long", "x\ty", ("p", "q"), "bad", "much too long"]


@dataclass(frozen=True)
class Found(Prediction):
    label: str
    scores: dict[str, float]


class Reader(SimpleNamespace):
    """A task that reads up to five letters, and cannot read "bad"."""

    decodes, reads_pairs, pairs, prediction_type, limited = False, True, None, Found, "question"
    name = "reader"

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
    long = (
        {} if too_long == "truncate" else {3: "14: has a question of 8 ", 8: "19: has a question"}
    )
    wrong = {6: "file:17: is bad. Mend it."} | long
    assert errors.keys() == wrong.keys()
    assert all(said in str(errors[index]) for index, said in wrong.items())
    read = iter(text for text in READ if text != "bad" and (not long or len(text) <= 5))
    for index, (text, result) in enumerate(zip(TEXTS, results, strict=True)):
        if index in errors:
            assert result is None
            continue
        expected: dict[str, Any] = {
            "number": 10 + index,
            "source": text,
            "truncated": index in (3, 8),
        }
        if index in (1, 7):
            expected |= {"text": "", "label": None, "scores": None}
        else:
            label = f"{next(read)}"
            expected |= {"text": label, "label": label, "scores": {too_long: 1.0}}
        assert result == expected
    assert predictor.counts == {"texts": 9, "truncated": 0 if long else 2}
    before, error = predictor.predict(Chunk(10, TEXTS, "file"))
    assert before == results[: min(errors)] and str(error) == str(errors[min(errors)])
    assert predictor.predict(Chunk(0, ["a"], "file"))[1] is None and predictor.limit == 5


def test_a_prediction_has_a_column_for_each_number():
    number = {"text": "0.1", "source": "a", "value": 0.123, "proba": {"x": 1.0}, "other": 2}
    assert prediction_columns(number) == {"prediction": 0.123, "proba.x": 1.0, "other": 2}
