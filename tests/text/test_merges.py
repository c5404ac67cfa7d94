"""Merges of byte-pair encoding and pieces of WordPiece against naive programs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import text
from regard.text import bpe, wordpiece
from regard.text.bpe import PRIVATE, SymbolCodes, code_with_suffix, learn_merges

LECTURE_A = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
PROPERTY = settings(max_examples=150, deadline=None)
corpora = st.dictionaries(
    st.text("abcd", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=8
)


def listing_of_the_paper(words, merges):
    """Sennrich et al. 2016, algorithm 1: recount everything, take `max`, join by text."""
    vocab = {(*word, "</w>"): count for word, count in words.items()}
    learned = []
    for _ in range(merges):
        pairs = Counter()
        for word, count in vocab.items():
            for i in range(len(word) - 1):
                pairs[word[i], word[i + 1]] += count
        if not pairs:
            break
        best = max(pairs, key=pairs.get)  # the first one inserted among equals
        learned.append((best, pairs[best]))
        joined = {}
        for word, count in vocab.items():
            new, i = [], 0
            while i < len(word):
                step = 2 if word[i : i + 2] == best else 1
                new.append("".join(word[i : i + step]))
                i += step
            joined[tuple(new)] = count
        vocab = joined
    return learned


def test_merges_with_attached_ends_equal_those_of_lecture_a():
    # With </w> on the last character, the order on the slide: est (its end included), then lo.
    attached = list(islice(bpe.learn(LECTURE_A, bpe.attached_end), 3))
    assert [(m.symbol, m.count) for m in attached] == [("es", 9), ("est</w>", 9), ("lo", 7)]


def test_bpe_equals_the_papers_listing_on_real_text(shared):
    lines = shared("tiny_shakespeare/input.txt").read_text(encoding="utf-8").split("\n")[:400]
    words = Counter(" ".join(lines).split())
    ours = [((m.left, m.right), m.count) for m in islice(bpe.learn(words), 60)]
    assert ours == listing_of_the_paper(words, 60)


def test_the_library_differs_only_in_its_rule_for_ties(shared):
    """With its rule for ties (smallest ids), our trainer learns the library's merges, one by one.

    Ids: plain characters by code point, marked ones in the order of reading, then the merges.
    """
    lines = shared("tiny_shakespeare/input.txt").read_text(encoding="utf-8").split("\n")[:3000]
    words = Counter(" ".join(lines).split())
    codes = SymbolCodes(suffix="</w>")
    stream = ([word] * count for word, count in words.items())
    coded, merges = learn_merges(stream, codes, code_with_suffix, 700, [], min_frequency=1)
    library = [(codes.decode(left), codes.decode(right)) for left, right in merges]
    id_of = {codes.decode(piece): i for i, piece in enumerate(coded)}

    def smallest_ids(corpus, tied):
        return min(tied, key=lambda pair: (id_of[pair[0]], id_of[pair[1]]))

    learned = bpe.learn(words, bpe.attached_end, smallest_ids)
    ours = [(m.left, m.right) for m in islice(learned, len(library))]
    assert len(library) > 500 and ours == library


def brute_likelihood(words, merges, min_count):
    """Score every pair again with exact fractions."""
    state = [([w[0], *("##" + c for c in w[1:])], count) for w, count in words.items()]
    learned = []
    for _ in range(merges):
        pairs, symbols = Counter(), Counter()
        for word, count in state:
            symbols.update({s: word.count(s) * count for s in set(word)})
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        able = [pair for pair in pairs if pairs[pair] >= min_count]
        if not able:
            break
        score = {p: Fraction(pairs[p], symbols[p[0]] * symbols[p[1]]) for p in able}
        best = min(able, key=lambda p: (-score[p], -pairs[p], p))
        learned.append((best, score[best]))
        piece = best[0] + best[1][2:]
        joined = []
        for word, count in state:
            new, i = [], 0
            while i < len(word):
                pair = tuple(word[i : i + 2]) == best
                new.append(piece if pair else word[i])
                i += 1 + pair
            joined.append((new, count))
        state = joined
    return learned


@PROPERTY
@given(words=corpora, min_count=st.integers(1, 3))
def test_likelihood_equals_brute_force(words, min_count):
    learned = islice(wordpiece.learn_by_likelihood(words, min_count), 12)
    got = [((m.left, m.right), Fraction(m.count, m.count_left * m.count_right)) for m in learned]
    assert got == brute_likelihood(words, 12, min_count)


def test_longest_match_equals_the_lecture():
    pieces = {"un", "##aff", "##able", "u", "##a", "##ab"}
    steps = list(wordpiece.longest_match("unaffable", pieces))
    assert [step.found for step in steps] == ["un", "##aff", "##able"]
    assert steps[0].tried[:2] == ("unaffable", "unaffabl") and steps[0].tried[-1] == "un"
    assert list(wordpiece.longest_match("unx", pieces))[-1].found is None
    assert list(wordpiece.longest_match("", pieces)) == []


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


def test_words_are_coded_symbol_by_symbol():
    codes = SymbolCodes(prefix="##")
    assert [*map(codes.decode, bpe.code_with_prefix(codes, "löw"))] == ["l", "##ö", "##w"]
    codes = SymbolCodes(suffix="</w>")
    assert [*map(codes.decode, code_with_suffix(codes, "löw"))] == ["l", "ö", "w</w>"]


@pytest.mark.parametrize(("prefix", "suffix"), [("##", ""), ("", "</w>"), ("", "")])
def test_every_symbol_has_a_character_of_its_own(prefix, suffix):
    codes = SymbolCodes(prefix, suffix)
    characters = ["a", "é", *map(chr, range(PRIVATE - 1, PRIVATE + 3))]
    coded = {(c, affixed): codes.code(c, affixed) for affixed in (True, False) for c in characters}
    assert len({*coded.values()}) == len(coded) and all(len(code) == 1 for code in coded.values())
    for (character, affixed), code in coded.items():
        assert codes.code(character, affixed) == code
        assert codes.decode(code) == prefix * affixed + character + suffix * affixed
