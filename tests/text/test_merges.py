"""Pieces of WordPiece and of the unigram model against the tokenizers library."""

from __future__ import annotations

from itertools import islice
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from regard import text
from regard.text import wordpiece
from regard.text.unigram import UnigramModel, unknown_joined

PROPERTY = settings(max_examples=150, deadline=None)
corpora = st.dictionaries(
    st.text("abcd", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=8
)


@PROPERTY
@given(words=corpora, text=st.text("abcde", min_size=1, max_size=9))
def test_longest_match_equals_the_librarys_model(words, text):
    from tokenizers import models

    merges = wordpiece.learn_by_likelihood(words)
    pieces = ["[UNK]", *"abcd", *("##" + c for c in "abcd"), *(m.symbol for m in islice(merges, 6))]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    theirs = [token.value for token in models.WordPiece(vocab, unk_token="[UNK]").tokenize(text)]
    found = [step.found for step in wordpiece.longest_match(text, vocab)]
    assert theirs == (["[UNK]"] if None in found else found)


@given(seed=st.integers(0, 9999))
def test_the_best_path_is_that_of_the_library(seed):
    from tokenizers import models

    draw = Random(seed)
    pieces = {"".join(draw.choices("abc", k=draw.randint(1, 3))) for _ in range(6)}
    vocab = [("<unk>", 0.0), *((piece, -9 * draw.random()) for piece in sorted(pieces))]
    text, theirs = "".join(draw.choices("abcx", k=8)), models.Unigram(vocab, 0)
    best = unknown_joined(UnigramModel(dict(vocab[1:])).best(text))
    found = [(edge.subword if edge.known else "<unk>", (edge.start, edge.end)) for edge in best]
    ids = {i: name for i, (name, _) in enumerate(vocab)}
    assert found == [(ids[token.id], token.offsets) for token in theirs.tokenize(text)]


LINES = ["the older the finest lowest", "lower and older, 12.5 of the newest!"] * 30


def test_trained_tokenizers_are_the_same_each_time_and_keep_every_covered_character():
    one = text.train("unigram", LINES, 60, character_coverage=1.0)
    two = text.train("unigram", iter(LINES), 60, character_coverage=1.0)
    assert one.fingerprint() == two.fingerprint()
    assert one.vocab_size <= 60 and one.roles["unk"] == "<unk>"
    for line in LINES[:2]:
        assert one.decode(one.encode(line).ids) == line
    fewer = text.train("unigram", [*LINES, "z"], 60, character_coverage=0.98)
    assert fewer.unk_id in fewer.encode("z").ids
