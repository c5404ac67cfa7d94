"""A model that a runtime cannot run is an error that says why, and nothing is written."""

from __future__ import annotations

import pytest
import small_models as small

import regard
from regard.errors import ConfigError

WITHOUT_EOS = small.tokenizer("byte-bpe", special_tokens=())
SPARSE = {"name": "bigbird", "block_size": 2, "random_blocks": 1}
UNSUPPORTED = [
    ("ctranslate2", small.llama, {}, "cannot run the architecture Llama"),
    ("ctranslate2", small.gpt2, {"activation": "mish"},
     "needs `activation` to be 'gelu', 'gelu-tanh'"),
    ("ctranslate2", small.gpt2, {"positions": "shaw"},
     "needs `positions` to be 'learned', 'sinusoidal'"),
    ("ctranslate2", small.bert, {"heads": {"tags": 3}}, "has no form for the head 'tags'"),
    ("gguf", small.transformer, {}, "cannot run the architecture Transformer"),
    ("gguf", small.gpt2, {"scaled_by_layer": True}, "needs `scaled_by_layer` to be False"),
    ("gguf", small.gpt2, {"activation": "relu"}, "needs `activation` to be 'gelu-tanh', 'gelu'"),
    ("gguf", small.gpt2, {"kind": "words"}, "has no form for a words tokenizer"),
    ("gguf", small.gpt2, {"kind": "wordpiece"}, "puts one token on each side of a text of"),
    ("gguf", small.gpt2, {"words": WITHOUT_EOS, "eos": None},
     r"needs an end-of-text token \(`eos`\)"),
    ("gguf", small.bert, {"heads": {"classes": 2}}, "has no form for the head 'classes'"),
    ("gguf", small.t5, {}, "cannot run the architecture T5 "),
    ("onnx", small.recurrent, {}, "is given no graph of RecurrentLanguageModel"),
    ("onnx", small.bert, {"heads": {"crf": 3}}, "has no form for the head 'crf'. Save the encoder"),
    ("onnx", small.encoder, {"name": "lstm-lm"}, "is given no graph of recurrent layers"),
    ("onnx", small.encoder, {"name": "segabert"},
     "SegaBert reads paragraphs, sentences, tokens of"),
    ("onnx", small.encoder, SPARSE, "no graph of sparse attention.*original_full"),
]  # fmt: skip


@pytest.mark.parametrize(("runtime", "build", "options", "said"), UNSUPPORTED)
def test_an_unsupported_model_raises_an_error_that_names_why_and_nothing_is_written(
    runtime, build, options, said, tmp_path
):
    for package in ("onnx", "onnxscript", "onnxruntime") if runtime == "onnx" else (runtime,):
        pytest.importorskip(package)
    folder = build(tmp_path / "model", **options)
    with pytest.raises(ConfigError, match=said):
        regard.export(folder, runtime)
    assert [one.name for one in tmp_path.iterdir()] == ["model"]
    if runtime == "onnx":
        with pytest.raises(ConfigError, match="leave `quantize` out"):
            regard.export(folder, runtime, quantize="int8")
