"""What mypy knows of `predict`; `make lint` checks this file."""

from typing import Any, assert_type

import numpy as np

from regard.tasks import classification
from regard.tasks.captioning import Captioner
from regard.tasks.embedding import Embedder
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.masked_language_modeling import FilledText, MaskFiller
from regard.tasks.multi_label import MultiLabelClassifier, MultiLabelPrediction
from regard.tasks.pair_tasks import Translator
from regard.tasks.parsing import ParsePrediction, Parser
from regard.tasks.question_answering import QuestionAnswerer, SpanPrediction
from regard.tasks.relation_extraction import RelationExtraction
from regard.tasks.replaced_tokens import ReplacedTokenDetector, ReplacedTokens
from regard.tasks.tagging import Tagger, TagsPrediction


def check(
    classifier: classification.TextClassifier,
    regressor: classification.TextRegressor,
    labeller: MultiLabelClassifier,
    tagger: Tagger,
    answerer: QuestionAnswerer,
    relations: RelationExtraction,
    translator: Translator,
    generator: TextGenerator,
    captioner: Captioner,
    parser: Parser,
    filler: MaskFiller,
    detector: ReplacedTokenDetector,
    embedder: Embedder,
) -> None:
    assert_type(classifier.predict("a"), str)
    assert_type(classifier.predict(("a", "b"), too_long="truncate"), str)
    assert_type(classifier.predict(["a", "b"]), list[str])
    assert_type(classifier.predict("a", return_proba=True), classification.LabelPrediction)
    assert_type(classifier.predict(["a"], return_proba=True), list[classification.LabelPrediction])
    assert_type(classifier.predict("a", return_proba=True).label, str)
    assert_type(regressor.predict("a"), float)
    assert_type(regressor.predict(["a"], return_proba=True), list[classification.NumberPrediction])
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
    assert_type(relations.predict(["a"], return_proba=True), list[classification.LabelPrediction])
    assert_type(translator.predict("a", beams=4), str)
    assert_type(generator.predict(["a"]), list[str])
    assert_type(generator.predict("a", n_best=2), Any)
    assert_type(captioner.predict(["a.png"]), list[str])
    assert_type(parser.predict("a", return_proba=True, n_best=2), ParsePrediction)
    assert_type(filler.predict(["[MASK]"], return_proba=True, top=3), list[FilledText])
    assert_type(detector.predict(["a"], return_proba=True), list[ReplacedTokens])
    assert_type(embedder.predict(["a"], truncate_dim=8), np.ndarray)
    assert_type(classifier.predict({"text": "a"}), str)
    assert_type(classifier.predict(3), Any)  # an array, a table
