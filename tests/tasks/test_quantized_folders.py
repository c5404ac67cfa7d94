"""Folders with quantized weights: the same models as when loading quantizes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.checkpoints import model_folder
from regard.checkpoints import quantized_checkpoint as stored
from regard.checkpoints.verify import verify
from regard.errors import CheckpointError, ConfigError
from regard.models import quantize
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer
from regard.tasks import folders
from regard.tasks.classification import Classification
from regard.tasks.embedding import Embedding
from regard.tasks.language_modeling import LanguageModeling
from regard.tasks.translation import Translation
from regard.text import train

TEXTS = ["a dog runs after a red ball in the park", "the old cat sleeps on a warm mat"]
WIDE = dict(d_model=64, heads=4)


def tokenizer(**options):
    return train("wordpiece", TEXTS * 3, 60, special_tokens=list(SPECIALS), **options)


SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]")


def bert(words):
    config = BertConfig(words, d_ff=80, layers=2, max_length=32, **WIDE)
    return Bert(config)


def classifier(words):
    body = bert(words)
    return EncoderWithHeads(body, {"classes": body.new_head("classes", 3)})


PAIR = dict(d_ff=80, encoder_layers=2, decoder_layers=2, max_length=32, **WIDE)
TASKS = {
    "gpt2": lambda t: LanguageModeling(
        GPT2(GPT2Config(t.vocab_size, layers=2, max_length=32, **WIDE)), t
    ),
    "gpt2, pruned": lambda t: LanguageModeling(
        GPT2(
            GPT2Config(
                t.vocab_size, layers=2, max_length=32, pruned=(("decoder", 1, (2, 3)),), **WIDE
            )
        ),
        t,
    ),
    "recurrent": lambda t: LanguageModeling(
        RecurrentLanguageModel(RecurrentConfig(t.vocab_size, d_model=64, layers=2)), t
    ),
    "recurrent, tied": lambda t: LanguageModeling(
        RecurrentLanguageModel(RecurrentConfig(t.vocab_size, "gru", 64, tied=True)), t
    ),
    "seq2seq": lambda t: Translation(Seq2Seq(Seq2SeqConfig(t.vocab_size, 64, 2)), t),
    "transformer": lambda t: Translation(Transformer(TransformerConfig(t.vocab_size, **PAIR)), t),
    "pre-norm": lambda t: Translation(
        PreNormTransformer(TransformerConfig(t.vocab_size, **PAIR)), t
    ),
    "embedding": lambda t: Embedding(EncoderWithHeads(bert(t.vocab_size), {}), t, normalize=True),
    "classification": lambda t: Classification(
        classifier(t.vocab_size), t, labels=["good", "bad", "dull"]
    ),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder of each task, its weights far from zero, and the same with quantized weights."""
    top, pieces = tmp_path_factory.mktemp("folders"), tokenizer()
    for name, task in TASKS.items():
        torch.manual_seed(1)
        made = task(pieces)
        for parameter in made.model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
        folders.save(made, top / name)
        for weights in ("int8", "bfloat16"):
            regard.quantize(top / name, top / f"{name}-{weights}", weights)
    return top


def assert_same_weights(one, other):
    found, wanted = one.state_dict(), other.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", TASKS)
def test_a_quantized_folder_is_what_loading_with_quantized_weights_gives(
    places, name, weights, some_kernels
):
    quantized = regard.load(places / f"{name}-{weights}")
    wanted = regard.load(places / name, quantize=weights)
    assert_same_weights(quantized.model, wanted.model)
    assert type(quantized) is type(wanted) and quantized.settings() == wanted.settings()
    assert not any(p.requires_grad for p in quantized.model.parameters())
    again = regard.load(places / f"{name}-{weights}", quantize=weights)
    assert_same_weights(again.model, wanted.model)
    if quantized.decodes:
        texts = ["a dog"] if hasattr(quantized, "stream") else TEXTS
        assert quantized.predict(texts, max_tokens=5) == wanted.predict(texts, max_tokens=5)
    else:
        found, expected = quantized.predictions(TEXTS), wanted.predictions(TEXTS)
        assert list(map(str, found)) == list(map(str, expected))


def size(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


def test_it_takes_a_quarter_or_half_of_the_place(tmp_path):
    words = train("characters", ["abc"], 10)
    torch.manual_seed(1)
    model = GPT2(GPT2Config(words.vocab_size, layers=2, d_model=256, heads=4, max_length=8))
    folders.save(LanguageModeling(model, words), tmp_path / "wide")
    for weights, share in (("int8", 0.26), ("bfloat16", 0.51)):
        place = regard.quantize(tmp_path / "wide", tmp_path / weights, weights)
        assert size(place) < share * size(tmp_path / "wide")


@pytest.mark.parametrize("name", ["gpt2", "transformer", "embedding", "classification"])
def test_stored_matrices_go_straight_into_the_layers(places, name, monkeypatch, some_kernels):
    """Nothing is rounded again, and no model is built twice."""
    built, widened = [], []
    folder = model_folder.ModelFolder
    made, wide = folder._build, stored.Stored.wide
    monkeypatch.setattr(folder, "_build", lambda *given: built.append(1) or made(*given))
    monkeypatch.setattr(stored.Stored, "wide", lambda self: widened.append(1) or wide(self))
    regard.load(places / f"{name}-int8")
    assert len(built) == 1 and not widened


def test_layers_that_make_a_matrix_of_several_are_given_wide_ones(places, monkeypatch):
    """As if an engine joined matrices: it never asks for the stored ones."""
    wanted = regard.load(places / "gpt2-int8")
    prepare = stored.prepare

    def forgetful(model, weights):
        for parameter in model.parameters():
            vars(parameter).pop("stored", None)
        return prepare(model, weights)

    monkeypatch.setattr(stored, "prepare", forgetful)
    found = regard.load(places / "gpt2-int8")
    for (name, one), other in zip(
        found.model.state_dict().items(), wanted.model.state_dict().values(), strict=True
    ):
        assert torch.allclose(one.float(), other.float(), rtol=1e-6), name


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_without_a_compiler_the_same_file_is_written_and_read(
    places, tmp_path, no_kernels, weights
):
    for name in ("gpt2", "classification"):
        regard.quantize(places / name, tmp_path / name, weights)
        file = places / f"{name}-{weights}" / "model.safetensors"
        assert (tmp_path / name / "model.safetensors").read_bytes() == file.read_bytes()
        wide, rounded = regard.load(places / name), regard.load(tmp_path / name)
        assert wide.model.state_dict().keys() == rounded.model.state_dict().keys()
        for key, tensor in wide.model.state_dict().items():
            error = (rounded.model.state_dict()[key] - tensor).abs().max()
            step = 1 / 254 if weights == "int8" else 1 / 256
            assert error <= step * 1.001 * tensor.abs().max(), key


def test_verify_compares_the_numbers_of_a_quantized_folder(places):
    pytest.importorskip("transformers")
    report = verify(places / "gpt2-int8")
    assert report.largest < 1e-4 and report.folder == places / "gpt2-int8"
    assert "quantized weights were given to both as float32" in report.notes
    with pytest.raises(CheckpointError, match="recurrent-int8: this model has no published"):
        verify(places / "recurrent-int8")


# ---- refused


def test_wrong_uses_say_what_to_do(places, tmp_path, some_kernels):
    quantized = places / "gpt2-int8"
    with pytest.raises(ConfigError, match="holds int8 weights already.*Quantize the folder"):
        regard.quantize(quantized, tmp_path / "twice", "bfloat16")
    with pytest.raises(ConfigError, match="`dtype` must be int8 or bfloat16, but is 'int9'"):
        regard.quantize(places / "gpt2", tmp_path / "new", "int9")
    with pytest.raises(CheckpointError, match="is there already"):
        regard.quantize(places / "gpt2", quantized)
    with pytest.raises(ConfigError, match="holds int8 weights, and bfloat16 ones cannot be made"):
        regard.load(quantized, quantize="bfloat16")
    with pytest.raises(ConfigError, match="`weights` is now `quantize`.*quantize='int8'"):
        regard.load(places / "gpt2", weights="int8")
    with pytest.raises(ConfigError, match="`quantize` must be int8 or bfloat16, but is 'int9'"):
        regard.load(places / "gpt2", quantize="int9")
    with pytest.raises(ConfigError, match="holds int8 weights, which can be used but not changed"):
        model_folder.read_model(quantized)
    with pytest.raises(CheckpointError, match="quantized weights, and nothing publishes such"):
        folders.save(regard.load(quantized), tmp_path / "published")
    assert not list(tmp_path.iterdir())


def test_a_model_is_put_where_it_is_asked_for(places, monkeypatch):
    monkeypatch.setattr(folders, "device", lambda: "meta")  # as if it were a GPU
    monkeypatch.setattr(quantize, "GPUS", {"meta"})
    plain, stored = places / "gpt2", places / "gpt2-bfloat16"

    def weight(folder, **asked):
        return next(regard.load(folder, **asked).model.parameters(), None)

    assert weight(plain).is_meta and weight(plain).dtype == torch.float32
    assert weight(plain, device="cpu").device.type == "cpu"
    for found in (weight(plain, quantize="bfloat16"), weight(stored)):
        assert found.is_meta and found.dtype == torch.bfloat16
    quantized = regard.load(plain, quantize="int8").model
    assert {t.device.type for t in quantized.state_dict().values()} == {"cpu"}
    with pytest.raises(ConfigError, match="int8 weights are for the CPU, but `device` is 'meta'"):
        regard.load(plain, quantize="int8", device="meta")
    with pytest.raises(ConfigError, match="'gpu' is not"):
        regard.load(plain, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="`device` must be .* 'cuda' is not"):
            regard.load(plain, device="cuda")


def test_a_kind_of_weights_from_elsewhere_is_named(places, tmp_path):
    for file in (places / "gpt2-int8").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_bytes())
    config["regard"]["weights"] = "int3"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="`weights` is 'int3', which this release does not"):
        regard.load(tmp_path)


def test_a_conversion_that_fails_leaves_nothing_at_its_place(places, tmp_path, monkeypatch):
    def full(*given):
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(model_folder, "write_tensors", full)
    with pytest.raises(CheckpointError, match="full"):
        regard.quantize(places / "gpt2", tmp_path / "out")
    assert not list(tmp_path.iterdir())


# ---- memory


def test_weights_are_mapped_and_not_copied(places):
    model = regard.load(places / "gpt2").model
    if sys.platform == "linux":
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = [line.split()[0].split("-") for line in lines if "gpt2/model" in line]
        place = model.embedding.weight.data_ptr()
        assert any(int(begin, 16) <= place < int(end, 16) for begin, end in spans)
    assert model.head.weight is model.embedding.weight
    with torch.no_grad():
        model.embedding.weight.zero_()  # a copy of the page, not the file
    assert regard.load(places / "gpt2").model.embedding.weight.any()
