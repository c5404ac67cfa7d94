"""Predictions of lines and rows: what is blank, a pair, or too long; and as columns of a table."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from regard.data.text_chunks import Chunk
from regard.decoding.steps import Hypothesis
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
        if not self.decodes and "bad" in texts:
            raise TextError(texts.index("bad"), "is bad.", "Mend it.")
        return {n: len(text) for n, text in enumerate(texts) if len(text) > 5}

    def predict(self, texts: list[Any], *, return_proba: bool, too_long: str) -> list[Found]:
        assert return_proba
        return [Found(f"{text}", {too_long: 1.0}) for text in texts]

    def hypotheses(self, texts: list[str], *, too_long: str, n: int) -> list[list[Hypothesis]]:
        return [[Hypothesis([1], -0.5, -1.0, text != "ab")] * n for text in texts]

    def spelled(self, texts: list[str], hypotheses: Any) -> list[list[str]]:
        return [[f"{text}!"] * len(ranked) for text, ranked in zip(texts, hypotheses, strict=True)]


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


def test_lines_of_a_task_that_decodes_have_hypotheses():
    predictor = LinePredictor(Reader(decodes=True), "truncate", {"n": 2})
    (first, blank, last), errors = predictor.predict_each(Chunk(0, ["ab", "", "a\tb"], "file"))
    assert not errors and [r["text"] for r in (first, blank, last)] == ["ab!", "", "a\tb!"]
    assert len(first["hypotheses"]) == 2 and first["hypotheses"][0]["log_prob"] == -1.0
    (empty,) = blank["hypotheses"]
    assert empty == {"text": "", "score": 0.0, "log_prob": 0.0, "finished": True}
    assert predictor.counts == {"texts": 3, "truncated": 0, "unfinished": 1}
    assert prediction_columns(first) == {"prediction": "ab!", "score": -0.5, "log_prob": -1.0}
    number = {"text": "0.1", "source": "a", "value": 0.123, "proba": {"x": 1.0}, "other": 2}
    assert prediction_columns(number) == {"prediction": 0.123, "proba.x": 1.0, "other": 2}
