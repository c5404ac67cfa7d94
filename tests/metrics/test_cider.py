"""CIDEr-D against its formula written naively."""

from __future__ import annotations

import math

import pytest

from regard.metrics import metric_class

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
