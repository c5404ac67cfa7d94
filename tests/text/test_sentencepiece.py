"""SentencePiece models give the ids of the `sentencepiece` library."""

from __future__ import annotations

import json
import random
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from hard_texts import HARD, SPECIAL_TEXTS

import regard
from regard.errors import DataError, RegardError
from regard.models.llama import Llama, LlamaConfig
from regard.tasks import task_class
from regard.text import Tokenizer
from regard.text.sentencepiece import parsed, read

spm = pytest.importorskip("sentencepiece")

CORPUS = Path(__file__).parent / "corpus.txt"  # a fixed text: ids of equal scores depend on it
OPTIONS = {
    "default": {},
    "bytes": {"byte_fallback": True, "character_coverage": 0.98},
    "user-defined": {
        "user_defined_symbols": ["<sep>", "a word", "the"],
        "control_symbols": ["<ctl>"],
    },
    "as-it-is": {
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
    },
    "xlnet": {
        "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"],
        "vocab_size": 700,
    },
    "case-folded": {"normalization_rule_name": "nfkc_cf", "pad_id": 3},
    # as those of ALBERT and BigBird were trained
    "albert": {
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
    },
    "big_bird": {
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "control_symbols": ["[SEP]", "[MASK]", "[CLS]"],
    },
}
PUBLISHED = {"t5": "vocab/t5/spiece.model", "small": "sentencepiece/test_model.model"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained("bytes")` is a model file, made by the library with these options."""
    folder = tmp_path_factory.mktemp("sentencepiece")

    @cache
    def make(name: str, **options) -> Path:
        spm.SentencePieceTrainer.train(
            input=str(CORPUS),
            model_prefix=str(folder / name),
            hard_vocab_limit=False,
            minloglevel=2,
            **{
                "vocab_size": 600,
                "model_type": "unigram",
                **OPTIONS.get(name, {}),
                **options,
            },
        )
        return folder / f"{name}.model"

    return make


@cache
def both(path):
    return Tokenizer.load(path), spm.SentencePieceProcessor(model_file=str(path))


# Without combining marks and repeated parts, of which the `tokenizers` library makes other ids.
PLAIN = [
    *CORPUS.read_text(encoding="utf-8").splitlines(),
    *("", " ", " two  spaces\n\tand lines ", "Hello, world!", "Straße ﬁne 日本 ½ ＷＩＤＥ"),
    *("naïve café", "don't we'll", "$1,234.56 http://x.y/?q=1&r=%20", "中文字符 𝔘𝔫𝔦", "\u00a0x"),
]


# With user-defined pieces, after which the `tokenizers` library drops spaces.
USER_DEFINED = ("user-defined", "albert")
EXACT = [name for name in OPTIONS if name not in USER_DEFINED]


@pytest.mark.parametrize("name", [*EXACT, *PUBLISHED])
def test_ids_equal_sentencepiece_for_every_option_and_of_published_models(trained, shared, name):
    ours, theirs = both(trained(name) if name in EXACT else shared(PUBLISHED[name]))
    assert ours.encode_many(PLAIN) == [theirs.encode(text) for text in PLAIN]
    for text in PLAIN[-12:]:
        assert ours.encode(text).ids == theirs.encode(text)


@pytest.mark.parametrize("name", EXACT)
def test_a_saved_tokenizer_gives_the_same_ids_after_loading(trained, tmp_path, name):
    path = trained(name)
    ours, theirs = both(path)
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint() == ours.fingerprint() and again.roles == ours.roles
    assert again.encode_many(PLAIN) == [theirs.encode(text) for text in PLAIN]


@pytest.mark.parametrize("name", ["default", "bytes", "user-defined"])
def test_decoding_equals_sentencepiece_but_for_unknown_characters(trained, name):
    ours, theirs = both(trained(name))
    for text in ["the library", "Two  words, 12.5 of them!", "a word<sep>the end"]:
        ids = ours.encode(text).ids
        if ours.unk_id not in ids:
            assert ours.decode(ids) == theirs.decode(ids)


def test_fields_of_any_size_that_are_not_known_are_skipped(trained):
    path = trained("default")
    content, known = path.read_bytes(), read(path)
    for key, size in ((b"\xa1\6", 8), (b"\xa5\6", 4), (b"\xa2\6\3", 3), (b"\xa0\6", 1)):
        assert parsed(path, content + (key + b"\7" * size) * 2) == known
        with pytest.raises(DataError, match="is not a SentencePiece model"):
            parsed(path, content + key + b"\7" * (size - 1))


def test_damaged_models_raise_an_error_that_names_the_file(trained, tmp_path):
    whole, draw, failed = trained("default").read_bytes(), random.Random(1), 0
    for number in range(60):
        data = bytearray(whole)
        if draw.random() < 0.5:
            data = data[: draw.randrange(len(data))]
        for _ in range(draw.randrange(1, 6)):
            if data:
                data[draw.randrange(min(len(data), 4000))] = draw.randrange(256)
        path = tmp_path / f"{number}.model"
        path.write_bytes(data)
        try:
            Tokenizer.load(path).encode_many(["a text", *HARD])
        except RegardError as error:
            failed += 1
            assert isinstance(error, DataError) is False or path.name in str(error)
    assert failed > 20


# ---- the classes of transformers


CLASSES = {
    "T5Tokenizer": ("spiece.model", "t5"),
    "XLMRobertaTokenizer": ("sentencepiece.bpe.model", "xlm-roberta"),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("stated", ["tokenizer_config.json", "config.json"])
def test_folders_give_the_ids_of_their_class_in_transformers(shared, tmp_path, name, stated):
    """But for characters that the `tokenizers` library drops and SentencePiece keeps."""
    from transformers import AutoTokenizer

    file, model_type = CLASSES[name]
    shutil.copy(shared(PUBLISHED["t5"]), tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    if stated == "tokenizer_config.json":
        (tmp_path / stated).write_text(json.dumps({"tokenizer_class": name}))
        (tmp_path / "config.json").unlink()
    ours = Tokenizer.load(tmp_path)
    sentences = [
        "Hello, world!",
        "a </s> b",
        "Straße ﬁne 日本",
        "<extra_id_0> x",
        "",
        " two  spaces ",
    ]
    as_theirs(ours, theirs, [*sentences, *(text for text in HARD if text.isascii())])


XLNET_TEXTS = [
    "Hello, world!", "``Quotes'' of Penn's  Treebank ", "naïve café, ÜBER\u0301",
    "in 1,234.5 ways, 2010,", "a <sep> b <cls>", "The <mask> sat. <eop> Next <eod>", "x<mask>y", "",
    " two  spaces\n\tand lines ",
    "ﬁne ½ Straße 日本 \u200b", "--- ... ?!?!", "▁odd ▁", "<unk> <s> </s> <pad>",
]  # fmt: skip


@pytest.mark.parametrize("settings_of", [{}, {"do_lower_case": True}], ids=str)
def test_xlnet_folders_give_the_ids_of_their_class_in_transformers(trained, tmp_path, settings_of):
    """From the model file, from the tokenizer.json that `transformers` writes, and from ours."""
    from transformers import XLNetTokenizer

    shutil.copy(trained("xlnet"), tmp_path / "spiece.model")
    (tmp_path / "config.json").write_text('{"model_type": "xlnet"}')
    stated = {"tokenizer_class": "XLNetTokenizer", **settings_of}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    theirs = XLNetTokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "json")
    (tmp_path / "json" / "config.json").write_text('{"model_type": "xlnet"}')
    for ours in (Tokenizer.load(tmp_path), Tokenizer.load(tmp_path / "json")):
        as_theirs(ours, theirs, [*XLNET_TEXTS, *HARD])
        assert ours.template.segment_count == 3
        decoded = ours.decode(ours.encode("Hello, world!").ids)
        assert decoded == theirs.decode(theirs.encode("Hello, world!", add_special_tokens=False))


BRACKETED = {f"{role}_piece": f"[{role.upper()}]" for role in ("pad", "unk")}
BRACKETED |= {"bos_piece": "[CLS]", "eos_piece": "[SEP]"}
IDS = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True, "split_by_punct": True}], ids=str)
@pytest.mark.parametrize("pieces", [IDS | BRACKETED, {}], ids=["published", "others"])
def test_deberta_folders_give_the_ids_of_their_class(trained, tmp_path, settings, pieces):
    """Of the released models [MASK] alone is not in the file."""
    from transformers import AutoTokenizer

    model = trained("bracketed" if pieces else "default", **pieces)
    shutil.copy(model, tmp_path / "spm.model")
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    stated = json.dumps(settings | {"tokenizer_class": "DebertaV2Tokenizer"})
    (tmp_path / "tokenizer_config.json").write_text(stated)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "json")
    texts = [
        *HARD,
        "a[MASK] [CLS]  b [UNK]",
        "two  spaces\tand\nlines \r\n",
        "don't (stop)... 1,000!",
    ]
    for ours in (Tokenizer.load(tmp_path), Tokenizer.load(tmp_path / "json")):
        as_theirs(ours, theirs, texts)


def test_the_model_of_an_unknown_class_is_rejected_with_how_to_convert_it(trained, tmp_path):
    shutil.copy(trained("default"), tmp_path / "spiece.model")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BarthezTokenizer"}')
    with pytest.raises(
        DataError, match=r"of BarthezTokenizer, which is not supported.*AutoTokenizer"
    ):
        Tokenizer.load(tmp_path)


CLASS_OF = {"albert": "AlbertTokenizer", "big_bird": "BigBirdTokenizer"}


def in_folder(trained, folder: Path, model_type: str, **config):
    """The folder with such a vocabulary, and their tokenizer."""
    from transformers import AutoTokenizer

    shutil.copy(trained(model_type), folder / "spiece.model")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if config:
        stated = {"tokenizer_class": CLASS_OF[model_type], **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    return AutoTokenizer.from_pretrained(folder)


def as_theirs(ours: Tokenizer, theirs, texts) -> None:
    for text in texts:
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"], text
    for row_texts in (("a house",), ("a house", "by the sea"), ("the", "x")):
        row = ours.template.apply([ours.encode(text).ids for text in row_texts])
        found = theirs(*row_texts, return_token_type_ids=True)
        assert (row.ids, row.segments) == (found["input_ids"], found["token_type_ids"])
    for role in ("bos", "eos", "unk", "pad", "cls", "sep", "mask"):
        assert ours.roles.get(role) == getattr(theirs, f"{role}_token")
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize(
    "config",
    [{}, {"do_lower_case": False}, {"keep_accents": True}, {"do_lower_case": True, "x": 1}],
    ids=str,
)
def test_folders_of_albert_give_the_ids_of_transformers_on_any_text(trained, tmp_path, config):
    theirs = in_folder(trained, tmp_path, "albert", **config)
    ours = Tokenizer.load(tmp_path)
    own = ["Hello, World 9, (a) É ``x'' [MASK] ok", "Straße ﬁne 日本 ", "[CLS] a [SEP]"]
    given = [*own, *HARD, *SPECIAL_TEXTS, *PLAIN]
    as_theirs(ours, theirs, given)
    ours.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode_many(given) == ours.encode_many(given)


def test_folders_of_big_bird_give_the_ids_of_sentencepiece(trained, tmp_path):
    """`transformers` 5 leaves out its normalization: there a line feed is unknown."""
    theirs = in_folder(trained, tmp_path, "big_bird")
    path, ours = tmp_path / "spiece.model", Tokenizer.load(tmp_path)
    plain = [text for text in HARD if text.isascii() and text.isprintable()]
    plain = [text for text in plain if text == " ".join(text.split())]
    as_theirs(ours, theirs, [*plain, "Straße 日本", "", "an  animal"])
    exact = spm.SentencePieceProcessor(model_file=str(path))
    for text in ["Hello, World ﬁne\nnext line ", *PLAIN]:
        assert ours.encode(text).ids == exact.encode(text), text
    assert ours.encode("a [MASK]").ids[-1] == ours.mask_id


# ------------------------------------------------------------------------------------ Llama

LLAMA = {
    "model_type": "bpe",
    "byte_fallback": True,
    "remove_extra_whitespaces": False,
    "normalization_rule_name": "identity",
    "split_digits": True,
}


def merged_by_scores(text, tokens, scores):
    """The tokens of a text by llama.cpp's rule: the best score of two neighbours first."""
    symbols = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        pairs = [a + b for a, b in zip(symbols, symbols[1:], strict=False)]
        known = [(-scores[tokens[pair]], n) for n, pair in enumerate(pairs) if pair in tokens]
        if not known:
            break
        at = min(known)[1]
        symbols[at : at + 2] = [pairs[at]]
    bytes_of = [
        [one] if one in tokens else [f"<0x{b:02X}>" for b in one.encode()] for one in symbols
    ]
    return [tokens[token] for part in bytes_of for token in part]


@pytest.mark.parametrize("named", [{"tokenizer_class": "LlamaTokenizer"}, {}])
def test_a_llama_model_has_sentencepiece_ids_saved_and_in_gguf(trained, tmp_path, named):
    gguf = pytest.importorskip("gguf")
    path = trained("llama", **LLAMA)
    shutil.copy(path, tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    ours, theirs = Tokenizer.load(tmp_path), spm.SentencePieceProcessor(model_file=str(path))
    assert ours.template.single == (((1, 0),), ())
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    config = LlamaConfig(ours.vocab_size, 8, 12, 2, layers=1, max_length=16, bos=1, eos=2)
    regard.save(task_class("language-modeling")(Llama(config), ours), tmp_path / "model")
    export = regard.export(tmp_path / "model", "gguf", check=False)
    fields = gguf.GGUFReader(export.path).fields
    read = {
        name: fields[f"tokenizer.ggml.{name}"].contents() for name in ("model", "add_bos_token")
    }
    assert read == {"model": "llama", "add_bos_token": True}
    tokens = {t: i for i, t in enumerate(fields["tokenizer.ggml.tokens"].contents())}
    scores = fields["tokenizer.ggml.scores"].contents()
    plain = [text for text in [*HARD, *PLAIN] if not re.search("<.*>|\u2581", text)]
    for text in ["a  b", "  two", " ", "\u20ac1234 x", *plain]:
        expected = theirs.encode(text)
        assert ours.encode(text).ids == again.encode(text).ids == expected, text
        assert not text or merged_by_scores(text, tokens, scores) == expected
        assert ours.decode(expected) == theirs.decode(expected)


def test_camembert_numbers_its_pieces_as_transformers(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    shutil.copy(trained("default"), tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "camembert"}))
    theirs, ours = (
        transformers.CamembertTokenizer.from_pretrained(tmp_path),
        Tokenizer.load(tmp_path),
    )
    for text in ("the old <mask> man", "caf\u00e9", *HARD[::5]):
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"], text
    assert ours.template.apply([[7], [8]]).ids == [5, 7, 6, 6, 8, 6]
