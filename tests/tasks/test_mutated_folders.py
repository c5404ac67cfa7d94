"""Model folders that are damaged in ways drawn at random: every error is ours and names the file.

A value of config.json is exchanged for one of another type or range, a tensor for one of another
type, shape or with a number that is none, bytes of a file are changed. `regard.load` then gives a
task that answers, or raises a `RegardError` that names the folder.
"""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import struct
import time
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.layers.feedforward import ACTIVATIONS
from regard.models import MODELS, model_class
from regard.models.bert import Bert, BertConfig
from regard.models.composed import Features
from regard.models.config import Activation
from regard.models.conv_seq2seq import ByteNet, ByteNetConfig, ConvSeq2Seq, ConvSeq2SeqConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT, GPT2, GPT2Config, GPTConfig
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks import TASKS, folders, task_class
from regard.tasks.classification import TextClassifier
from regard.tasks.embedding import Embedder
from regard.tasks.folders import checked_settings
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.tagging import Tagger
from regard.tasks.translation import Translator
from regard.text import train

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]"]
TEXT = "a dog runs"
SMALL = dict(d_model=16, heads=2, layers=2, max_length=32)
PAIR = dict(d_model=16, heads=2, d_ff=24, encoder_layers=2, decoder_layers=2, max_length=32)
CONV = dict(d_model=16, encoder=((3, 16),), decoder=((3, 16), (3, 8)), max_length=32)
BYTENET = dict(d_model=16, dilations=(1, 2), sets=1)
# Written as no other library reads them.
OWN = ["lstm-lm", "lstm-seq2seq", "conv-seq2seq", "bytenet"]
LABELS = ["good", "bad", "dull"]


def bert(words, kind=None):
    body = Bert(BertConfig(words, d_ff=24, **SMALL))
    return EncoderWithHeads(body, {kind: body.new_head(kind, 3)} if kind else {})


def features(words):
    over = Features.over(
        bert(words).encoder, "bert", dict(combine="sum", d_model=16, lstm_layers=1)
    )
    return EncoderWithHeads(over, {"tags": over.new_head("tags", 3)})


TASK_OF = {
    "lstm-lm": lambda t: TextGenerator(
        RecurrentLanguageModel(RecurrentConfig(t.vocab_size, d_model=16)), t
    ),
    "lstm-seq2seq": lambda t: Translator(Seq2Seq(Seq2SeqConfig(t.vocab_size, 16, 2)), t),
    "conv-seq2seq": lambda t: Translator(ConvSeq2Seq(ConvSeq2SeqConfig(t.vocab_size, **CONV)), t),
    "bytenet": lambda t: Translator(ByteNet(ByteNetConfig(t.vocab_size, **BYTENET)), t),
    "gpt": lambda t: TextGenerator(GPT(GPTConfig(t.vocab_size, activation="mish", **SMALL)), t),
    "features": lambda t: Tagger(features(t.vocab_size), t, labels=["O", "B-X", "I-X"]),
    # These are written as other libraries read them.
    "transformer": lambda t: Translator(Transformer(TransformerConfig(t.vocab_size, **PAIR)), t),
    "gpt2": lambda t: TextGenerator(GPT2(GPT2Config(t.vocab_size, **SMALL)), t),
    "bert": lambda t: TextClassifier(bert(t.vocab_size, "classes"), t, labels=LABELS),
    "embedding": lambda t: Embedder(bert(t.vocab_size), t, normalize=True),
}
QUANTIZED = ["gpt2", "bert", "embedding"]


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory):
    """A sound folder of each family, and some with int8 weights."""
    top, words = (
        tmp_path_factory.mktemp("sound"),
        train("wordpiece", [TEXT] * 3, 40, special_tokens=SPECIALS),
    )
    for name, task in TASK_OF.items():
        torch.manual_seed(1)
        folders.save(task(words), top / name)
    for name in QUANTIZED:
        regard.quantize(top / name, top / f"{name}-int8")
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


@pytest.mark.parametrize("name", [*TASK_OF, *(f"{name}-int8" for name in QUANTIZED)])
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
        for wrong in wrong_values:
            (folder / "config.json").write_text(json.dumps(config | {field: wrong}))
            with pytest.raises((CheckpointError, ConfigError), match="config.json") as error:
                regard.load(folder)
            assert re.search(rf"\b{field}\b", str(error.value)), error.value


@pytest.mark.parametrize("special", ["pad", "bos", "eos"])
@pytest.mark.parametrize("name", [*OWN, "gpt2-int8"])
def test_ids_beyond_the_vocabulary_raise_an_error(model_folders, damaged, name, special):
    folder = damaged(model_folders / name)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {special: config["vocab_size"]}))
    with pytest.raises(CheckpointError, match=f"config.json: `{special}` must be an id below"):
        regard.load(folder)


SIZES = ["d_model", "d_ff", "layers", "vocab_size", "decoder_layers", "encoder_layers", "segments"]
THEIRS = ["n_embd", "n_layer", "n_positions", "hidden_size", "intermediate_size",
          "num_hidden_layers", "max_position_embeddings", "encoder_ffn_dim"]  # fmt: skip


@pytest.mark.parametrize("name", [*TASK_OF, *(f"{name}-int8" for name in QUANTIZED)])
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
        for huge in (2**20, 2**27):
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


def test_every_model_and_task_is_checked_by_its_types():
    assert set(get_args(Activation)) == set(ACTIVATIONS)
    for name in MODELS:
        kind = model_class(name).Config
        for field in kind.__dataclass_fields__.values():
            assert field.type not in ("int", "float", "int | None", "float | None"), (name, field)
    for name in TASKS:
        with pytest.raises(
            CheckpointError, match=r"config.json: `regard.max_length` (must be|is not an option)"
        ):
            checked_settings(task_class(name), {"max_length": "3"}, Path("config.json"))


# --------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("name", [*TASK_OF, *(f"{name}-int8" for name in QUANTIZED)])
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


def test_numbers_that_float32_cannot_hold_raise_an_error(model_folders, damaged):
    folder = damaged(model_folders / "lstm-lm")
    sound = load_file(folder / "model.safetensors")
    save_file(
        sound | {"head.bias": sound["head.bias"].double() + 1e300}, folder / "model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"head\.bias\[0\] is 1e\+300"):
        regard.load(folder)


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


# ---------------------------------------------------------------- pipes, sentence-transformers


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "a\\b"])
def test_a_module_outside_of_the_folder_is_not_read(model_folders, damaged, path):
    folder = damaged(model_folders / "embedding")
    modules = json.loads((folder / "modules.json").read_bytes())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="`1.path` must be a folder inside of this one"):
        regard.load(folder)
