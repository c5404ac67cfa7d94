"""A second judge of the ids of published vocabularies: the tokenizers that `blingfire` brings.

Install it with `pip install blingfire` (42 MB, which is why no group of packages names it). Its
model of XLNet also holds the scores of the pieces, which are nowhere else in a package.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from roberta_pieces import roberta_folder

from regard.text import Tokenizer, sentencepiece
from regard.text.sentencepiece import Piece, SentencePieceModel

blingfire = pytest.importorskip("blingfire")
FOLDER = Path(blingfire.__file__).parent
ROOT = Path(__file__).parents[2]
ENTRY = np.dtype([("length", "<i4"), ("id", "<i4"), ("score", "<f4")])  # length: of the other two
CONTROLS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
KINDS = {  # our files, its file, the id of unknown words (its own otherwise)
    "roberta": ("vocab/roberta-pieces.txt", "roberta.bin", 0),
    "gpt2": ("vocab/gpt2", "gpt2.bin", 0),
    "bert-uncased": ("vocab/bert-base-uncased-vocab.txt", "bert_base_tok.bin", 100),
    "bert-cased": ("vocab/bert-base-cased-vocab.txt", "bert_base_cased_tok.bin", 100),
    "bert-multilingual": (
        "vocab/bert-base-multilingual-cased-vocab.txt", "bert_multi_cased.bin", 100,
    ),
}  # fmt: skip


@cache
def lines() -> list[str]:
    """The lines of this project's pages, with single spaces: it drops the others."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    read = [" ".join(line.split()) for page in pages for line in page.open(encoding="utf-8")]
    return [line for line in dict.fromkeys(read) if line]


def its_ids(file: str, texts: list[str], unknown: int, prefix: bool = True) -> list[list[int]]:
    model = blingfire.load_model(str(FOLDER / file))
    try:
        blingfire.change_settings_dummy_prefix(model, prefix)
        found = [blingfire.text_to_ids(model, t, 4096, unknown, no_padding=True) for t in texts]
    finally:
        blingfire.free_model(model)
    return [ids.astype(int).tolist() for ids in found]


@pytest.mark.parametrize("kind", ["roberta", "gpt2"])
def test_byte_level_ids_are_those_of_blingfire(shared, kind):
    path, file, unknown = KINDS[kind]
    file_or_folder = shared(path)
    if kind == "roberta":
        file_or_folder = roberta_folder(file_or_folder, shared("vocab/gpt2/vocab.bpe"))
    ours = Tokenizer.load(file_or_folder)
    # It takes 't for the end of a word also behind a bracket, and a byte of à for a space.
    named = "|".join(map(re.escape, ours.roles.values()))
    other = re.compile(rf"{named}|(?<!\w)'|[^\x00-\x7f]")
    texts = [line for line in lines() if not other.search(line)]
    assert len(texts) > 4000
    assert ours.encode_many(texts) == its_ids(file, texts, unknown, prefix=False)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("bert")])
def test_wordpiece_ids_are_those_of_blingfire(shared, kind):
    path, file, unknown = KINDS[kind]
    ours = Tokenizer.load(shared(path))
    texts = [line for line in lines() if line.isascii() and "[" not in line]
    assert len(texts) > 3000
    assert ours.encode_many(texts) == its_ids(file, texts, unknown)


def test_ids_of_xlnets_published_vocabulary_are_those_of_blingfire(shared):
    """The pieces from a file, their scores from its model: 32,000 records of 12 bytes."""
    names = shared("vocab/xlnet-cased-pieces.txt").read_text(encoding="utf-8").split("\n")[:32000]
    content = (FOLDER / "xlnet_nonorm.bin").read_bytes()[10:]
    entries = np.frombuffer(content[: len(content) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)
    known = (entries["length"] == 2) & (entries["id"] >= 0) & (entries["id"] < len(names))
    scores = dict(zip(entries["id"][known].tolist(), entries["score"][known].tolist(), strict=True))
    assert len(scores) == len(names)
    types = {0: sentencepiece.UNKNOWN, **dict.fromkeys(range(1, 9), sentencepiece.CONTROL)}
    pieces = [
        Piece(name, scores[i], types.get(i, sentencepiece.NORMAL)) for i, name in enumerate(names)
    ]
    assert tuple(names[:9]) == CONTROLS
    model = SentencePieceModel(
        pieces, b"", dummy_prefix=True, merge_spaces=True, byte_fallback=False
    )
    fast = sentencepiece.pipeline(model)
    ours = Tokenizer(fast, "sentencepiece", {"unk": "<unk>"}, reads_special_tokens=False)
    # It takes the name of a control piece in a text for the piece; SentencePiece does not.
    texts = [line for line in lines() if not any(name in line for name in CONTROLS)]
    assert len(texts) > 4000
    assert ours.encode_many(texts) == its_ids("xlnet_nonorm.bin", texts, unknown=0)
    assert [ours.encode(text).ids for text in texts[:300]] == ours.encode_many(texts[:300])
