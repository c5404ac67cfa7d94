"""The comparison of positions: all kinds by one recipe, and nothing else differs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from regard.experiments.runs import read_recipe

ROOT = Path(__file__).parents[2]


def example():
    spec = importlib.util.spec_from_file_location("positions", ROOT / "examples/positions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_variants_differ_from_the_recipe_in_positions_alone(tmp_path):
    module = example()
    whole = read_recipe(module.variant("sinusoidal", tmp_path)).model_dump(mode="json")
    assert whole["name"] == read_recipe(ROOT / "recipes/positions.toml").name
    for kind in module.KINDS:
        found = read_recipe(module.variant(kind, tmp_path)).model_dump(mode="json")
        assert found["model"].pop("positions") == found.pop("name") == kind
        wanted = {**whole, "model": {**whole["model"]}}
        del wanted["model"]["positions"], wanted["name"]
        assert found == wanted


def test_kinds_are_trained_and_compared(tmp_path):
    module = example()
    tiny = ["training.tokens=600", "model.d_model=16", "model.d_ff=16", "model.heads=2"]
    tiny += ["model.encoder_layers=1", "model.decoder_layers=1", "tokenizer.vocab_size=300"]
    tiny += ["evaluation.valid_sentences=2", "training.validation.every=100", "decoding.beams=1"]
    data = tmp_path / "pairs.tsv"
    data.write_text("the cat sleeps\tle chat dort\nthe dog sleeps\tle chien dort\n" * 20)
    tiny += [f'data.{part}=["{data}"]' for part in ("train", "valid", "test")]
    found = module.main(["shaw", "t5"], tiny, tmp_path / "out")
    assert [row["model"] for row in found.table()] == ["shaw", "t5"]
