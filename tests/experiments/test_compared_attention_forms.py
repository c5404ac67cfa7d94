"""The comparisons of forms of attention and of positions: all by one recipe, and nothing else
differs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from regard.experiments.runs import read_recipe
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig

ROOT = Path(__file__).parents[2]


def example(name="attention_forms"):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_variants_differ_from_the_recipe_in_their_attention_alone(tmp_path):
    module = example()
    whole = read_recipe(module.variant("general", tmp_path)).model_dump(mode="json")
    assert whole["name"] == read_recipe(ROOT / "recipes/attention-forms.toml").name
    own = ("attention", "window", "half_width", "selection")
    seen = set()
    for form, options in module.FORMS.items():
        found = read_recipe(module.variant(form, tmp_path)).model_dump(mode="json")
        assert found.pop("name") == form
        given = {name: found["model"].pop(name) for name in own}
        assert {name: given[name] for name in options} == options
        seen.add(tuple(given.values()))
        Seq2Seq(Seq2SeqConfig(9, d_model=8, max_length=found["model"]["max_length"], **given))
        wanted = {**whole, "model": {**whole["model"]}}
        for name in own:
            del wanted["model"][name]
        del wanted["name"]
        assert found == wanted
    assert len(seen) == len(module.FORMS) == 12


def test_other_translators_read_the_same_tokens(tmp_path):
    module = example()

    def options(path):
        found = read_recipe(path).model_dump(mode="json")
        del found["training"]["optimizer"]["learning_rate"]  # a model may need its own
        return found

    whole = options(module.RECIPE)
    for name in module.OTHERS:
        found = options(module.variant(name, tmp_path))
        assert found.pop("name") == name
        assert found.pop("model")["max_length"] == whole["model"]["max_length"]
        assert found == {key: whole[key] for key in whole if key not in ("name", "model")}


def test_the_variants_of_positions_differ_from_the_recipe_in_them_alone(tmp_path):
    module = example("positions")
    whole = read_recipe(module.variant("sinusoidal", tmp_path)).model_dump(mode="json")
    assert whole["name"] == read_recipe(ROOT / "recipes/positions.toml").name
    for kind in module.KINDS:
        found = read_recipe(module.variant(kind, tmp_path)).model_dump(mode="json")
        assert found["model"].pop("positions") == found.pop("name") == kind
        wanted = {**whole, "model": {**whole["model"]}}
        del wanted["model"]["positions"], wanted["name"]
        assert found == wanted
