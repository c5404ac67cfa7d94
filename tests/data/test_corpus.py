"""Corpora: equal to a naive encoding in memory, whatever happens while they are built."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from regard import text
from regard.data import (
    TokenArray,
    build_corpus,
    encode_corpus,
    open_corpus,
    read_documents,
)
from regard.data import corpus as corpus_module
from regard.data.lm_streams import DocumentWindows
from regard.errors import CheckpointError, ConfigError, DataError

SENTENCES = [  # of the paragraphs of documents
    [["The cat sat.", " It slept!"], ["A second paragraph.", " With Dr. Who."]],
    [["one"]],
    [["Ünïcödé naïve 😀.", " Ω is a letter.", " 日本語。", "テスト"]],
    [["x" * 300 + " long words.", *[" And more."] * 40]],
    [["a b"], ["c"], ["d e f.", " G h."]],
]
DOCUMENTS = [["".join(sentences) for sentences in document] for document in SENTENCES]


@pytest.fixture(scope="module")
def tokenizers():
    lines = [line for document in DOCUMENTS for line in document]
    kinds = ("wordpiece", "byte-bpe", "bpe", "words", "characters", "unigram")
    return {kind: text.train(kind, lines, 400) for kind in kinds}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n" + "\n\n \n".join("\n".join(d) for d in DOCUMENTS) + "\n")
    return path


def naive(tokenizer, texts, end=()):
    return [[*tokenizer.encode(one).ids, *end] for one in texts]


def listed(corpus):
    return [one.tolist() for one in corpus.tokens]


def assert_same(one, other):
    assert one.tokens.ids.dtype == other.tokens.ids.dtype
    for name in ("paragraphs", "sentences"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None) and (a is None or np.array_equal(a, b))
    assert np.array_equal(one.tokens.ids, other.tokens.ids)
    assert np.array_equal(one.tokens.offsets, other.tokens.offsets)
    assert one.tokens.checksum == other.tokens.checksum
    assert one.tokens.joined().checksum == other.tokens.joined().checksum


def bytes_of(folder):
    return {f.name: f.read_bytes() for f in Path(folder).iterdir()}


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "bpe", "words", "characters", "unigram"])
@pytest.mark.parametrize("structure", [False, True])
def test_the_tokens_are_those_of_each_document(tokenizers, source, tmp_path, kind, structure):
    tokenizer = tokenizers[kind]
    texts = source.read_text().strip().split("\n\n \n")
    wanted = naive(tokenizer, texts, (3, 4))
    documents = read_documents(source)
    corpus = encode_corpus(documents, tokenizer, end=(3, 4), structure=structure)
    assert listed(corpus) == wanted
    built = build_corpus(
        documents, tokenizer, tmp_path / "out", end=(3, 4), structure=structure, progress=False
    )
    assert_same(built, corpus)
    assert isinstance(built.tokens.ids.base, np.memmap)


def test_paragraphs_and_sentences_begin_where_the_text_says(tokenizers, source):
    tokenizer = tokenizers["wordpiece"]
    corpus = encode_corpus(read_documents(source), tokenizer, end=(3,), structure=True)
    paragraphs, sentences, at = [], [], 0
    for document in SENTENCES:
        for paragraph in document:
            paragraphs.append(at)
            for sentence in paragraph:
                sentences.append(at)
                at += len(tokenizer.encode(sentence).ids)
        at += 1
    assert corpus.paragraphs.tolist() == [*paragraphs, at]
    assert corpus.sentences.tolist() == [*sentences, at]


def test_texts_without_tokens_begin_no_paragraph_and_no_sentence(tokenizers, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\u200d\na b\n\nc\n\u200d\n\n\u200d\n\nd")
    tokenizer = tokenizers["wordpiece"]
    assert tokenizer.encode("\u200d").ids == []
    corpus = encode_corpus(read_documents(path), tokenizer, structure=True)
    assert corpus.tokens.offsets.tolist() == [0, 2, 3, 3, 4]
    assert corpus.paragraphs.tolist() == corpus.sentences.tolist() == [0, 2, 3, 4]
    ended = encode_corpus(read_documents(path), tokenizer, structure=True, end=(2,))
    assert ended.tokens.offsets.tolist() == [0, 3, 5, 6, 8]
    assert ended.paragraphs.tolist() == [0, 3, 4, 5, 6, 8]


def test_a_document_is_a_row_or_a_file_or_between_blank_lines(tokenizers, tmp_path):
    tokenizer = tokenizers["byte-bpe"]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/b.txt").write_text("one\n\ntwo\n")
    with gzip.open(tmp_path / "texts/a.txt.gz", "wt") as file:
        file.write("first \n second")
    (tmp_path / "texts/.hidden").write_text("not read")
    folder = tmp_path / "texts"

    def read(name, documents=None, **options):
        return listed(encode_corpus(read_documents(name, documents, **options), tokenizer))

    assert read(folder) == naive(tokenizer, ["first \n second", "one", "two"])
    assert read(folder, "files") == naive(tokenizer, ["first \n second", "one\n\ntwo\n"])
    assert read(folder, "rows") == naive(tokenizer, ["first ", " second", "one", "", "two"])
    rows = ["a\n\nb", "", "c"]
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"id": 1, "text": t}) + "\n" for t in rows)
    )
    assert read(tmp_path / "t.jsonl", field="text") == naive(tokenizer, rows)


def test_a_text_that_cannot_be_encoded_names_file_and_line(tmp_path):
    vocabulary = {"a": 0, "b": 1}
    from tokenizers import Tokenizer as Fast
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    fast = Fast(WordLevel(vocabulary, unk_token="[UNK]"))
    fast.pre_tokenizer = WhitespaceSplit()
    tokenizer = text.Tokenizer(fast, "words", {})
    (tmp_path / "x.txt").write_text("a b\na\n\nb c\n")
    with pytest.raises(DataError, match=r"x\.txt:4: "):
        encode_corpus(read_documents(tmp_path / "x.txt"), tokenizer)


def test_a_build_that_was_stopped_begins_again_and_a_finished_one_is_opened(
    tokenizers, source, tmp_path, monkeypatch
):
    documents, tokenizer = read_documents(source), tokenizers["wordpiece"]

    def build(name):
        return build_corpus(documents, tokenizer, tmp_path / name, end=(3,), progress=False)

    build("whole")
    with monkeypatch.context() as patched:
        patched.setattr(corpus_module, "_write_facts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build("out")
    with pytest.raises(CheckpointError, match="no finished corpus"):
        open_corpus(tmp_path / "out")
    build("out")
    monkeypatch.setattr(corpus_module, "_write_arrays", lambda *_: 1 / 0)
    build("out")  # which opens what is there
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    assert text.Tokenizer.load(tmp_path / "out").fingerprint() == tokenizer.fingerprint()


def test_another_column_is_another_corpus(tokenizers, tmp_path):
    file, out = tmp_path / "a.jsonl", tmp_path / "out"
    file.write_text('{"a": "the cat", "b": "the dog"}\n')
    build_corpus(read_documents(file, field="a"), tokenizers["bpe"], out, progress=False)
    with pytest.raises(ConfigError, match="made of something else: field changed"):
        build_corpus(read_documents(file, field="b"), tokenizers["bpe"], out, progress=False)


def test_a_changed_file_is_noticed(tokenizers, source, tmp_path):
    documents, tokenizer, out = read_documents(source), tokenizers["bpe"], tmp_path / "out"

    def build(tokenizer=tokenizer, **options):
        return build_corpus(documents, tokenizer, out, progress=False, **options)

    build()
    with pytest.raises(ConfigError, match="tokenizer"):
        build(tokenizers["wordpiece"])
    with pytest.raises(ConfigError, match="structure"):
        build(structure=True)
    content = source.read_text()
    source.write_text(content.replace("cat", "dog"))
    with pytest.raises(ConfigError, match=r"texts\.txt changed"):
        build()
    source.write_text(content)
    build()
    for change in (
        lambda data: data[:-2],
        lambda data: data[:10] + bytes([data[10] ^ 1]) + data[11:],
        lambda data: b"",
    ):
        data = (out / "tokens.bin").read_bytes()
        (out / "tokens.bin").write_bytes(change(data))
        with pytest.raises(CheckpointError, match=r"tokens\.bin is missing or has changed"):
            build()
        (out / "tokens.bin").write_bytes(data)
    (out / "documents.bin").unlink()
    with pytest.raises(CheckpointError, match=r"documents\.bin is missing"):
        open_corpus(out)
    (out / "corpus.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"corpus\.json"):
        open_corpus(out)


def test_a_folder_is_built_by_one_process_at_a_time(tokenizers, source, tmp_path):
    from regard.file_writing import locked

    with locked(tmp_path / "out", "building a corpus in"):
        with pytest.raises(ConfigError, match="another process is building a corpus in"):
            build_corpus(read_documents(source), tokenizers["bpe"], tmp_path / "out")


@pytest.mark.parametrize("smallest", [1, 3, 5])
def test_windows_are_the_documents_cut(smallest):
    lengths = [3, 0, 12, 5, 1, 25, 2]
    sequences, at = [], 0
    for length in lengths:
        sequences.append(list(range(at, at + length)))
        at += length
    tokens = TokenArray.of(sequences)
    windows = DocumentWindows(tokens, length=5, batch_size=4, seed=3, smallest=smallest, pad=99)
    wanted = [s[i : i + 5] for s in sequences for i in range(0, len(s), 5)]
    wanted = [one for one in wanted if len(one) >= smallest]
    orders = []
    for epoch in (0, 1):
        found = []
        for batch in windows.epoch(epoch):
            ids, lengths_ = batch.sequences.ids, batch.sequences.lengths
            for row, length, start in zip(
                ids.tolist(), lengths_.tolist(), batch.starts, strict=True
            ):
                assert row[0] == start and row[length:] == [99] * (len(row) - length)
                found.append(row[:length])
        assert sorted(found) == wanted
        orders.append(found)
    assert orders[0] != orders[1]


def test_a_split_takes_the_last_documents(tokenizers, source):
    corpus = encode_corpus(read_documents(source), tokenizers["bpe"], structure=True)
    train, valid = corpus.split(0.4)
    assert listed(train) + listed(valid) == listed(corpus)
    assert len(valid.tokens) == 2 and len(corpus.split(0.01)[1].tokens) == 1
    middle = int(corpus.tokens.offsets[3])
    for name in ("paragraphs", "sentences"):
        whole, first, last = (getattr(c, name).tolist() for c in (corpus, train, valid))
        assert first[-1] == middle and last[0] == 0
        assert [*first, *(x + middle for x in last[1:])] == whole
    with pytest.raises(ConfigError, match="leaves nothing to train on"):
        corpus.split(0.99)


def test_a_single_document_is_cut(tokenizers, tmp_path):
    (tmp_path / "one.txt").write_text("One cat. It was old.\nThe dog ran. It ran on. And so on.")
    documents = read_documents(tmp_path / "one.txt")
    whole = encode_corpus(documents, tokenizers["bpe"], structure=True)
    train, valid = whole.split(0.1)
    assert len(valid.tokens.ids) == round(0.1 * len(whole.tokens.ids))
    assert [*train.tokens.ids, *valid.tokens.ids] == listed(whole)[0]
    assert train.sentences[-1] == len(train.tokens.ids) and valid.sentences[0] == 0
    with pytest.raises(ConfigError, match="leaves nothing to train on"):
        whole.split(0.999)
