"""Kinds of positions in a configuration: what they change, how models with them are stored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
import torch
from random_weights import new_model, randomized
from torch import nn

from regard import ops
from regard.attention.relative import (
    RelativePositions,
    absolute_positions,
    relative_positions,
)
from regard.checkpoints.model_folder import ModelFolder, exported, model_section
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.data.dependency_trees import with_trees
from regard.decoding import generate
from regard.errors import ConfigError, RegardError
from regard.models import MODELS, model_class, name_of
from regard.models.check_config import config_of
from regard.models.config import EncoderPositions
from regard.models.conversions import prepare
from regard.models.deberta import DisentangledPositions

SIZES = {
    "bert": dict(d_model=16, d_ff=16, heads=2, layers=2, max_length=12),
    "electra": dict(d_model=16, d_embedding=8, d_ff=16, heads=2, layers=2, max_length=12),
    "gpt2": dict(d_model=16, heads=2, layers=2, max_length=12, pad=0, bos=1, eos=2),
    "transformer": dict(d_model=16, d_ff=16, heads=2, encoder_layers=2, decoder_layers=2),
}
ENCODERS = ("bert", "electra")
KINDS = get_args(EncoderPositions)
DEFAULTS = dict.fromkeys(SIZES, "learned") | {"transformer": "sinusoidal"}
RELATIVE = ("shaw", "t5", "transformer-xl")
WITH_RELATIONS = (*RELATIVE, "dependency-relative")


def build(name: str, positions: str):
    torch.manual_seed(0)
    return randomized(new_model(name, 20, positions=positions, **SIZES[name])).eval()


def batch(rows: int = 2, count: int = 7, length: int | None = None) -> Sequences:
    """The last sequence is shorter where a length is given. Each word depends on the one before."""
    lengths = torch.full((rows,), count)
    lengths[-1] = length or count
    given = Sequences(torch.randint(3, 20, (rows, count)), lengths)
    words = [list(range(n)) for n in lengths.tolist()]
    return with_trees(given, words, [[max(0, word - 1) for word in row] for row in words])


def kinds(name: str) -> list[str]:
    """Those that the model can have."""
    return [one for one in KINDS if name != "gpt2" or not one.startswith("dependency")]


@pytest.mark.parametrize(
    "name, positions", [(name, one) for name in (*ENCODERS, "transformer") for one in kinds(name)]
)
def test_the_order_of_tokens_counts_unless_there_are_no_positions(name, positions):
    model, given = build(name, positions), batch()
    turned = replace(given, ids=given.ids.flip(1))
    found, other = model.encode(given), model.encode(turned).flip(1)
    assert torch.allclose(found, other, atol=1e-5) == (positions == "none")


@pytest.mark.parametrize("positions", RELATIVE)
def test_texts_may_be_longer_than_those_of_learned_positions(positions):
    """Section 3.2 of Shaw et al. 2018; only learned absolute positions end somewhere."""
    assert build("gpt2", positions)(batch(1, 40).ids).hidden.isfinite().all()
    with pytest.raises(ValueError, match="has learned only 12 positions"):
        build("gpt2", "learned")(batch(1, 40).ids)


@pytest.mark.parametrize("name, positions", [(name, one) for name in SIZES for one in kinds(name)])
def test_a_folder_keeps_the_positions(name, positions, tmp_path):
    model = build(name, positions)
    config, tensors = exported(model)
    assert (config["model_type"] == "regard") == (positions != DEFAULTS[name])
    config["regard"] = model_section(model)
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    other = ModelFolder(tmp_path, config, None).model().eval()
    other = getattr(other, "encoder", other) if name in ENCODERS else other
    assert name_of(other) == name and other.config.positions == positions
    given = batch()
    assert torch.equal(other.encode(given), model.encode(given))


def test_unpadded_batches_are_for_absolute_positions():
    for positions in KINDS:
        model = build("bert", positions)
        given = batch(2, 12, 3)
        assert model.unpadded == (positions not in WITH_RELATIONS)
        if model.unpadded:
            found = given.unpadded().pad(model.encode(given.unpadded()))
            assert torch.allclose(found[given.keep], model.encode(given)[given.keep], atol=1e-5)
        else:
            with pytest.raises(RegardError, match="this one is unpadded"):
                model.encode(given.unpadded())


def accepted(name: str) -> dict[str, nn.Module]:
    """Models with the kinds of positions that they do not reject by name."""
    kind, found = model_class(name), {}
    for positions in KINDS:
        values = dict(vocab_size=20, d_model=16, heads=2, positions=positions, pad=1)
        try:
            found[positions] = kind(config_of(kind.Config, values, "config.json", ConfigError))
        except ConfigError as error:
            assert "`positions` must be" in str(error)
    return found


CHOOSING = [n for n in MODELS if "positions" in model_class(n).Config.__dataclass_fields__]


@pytest.mark.parametrize("name", CHOOSING)
def test_a_model_has_the_positions_that_it_names_or_rejects_them(name):
    """Models derived from another one inherit its options: none may ignore them.

    A model that has one kind alone may count its positions in its own way.
    """
    models = accepted(name)
    assert models.keys() & {"learned", "sinusoidal"}
    for positions, model in models.items() if len(models) > 1 else ():
        assert isinstance(model.positions, type(absolute_positions(model.config)))
        stacks = {type(one) for one in model.modules() if isinstance(one, RelativePositions)}
        configs = [replace(model.config, positions=one) for one in (positions, "none")]
        wanted = {type(relative_positions(config, 1)) for config in configs}
        wanted |= {DisentangledPositions}  # DeBERTa's, beside those of this option
        assert stacks and stacks <= wanted


@pytest.mark.skipif(not ops.load_kernels(), reason="needs the compiled kernels")
def test_quantized_models_with_relative_positions_say_that_they_are_not_compiled():
    prompts = Sequences.of([[4, 5, 6]], 0)
    quantized = prepare(build("gpt2", "shaw"))
    with pytest.warns(UserWarning, match="relative positions have no compiled form"):
        assert generate(quantized, prompts, max_tokens=3)


@pytest.mark.parametrize("positions", ["dependency-absolute", "dependency-relative"])
def test_a_translator_reads_the_trees_of_its_sources(positions):
    model, source, target = build("transformer", positions), batch(2, 7, 4), batch(2, 5)
    target = Sequences.full(target.ids)  # without trees
    found = model.head.logits(model(source, target).hidden)
    state = model.read(source)
    for step, token in enumerate(target.ids.split(1, 1)):
        scores, state = model.step(token, state)
        torch.testing.assert_close(
            scores[:, 0].log_softmax(-1), found[:, step].log_softmax(-1), atol=1e-5, rtol=1e-5
        )
    flat = with_trees(
        Sequences(source.ids, source.lengths), [[*range(7)], [*range(4)]], [[0] * 7, [0] * 4]
    )
    assert not torch.allclose(model(flat, target).hidden, model(source, target).hidden, atol=1e-4)
    with pytest.raises(RegardError, match="the batch has no extra"):
        model(Sequences.full(source.ids), target)
