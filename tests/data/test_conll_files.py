"""Sentences come out of columns as the shared tasks counted them."""

from __future__ import annotations

from regard.data import read_conll


def test_other_shared_tasks_are_read_from_archives(shared):
    chunks = read_conll(f"{shared('nltk/conll2000.zip')}!conll2000/train.txt")
    found = list(chunks)
    assert len(found) == 8936 and sum(len(s.words) for s in found) == 211727
    spanish = f"{shared('nltk/conll2002.zip')}!conll2002/esp.train"
    assert sum(1 for _ in read_conll(spanish)) == 8323
