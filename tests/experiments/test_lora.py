"""Recipes with low-rank adapters: exact resume, both folders of a run, errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from recipe_files import written

from regard.checkpoints.store import read_tensors
from regard.errors import ConfigError
from regard.experiments import runs
from regard.models.conversions import adapted_layers
from regard.recipe import read

LINES = "a good film\tgood\nsimply bad\tbad\nvery good fun\tgood\ndull and bad\tbad\n" * 6
PAIRS = "a good film\tmilf doog\nsimply bad\tylpmis dab\n" * 6
TEXTS = ["a good film", "simply dull", "fun", "bad and bad"]
BASE = dict(
    task="classification",
    data=dict(train="reviews.tsv"),
    tokenizer=dict(kind="wordpiece", vocab_size=60),
    model=dict(name="bert", d_model=16, d_ff=32, heads=2, layers=2, max_length=32),
    training=dict(max_steps=2),
)
LORA = dict(
    task="classification",
    data=dict(train="other.tsv", valid="other.tsv", batch_size=8),
    model=dict(path="base", lora=dict(rank=2, dropout=0.1)),
    training=dict(
        epochs=2,
        threads=1,
        validation=dict(eval_steps=3),
        schedule=dict(name="constant"),
        optimizer=dict(learning_rate=0.01),
    ),
)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with data, a base model `base`, and a recipe that adapts it to other labels."""
    monkeypatch.chdir(tmp_path)
    Path("reviews.tsv").write_text(LINES)
    Path("other.tsv").write_text(LINES.replace("\tgood", "\tyes").replace("\tbad", "\tno"))
    written("base.toml", BASE)
    written("lora.toml", LORA)
    return tmp_path


def base(*overrides: str) -> None:
    runs.train_recipe(read("base.toml", overrides), out="base", progress=False)


def tensors(folder: str, name: str) -> dict[str, torch.Tensor]:
    return read_tensors(Path(folder) / f"{name}.safetensors")


def same_answers(one, other) -> None:
    assert one.predict(TEXTS) == other.predict(TEXTS)
    assert one.predict_proba(TEXTS) == pytest.approx(other.predict_proba(TEXTS))


def test_both_folders_of_a_run_give_the_same_answers(place):
    base()
    runs.train("lora.toml", out="run", progress=False)
    assert sorted(path.name for path in Path("run/adapter").iterdir()) == [
        *("README.md", "adapter_config.json", "adapter_model.safetensors", "regard.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    whole, adapter = runs.load("run"), runs.load("run/adapter")
    assert not adapted_layers(whole.module) and not adapted_layers(adapter.module)
    assert adapter.labels == ("no", "yes") and adapter.name == "classification"
    same_answers(whole, adapter)
    before, after = tensors("base/model", "model"), tensors("run/model", "model")
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    kinds = {re.sub(r"bert\.encoder\.layer\.\d\.", "", name) for name in changed}
    assert kinds == {
        *("attention.self.query.weight", "attention.self.value.weight"),
        *("bert.pooler.dense.weight", "bert.pooler.dense.bias"),
        *("classifier.weight", "classifier.bias"),
    }


def train_with_checkpoints(run: str, *options: str) -> list[Path]:
    """The checkpoints of a run that writes one every three steps."""
    every = ("training.checkpoints.save_steps=3", "training.checkpoints.save_total_limit=3")
    runs.train_recipe(read("lora.toml", (*every, *options)), out=run, progress=False)
    return sorted(Path(run, "checkpoints").iterdir())


def test_checkpoints_share_a_file_with_the_frozen_weights(place):
    base()
    found = train_with_checkpoints("run")
    assert len(found) >= 3
    files = [path / "frozen.safetensors" for path in found]
    assert len({file.stat().st_ino for file in files}) == 1
    assert files[0].stat().st_nlink == len(found)
    before = tensors("base/model", "model")
    frozen, trained = tensors(str(found[-1]), "frozen"), tensors(str(found[-1]), "weights")
    assert torch.equal(
        frozen["encoder.embedding.weight"], before["bert.embeddings.word_embeddings.weight"]
    )
    assert not frozen.keys() & trained.keys()
    assert all(".A" in name or ".B" in name or name.startswith("heads.") for name in trained)


def test_gpt_trains_the_embedding_of_its_new_special_tokens(place):
    """A language model learns to classify: its embedding has new rows, which the adapter holds."""
    gpt2 = dict(name="gpt2", d_ff=None)
    written("base.toml", BASE, dict(task="language-modeling", model=gpt2))
    base("data.valid=reviews.tsv", "data.sequence_length=8", "data.batch_size=2")
    runs.train_recipe(read("lora.toml", ["model.lora.rank=3"]), out="run", progress=False)
    same_answers(runs.load("run"), runs.load("run/adapter"))
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained("run/adapter")
    kind = transformers.GPT2ForSequenceClassification
    model = kind.from_pretrained("base/model", pad_token_id=tokenizer.pad_token_id)
    model.resize_token_embeddings(len(tokenizer))
    model = peft.PeftModel.from_pretrained(model, "run/adapter").eval()
    with torch.no_grad():
        found = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.softmax(-1)
    assert runs.load("run").predict_proba(TEXTS) == pytest.approx(found.numpy(), abs=1e-5)


def test_a_translation_is_adapted(place):
    Path("pairs.tsv").write_text(PAIRS)
    both = dict(train=["pairs.tsv"], valid=["pairs.tsv"])
    sizes = dict(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
    common = dict(task="translation", data=both, training=dict(max_steps=3))
    new = dict(tokenizer=dict(kind="characters"), model=dict(name="transformer", **sizes))
    written("base.toml", common, new)
    lora = dict(path="base", lora=dict(rank=2, targets=["all-linear"]))
    written("lora.toml", common, dict(tokenizer=dict(path="base/model"), model=lora))
    base()
    runs.train("lora.toml", out="run", progress=False)
    whole, adapter = runs.load("run"), runs.load("run/adapter")
    assert whole.translate("a good") == adapter.translate("a good")
    for one, other in zip(whole.module.parameters(), adapter.module.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_training_can_start_from_an_adapter(place):
    """It is merged; without a tokenizer beside it, that of its base is used."""
    base()
    runs.train("lora.toml", out="run", progress=False)
    for path in Path("run/adapter").glob("tokenizer*"):
        path.unlink()
    same_answers(runs.load("run"), runs.load("run/adapter"))
    options = ["model.path=run/adapter", "training.epochs=1"]
    runs.train_recipe(read("lora.toml", options), out="next", progress=False)
    before, after = tensors("run/model", "model"), tensors("next/model", "model")
    kept = "bert.encoder.layer.0.attention.self.key.weight"
    changed = "bert.encoder.layer.0.attention.self.value.weight"
    assert torch.equal(before[kept], after[kept])
    # Three steps of at most 1e-2 change each number of A, at most 1 / sqrt(16) before, and of B,
    # which was zero; alpha = 16, and the rank is the number of products in a sum.
    most = 16 * 3e-2 * (0.25 + 3e-2)
    assert 0 < (before[changed] - after[changed]).abs().max() < most


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.lora.targets=[\"quary\"]", r"\[model.lora\] `targets`: .* no linear layer 'quary'"),
        ("model.lora.rank=0", r"model.lora.rank"),
        ("model.features.d_model=8", r"\[model.lora\] cannot stand beside \[model.features\]"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(override, message, place):
    base()
    with pytest.raises(ConfigError, match=message):
        runs.train_recipe(read("lora.toml", [override]), out="run", progress=False)
