"""Text to text: prefixes of sources, and the tasks that any encoder-decoder can be used for."""

from __future__ import annotations

import warnings

import pytest
from recipe_files import planned, written

import regard
from regard.data.token_arrays import encode
from regard.errors import ConfigError, DataError
from regard.experiments import runs
from regard.models.composed import DecoderOnly, DecoderOnlyConfig
from regard.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.pair_tasks import Translator
from regard.tasks.text_to_text import TextToText
from regard.text import train
from regard.text.languages import language_tokens
from regard.text.templates import Template

TEXTS = ["the cat sat on a mat", "a cat sat", "the old mat", "on the mat sat a cat"]
PAIRS = [(text, " ".join(text.split()[:2])) for text in TEXTS]
SMALL = dict(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
RECIPE = dict(
    task="translation", data=dict(train=["train.tsv"], valid=["valid.tsv"], columns=[0, 1]),
    tokenizer=dict(kind="words"), evaluation=dict(valid_sentences=2), training=dict(max_steps=1),
    model=dict(name="transformer", **SMALL),
)  # fmt: skip


def model_of(tokenizer, **more):
    return Transformer(TransformerConfig(tokenizer.vocab_size, **SMALL, **more)).eval()


def test_training_reads_the_prefix():
    sizes = dict(name="transformer", **SMALL)
    run = regard.train(
        task="summarization", model=sizes, train=PAIRS * 4, valid=0.25,
        source_prefix="summarize: ", kind="words", max_steps=2, progress=False,
    )  # fmt: skip
    assert {"rouge1", "rouge2", "rougeL", "loss"} <= run.scores.keys()
    assert run.model.source_prefix == "summarize: "
    tokenizer = train("words", ["summarize:", *TEXTS], 40)
    rows = [(f"summarize: {a}", b) for a, b in PAIRS]
    found = encode(
        PAIRS, TextToText.fields(tokenizer, language_tokens(tokenizer, 1), prefix="summarize: ")
    )
    wanted = encode(rows, TextToText.fields(tokenizer, language_tokens(tokenizer, 1)))
    for one, other in zip(found.columns, wanted.columns, strict=True):
        assert (one.ids == other.ids).all()


# ---- languages -----------------------------------------------------------------------------------

LANGUAGES = {
    "mbart": (("de_DE", "en_XX", "fr_XX"), "$A </s> en_XX"),
    "mbart50": (("de_DE", "en_XX", "fr_XX"), "en_XX $A </s>"),
    "m2m": (("__de__", "__en__", "__fr__"), "__en__ $A </s>"),
    "nllb": (("deu_Latn", "eng_Latn", "fra_Latn"), "eng_Latn $A </s>"),
    "nllb-legacy": (("deu_Latn", "eng_Latn", "fra_Latn"), "$A </s> eng_Latn"),
    "marian": ((">>deu<<", ">>eng<<", ">>fra<<"), "$A </s>"),
}
NAMES = {"mbart": "fr_XX", "mbart50": "fr_XX", "m2m": "fr", "nllb": "fra_Latn"}
NAMES |= {"nllb-legacy": "fra_Latn", "marian": "fra"}


def multilingual(kind: str):
    tokens, single = LANGUAGES[kind]
    tokenizer = train("words", TEXTS, 40).with_special_tokens(tokens)
    parts = single.split()
    before, after = (
        [tokenizer.id(t) for t in side]
        for side in (parts[: parts.index("$A")], parts[parts.index("$A") + 1 :])
    )
    return tokenizer.with_template(Template.around(before, (), after))


@pytest.mark.parametrize("kind", sorted(LANGUAGES.keys() - {"mbart"}))
def test_targets_begin_with_the_language_that_is_asked_for(kind, tmp_path):
    tokenizer = multilingual(kind)
    task = Translator(model_of(tokenizer), tokenizer)
    with pytest.raises(ConfigError, match="Give `target_language`, one of: de"):
        task.translate(TEXTS, max_tokens=4)
    with pytest.raises(ConfigError, match="does not have that language. It has: de"):
        task.translate(TEXTS, max_tokens=4, target_language="xx")
    found = task.hypotheses(TEXTS, max_tokens=4, target_language=NAMES[kind])
    token = tokenizer.id(LANGUAGES[kind][0][2])
    if kind == "marian":
        texts = [f">>fra<< {text}" for text in TEXTS]
        assert found == task.hypotheses(texts, max_tokens=4)
    else:
        assert all(one[0].tokens[0] == token for one in found)
    stored = Translator(task.module, tokenizer, target_language=NAMES[kind])
    runs.save(stored, tmp_path)
    assert regard.load(tmp_path).hypotheses(TEXTS, max_tokens=4) == found


def test_one_model_is_trained_for_several_target_languages():
    rows = [(f">>{name}<< {a}", b) for a, b in PAIRS for name in ("de", "fr")]
    run = regard.train(
        task="translation", model=dict(name="transformer", **SMALL), train=rows, valid=0.25,
        kind="words", special_tokens=[">>de<<", ">>fr<<"], max_steps=2, progress=False,
    )  # fmt: skip
    task = run.model
    assert {">>de<<", ">>fr<<"} <= task.tokenizer.vocab().keys()
    wanted = task.translate(f">>de<< {TEXTS[0]}", max_tokens=4)
    assert task.translate(TEXTS[0], target_language="de", max_tokens=4) == wanted


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "conv"])
def test_a_text_that_the_limit_ends_is_captured_as_far_as_it_was_read(kind):
    """The start token and five of six tokens are read, by a model of six positions."""
    tokenizer = train("words", TEXTS, 40)
    if kind == "conv":
        layers = dict(encoder=((3, 8),), decoder=((3, 8),))
        config = ConvSeq2SeqConfig(tokenizer.vocab_size, 8, **layers, max_length=6)
        task = Translator(ConvSeq2Seq(config).eval(), tokenizer)
    else:
        task = Translator(model_of(tokenizer, positions=kind, max_length=6), tokenizer)
    never_ends = dict(suppress_tokens=[task.module.config.eos])
    with regard.look(task) as attention:
        ((found,),) = task.hypotheses(TEXTS[1:2], **never_ends)
    assert len(found.tokens) == 6 and not found.finished
    (panel,) = {tuple(panel.queries) for panel in attention.plot(kind="cross").panels}
    assert len(panel) == 6
    with regard.look(task) as attention:
        task.hypotheses(TEXTS[1:2], **never_ends, max_tokens=5)
    assert len(attention.plot(kind="cross").panels[0].queries) == 6


# ---- outputs as long as the model reads ------------------------------------------------------


def test_no_row_behind_valid_sentences_is_read(tmp_path):
    (tmp_path / "train.tsv").write_text("a b\tb a\n" * 3)
    (tmp_path / "valid.tsv").write_text("a b\tb a\n" * 2 + "one column\n")
    recipe = runs.read_recipe(written(tmp_path / "recipe.toml", RECIPE))
    assert runs.plan(recipe).task.data.references == ["b a"] * 2
    with pytest.raises(DataError, match="valid.tsv:3"):
        list(recipe.data.records("valid"))


def test_a_text_that_reaches_the_limit_of_the_model_stops_with_a_warning():
    tokenizer = train("words", TEXTS, 40)
    gpt2 = dict(d_model=8, heads=2, layers=1, max_length=24)
    for model in (
        model_of(tokenizer, max_length=12),
        DecoderOnly(DecoderOnlyConfig(tokenizer.vocab_size, "gpt2", gpt2)).eval(),
    ):
        task = Translator(model, tokenizer)
        with pytest.warns(UserWarning, match="2 of 2 texts stop at this model's limit of 12 token"):
            found = task.hypotheses(TEXTS[:2], min_tokens=50)
        assert [len(ranked[0].tokens) for ranked in found] == [12, 12]
        with warnings.catch_warnings(action="error"):
            task.translate(TEXTS[:2], max_tokens=11)
            task.translate(["", " "])


@pytest.mark.parametrize("valid_sentences", [0, 3])
def test_remarks_on_validation_pairs_name_their_file_and_line(tmp_path, valid_sentences):
    rows = ["a b\tb a", "b\tb", "\tno source", "no target\t"]
    (tmp_path / "pairs.tsv").write_text("\n".join(["source\ttarget", *rows, ""]))
    files = dict.fromkeys(("train", "valid"), ["pairs.tsv"])
    own = dict(data=dict(files, columns=["source", "target"]))
    own["evaluation"] = dict(valid_sentences=valid_sentences)
    task = planned(tmp_path / "recipe.toml", RECIPE, own).task
    (note,) = [note for note in task.notes() if note.startswith("validation data")]
    assert f"{tmp_path / 'pairs.tsv'}: {valid_sentences or 4} examples read" in note
    assert "source: empty, example kept: 1 (first at line 4)" in note
    assert task.data.references == ["b a", "b", "no source", ""][: valid_sentences or 4]
