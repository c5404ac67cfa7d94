"""llama.cpp opens exported GGUF files, and its outputs equal those of this library."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import small_models as small
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.text.templates import Template

gguf = pytest.importorskip("gguf")
LLAMA = find_spec("llama_cpp") is not None
ROPE = {"rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_length": 64}
CASES = {
    "gpt2": (small.gpt2, {}),
    "gpt2 with its own output": (small.gpt2, {"output": "own", "norm_eps": 1e-3}),
    "llama": (small.llama, {}),
    "llama with biases": (
        small.llama,
        {"attention_bias": True, "feed_bias": True, "output": "tied", "head_dim": 10},
    ),
    "llama 3": (small.llama, {**ROPE, "key_value_heads": 1}),
    "bert": (small.bert, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_gives_the_outputs_of_the_exported_model_up_to_its_gelu(name, tmp_path):
    """Its table of GELU has 16 bits."""
    build, options = CASES[name]
    made = regard.export(build(tmp_path / "model", **options), "gguf")
    names = {one.name for one in gguf.GGUFReader(made.path).tensors}
    assert "token_embd.weight" in names
    if not LLAMA:
        pytest.skip("llama-cpp-python is not installed: the file was read by gguf alone")
    limit = 1e-2 if any("GELU" in note for note in made.notes) else 1e-5
    assert all(one.relative < limit for one in made.differences), made.differences
    assert made.differences[0].magnitude > 0.5
    assert "7 of 7 texts get our ids from its own tokenizer" in made.notes


def test_eight_bit_weights_shrink_the_file_and_keep_the_outputs_close(tmp_path):
    folder = small.llama(tmp_path / "model")
    wide = regard.export(folder, "gguf", check=False)
    quantized = regard.export(folder, "gguf", tmp_path / "small.gguf", quantize="int8")
    kinds = {one.tensor_type.name for one in gguf.GGUFReader(quantized.path).tensors}
    assert kinds == {"F32", "Q8_0"}
    assert quantized.path.stat().st_size < 0.6 * wide.path.stat().st_size
    if LLAMA:
        assert 1e-5 < quantized.differences[0].relative < 0.05


def test_the_command_prints_the_differences_and_the_notes_of_the_runtime(tmp_path):
    folder = small.bert(tmp_path / "model")
    run = CliRunner().invoke(app, ["export", str(folder), "--to", "gguf", "--json"])
    assert run.exit_code == 0, run.stderr
    facts = json.loads(run.stdout)
    assert facts["path"] == f"{folder}.gguf" and facts["runtime"] == "llama.cpp"
    assert "every token is of the first segment" in run.stderr and "tanh form" in run.stderr
    again = CliRunner().invoke(app, ["export", str(folder), "--to", "gguf"])
    assert again.exit_code == 2 and "model.gguf is there already" in again.stderr
    words = ["export", str(folder), "--to", "gguf", "--out", str(tmp_path / "b"), "--no-check"]
    assert CliRunner().invoke(app, words).stdout == f"{tmp_path / 'b'}: for llama.cpp\n"


def tokens_around_a_text(path):
    """Which ids llama.cpp puts before and after a text, by the fields of a file."""
    fields = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    told = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    if told["model"] == "bert":  # in any case, whatever the flags say
        return [told["bos_token_id"]], [told["seperator_token_id"]]
    before = [told["bos_token_id"]] if told["add_bos_token"] else []
    return before, [told["eos_token_id"]] if told["add_eos_token"] else []


@pytest.mark.parametrize("kind", ["byte-bpe", "wordpiece"])
def test_an_encoder_gets_its_special_tokens_around_a_text_from_every_tokenizer(kind, tmp_path):
    folder = small.bert(tmp_path / "model", kind=kind)
    made = regard.export(folder, "gguf")
    task = regard.load(folder)
    inner, read = task.tokenizer.encode("a dog").ids, task.input_format.encode([("a dog",)])
    ids = list(read[0].ids)
    at = next(n for n in range(len(ids)) if ids[n : n + len(inner)] == inner)
    assert tokens_around_a_text(made.path) == (ids[:at], ids[at + len(inner) :])
    if LLAMA:
        assert "7 of 7 texts get our ids from its own tokenizer" in made.notes


def test_a_language_model_gets_the_tokens_before_a_prompt_and_none_behind_it(tmp_path):
    """Of a template [bos] TEXT [eos] generation reads the beginning."""
    words = small.tokenizer("byte-bpe")
    around = Template.around((words.bos_id,), (words.eos_id,), (words.eos_id,))
    folder = small.gpt2(tmp_path / "model", words=words.with_template(around))
    made = regard.export(folder, "gguf")
    ids = regard.load(folder).prompt_ids(["a dog"])[0]
    assert tokens_around_a_text(made.path) == (ids[:1], [])
    if LLAMA:
        assert "7 of 7 texts get our ids from its own tokenizer" in made.notes
