"""Model folders that are damaged in ways drawn at random, and those with quantized weights.

A value of config.json is exchanged for one of another type or range, a tensor for one of another
type, shape or with a number that is none, bytes of a file are changed. `regard.load` then gives a
task that answers, or raises a `RegardError` that names the folder. A folder with quantized weights
gives the same model as quantizing while it is loaded.
"""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import struct
import sys
import time
from dataclasses import make_dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.models import conversions, model_class
from regard.models.bert import Bert, BertConfig
from regard.models.composed import Features
from regard.models.conv_seq2seq import ByteNet, ByteNetConfig, ConvSeq2Seq, ConvSeq2SeqConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT, GPT2, GPT2Config, GPTConfig
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig
from regard.tasks import TASKS, folders
from regard.tasks.classification import TextClassifier
from regard.tasks.embedding import Embedder
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.pair_tasks import Translator
from regard.tasks.tagging import Tagger
from regard.text import train

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]"]
TEXTS = ["a dog runs after a red ball in the park", "the old cat sleeps on a warm mat"]
TEXT = "a dog runs"
WIDE = dict(d_model=64, heads=4, max_length=32)
PAIR = dict(d_ff=80, encoder_layers=2, decoder_layers=2, **WIDE)
CONV = dict(d_model=16, encoder=((3, 16),), decoder=((3, 16), (3, 8)), max_length=32)
BYTENET = dict(d_model=16, dilations=(1, 2), sets=1)
# Written as no other library reads them.
OWN = ["lstm-lm", "lstm-seq2seq", "conv-seq2seq", "bytenet"]
LABELS = ["good", "bad", "dull"]


def bert(words, kind=None):
    body = Bert(BertConfig(words, d_ff=80, layers=2, **WIDE))
    return EncoderWithHeads(body, {kind: body.new_head(kind, 3)} if kind else {})


def features(words):
    options = dict(combine="sum", d_model=16, lstm_layers=1)
    over = Features.over(bert(words).encoder, "bert", options)
    return EncoderWithHeads(over, {"tags": over.new_head("tags", 3)})


PRUNED = (("decoder", 1, (2, 3)),)
TASK_OF = {
    "lstm-lm": lambda v, t: TextGenerator(
        RecurrentLanguageModel(RecurrentConfig(v, d_model=64)), t
    ),
    "recurrent, tied": lambda v, t: TextGenerator(
        RecurrentLanguageModel(RecurrentConfig(v, "gru", 64, tied=True)), t
    ),
    "lstm-seq2seq": lambda v, t: Translator(Seq2Seq(Seq2SeqConfig(v, 64, 2)), t),
    "conv-seq2seq": lambda v, t: Translator(ConvSeq2Seq(ConvSeq2SeqConfig(v, **CONV)), t),
    "bytenet": lambda v, t: Translator(ByteNet(ByteNetConfig(v, **BYTENET)), t),
    "gpt": lambda v, t: TextGenerator(GPT(GPTConfig(v, activation="mish", layers=2, **WIDE)), t),
    "features": lambda v, t: Tagger(features(v), t, labels=["O", "B-X", "I-X"]),
    # These are written as other libraries read them.
    "transformer": lambda v, t: Translator(Transformer(TransformerConfig(v, **PAIR)), t),
    "pre-norm": lambda v, t: Translator(PreNormTransformer(TransformerConfig(v, **PAIR)), t),
    "gpt2": lambda v, t: TextGenerator(GPT2(GPT2Config(v, layers=2, **WIDE)), t),
    "gpt2, pruned": lambda v, t: TextGenerator(
        GPT2(GPT2Config(v, layers=2, pruned=PRUNED, **WIDE)), t
    ),
    "bert": lambda v, t: TextClassifier(bert(v, "classes"), t, labels=LABELS),
    "embedding": lambda v, t: Embedder(bert(v), t, normalize=True),
}
QUANTIZED = [name for name in TASK_OF if name not in ("conv-seq2seq", "bytenet", "gpt", "features")]
# One path reads and writes both types of weights.
QUANTIZED_AS = [(name, "int8") for name in QUANTIZED]
QUANTIZED_AS += [("gpt2", "bfloat16"), ("bert", "bfloat16")]
DAMAGED = [name for name in TASK_OF if name not in ("recurrent, tied", "pre-norm", "gpt2, pruned")]
DAMAGED += ["gpt2-int8", "bert-int8", "embedding-int8"]


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory):
    """A folder of each task, its weights far from zero, and some with quantized weights."""
    top = tmp_path_factory.mktemp("folders")
    words = train("wordpiece", TEXTS * 3, 60, special_tokens=SPECIALS)
    for name, task in TASK_OF.items():
        torch.manual_seed(1)
        made = task(words.vocab_size, words)
        for parameter in made.module.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
        folders.save(made, top / name)
    for name, weights in QUANTIZED_AS:
        regard.quantize(top / name, top / f"{name}-{weights}", weights)
    return top


@pytest.fixture
def damaged(tmp_path):
    """A copy of a folder to be damaged."""

    def made(source):
        shutil.rmtree(tmp_path / "damaged", ignore_errors=True)
        shutil.copytree(source, tmp_path / "damaged")
        return tmp_path / "damaged"

    return made


def answered(folder):
    """The task of a folder after one answer; None after an error that names the folder."""
    try:
        task = regard.load(folder)
    except RegardError as error:
        assert str(folder) in str(error), error
        return None
    try:
        task.predict(TEXT, **({"max_tokens": 2} if task.decodes else {}))
    except RegardError:
        pass  # such as labels that are no entities, or a model that reads too few tokens
    return task


# ------------------------------------------------------------------------------ config.json

HUGE = [10**6, 10**9, 10**12, 2**31, 2**62]
VALUES = [
    None, "", "x", "3", -1, -4, 0, 1, 2, 3, 7, 1000, 1.5, 0.0, -0.5, 1.0, 1e308, 1e-300, True,
    False, [], [1], ["a"], [[]], {}, {"a": 1}, {"0": []}, {"0": None}, "../..", "\u0000", *HUGE,
]  # fmt: skip


def fields_of(value, before=()):
    """The path of every field and every item."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*before, key)
        if isinstance(inner, dict | list):
            yield from fields_of(inner, (*before, key))


def exchanged(chance, config):
    """A copy with one value that is exchanged, removed or added."""
    config = copy.deepcopy(config)
    *inner, last = chance.choice(list(fields_of(config)))
    target = config
    for key in inner:
        target = target[key]
    old = target[last]
    near = [str(old), [old]] + ([old + 1, -old, old * 2] if type(old) in (int, float) else [])
    if chance.random() < 0.1:
        del target[last]
    elif chance.random() < 0.1 and isinstance(target, dict):
        target["unheard_of"] = chance.choice(VALUES)
    else:
        target[last] = chance.choice([*VALUES, *near])
    return config


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.filterwarnings("ignore")
def test_every_error_about_config_json_names_the_folder(model_folders, damaged, name):
    folder, chance = damaged(model_folders / name), random.Random(f"config {name}")
    config = json.loads((folder / "config.json").read_bytes())
    assert answered(folder) is not None
    for _ in range(30):
        wrong = exchanged(chance, config)
        (folder / "config.json").write_text(json.dumps(wrong))
        start = time.process_time()
        answered(folder)
        assert time.process_time() - start < 5, wrong


@pytest.mark.parametrize("name", [*OWN, "gpt", "features", "gpt2-int8"])
def test_no_value_of_another_type_is_accepted(model_folders, damaged, name):
    """Every field of our own configurations, given as text, in a list and as an object."""
    folder = damaged(model_folders / name)
    config = json.loads((folder / "config.json").read_bytes())
    kind = model_class(config["regard"]["model"]).Config
    for field in kind.__dataclass_fields__:
        wrong_values = [str(config[field]) + "3", [config[field]], {"0": config[field]}, 10**12]
        if field != "feature_layers":  # of which -3 is the third from the end
            wrong_values.append(-3)
        if field in ("pad", "bos", "eos"):
            wrong_values.append(config["vocab_size"])
        for wrong in wrong_values:
            (folder / "config.json").write_text(json.dumps(config | {field: wrong}))
            with pytest.raises((CheckpointError, ConfigError), match="config.json") as error:
                regard.load(folder)
            assert re.search(rf"\b{field}\b", str(error.value)), error.value


SIZES = ["d_model", "d_ff", "layers", "vocab_size", "decoder_layers", "encoder_layers", "segments"]
THEIRS = ["n_embd", "n_layer", "n_positions", "hidden_size", "intermediate_size",
          "num_hidden_layers", "max_position_embeddings", "encoder_ffn_dim"]  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_sizes_that_contradict_the_weights_raise_an_error_before_building(
    model_folders, damaged, name, monkeypatch
):
    folder, made = damaged(model_folders / name), []
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *shape, **more: made.append(shape) or empty(*shape, **more)
    )
    config = json.loads((folder / "config.json").read_bytes())
    for field in {*SIZES, *THEIRS} & {*config}:
        # A Transformer's positions are computed: its weights say nothing of their number.
        if config[field] is None or (name, field) == ("transformer", "max_position_embeddings"):
            continue
        for huge in (2**20, 2**25):
            twice = {"decoder_ffn_dim": huge} if field == "encoder_ffn_dim" else {}
            (folder / "config.json").write_text(json.dumps(config | {field: huge} | twice))
            made.clear()
            with pytest.raises(RegardError, match=f"`{field}` |weights do not fit"):
                regard.load(folder)
            assert len(made) < 200


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", ["lstm-lm", "bytenet", "features", "bert-int8"])
def test_a_task_that_does_not_fit_the_model_raises_an_error(model_folders, damaged, name, task):
    folder = damaged(model_folders / name)
    config = json.loads((folder / "config.json").read_bytes())
    own = config["regard"]["task"]
    config["regard"]["task"] = task
    (folder / "config.json").write_text(json.dumps(config))
    if task == own:
        assert regard.load(folder).name == own
        return
    with pytest.raises(CheckpointError, match=f"`regard.*{task}"):
        regard.load(folder)


# --------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("name", DAMAGED)
def test_weights_that_are_no_finite_numbers_raise_an_error_with_their_index(
    model_folders, damaged, name
):
    folder, chance = damaged(model_folders / name), random.Random(name)
    sound = load_file(model_folders / name / "model.safetensors")
    floats = [key for key, tensor in sound.items() if tensor.is_floating_point()]
    for value in (float("nan"), float("inf"), -float("inf")):
        key = chance.choice(floats)
        wrong = sound[key].clone()
        index = tuple(chance.randrange(size) for size in wrong.shape)
        wrong[index] = value
        save_file(sound | {key: wrong}, folder / "model.safetensors")
        with pytest.raises(CheckpointError) as error:
            regard.load(folder)
        assert f"{key}{list(index)} is {value}" in str(error.value)


def changed_bytes(chance, data):
    """Cut, with another length of the header, or with some bytes exchanged."""
    match chance.randrange(3):
        case 0:
            return data[: chance.randrange(len(data))]
        case 1:
            return struct.pack("<Q", chance.choice([0, 1, 10**6, 2**63, len(data)])) + data[8:]
    changed = bytearray(data)
    for _ in range(chance.choice([1, 5])):
        changed[chance.randrange(min(len(changed), 2000))] = chance.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("name", ["lstm-lm", "gpt2", "embedding-int8"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.filterwarnings("ignore")
def test_a_folder_with_changed_bytes_answers_or_the_error_names_it(
    model_folders, damaged, name, file
):
    folder, chance = damaged(model_folders / name), random.Random(f"{name} {file}")
    data = (folder / file).read_bytes()
    for _ in range(12):
        (folder / file).write_bytes(changed_bytes(chance, data))
        task = answered(folder)
        assert task is None or task.name in TASKS


# ---- quantized


def assert_same_weights(one, other):
    found, wanted = one.state_dict(), other.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("name, weights", QUANTIZED_AS)
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
        assert str(quantized.predict(TEXTS)) == str(wanted.predict(TEXTS))


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


@pytest.mark.parametrize(
    "name, weights",
    [("gpt2", "bfloat16"), *((name, "int8") for name in ("gpt2", "lstm-lm", "transformer"))],
)
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


def test_an_option_that_config_json_has_no_field_for_is_an_error(tmp_path):
    """Who adds one to a model sees that its published layout lacks it, before a run is lost."""
    tokenizer = train("wordpiece", TEXTS * 3, 60, special_tokens=SPECIALS)
    task = Embedder(bert(tokenizer.vocab_size), tokenizer)
    options = make_dataclass("Scaled", [("scale", float, 0.5)], bases=(BertConfig,), frozen=True)
    task.module.encoder.config = options(**vars(task.module.config))
    with pytest.raises(CheckpointError, match="config.json has no field for scale 0.5"):
        folders.save(task, tmp_path / "saved")
    assert not (tmp_path / "saved" / "model.safetensors").exists()
