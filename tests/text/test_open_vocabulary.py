"""Ids for words outside of a vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.text import Tokenizer, train
from regard.text.tokenizer import OpenVocabulary

TEXTS = ["the cat sat on the mat", "the dog sat"]


def closed(**options) -> Tokenizer:
    return train("words", TEXTS, vocab_size=8, **options)  # four special tokens and four words


@pytest.mark.parametrize("open_", [False, True])
def test_ids_of_every_kind_decode_alike(open_):
    tokenizer = OpenVocabulary.of(closed()) if open_ else closed()
    ids = [tokenizer.bos_id, *tokenizer.encode("the cat").ids, tokenizer.eos_id]
    kinds = (tuple, iter, np.array, torch.tensor, lambda ids: list(np.array(ids)))
    for kind in (*kinds, lambda ids: list(torch.tensor(ids))):
        assert tokenizer.decode(kind(ids)) == "the cat"
    assert tokenizer.decode_many(torch.tensor([ids, ids])) == ["the cat"] * 2


def test_files_and_fingerprint_are_those_of_the_closed_vocabulary(tmp_path):
    plain = closed()
    tokenizer = OpenVocabulary.of(plain)
    tokenizer.encode("zebra")
    assert tokenizer.fingerprint() == plain.fingerprint()
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).vocab() == plain.vocab()
