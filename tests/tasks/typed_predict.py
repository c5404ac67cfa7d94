"""What mypy knows of `predict`; `make lint` checks this file."""

from typing import Any, assert_type

from regard.tasks.classification import (
    LabelPrediction,
    NumberPrediction,
    TextClassifier,
    TextRegressor,
)
from regard.tasks.multi_label import MultiLabelClassifier, MultiLabelPrediction
from regard.tasks.question_answering import QuestionAnswerer, SpanPrediction
from regard.tasks.relation_extraction import RelationExtraction
from regard.tasks.tagging import Tagger, TagsPrediction


def check(
    classifier: TextClassifier,
    regressor: TextRegressor,
    labeller: MultiLabelClassifier,
    tagger: Tagger,
    answerer: QuestionAnswerer,
    relations: RelationExtraction,
) -> None:
    assert_type(classifier.predict("a"), str)
    assert_type(classifier.predict(("a", "b"), too_long="truncate"), str)
    assert_type(classifier.predict(["a", "b"]), list[str])
    assert_type(classifier.predict("a", return_proba=True), LabelPrediction)
    assert_type(classifier.predict(["a"], return_proba=True), list[LabelPrediction])
    assert_type(classifier.predict("a", return_proba=True).label, str)
    assert_type(regressor.predict("a"), float)
    assert_type(regressor.predict(["a"], return_proba=True), list[NumberPrediction])
    assert_type(labeller.predict("a"), list[str])
    assert_type(labeller.predict(["a"]), list[list[str]])
    assert_type(labeller.predict("a", return_proba=True), MultiLabelPrediction)
    assert_type(tagger.predict("a"), list[str])
    assert_type(tagger.predict(["a"], return_proba=True), list[TagsPrediction])
    assert_type(answerer.predict(("a", "b")), str)
    assert_type(answerer.predict([("a", "b")], return_proba=True), list[SpanPrediction])
    assert_type(relations.predict("a"), str)
    assert_type(relations.predict({"text": "a b", "head": [0, 1], "tail": [2, 3]}), str)
    assert_type(relations.predict(("a b", [0, 1], [2, 3])), str)
    assert_type(relations.predict(["a"], return_proba=True), list[LabelPrediction])
    assert_type(classifier.predict(3), Any)  # an array, a table
