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


def test_kinds_and_overrides_reach_the_comparison(tmp_path, monkeypatch):
    module, asked = example(), {}

    class Compared:
        def picture(self):
            return self

        def show(self):
            asked["shown"] = True

    def compare(recipes, overrides, *, out):
        asked.update(recipes=[path.name for path in recipes], overrides=overrides, out=out)
        return Compared()

    monkeypatch.setattr(module, "compare_files", compare)
    module.main(["shaw", "t5"], ["training.tokens=600"], tmp_path / "out")
    assert asked == {
        "recipes": ["shaw.toml", "t5.toml"],
        "overrides": ["training.tokens=600"],
        "out": tmp_path / "out",
        "shown": True,
    }
