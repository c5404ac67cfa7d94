"""Folders with quantized weights: the same models as when loading quantizes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.checkpoints import model_folder
from regard.checkpoints import quantized_checkpoint as stored
from regard.errors import CheckpointError, ConfigError
from regard.models import conversions
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig
from regard.tasks import folders
from regard.tasks.classification import TextClassifier
from regard.tasks.embedding import Embedder
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.translation import Translator
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
    "gpt2": lambda t: TextGenerator(
        GPT2(GPT2Config(t.vocab_size, layers=2, max_length=32, **WIDE)), t
    ),
    "gpt2, pruned": lambda t: TextGenerator(
        GPT2(
            GPT2Config(
                t.vocab_size, layers=2, max_length=32, pruned=(("decoder", 1, (2, 3)),), **WIDE
            )
        ),
        t,
    ),
    "lstm-lm": lambda t: TextGenerator(
        RecurrentLanguageModel(RecurrentConfig(t.vocab_size, d_model=64, layers=2)), t
    ),
    "recurrent, tied": lambda t: TextGenerator(
        RecurrentLanguageModel(RecurrentConfig(t.vocab_size, "gru", 64, tied=True)), t
    ),
    "lstm-seq2seq": lambda t: Translator(Seq2Seq(Seq2SeqConfig(t.vocab_size, 64, 2)), t),
    "transformer": lambda t: Translator(Transformer(TransformerConfig(t.vocab_size, **PAIR)), t),
    "pre-norm": lambda t: Translator(
        PreNormTransformer(TransformerConfig(t.vocab_size, **PAIR)), t
    ),
    "embedding": lambda t: Embedder(EncoderWithHeads(bert(t.vocab_size), {}), t, normalize=True),
    "classification": lambda t: TextClassifier(
        classifier(t.vocab_size), t, labels=["good", "bad", "dull"]
    ),
}


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory):
    """A folder of each task, its weights far from zero, and the same with quantized weights."""
    top, pieces = tmp_path_factory.mktemp("folders"), tokenizer()
    for name, task in TASKS.items():
        torch.manual_seed(1)
        made = task(pieces)
        for parameter in made.module.parameters():
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
def test_a_quantized_folder_equals_quantizing_while_loading(model_folders, name, weights):
    quantized = regard.load(model_folders / f"{name}-{weights}")
    wanted = regard.load(model_folders / name, quantize=weights)
    assert_same_weights(quantized.module, wanted.module)
    assert type(quantized) is type(wanted) and quantized.settings() == wanted.settings()
    assert not any(p.requires_grad for p in quantized.module.parameters())
    again = regard.load(model_folders / f"{name}-{weights}", quantize=weights)
    assert_same_weights(again.module, wanted.module)
    if quantized.decodes:
        texts = ["a dog"] if hasattr(quantized, "stream") else TEXTS
        assert quantized.predict(texts, max_tokens=5) == wanted.predict(texts, max_tokens=5)
    else:
        found, expected = (
            quantized.predict(TEXTS, return_proba=True),
            wanted.predict(TEXTS, return_proba=True),
        )
        assert list(map(str, found)) == list(map(str, expected))


def size(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


def test_quantized_folders_have_a_quarter_or_half_of_the_size(tmp_path):
    words = train("characters", ["abc"], 10)
    torch.manual_seed(1)
    model = GPT2(GPT2Config(words.vocab_size, layers=2, d_model=256, heads=4, max_length=8))
    folders.save(TextGenerator(model, words), tmp_path / "wide")
    for weights, share in (("int8", 0.26), ("bfloat16", 0.51)):
        made = regard.quantize(tmp_path / "wide", tmp_path / weights, weights)
        assert size(made) < share * size(tmp_path / "wide")


def test_layers_that_merge_matrices_get_float32_ones(model_folders, monkeypatch):
    """As if a layer joined matrices: it never asks for the stored ones."""
    wanted = regard.load(model_folders / "gpt2-int8")
    prepare = stored.prepare

    def forgetful(model, weights):
        for parameter in model.parameters():
            vars(parameter).pop("stored", None)
        return prepare(model, weights)

    monkeypatch.setattr(stored, "prepare", forgetful)
    found = regard.load(model_folders / "gpt2-int8")
    for (name, one), other in zip(
        found.module.state_dict().items(), wanted.module.state_dict().values(), strict=True
    ):
        assert torch.allclose(one.float(), other.float(), rtol=1e-6), name


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "lstm-lm", "transformer", "classification"])
def test_without_kernels_the_same_quantized_file_is_written_and_read(
    model_folders, tmp_path, name, weights, request
):
    expected = regard.load(model_folders / f"{name}-{weights}")
    request.getfixturevalue("no_kernels")
    regard.quantize(model_folders / name, tmp_path / name, weights)
    file = model_folders / f"{name}-{weights}" / "model.safetensors"
    assert (tmp_path / name / "model.safetensors").read_bytes() == file.read_bytes()
    with pytest.warns(UserWarning, match="no compiled kernels: .* slower than float32"):
        found = regard.load(tmp_path / name)
    assert_same_weights(found.module, expected.module)
    loaded = regard.load(model_folders / name, quantize=weights)
    assert_same_weights(loaded.module, expected.module)


# ---- refused


def test_wrong_uses_of_quantized_folders_raise_errors(model_folders, tmp_path):
    quantized = model_folders / "gpt2-int8"
    with pytest.raises(ConfigError, match="holds int8 weights already.*Quantize the folder"):
        regard.quantize(quantized, tmp_path / "twice", "bfloat16")
    with pytest.raises(ConfigError, match="`dtype` must be int8 or bfloat16, but is 'int9'"):
        regard.quantize(model_folders / "gpt2", tmp_path / "new", "int9")
    with pytest.raises(CheckpointError, match="is there already"):
        regard.quantize(model_folders / "gpt2", quantized)
    with pytest.raises(ConfigError, match="holds int8 weights, and bfloat16 ones cannot be made"):
        regard.load(quantized, quantize="bfloat16")
    with pytest.raises(ConfigError, match="`quantize` must be int8 or bfloat16, but is 'int9'"):
        regard.load(model_folders / "gpt2", quantize="int9")
    with pytest.raises(ConfigError, match="holds int8 weights, which can be used but not changed"):
        model_folder.read_model(quantized)
    with pytest.raises(CheckpointError, match="quantized weights, and nothing publishes such"):
        folders.save(regard.load(quantized), tmp_path / "published")
    assert not list(tmp_path.iterdir())


def test_a_model_is_loaded_on_the_given_device(model_folders, monkeypatch):
    monkeypatch.setattr(folders, "device", lambda: "meta")  # as if it were a GPU
    monkeypatch.setattr(conversions, "GPUS", {"meta"})
    plain, stored = model_folders / "gpt2", model_folders / "gpt2-bfloat16"

    def weight(folder, **asked):
        return next(regard.load(folder, **asked).module.parameters(), None)

    assert weight(plain).is_meta and weight(plain).dtype == torch.float32
    assert weight(plain, device="cpu").device.type == "cpu"
    for found in (weight(plain, quantize="bfloat16"), weight(stored)):
        assert found.is_meta and found.dtype == torch.bfloat16
    quantized = regard.load(plain, quantize="int8").module
    assert {t.device.type for t in quantized.state_dict().values()} == {"cpu"}
    with pytest.raises(ConfigError, match="int8 weights are for the CPU, but `device` is 'meta'"):
        regard.load(plain, quantize="int8", device="meta")
    with pytest.raises(ConfigError, match="There is no device 'gpu' here. .* finds: cpu"):
        regard.load(plain, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="There is no device 'cuda' here. .* finds: cpu"):
            regard.load(plain, device="cuda")


# ---- memory


def test_weights_are_memory_mapped_and_writing_does_not_change_the_file(model_folders):
    model = regard.load(model_folders / "gpt2").module
    if sys.platform == "linux":
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = [line.split()[0].split("-") for line in lines if "gpt2/model" in line]
        address = model.embedding.weight.data_ptr()
        assert any(int(begin, 16) <= address < int(end, 16) for begin, end in spans)
    assert model.head.weight is model.embedding.weight
    with torch.no_grad():
        model.embedding.weight.zero_()  # a copy of the page, not the file
    assert regard.load(model_folders / "gpt2").module.embedding.weight.any()
