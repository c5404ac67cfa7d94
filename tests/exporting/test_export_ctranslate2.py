"""CTranslate2 opens exported models, and its outputs equal those of this library."""

from __future__ import annotations

import pytest
import small_models as small

import regard
from regard.errors import CheckpointError, ConfigError

ctranslate2 = pytest.importorskip("ctranslate2")


CASES = {
    "gpt2": (small.gpt2, {}),
    "gpt2 with its own output": (small.gpt2, {"output": "own", "activation": "gelu"}),
    "gpt2 scaled by layer": (small.gpt2, {"scaled_by_layer": True, "norm_eps": 1e-3}),
    "gpt2 not scaled": (small.gpt2, {"scaled": False, "positions": "sinusoidal"}),
    "bert": (small.bert, {"norm_eps": 1e-3}),
    "bert with a pooler": (small.bert, {"heads": {"pooler": 1}, "activation": "relu"}),
    "transformer": (small.transformer, {}),
    "transformer with two vocabularies": (
        small.transformer,
        {"source_vocab_size": 310, "tied": False, "positions": "learned"},
    ),
    "pre-norm transformer": (small.transformer, {"prenorm": True, "scale_embedding": False}),
    "marian": (small.transformer, {"output_bias": True, "activation": "swish"}),
    "t5": (small.t5, {}),
    "t5 1.1": (
        small.t5,
        {"gated": True, "activation": "gelu-tanh", "tied": False, "scale_output": False},
    ),
    "umt5": (small.t5, {"bias_per_layer": True, "buckets": 8, "max_distance": 20}),
}


@pytest.mark.parametrize("name", CASES)
def test_ctranslate2_gives_the_outputs_of_the_exported_model(name, tmp_path):
    build, options = CASES[name]
    made = regard.export(build(tmp_path / "model", **options), "ctranslate2")
    assert made.path == tmp_path / "model-ctranslate2"
    assert made.opened_by == f"ctranslate2 {ctranslate2.__version__}"
    assert all(one.relative < 1e-5 for one in made.differences), made.differences
    assert made.differences[0].magnitude > 0.5


def test_eight_bit_weights_halve_the_file_and_keep_the_outputs_close(tmp_path):
    folder = small.gpt2(tmp_path / "model")
    wide = regard.export(folder, "ctranslate2")
    quantized = regard.export(folder, "ctranslate2", tmp_path / "small", quantize="int8")
    sizes = [(one.path / "model.bin").stat().st_size for one in (wide, quantized)]
    assert sizes[1] < 0.6 * sizes[0]
    assert 1e-5 < quantized.differences[0].relative < 0.05


def test_greedy_search_of_ctranslate2_gives_the_same_continuation(tmp_path):
    folder = small.gpt2(tmp_path / "model")
    made = regard.export(folder, "ctranslate2")
    task = regard.load(folder)
    ids = task.tokenizer.encode("a dog").ids
    engine = ctranslate2.Generator(str(made.path))
    tokens = [task.tokenizer.token(i) for i in ids]
    (found,) = engine.generate_batch([tokens], max_length=8, include_prompt_in_result=False)
    wanted = task.generate("a dog", max_tokens=8)
    assert task.tokenizer.decode(found.sequences_ids[0]) == wanted.removeprefix("a dog")


def test_an_existing_folder_is_not_overwritten_and_an_unknown_runtime_is_an_error(tmp_path):
    folder = small.gpt2(tmp_path / "model")
    (tmp_path / "new").mkdir()
    with pytest.raises(CheckpointError, match="new is there already"):
        regard.export(folder, "ctranslate2", tmp_path / "new")
    with pytest.raises(ConfigError, match="There is no runtime 'onyx'. Did you mean 'onnx'"):
        regard.export(folder, "onyx")
