"""Ids for words outside of a vocabulary."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.text import Tokenizer, train
from regard.text.templates import Template
from regard.text.tokenizer import OpenVocabulary

TEXTS = ["the cat sat on the mat", "the dog sat"]


def closed(**options) -> Tokenizer:
    return train("words", TEXTS, vocab_size=8, **options)  # four special tokens and four words


def test_known_words_keep_their_ids_and_unknown_ones_get_ids_of_their_own():
    plain = closed()
    tokenizer = OpenVocabulary.of(plain)
    known, unknown = plain.id("the"), plain.vocab_size
    assert plain.encode("the zebra the éléphant zebra").ids.count(plain.unk_id) == 3
    found = tokenizer.encode("the zebra the éléphant zebra")
    assert found.ids == [known, unknown, known, unknown + 1, unknown]
    assert found.tokens == ["the", "zebra", "the", "éléphant", "zebra"]
    assert tokenizer.token(unknown + 1) == "éléphant" == tokenizer.label(unknown + 1)
    assert tokenizer.closed(unknown) == plain.unk_id and tokenizer.closed(known) == known
    assert tokenizer.vocab_size == plain.vocab_size
    assert tokenizer.decode(found.ids) == "the zebra the éléphant zebra"


def test_ids_that_were_never_given_raise_an_error():
    tokenizer = OpenVocabulary.of(closed())
    for wrong in (tokenizer.vocab_size, -1):
        with pytest.raises(RegardError, match="`id` must be an id below"):
            tokenizer.token(wrong)
        with pytest.raises(RegardError, match="ids must lie in"):
            tokenizer.decode([wrong])


@pytest.mark.parametrize("open_", [False, True])
def test_ids_of_every_kind_decode_alike_and_others_are_errors(open_):
    tokenizer = OpenVocabulary.of(closed()) if open_ else closed()
    ids = [tokenizer.bos_id, *tokenizer.encode("the cat").ids, tokenizer.eos_id]
    kinds = (tuple, iter, np.array, torch.tensor, lambda ids: list(np.array(ids)))
    for kind in (*kinds, lambda ids: list(torch.tensor(ids))):
        assert tokenizer.decode(kind(ids)) == "the cat"
    assert tokenizer.decode_many(torch.tensor([ids, ids])) == ["the cat"] * 2
    for odd in (None, 5, "ab", ["a"], [None], [1.5], [math.nan], [1e9], [[1]], torch.ones(2, 2)):
        with pytest.raises(RegardError, match="ids must be lists of whole numbers"):
            tokenizer.decode(odd)
    for odd in (None, 99, "a", [1], 1.5, math.nan, torch.ones(2, 2)):
        with pytest.raises(RegardError, match="`id` must be an id below"):
            tokenizer.token(odd)
    for odd in (None, 5):
        with pytest.raises(RegardError, match="`texts` must be several texts"):
            tokenizer.encode_many(odd)


def test_tokenizers_made_from_it_share_its_words():
    tokenizer = OpenVocabulary.of(closed())
    (number,) = tokenizer.encode("zebra").ids
    framed = tokenizer.with_template(Template.around((1,), (2,), (2,)))
    assert framed is not tokenizer and framed.encode("zebra").ids == [number]
    (other,) = framed.encode("yak").ids
    assert tokenizer.token(other) == "yak"
    copy = pickle.loads(pickle.dumps(framed))
    assert copy.token(other) == "yak" and copy.encode("gnu").ids == [other + 1]


def test_files_and_fingerprint_are_those_of_the_closed_vocabulary(tmp_path):
    plain = closed()
    tokenizer = OpenVocabulary.of(plain)
    tokenizer.encode("zebra")
    assert tokenizer.fingerprint() == plain.fingerprint()
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).vocab() == plain.vocab()


def test_an_open_vocabulary_and_one_without_unknown_tokens_stay_as_they_are():
    tokenizer = OpenVocabulary.of(closed())
    assert OpenVocabulary.of(tokenizer) is tokenizer
    pieces = train("byte-bpe", TEXTS, vocab_size=300, special_tokens=["<s>", "</s>"])
    assert OpenVocabulary.of(pieces) is pieces
