"""Published vocabularies (`regard.text.bpe`): ids of `transformers`, and of slow readers."""

from __future__ import annotations

import hashlib
import json
from functools import cache

import pytest
from hard_texts import HARD, SPECIAL_TEXTS, texts
from hypothesis import HealthCheck, example, given, settings
from roberta_pieces import roberta_folder
from tokenizers import pre_tokenizers

from regard.text import Tokenizer

CORPUS = HARD + SPECIAL_TEXTS
PROPERTY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BERT = {
    "cased": ("vocab/bert-base-cased-vocab.txt", False),
    "uncased": ("vocab/bert-base-uncased-vocab.txt", True),
    "multilingual": ("vocab/bert-base-multilingual-cased-vocab.txt", False),
}


@cache
def load(path):
    return Tokenizer.load(path)


def assert_same_ids(ours, theirs, text):
    want = theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode(text).ids == want, text


def names_special_token(tokenizer, text):
    """Whether the text has the name of a special token, which decoding drops."""
    return any(tokenizer.token(i) in text for i in tokenizer.special_ids)


# ---- BERT


@cache
def bert_reference(path, lowercase):
    from transformers import BertTokenizer

    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    names = {f"[{name.lower()}]": f"[{name}]" for name in ("UNK", "CLS", "SEP", "MASK")}
    vocab = {names.get(line, line): i for i, line in enumerate(lines)}
    return BertTokenizer(vocab=vocab, do_lower_case=lowercase)


def test_saved_bert_adds_cls_and_sep_in_transformers(shared, tmp_path):
    from transformers import PreTrainedTokenizerFast

    path, lowercase = BERT["uncased"]
    load(shared(path)).save(tmp_path)
    opened = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    reference = bert_reference(shared(path), lowercase)
    for text in CORPUS:
        assert opened(text)["input_ids"] == reference(text)["input_ids"]
    pair = opened("a b", "c")
    assert pair["input_ids"] == reference("a b", "c")["input_ids"]
    assert Tokenizer.load(tmp_path).fingerprint() == load(shared(path)).fingerprint()


# ---- GPT-2


@cache
def gpt2_files(folder):
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    return vocab, [tuple(line.split()) for line in lines]


@cache
def gpt2_reference(folder):
    from transformers import GPT2Tokenizer

    vocab, merges = gpt2_files(folder)
    return GPT2Tokenizer(vocab=vocab, merges=merges)


def test_gpt2_merges_are_rebuilt_from_its_ids(shared, tmp_path):
    """Without vocab.bpe the ids alone give back all 50,000 merges in their order."""
    folder = shared("vocab/gpt2")
    (tmp_path / "encoder.json").write_bytes((folder / "encoder.json").read_bytes())
    rebuilt = Tokenizer.load(tmp_path / "encoder.json").to_json()["model"]["merges"]
    assert [tuple(pair) for pair in rebuilt] == gpt2_files(folder)[1]


# ---- GPT


@cache
def gpt_reference(folder):
    from transformers import OpenAIGPTTokenizer

    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = load(folder).to_json()["model"]["merges"]
    return OpenAIGPTTokenizer(vocab=vocab, merges=[tuple(pair) for pair in merges])


def test_gpt_merges_are_the_published_ones(shared):
    """The vocabulary alone gives OpenAI's vocab_40000.bpe, line by line (its sha256 is here)."""
    merges = load(shared("vocab/openai-gpt")).to_json()["model"]["merges"]
    lines = "\n".join(f"{left} {right}" for left, right in merges)
    assert len(merges) == 40_000
    assert hashlib.sha256(lines.encode()).hexdigest() == (
        "b52dbd118215ddee7e95e33f3484ebfed92d6e24ffc759c5e1fed067610a57ec"
    )


# ---- RoBERTa


def roberta(shared):
    return load(roberta_folder(shared("vocab/roberta-pieces.txt"), shared("vocab/gpt2/vocab.bpe")))


@cache
def roberta_reference(ours, folder):
    from transformers import RobertaTokenizer

    return RobertaTokenizer(vocab=ours.vocab(), merges=gpt2_files(folder)[1])


def test_roberta_ids_equal_published_examples(shared):
    """From fairseq's and transformers' documentation and the model cards."""
    ours = roberta(shared)
    assert ours.encode("Hello world").ids == [31414, 232]
    assert ours.encode(" Hello world").ids == [20920, 232]
    assert (ours.bos_id, ours.pad_id, ours.eos_id, ours.unk_id) == (0, 1, 2, 3)
    assert (ours.mask_id, ours.id("Ċ"), ours.id("."), ours.id("Ġthe")) == (50264, 50118, 4, 5)
    masked = ours.encode("The man went to the <mask>.").ids
    assert masked[-2:] == [50264, 4] and masked[-3] == 5  # the space before <mask> goes with it


def test_saved_roberta_adds_its_special_tokens_in_transformers(shared, tmp_path):
    from transformers import PreTrainedTokenizerFast

    ours = roberta(shared)
    ours.save(tmp_path)
    opened = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert opened("Hello world")["input_ids"] == [0, 31414, 232, 2]
    assert Tokenizer.load(tmp_path).encode("Hello").offsets == ours.encode("Hello").offsets


# ---- all of them


def published(name, shared):
    """Ours and theirs."""
    if name in BERT:
        path, lowercase = BERT[name]
        return load(shared(path)), bert_reference(shared(path), lowercase)
    if name == "roberta":
        return roberta(shared), roberta_reference(roberta(shared), shared("vocab/gpt2"))
    folder = shared(f"vocab/{name}")
    return load(folder), (gpt2_reference if name == "gpt2" else gpt_reference)(folder)


LOSSLESS = ("gpt2", "roberta")
NAMES = [*BERT, "openai-gpt", *LOSSLESS]


@pytest.mark.parametrize("name", NAMES)
def test_ids_of_hard_texts_and_of_special_tokens_equal_transformers(shared, name):
    ours, theirs = published(name, shared)
    assert ours.vocab_size == len(theirs)
    for text in CORPUS:
        assert_same_ids(ours, theirs, text)
    for role in ("pad", "bos", "eos", "unk", "mask"):
        assert ours.roles.get(role) in (None, getattr(theirs, f"{role}_token"))
    assert name != "gpt2" or ours.encode("Hello world").ids == [15496, 995]


@pytest.mark.parametrize("name", NAMES)
@PROPERTY
@example(text="<|endoftext|>")
@example(text="<pad>")
@given(text=texts)
def test_ids_equal_transformers_on_any_text(shared, name, text):
    """And nothing is lost where tokens are of bytes."""
    ours, theirs = published(name, shared)
    assert_same_ids(ours, theirs, text)
    if name in LOSSLESS and not names_special_token(ours, text):
        assert ours.decode(ours.encode(text).ids) == text


# ---- any text has a row of its own in a batch


def test_byte_alphabet_is_the_librarys():
    from regard.text.published import bytes_of_characters

    assert set(bytes_of_characters()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(bytes_of_characters().values()) == list(range(256))
