"""BLEU, chrF, ROUGE and CIDEr-D against sacreBLEU, rouge-score and the formula."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest
import sacrebleu

from regard.errors import ConfigError
from regard.metrics import BLEU, CHRF, METRICS, ROUGE, metric_class
from regard.metrics.text import KINDS, longest_common

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


def fed(metric, hypotheses, references):
    metric.add(hypotheses, references)
    return metric.result()


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
    assert fed(BLEU(smooth=smooth), hypotheses, references).value == expected.score


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
    found = fed(BLEU(), hypotheses, both)
    assert found.value == expected.score and "nrefs:2" in found.signature
    some: list = [pair if at % 2 else pair[:1] for at, pair in enumerate(both)]
    second = [text if at % 2 else None for at, text in enumerate(second)]
    expected = sacrebleu.corpus_bleu(hypotheses, [first, second], force=True)
    found = fed(BLEU(), hypotheses, some)
    assert found.value == expected.score and "nrefs:var" in found.signature


def test_metrics_are_found_by_name_and_an_unknown_name_raises_an_error():
    assert metric_class("bleu") is BLEU
    assert all(metric_class(name) for name in METRICS)
    with pytest.raises(ConfigError, match="Did you mean 'bleu'"):
        metric_class("blue")


# hypothesis, reference, and the F1 of ROUGE-1, ROUGE-2 and ROUGE-L that rouge-score 0.1.2 gives
PUBLISHED = [
    ("The cat sat.", "the CAT sat on a mat", 0.666667, 0.571429, 0.666667),
    ("", "a", 0.000000, 0.000000, 0.000000),
    ("a b", "", 0.000000, 0.000000, 0.000000),
    ("é é", "é", 0.000000, 0.000000, 0.000000),
    ("a", "a", 1.000000, 0.000000, 1.000000),
    ("Re: FY-2002 budget, don't!", "FY 2002 budget", 0.666667, 0.571429, 0.666667),
    ("42 cat sun,", "42 the the été on on The Mat", 0.181818, 0.000000, 0.181818),
    ("It's a", "sun, don't It's sat été 42 on the été", 0.285714, 0.166667, 0.285714),
    ("cat été mat sat a x-ray sun,", "42", 0.000000, 0.000000, 0.000000),
    ("", "x-ray a sun, The don't The a", 0.000000, 0.000000, 0.000000),
    ("a été 42", "a été cat 42 42", 0.750000, 0.333333, 0.750000),
    ("a été on a mat mat", "the mat sat Mat été 42 don't", 0.428571, 0.000000, 0.285714),
    (
        "The sun, on x-ray été It's don't a",
        "sun, sun, sun, The cat on",
        0.352941,
        0.000000,
        0.235294,
    ),
]


@pytest.mark.parametrize("number", range(3))
def test_scores_are_those_of_rouge_score(number):
    whole = ROUGE(KINDS[number])
    for hypothesis, reference, *wanted in PUBLISHED:
        one = ROUGE(KINDS[number])
        for metric in (one, whole):
            metric.add([hypothesis], [reference])
        assert one.result().value == pytest.approx(100 * wanted[number], abs=1e-3)
    mean = sum(row[2 + number] for row in PUBLISHED) / len(PUBLISHED)
    found = whole.result()
    assert found.value == pytest.approx(100 * mean, abs=1e-3)
    assert found.name == ("ROUGE-1", "ROUGE-2", "ROUGE-L")[number]


def test_the_longest_common_subsequence_is_that_of_the_recursion():
    def recursive(first: str, second: str) -> int:
        @cache
        def of(i: int, j: int) -> int:
            if not i or not j:
                return 0
            same = first[i - 1] == second[j - 1]
            return of(i - 1, j - 1) + 1 if same else max(of(i - 1, j), of(i, j - 1))

        return of(len(first), len(second))

    draw = random.Random(1)
    for _ in range(300):
        first, second = ("".join(draw.choices("abcd", k=draw.randint(0, 12))) for _ in range(2))
        assert longest_common(first, second) == recursive(first, second)


CAPTIONS = ["a dog runs on the grass", "two men talk", "", "A man's well-known dog , a dog !"]
REFERENCES = [
    ["a dog runs through the grass", "the dog is running on grass ."],
    ["two men talk", "men talk on a street", "two old men"],
    ["a child sleeps", "a boy"],
    ["a man and a dog", "a man's well-known dog", "a dog", "dog"],
]


def words_of(text):
    kept = "".join(c if c.isalnum() or c in "'-" else " " for c in text.lower())
    return kept.split()


def grams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words)) if i + n <= len(words)]


def naive(captions, references):
    """The formula, gram by gram over the whole set of n-grams."""
    count = len(captions)
    total = 0.0
    for caption, several in zip(captions, references, strict=True):
        for one in several:
            h_words, r_words = words_of(caption), words_of(one)
            for n in (1, 2, 3, 4):
                every = sorted({*grams(h_words, n), *grams(r_words, n)})

                def vector(words, every=every, n=n):
                    found = []
                    for gram in every:
                        df = sum(
                            any(gram in grams(words_of(text), n) for text in texts)
                            for texts in references
                        )
                        found.append(grams(words, n).count(gram) * math.log(count / max(1, df)))
                    return found

                h, r = vector(h_words), vector(r_words)
                norm = math.sqrt(sum(x * x for x in h)) * math.sqrt(sum(x * x for x in r))
                if norm == 0:
                    continue
                cosine = sum(min(x, y) * y for x, y in zip(h, r, strict=True)) / norm
                distance = len(grams(h_words, 2)) - len(grams(r_words, 2))
                total += 10 / 4 * cosine * math.exp(-(distance**2) / 72) / len(several)
    return 100 * total / count


def test_the_score_is_the_formula():
    metric = metric_class("cider")()
    metric.add(CAPTIONS[:1], REFERENCES[:1])
    metric.add(CAPTIONS[1:], REFERENCES[1:])
    found = metric.result()
    assert found.value == pytest.approx(naive(CAPTIONS, REFERENCES), rel=1e-12)
    assert found.value > 10 and found.count == 4 and "sigma:6" in found.signature
