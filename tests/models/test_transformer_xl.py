"""Transformer-XL against files that transformers 4.35.2 made; see transformer_xl/make.py."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from regard.attention.carried_memory import CarriedMemory
from regard.checkpoints.formats import from_published, layout_for, to_published
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.errors import ConfigError
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.ops import load_kernels

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
def test_steps_through_a_published_model_with_same_length_equal_its_segments(name):
    model, found = of_file(name)
    if not model.config.same_length:
        return
    ids = torch.cat([found[f"ids_{n}"] for n in range(3)], 1)
    expected = torch.cat([found[f"log_probs_{n}"] for n in range(3)], 1)
    with torch.no_grad():
        state, said = model.empty(2), []
        for token in ids.unbind(1):
            scores, state = model.step(token[:, None], state)
            said.append(scores)
    torch.testing.assert_close(torch.cat(said, 1), expected, **CLOSE)


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


def test_three_segments_of_the_fixture_have_its_log_probabilities_and_memory(shared):
    folder = shared("fixtures/transformer_xl_tiny")
    config = json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", "pt") as file:
        model = from_published(config, {k: file.get_tensor(k) for k in file.keys()}).eval()  # noqa: SIM118
    state = None
    with safe_open(folder / "expected.safetensors", "pt") as file:
        for n in range(3):
            out = model(file.get_tensor(f"input_ids_{n}"), state)
            state, said = out.state, model.head.logits(out.hidden)
            torch.testing.assert_close(said, file.get_tensor(f"log_probs_{n}"), **CLOSE)
            last = state.newest[:, -1].transpose(0, 1)
            torch.testing.assert_close(last, file.get_tensor(f"memory_last_layer_{n}"), **CLOSE)


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


@torch.no_grad()
def test_with_memory_shares_the_weights_and_changes_memory_and_clamp():
    model, ids = tiny(memory_length=4), drawn(1, 30)
    longer = model.with_memory(30, max_distance=10)
    assert (longer.config.memory_length, longer.config.max_distance) == (30, 10)
    assert model.config.memory_length == 4
    assert all(a is b for a, b in zip(model.parameters(), longer.parameters(), strict=True))
    one = tiny(memory_length=30, max_distance=10)
    pieces = [7] * 4 + [2]
    torch.testing.assert_close(stepped(longer, ids, pieces)[0], stepped(one, ids, pieces)[0])
    assert model.with_memory(0).config.memory_length == 0


@pytest.mark.parametrize("field", ["d_embed", "d_model", "d_inner"])
def test_sizes_beyond_the_weights_are_rejected_before_a_model_is_built(field):
    config, weights, _ = opened("clamped")
    with pytest.raises(ConfigError, match=f"`{field}` must be at most"):
        from_published(config | {field: 2**27, "n_head": 1, "d_head": 2**27}, weights)


def test_training_through_a_memory_equals_a_pass_without_gradient_into_it():
    """The second segment's loss, its memory taken as constants, in float64."""
    model, ids = tiny(memory_length=6).double(), drawn(2, 12)
    first, second = ids[:, :6], ids[:, 6:]
    out = model(second, model(first).state)
    hidden = [h for h in model.states(Sequences.full(ids))]
    torch.testing.assert_close(out.hidden, hidden[-1][:, 6:])
    grads = torch.autograd.grad(out.hidden.square().sum(), model.embedding.tables[0].weight)
    words = {int(i) for i in grads[0].abs().sum(1).nonzero()}
    assert words == {int(i) for i in second.flatten() if i < 9}


def test_compiled_decoding_says_that_a_memory_has_no_compiled_form():
    from regard.kernels.build import kernels
    from regard.models.conversions import prepare
    from regard.models.wrappers import generator

    if not load_kernels() or kernels() is None:
        pytest.skip("no compiled kernels")
    model, plain = prepare(tiny(memory_length=5)), tiny(memory_length=5)
    source = Sequences.of([[4, 5, 6]], 0)
    with pytest.warns(UserWarning, match="TransformerXL is not compiled .* CarriedMemory has no"):
        found = generate(model, source, max_tokens=4)
    assert len(found[0][0].tokens) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        generate(model, source, max_tokens=4)
    scores = [one.step(drawn(1, 6), one.empty(1))[0] for one in (generator(model), plain)]
    torch.testing.assert_close(scores[0], scores[1], atol=0.3, rtol=0.1)
