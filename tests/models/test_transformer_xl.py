"""Transformer-XL against files that transformers 4.35.2 made; see transformer_xl/make.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from regard.attention.carried_memory import CarriedMemory
from regard.checkpoints.formats import from_published, layout_for, to_published
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.models.transformer_xl_variants import (
    SegaTransformerXL,
    SegaTransformerXLConfig,
)

HERE = Path(__file__).with_name("transformer_xl")
CASES = sorted(path.stem for path in HERE.glob("*.safetensors") if path.stem != "classifier")
CLOSE = dict(atol=1e-5, rtol=1e-5)


def opened(name: str) -> tuple[dict, dict[str, Tensor], dict[str, Tensor]]:
    """config.json, weights, and what the model computes."""
    with safe_open(HERE / f"{name}.safetensors", "pt") as file:
        config = json.loads(file.metadata()["config"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    weights = {k.removeprefix("model."): t for k, t in tensors.items() if k.startswith("model.")}
    return config, weights, {k: t for k, t in tensors.items() if not k.startswith("model.")}


def of_file(name: str) -> tuple[TransformerXL, dict[str, Tensor]]:
    config, weights, found = opened(name)
    return from_published(config, weights).eval(), found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("learning", [False, True])
def test_published_models_say_what_transformers_says(name, learning):
    model, found = of_file(name)
    state = None
    with torch.set_grad_enabled(learning):
        for n in range(3):
            out = model(found[f"ids_{n}"], state)
            said = model.head.logits(out.hidden)
            torch.testing.assert_close(said, found[f"log_probs_{n}"], **CLOSE)
            state = out.state
    if "memory" in found:
        torch.testing.assert_close(state.newest, found["memory"], **CLOSE)
    else:
        assert state.newest.size(2) == 0


@pytest.mark.parametrize("name", CASES)
def test_gradients_through_segment_and_memory_equal_those_of_transformers(name):
    model, found = of_file(name)
    if not any(key.startswith("gradient.") for key in found):
        return
    model.train()  # without dropout
    state = model(found["ids_0"]).state.detach()
    hidden = model(found["ids_1"], state).hidden
    loss, count = model.head.loss(hidden.flatten(0, 1), found["targets"].flatten())
    assert count == found["targets"].numel()
    loss.backward()
    named = dict(model.named_parameters(remove_duplicate=False))
    gradients = {key: named[key].grad for key in model.state_dict()}
    ours = layout_for(model).names_of(model).write(gradients)
    wanted = {k.removeprefix("gradient."): t for k, t in found.items() if "gradient." in k}
    assert wanted.keys() <= ours.keys()
    for key, gradient in wanted.items():
        torch.testing.assert_close(ours[key], gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*CASES, "classifier"])
def test_published_models_are_written_as_they_were_read(name):
    config, weights, _ = opened(name)
    again, tensors = to_published(from_published(config, weights))
    left_out = weights.keys() - tensors.keys()
    assert all("crit" in n or "inv_freq" in n or "dec_attn.r_" in n for n in left_out)
    for key, tensor in tensors.items():
        assert torch.equal(tensor, weights[key]), key
    named = again.keys() & config.keys() - {"pad_token_id"}
    assert {key: again[key] for key in named} == {key: config[key] for key in named}
    model, other = from_published(config, weights), from_published(again, tensors)
    assert model.config == other.config
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[key]), key


def test_a_published_classifier_reads_the_last_token():
    model, found = of_file("classifier")
    batch = Sequences(found["ids"], torch.tensor([4, 2, 1]))
    torch.testing.assert_close(model.scores("classes", batch), found["logits"], **CLOSE)


def test_same_length_without_a_memory_is_rejected():
    config, weights, _ = opened("no_memory")
    with pytest.raises(ConfigError, match="`mem_len` must be at least 1 where `same_length`"):
        from_published(config | {"same_length": True}, weights)


def test_a_model_that_starts_with_an_empty_memory_is_not_published():
    """Theirs attends to zeros where ours has nothing."""
    model = TransformerXL(TransformerXLConfig(vocab_size=9, d_model=8, heads=2, layers=1, d_ff=8))
    assert to_published(model) is None


# ---------------------------------------------------------------------- memory and decoding

V = 30


def tiny(**options) -> TransformerXL:
    torch.manual_seed(3)
    sizes = dict(vocab_size=V, d_model=16, d_ff=20, heads=2, layers=2, cutoffs=(9,), divisor=2)
    made = TransformerXL(TransformerXLConfig(**{**sizes, "dropout": 0.0, **options}))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.eval()


def drawn(rows: int, count: int) -> Tensor:
    return torch.randint(1, V, (rows, count), generator=torch.Generator().manual_seed(5))


def stepped(model: TransformerXL, ids: Tensor, pieces: list[int]) -> tuple[Tensor, CarriedMemory]:
    """Scores and the state after reading a text in pieces."""
    state, said = model.empty(len(ids)), []
    for piece in ids.split(pieces, 1):
        scores, state = model.step(piece, state)
        said.append(scores)
    return torch.cat(said, 1), state


@pytest.mark.parametrize(("count", "options"), [
    (2000, dict(memory_length=50, same_length=True, max_distance=20, layers=1)),
    (300, dict(memory_length=300)),
    (300, dict(memory_length=50, same_length=True, memory_start="zeros", norm="pre")),
], ids=["window", "everything", "window-of-zeros"])  # fmt: skip
@torch.no_grad()
def test_decoding_many_tokens_equals_one_pass(count, options):
    model, ids = tiny(**options), drawn(1, count)
    expected = model.head.logits(model(ids).hidden)
    found, state = stepped(model, ids, [1] * count)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert state.hidden.size(2) <= model.config.memory_length * 5 // 4 + 17
    torch.testing.assert_close(state.newest, model(ids).state.newest, **CLOSE)


@pytest.mark.parametrize("same_length", [False, True])
def test_kept_keys_change_nothing(same_length):
    """Reading segments with keys that are kept, and computing them again."""
    model, ids = tiny(memory_length=7, same_length=same_length, norm="pre"), drawn(3, 40)
    pieces = [5, 1, 1, 12, 3, 1, 9, 8]
    again, state = stepped(model, ids, pieces)
    assert not state.has_keys
    with torch.no_grad():
        kept, other = stepped(model, ids, pieces)
        assert other.has_keys
        torch.testing.assert_close(kept, again, **CLOSE)
        torch.testing.assert_close(other.newest, state.newest, **CLOSE)
        # a memory without keys, as training leaves it, goes on with keys
        mixed, _ = model.step(ids[:, :3], state)
        torch.testing.assert_close(mixed, model.step(ids[:, :3], other)[0], **CLOSE)


@torch.no_grad()
def test_a_token_sees_the_window_that_the_memory_implies():
    """In steps of one token through one layer: M positions and its own."""
    model, ids = tiny(memory_length=6, layers=1), drawn(1, 20)
    before = stepped(model, ids, [1] * 20)[0]
    changed = ids.clone()
    changed[0, 5] = 1 + ids[0, 5] % (V - 1)
    moved = (stepped(model, changed, [1] * 20)[0] != before).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == list(range(5, 12))
    model = tiny(memory_length=6, layers=1, same_length=True)
    before = model(ids).hidden
    moved = (model(changed).hidden != before).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == list(range(5, 11))


@pytest.mark.parametrize("field", ["d_embed", "d_model", "d_inner"])
def test_sizes_beyond_the_weights_are_rejected_before_a_model_is_built(field):
    config, weights, _ = opened("clamped")
    with pytest.raises(ConfigError, match=f"`{field}` must be at most"):
        from_published(config | {field: 2**27, "n_head": 1, "d_head": 2**27}, weights)


# ---- sega transformer xl

SEGA_V, D, HEADS, K = 20, 12, 2, 5
SIZES = dict(vocab_size=SEGA_V, d_model=D, d_ff=16, heads=HEADS, head_dim=K, dropout=0.0, eos=None)


def made(**options) -> SegaTransformerXL:
    torch.manual_seed(1)
    config = SegaTransformerXLConfig(**{**SIZES, "layers": 1, "memory_length": 20, **options})
    model = SegaTransformerXL(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.double().eval()


def test_numbers_are_counted_from_the_tokens_that_end_a_sentence_or_a_paragraph():
    model = made(sentence_ends=(3,), paragraph_ends=(4,), layers=2)
    ids = torch.tensor([[1, 3, 5, 4, 6, 3, 4, 7], [4, 4, 1, 2, 5, 6, 7, 8]])
    segment_numbers = torch.tensor([
        [[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [4, 2]],
        [[0, 0], [1, 1]] + [[2, 2]] * 6,
    ])  # fmt: skip
    expected = model(ids, None, segment_numbers).hidden
    torch.testing.assert_close(model(ids).hidden, expected)
    state = model(ids[:, :5]).state
    torch.testing.assert_close(model(ids[:, 5:], state).hidden, expected[:, 5:])
    other = model(ids, None, segment_numbers + 9).hidden  # only differences count
    torch.testing.assert_close(other, expected)
    assert not torch.allclose(model(ids, None, segment_numbers * 2).hidden, expected)
