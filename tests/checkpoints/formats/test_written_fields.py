"""Every option of a published model: config.json tells it, or another value is not published.

Of all families: `regard.checkpoints.formats.bert`, `regard.checkpoints.formats.gpt`,
`regard.checkpoints.formats.t5`, `regard.checkpoints.formats.transformer` and
`regard.checkpoints.formats.transformer_xl`, by tables of `regard.checkpoints.formats.config_table`.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from models.test_registry import TINY, V

from regard.checkpoints.formats import LAYOUTS, layout_of
from regard.checkpoints.formats.encoder_layout import EncoderLayout
from regard.errors import ConfigError
from regard.models import model_class
from regard.models.check_config import config_of

TINIES = {model_class(name): options for name, options in TINY.items()}
# Beside those of the registry: options of the models that a family publishes.
OPTIONS: dict[str, dict[str, Any]] = {
    "umt5": {"bias_per_layer": True},
    "gpt_neo": {"layers": 3},
    "llama": dict(rope_scaling="llama3", rope_factor=8.0, rope_low_factor=2.0),
    "transfo-xl": dict(
        d_embedding=6, head_dim=3, cutoffs=(7, 12), divisor=2, memory_start="zeros", output="tied",
        tied_projections=(False, True, True), memory_length=16,
    ),
}  # fmt: skip
# What tensors tell, what only new models read, and what has no effect in these models.
ELSEWHERE = "output_bias init_scale choice_activation choice_dropout clip_distance".split()
OF_T5 = "bos eos decoder_layers scale_output tied".split()  # its layout writes them
SAME = ("key_value_heads", "d_embedding", "head_dim")  # for None theirs has the number


def layouts():
    for name in LAYOUTS:
        layout: Any = layout_of(name)
        under_heads = getattr(layout, "heads", None)
        several = [layout, under_heads] if isinstance(under_heads, EncoderLayout) else [layout]
        yield from ((name, one) for one in several)


def others(hint: Any, value: Any) -> list[Any]:
    """Further values of an option."""
    if get_origin(hint) is Literal:
        return [one for one in get_args(hint) if one not in (value, "none")]
    if hint is bool:
        return [not value]
    if hint is int:
        return [1, 4] if value is None else [value + 2]
    if hint is float:
        return [0.25 if not value else value / 2]
    if hint is type(None):
        return [None] if value is not None else []
    is_union = get_origin(hint) in (Union, UnionType)
    return [one for part in get_args(hint) if is_union for one in others(part, value)]


@pytest.mark.parametrize(("name", "layout"), list(layouts()))
def test_an_option_is_published_just_where_it_is_read_again(name, layout):
    hints, table = get_type_hints(layout.model.Config), layout.config
    elsewhere = {*ELSEWHERE, *OF_T5 * ("t5" in name)}
    options = TINIES[layout.model][0] | OPTIONS.get(name, {})
    base = layout.model.Config(vocab_size=V, **options)
    assert table.can_write(base)
    for field in fields(base):
        for value in others(hints[field.name], getattr(base, field.name)):
            try:
                config = replace(base, **{field.name: value})
                config_of(type(base), vars(config), "")
            except ValueError:  # which no model has
                continue
            try:
                read = table.read(json.loads(json.dumps(table.write(config))))
            except (KeyError, ConfigError):  # theirs has no such value
                read = {field.name: "another value"}
            same = field.name in {*read, *elsewhere - table.only.keys()} and all(
                one == getattr(config, key) or (value is None and key in SAME)
                for key, one in read.items()
            )
            assert table.can_write(config) == same, (field.name, value)


def test_projections_of_transformer_xl_are_shared_by_default_by_all_clusters_but_the_first():
    table, config = layout_of("transfo-xl").config, {"vocab_size": 9, "cutoffs": [3, 5]}
    assert table.read(config)["tied_projections"] == (False, True, True)
    config["proj_share_all_but_first"] = False
    assert table.read(config)["tied_projections"] == (False, False, False)
    assert table.read({**config, "tie_projs": [True] * 3})["tied_projections"] == (True,) * 3
    with pytest.raises(ConfigError, match="`tie_projs` must be a list of at most 3"):
        table.read({**config, "tie_projs": [True] * 4})
