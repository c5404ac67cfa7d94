"""Two statements of one fact that differ are an error that names both."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import every_task
import pytest
import torch

from regard.errors import RegardError
from regard.models.llama import Llama, LlamaConfig
from regard.tasks.folders import load, quantize, save
from regard.tasks.language_modeling import TextGenerator

pytestmark = pytest.mark.filterwarnings("ignore")
CONFIG, TABLE = "config.json", "rope_parameters"
# folder, file, changed fields, and what the error names
CASES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("bert", CONFIG, {"num_labels": 7}, "`num_labels`", "the output of the head"),
    ("bert", CONFIG, {"_num_labels": 7}, "`_num_labels`", "the output of the head"),
    ("bert", CONFIG, {"label2id": {"no": 2, "yes": 0}}, "`label2id`", "`id2label`"),
    ("bert", CONFIG, {"regard": {"labels": ["a", "b", "c"]}}, "`regard.labels`", "`id2label`"),
    ("bert", CONFIG, {"vocab_size": 12}, "(12, 16)", "word_embeddings"),
    ("bert", "tokenizer.json", {"version": "2.0"}, "version", "2.0"),
    (
        *("bert", "tokenizer_config.json"),
        *({"added_tokens_decoder": {"1": {"content": "[PAD]"}}}, "'[PAD]' must have", "0, not 1"),
    ),
    ("gpt2", CONFIG, {"hidden_size": 99}, "`hidden_size`", "`n_embd`"),
    ("llama", CONFIG, {"rope_theta": 3.0}, "`rope_theta`", "`rope_parameters.rope_theta`"),
    ("llama", CONFIG, {TABLE: {"type": "linear"}}, "`type`", "`rope_parameters.rope_type`"),
    (
        *("llama", CONFIG, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        *("`rope_scaling.rope_type`", "`rope_parameters`"),
    ),
    (
        *("embedding", "1_Pooling/config.json", {"pooling_mode": "cls"}),
        *("`pooling_mode`", "`pooling_mode_mean_tokens`"),
    ),
    ("int8", CONFIG, {"regard": {"weights": "bfloat16"}}, "`regard.weights`", "tensors"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("folders")
    torch.manual_seed(1)
    for name, made in (("bert", "classification"), ("embedding", "embedding")):
        save(every_task.encoder(made), where / name)
    gpt2 = every_task.MAKERS["language-modeling-gpt2"]()
    save(gpt2, where / "gpt2")
    config = LlamaConfig(gpt2.tokenizer.vocab_size, d_model=16, d_ff=16, heads=2, layers=1)
    save(TextGenerator(Llama(config), gpt2.tokenizer), where / "llama")
    quantize(where / "bert", where / "int8", "int8")
    return where


@pytest.mark.parametrize(("folder", "file", "changes", "one", "other"), CASES)
def test_contradicting_fields_are_an_error_that_names_both(
    folders, tmp_path, folder, file, changes, one, other
):
    load(shutil.copytree(folders / folder, tmp_path / "model"))
    path = tmp_path / "model" / file
    fields = json.loads(path.read_text())
    for name, value in changes.items():
        before = fields.get(name)
        merged = isinstance(before, dict) and isinstance(value, dict)
        fields[name] = {**before, **value} if merged else value
    path.write_text(json.dumps(fields))
    with pytest.raises(RegardError) as error:
        load(tmp_path / "model")
    assert one in str(error.value) and other in str(error.value)
