"""Weights on disk: the name table is strict and reversible, a folder is complete or absent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.checkpoints import Names, keep, reorder, split, transpose
from regard.errors import CheckpointError

# ---- the name table ---------------------------------------------------------------------------

GPT2 = Names(
    [
        ("tokens.weight", "wte.weight"),
        ("positions.weight", "wpe.weight"),
        (
            tuple(f"layers.{{layer}}.attention.{p}.weight" for p in ("query", "key", "value")),
            "h.{layer}.attn.c_attn.weight",
            split(3, dim=1).then(transpose),
        ),
        (
            tuple(f"layers.{{layer}}.attention.{p}.bias" for p in ("query", "key", "value")),
            "h.{layer}.attn.c_attn.bias",
            split(3),
        ),
        ("layers.{layer}.attention.out.weight", "h.{layer}.attn.c_proj.weight", transpose),
        ("layers.{layer}.attention.out.bias", "h.{layer}.attn.c_proj.bias"),
        ("layers.{layer}.first.weight", "h.{layer}.mlp.c_fc.weight", transpose),
        ("layers.{layer}.first.bias", "h.{layer}.mlp.c_fc.bias"),
        ("layers.{layer}.second.weight", "h.{layer}.mlp.c_proj.weight", transpose),
        ("layers.{layer}.second.bias", "h.{layer}.mlp.c_proj.bias"),
        ("layers.{layer}.norm{n}.weight", "h.{layer}.ln_{n}.weight"),
        ("layers.{layer}.norm{n}.bias", "h.{layer}.ln_{n}.bias"),
        ("norm.weight", "ln_f.weight"),
        ("norm.bias", "ln_f.bias"),
    ],
    tied={"head.weight": "tokens.weight"},
    duplicates={"lm_head.weight": "wte.weight"},
    ignored=["h.{layer}.attn.bias"],
)


def ours(layers: int = 2, d: int = 4) -> dict[str, torch.Tensor]:
    """Our names for a small GPT-2, with random tensors."""
    shapes: dict[str, tuple[int, ...]] = {"tokens.weight": (7, d), "positions.weight": (5, d)}
    for i in range(layers):
        for part in ("query", "key", "value", "out"):
            shapes[f"layers.{i}.attention.{part}.weight"] = (d, d)
            shapes[f"layers.{i}.attention.{part}.bias"] = (d,)
        shapes |= {f"layers.{i}.first.weight": (8, d), f"layers.{i}.first.bias": (8,)}
        shapes |= {f"layers.{i}.second.weight": (d, 8), f"layers.{i}.second.bias": (d,)}
        for n in (1, 2):
            shapes |= {f"layers.{i}.norm{n}.{p}": (d,) for p in ("weight", "bias")}
    shapes |= {"norm.weight": (d,), "norm.bias": (d,)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    return tensors | {"head.weight": tensors["tokens.weight"]}


def test_names_fit_the_real_gpt2_both_ways():
    """Every published name of `transformers`' GPT-2 is met, and none is invented."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=4, n_head=2, n_positions=5, vocab_size=7, n_inner=8
    )
    published = transformers.GPT2Model(config).state_dict()
    mine = GPT2.read(published, ours())
    fused = published["h.1.attn.c_attn.weight"]  # (D, 3D), as Conv1D stores it
    assert torch.equal(mine["layers.1.attention.key.weight"], fused[:, 4:8].t())
    assert torch.equal(mine["head.weight"], published["wte.weight"])
    back = GPT2.write(mine)
    assert back.keys() == published.keys()
    assert all(torch.equal(back[name], published[name]) for name in back)


def test_export_then_import_is_identity():
    state = ours(layers=12)
    back = GPT2.read(GPT2.write(state), state)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("h.1.mlp.c_fc.bias"), r"missing: h\.1\.mlp\.c_fc\.bias"),
        (lambda p: p.update({"h.2.ln_1.bias": torch.zeros(4)}), r"extra: h\.2\.ln_1\.bias"),
        (lambda p: p.update({"ln_f.bias": torch.zeros(5)}), r"norm\.bias must be \(4,\), but is"),
        (lambda p: p.update({"h.0.attn.c_attn.bias": torch.zeros(4)}), r"no 3 equal parts"),
        (lambda p: p.update({"lm_head.weight": torch.zeros(7, 4)}), r"must equal wte\.weight"),
    ],
)
def test_each_misfit_is_refused_by_name(change, message):
    published = GPT2.write(ours())
    change(published)
    with pytest.raises(CheckpointError, match=message):
        GPT2.read(published, ours())


def test_duplicates_and_buffers_may_be_present():
    state = ours()
    published = GPT2.write(state)
    published["lm_head.weight"] = published["wte.weight"].clone()
    published["h.1.attn.bias"] = torch.ones(3, 3)
    assert torch.equal(GPT2.read(published, state)["norm.bias"], state["norm.bias"])


def test_export_refuses_what_the_table_does_not_know():
    with pytest.raises(CheckpointError, match=r"not in the table: gate\.weight"):
        GPT2.write(ours() | {"gate.weight": torch.zeros(1)})
    incomplete = ours()
    del incomplete["norm.bias"], incomplete["layers.0.attention.value.bias"]
    with pytest.raises(CheckpointError) as refused:
        GPT2.write(incomplete)
    assert "norm.bias" in str(refused.value)
    assert "layers.0.attention.value.bias" in str(refused.value)
    untied = ours() | {"head.weight": torch.zeros(7, 4)}
    with pytest.raises(CheckpointError, match=r"head\.weight must equal tokens\.weight"):
        GPT2.write(untied)


def test_gates_change_their_order():
    blocks = torch.arange(8.0).reshape(4, 2)
    table = Names([("gates", "ifoc", reorder((0, 1, 3, 2)))])
    mine = table.read({"ifoc": blocks}, {"gates": blocks})
    assert mine["gates"].tolist() == [[0, 1], [2, 3], [6, 7], [4, 5]]


@given(st.permutations(range(4)), st.integers(0, 1), st.integers(1, 3))
def test_transforms_undo_each_other(order, dim, width):
    tensor = torch.randn(4 * width, 4 * width)
    for change in (keep, transpose, reorder(order, dim), split(4, dim), split(4, dim).then(keep)):
        assert torch.equal(change.write(change.read([tensor]))[0], tensor)
    parts = list(tensor.chunk(4, dim))
    fused = split(4, dim).reversed()
    assert all(map(torch.equal, fused.write(fused.read(parts)), parts))
