"""Text to text: prefixes of sources, and the tasks that any encoder-decoder can be used for."""

from __future__ import annotations

import json

import pytest

import regard
from regard.data.token_arrays import encode
from regard.experiments import runs
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.summarization import Summarization
from regard.tasks.text_to_text import TextToText, columns
from regard.tasks.translation import Translation
from regard.tasks.verbs import NoSuchVerb
from regard.text import train

TEXTS = ["the cat sat on a mat", "a cat sat", "the old mat", "on the mat sat a cat"]
PAIRS = [(text, " ".join(text.split()[:2])) for text in TEXTS]
SMALL = dict(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)


def model_of(tokenizer, **more):
    return Transformer(TransformerConfig(tokenizer.vocab_size, **SMALL, **more)).eval()


def test_a_prefix_stands_before_each_source_and_is_stored(tmp_path):
    tokenizer = train("words", ["summarize:", *TEXTS], 40)
    model = model_of(tokenizer)
    plain = TextToText(model, tokenizer)
    task = Summarization(model, tokenizer, source_prefix="summarize: ")
    with_prefix = [f"summarize: {text}" for text in TEXTS]
    wanted = plain.hypotheses(with_prefix, max_tokens=5)
    assert task.hypotheses(TEXTS, max_tokens=5) == wanted
    assert task.summarize(TEXTS, max_tokens=5) == plain.generate(with_prefix, max_tokens=5)
    runs.save(task, tmp_path)
    assert regard.load(tmp_path).hypotheses(TEXTS, max_tokens=5) == wanted


def test_training_reads_the_prefix():
    sizes = dict(name="transformer", **SMALL)
    run = regard.train(
        task="summarization", model=sizes, train=PAIRS * 4, valid=0.25,
        source_prefix="summarize: ", kind="words", updates=2, show="none",
    )  # fmt: skip
    assert {"rouge1", "rouge2", "rougeL", "loss"} <= run.scores.keys()
    assert run.model.source_prefix == "summarize: "
    tokenizer = train("words", ["summarize:", *TEXTS], 40)
    rows = [(f"summarize: {a}", b) for a, b in PAIRS]
    found = encode(PAIRS, columns(tokenizer, 1, prefix="summarize: "))
    wanted = encode(rows, columns(tokenizer, 1))
    for one, other in zip(found.columns, wanted.columns, strict=True):
        assert (one.ids == other.ids).all()


def test_a_published_folder_without_a_task_is_opened_by_its_type(tmp_path):
    tokenizer = train("words", TEXTS, 40)
    runs.save(Translation(model_of(tokenizer, pad=0, bos=0, eos=2), tokenizer), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    about = config.pop("regard")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert isinstance(regard.load(tmp_path), Translation)
    for name in ("summarization", "text-to-text", "translation"):
        about = {"version": about["version"], "task": name}
        (tmp_path / "config.json").write_text(json.dumps({**config, "regard": about}))
        assert regard.load(tmp_path).name == name


def test_each_task_names_its_verb():
    tokenizer = train("words", TEXTS, 40)
    model = model_of(tokenizer)
    for kind, verb in ((Translation, "translate"), (Summarization, "summarize")):
        task = kind(model, tokenizer)
        assert getattr(task, verb)("a cat", max_tokens=3) == task.predict("a cat", max_tokens=3)
    with pytest.raises(NoSuchVerb, match="summarizes a text"):
        Translation(model, tokenizer).summarize("a cat")
