"""BLEU and chrF, fed in any portions, against sacreBLEU's own corpus functions."""

import random

import pytest
import sacrebleu

from regard.errors import ConfigError, RegardError
from regard.metrics import BLEU, CHRF, METRICS, bleu, chrf, metric_class

WORDS = "the a cat dog sat on mat, saw? (run) über 猫 can't U.S. 3.14 -- & .".split()


def corpus(size, seed=0):
    draw = random.Random(seed)
    sentence = lambda: [draw.choice(WORDS) for _ in range(draw.randint(1, 14))]  # noqa: E731
    references = [sentence() for _ in range(size)]
    hypotheses = [
        [w if draw.random() < 0.7 else draw.choice(WORDS) for w in r][: draw.randint(1, 14)]
        for r in references
    ]
    return [" ".join(h) for h in hypotheses], [" ".join(r) for r in references]


@pytest.mark.parametrize("options", [{}, {"lowercase": True}, {"tokenize": "none"}])
@pytest.mark.parametrize("portion", [1, 7, 100])
def test_bleu_equals_corpus_bleu(options, portion):
    hypotheses, references = corpus(60)
    hypotheses[5] = ""  # a model may say nothing
    metric = BLEU(**options)
    for at in range(0, 60, portion):
        metric.add(hypotheses[at : at + portion], references[at : at + portion])
    expected = sacrebleu.corpus_bleu(hypotheses, [references], force=True, **options)
    found = metric.result()
    assert (found.name, found.value, found.count) == ("BLEU", expected.score, 60)
    judge = sacrebleu.BLEU(force=True, **options)
    judge.corpus_score(hypotheses, [references])
    assert found.signature == str(judge.get_signature())
    assert str(found) == f"BLEU = {expected.score:.2f} {judge.get_signature()}"
    assert metric.result() == found  # asking changes nothing


@pytest.mark.parametrize("smooth", ["exp", "floor", "none"])
def test_bleu_smoothing_equals_that_of_sacrebleu(smooth):
    hypotheses, references = ["a b c d e", "x y"], ["a b q d e", "x z"]
    expected = sacrebleu.corpus_bleu(hypotheses, [references], smooth_method=smooth)
    assert bleu(hypotheses, references, smooth=smooth).value == expected.score


@pytest.mark.parametrize("words, name", [(0, "chrF2"), (2, "chrF2++")])
def test_chrf_equals_corpus_chrf(words, name):
    hypotheses, references = corpus(40, seed=1)
    hypotheses[0] = ""
    metric = CHRF(words=words)
    for at in range(0, 40, 3):
        metric.add(hypotheses[at : at + 3], references[at : at + 3])
    expected = sacrebleu.corpus_chrf(hypotheses, [references], word_order=words)
    assert metric.result().value == expected.score
    assert metric.result().name == name
    assert f"nc:6|nw:{words}" in metric.result().signature


def test_bleu_with_several_references_equals_sacrebleu():
    hypotheses, first = corpus(30, seed=2)
    _, second = corpus(30, seed=3)
    both = list(zip(first, second, strict=True))
    expected = sacrebleu.corpus_bleu(hypotheses, [first, second], force=True)
    found = bleu(hypotheses, both)
    assert found.value == expected.score and "nrefs:2" in found.signature
    some: list = [pair if at % 2 else pair[:1] for at, pair in enumerate(both)]
    second = [text if at % 2 else None for at, text in enumerate(second)]
    expected = sacrebleu.corpus_bleu(hypotheses, [first, second], force=True)
    found = bleu(hypotheses, some)
    assert found.value == expected.score and "nrefs:var" in found.signature


def test_invalid_hypotheses_and_options_raise_errors():
    for metric in (BLEU(), CHRF()):
        with pytest.raises(RegardError, match="of nothing is not defined"):
            metric.result()
        with pytest.raises(RegardError, match="2 predictions and 1 references"):
            metric.add(["a", "b"], ["a"])
        with pytest.raises(RegardError, match="must be lists, but one is a string"):
            metric.add("a", ["a"])
        with pytest.raises(RegardError, match="Text 0 must be a string, but is None"):
            metric.add([None], ["a"])
        with pytest.raises(RegardError, match="Text 0 has no reference"):
            metric.add(["a"], [[]])
    assert bleu([""], [""]).value == 0.0 == chrf([""], ["a"]).value


def test_metrics_are_found_by_name_and_an_unknown_name_raises_an_error():
    assert metric_class("bleu") is BLEU
    assert all(metric_class(name) for name in METRICS)
    with pytest.raises(ConfigError, match="Did you mean 'bleu'"):
        metric_class("blue")
