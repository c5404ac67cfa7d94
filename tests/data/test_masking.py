"""Masks and sentence pairs of BERT's pre-training against their definition."""

from __future__ import annotations

import random

import numpy as np
import pytest

from regard.data import pretraining
from regard.data.batches import IGNORE
from regard.data.corpus import Documents, encode_corpus
from regard.data.pretraining import (
    MaskedTexts,
    MaskVocabulary,
    PairRows,
    SentencePairs,
    WordStarts,
    masked,
)
from regard.data.readers import open_table
from regard.text import train
from regard.text.templates import Template

WORDS = "the old cat sat on a warm mat while unbelievable storms were thundering".split()
MASK = 4


@pytest.fixture(scope="module")
def tokenizer():
    made = train("wordpiece", [" ".join(WORDS[:9] + ["un", "storm"])] * 3, 120)
    return made.with_roles({"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"})


def corpus_of(texts, tokenizer):
    """Each text a document."""
    rows = open_table([(text,) for text in texts])
    return encode_corpus(Documents((rows,)), tokenizer, structure=True)


def documents(count=300, seed=1):
    draw = random.Random(seed)
    return [
        " ".join(
            " ".join(draw.choices(WORDS, k=draw.randint(1, 12))).capitalize() + "."
            for _ in range(draw.randint(1, 9))
        )
        for _ in range(count)
    ]


# ---------------------------------------------------------------------------------- masks


def test_rates_over_a_million_tokens_are_those_of_the_definition():
    random_ = np.random.Generator(np.random.PCG64(1))
    vocabulary = MaskVocabulary(MASK, np.arange(5, 30_000))
    chosen = replaced = kept = other = total = 0
    drawn = []
    for _ in range(2000):
        ids = random_.integers(5, 30_000, 503)
        maskable = np.ones(503, bool)
        maskable[[0, 250, 502]] = False
        found = masked(ids, maskable, vocabulary, 0.15, random_)
        there = found.labels != IGNORE
        assert there.sum() == 75 and not there[~maskable].any()  # of 500
        assert (found.labels[there] == ids[there]).all()
        assert (found.ids[~there] == ids[~there]).all()
        chosen, total = chosen + there.sum(), total + 500
        replaced += (found.ids[there] == MASK).sum()
        kept += (found.ids[there] == ids[there]).sum()
        rest = there & (found.ids != MASK) & (found.ids != ids)
        other += rest.sum()
        drawn.append(found.ids[rest])
    assert chosen / total == 0.15 and total == 1_000_000
    deviation = 4 * (0.25 / chosen) ** 0.5
    assert replaced / chosen == pytest.approx(0.8, abs=deviation)
    assert kept / chosen == pytest.approx(0.1, abs=deviation)
    assert other / chosen == pytest.approx(0.1, abs=deviation)
    drawn = np.concatenate(drawn)
    assert drawn.min() >= 5 and drawn.mean() == pytest.approx(15_000, rel=0.03)
    for count, wanted in ((1, 1), (2, 1), (3, 1), (17, 3), (0, 0)):
        found = masked(ids[:count], np.ones(count, bool), vocabulary, 0.15, random_)
        assert (found.labels != IGNORE).sum() == wanted


def test_whole_words_are_chosen_together(tokenizer):
    starts = WordStarts.of(tokenizer)
    continues = starts.continues
    assert continues[tokenizer.id("##s")] and not continues[tokenizer.id("the")]
    vocabulary = MaskVocabulary(MASK, np.arange(5, 60), starts)
    text = tokenizer.encode("the storms were unbelievable while thundering cats sat on mats").ids
    ids = np.array(text * 4)
    words = np.cumsum(~continues[ids])
    random_, counts = np.random.Generator(np.random.PCG64(3)), []
    for _ in range(400):
        found = masked(ids, np.ones(len(ids), bool), vocabulary, 0.15, random_)
        there = found.labels != IGNORE
        for word in np.unique(words[there]):
            assert there[words == word].all()
        counts.append(there.sum())
    wanted = round(0.15 * len(ids))
    assert max(counts) <= max(wanted, np.bincount(words).max()) and np.mean(counts) > wanted - 1


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "words"])
def test_where_words_begin_in_other_vocabularies(kind):
    lines = ["the storms were unbelievable", "the storm was thundering"] * 4
    made = train(kind, lines, 300 if kind == "byte-bpe" else 40)
    tokens = made.encode(" the storms were").ids
    begins = WordStarts.of(made).among(np.array(tokens))
    assert sum(b for b, i in zip(begins, tokens, strict=True) if made.token(i) != "▁") == 3


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "wordpiece", "words"])
def test_no_word_goes_across_white_space_of_any_kind(kind):
    draw = random.Random(4)
    words = "the storms, were (unbelievable) naïve 日本語 🙂 don't".split()

    def text() -> str:
        spaces = [" ", " ", "  ", "\n", "\n\n", "\t", " \r\n"]
        return "".join(draw.choice(words) + draw.choice(spaces) for _ in range(12)).strip()

    made = train(kind, [text() for _ in range(40)], 330 if kind == "byte-bpe" else 70)
    starts = WordStarts.of(made)
    for _ in range(40):
        given = text()
        encoding = made.encode(given)
        begins = starts.among(np.array(encoding.ids))
        for n, (start, end) in enumerate(encoding.offsets[1:], 1):
            before = encoding.offsets[n - 1][0]
            if given[start:end].strip() and any(map(str.isspace, given[before:end].lstrip(" "))):
                assert begins[n], (given[before:end], encoding.tokens[n - 1 : n + 1])


# ---------------------------------------------------------------------------------- pairs


def test_half_of_the_pairs_follow_and_the_others_are_of_another_document(tokenizer):
    corpus = corpus_of(documents(2000), tokenizer)
    pairs = SentencePairs(corpus, length=61, seed=1)
    found, offsets = pairs.draw_pairs(0), corpus.tokens.offsets
    a, a_end, b, b_end, follows = found.T
    sizes = (a_end - a) + (b_end - b)
    assert (a_end > a).all() and (b_end > b).all() and sizes.max() <= 61
    document = [np.searchsorted(offsets, one, side="right") for one in (a, a_end - 1, b, b_end - 1)]
    assert (document[0] == document[1]).all() and (document[2] == document[3]).all()
    follows = follows.astype(bool)
    assert (document[0] == document[2])[follows].all()
    assert (document[0] != document[2])[~follows].all()
    assert (b >= a_end)[follows].all()
    assert follows.mean() == pytest.approx(0.5, abs=2 / len(found) ** 0.5)
    assert (pairs.draw_pairs(0) == found).all() and not np.array_equal(
        pairs.draw_pairs(1)[:50], found[:50]
    )


def test_a_pair_that_is_not_cut_joins_at_a_sentence(tokenizer, monkeypatch):
    monkeypatch.setattr(pretraining, "SHORT", 0.0)
    corpus = corpus_of(documents(200), tokenizer)
    pairs = SentencePairs(corpus, length=1000, seed=3)
    starts = {*corpus.sentences.tolist()}
    for a, a_end, b, b_end, follows in pairs.draw_pairs(0).tolist():
        assert {a, a_end, b, b_end} <= starts
        assert not follows or a_end == b


def test_pairs_have_two_segments_and_a_label(tokenizer):
    corpus = corpus_of(documents(60), tokenizer)
    rows = PairRows(SentencePairs(corpus, length=29, seed=1), 4)
    template = Template.bert(tokenizer.cls_id, tokenizer.sep_id)
    vocabulary = MaskVocabulary.of(tokenizer, whole_words=True)
    data = MaskedTexts(rows, template, vocabulary, 0.15, tokenizer.pad_id, 1)
    seen = 0
    for batch in data.epoch(0):
        assert set(batch.follows.tolist()) <= {0, 1} and len(batch.follows) == len(batch)
        for ids, segments, length in zip(
            batch.texts.ids, batch.texts.segments, batch.texts.lengths.tolist(), strict=True
        ):
            ends = (ids[:length] == tokenizer.sep_id).nonzero()[:, 0].tolist()
            assert len(ends) == 2 and ends[1] == length - 1 < 32
            assert segments[:length].tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
            seen += 1
    assert seen == len(rows.pairs.draw_pairs(0))
