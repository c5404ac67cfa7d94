"""What tiny models and short programs compute, in few numbers, which tests/numbers.json stores.

`python tests/stored_numbers.py` writes the file: whoever changes what a model computes sees it in
the change, since the folders and reports of users rely on it. All is computed in double precision,
with weights that are not drawn, so that other computers get the same numbers.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from models import test_registry as registry
from torch import Tensor

from regard.attention.capture import CapturePoint, listening
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.errors import ConfigError
from regard.models import MODELS, model_class
from regard.models.encoder_with_heads import HEADS, EncoderWithHeads

FILE = Path(__file__).with_name("numbers.json")
Case = tuple[str, int]
# Options that no other tiny configuration has.
MORE: dict[str, dict[str, Any]] = {
    "transformer": dict(tied=False, source_vocab_size=23, scale_embedding=False),
    "transformer-prenorm": dict(activation="gelu", decoder_heads=4, decoder_d_ff=12, max_length=16),
    "bart": dict(activation="tanh", source_vocab_size=23, output_bias=True, decoder_heads=4),
    "bert": dict(activation="relu", head_dropout=0.4, tied=False),
    "roberta": dict(activation="relu", head_dropout=0.4, tied=False),
    "electra": dict(activation="relu", head_dropout=0.4, choice_activation="tanh", tied=False),
    "albert": dict(activation="relu", segments=3, tied=False),
    "distilbert": dict(activation="relu", sinusoidal=True, tied=False),
    "bigbird": dict(activation="relu", head_dropout=0.4, random_seed=3, block_size=1),
    "gpt": dict(activation="relu", choice_activation="tanh"),
    "gpt2": dict(activation="relu", head_dropout=0.4),
    "llama": dict(activation="gelu", feed_bias=True, rope_scaling="linear"),
    "xlnet": dict(summary="mean", summary_activation="relu", reuse_len=3),
    "bytenet": dict(kernel=5, dilations=(1, 3)),
    "lstm-seq2seq": dict(attention="dot", window="local-p", half_width=2),
    "show-attend-tell": dict(attention="hard", expected_share=0.3),
}
TARGET = registry.ids(3, 9)


@cache
def sines(count: int) -> Tensor:
    """Numbers of which no two are alike."""
    return torch.arange(1, count + 1, dtype=torch.float64).sin()


def digest(tensors: Iterable[Tensor]) -> float:
    """One number in which every element of the tensors counts, and its place."""
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    number = (flat + sines(2 ** len(flat).bit_length())[: len(flat)]).square().mean().sqrt()
    return float(f"{number:.9g}")


def new_model(case: Case) -> Any:
    """A model each of whose dropouts, scales and so on has a value of its own."""
    kind, (name, n) = model_class(case[0]), case
    options = registry.TINY[name][0] | MORE[name] if n < 0 else registry.TINY[name][n]
    config = kind.Config(vocab_size=registry.V, **options)
    numbers = [field for field, value in vars(config).items() if isinstance(value, float)]
    changes = {f: getattr(config, f) * (1.1 + 0.05 * at) + 0.02 for at, f in enumerate(numbers)}
    small = {f: 0.003 for f in numbers if f.endswith("_eps")}
    torch.manual_seed(0)
    return kind(replace(config, **changes | small))


@cache
def begun(case: Case) -> tuple[Any, float]:
    """A model that is filled, and the number of its initial weights."""
    model = new_model(case)
    initial = digest(model.parameters())
    return filled(model), initial


@cache
def stored() -> dict[str, Any]:
    """What the file holds."""
    return json.loads(FILE.read_text())


def filled(model: Any) -> Any:
    """The model with weights of which no two are alike."""
    model.double()
    with torch.no_grad():
        for n, weight in enumerate(model.parameters()):
            angles = 1 + 0.7 * n + 1.3 * torch.arange(weight.numel(), dtype=torch.float64)
            weight.copy_(0.5 * angles.sin().view_as(weight))
    return model


def passes(model: Any) -> list[Tensor]:
    """Hidden states of two passes, the second of which continues the first where a model can; of
    an encoder those of all layers.
    """
    if not hasattr(model, "step"):
        batch = registry.read_by(model, Sequences(registry.ids(3, 16), torch.tensor([16, 1, 11])))
        return [hidden[batch.keep] for hidden in model.states(batch)]
    if not model.continues:
        output = model(registry.source(), Sequences.full(TARGET))
        return [output.hidden, *output.extras.values()]
    output = model(TARGET)
    return [output.hidden, model(registry.ids(3, 5, seed=4), output.state).hidden]


def of_model(case: Case) -> dict[str, float]:
    """Initial weights, states in use, and the logits of an output layer."""
    model, initial = begun(case)
    states = passes(model.eval())
    numbers = {"initial": initial, "eval": digest(states)}
    if hasattr(model, "new_head"):
        batch = registry.read_by(model, registry.source())
        numbers["first"] = digest(model.states(batch, batch.first_tokens()))
    if hasattr(model, "step"):
        numbers["logits"] = digest([model.head.logits(states[0]).log_softmax(-1)])
    return numbers


def of_layers(case: Case) -> dict[str, float]:
    """States and gradients of a loss in training; an encoder's heads, new and in training."""
    model = begun(case)[0].train()
    model.zero_grad()
    torch.manual_seed(3)
    states = passes(model)
    loss = states[-1].square().sum()
    if hasattr(model, "step"):
        loss = model.head.loss(states[0].flatten(0, 1), TARGET.flatten(), 0.1)[0]
    loss.backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    numbers = {"gradient": digest([*states, loss[None], *gradients])}
    if not hasattr(model, "new_head") or case[1] > 0:
        return numbers
    batch = registry.read_by(model, registry.source(7))
    for kind in sorted(HEADS.keys() - {"span_search"}):
        torch.manual_seed(3)
        with suppress(ConfigError):
            head = model.new_head(kind, 3)
            numbers[f"new {kind} head"] = digest(head.parameters())
            whole = filled(EncoderWithHeads(model, {kind: head})).train()
            with torch.no_grad():
                numbers[f"{kind} head"] = digest([whole.scores(kind, batch)])
    return numbers


class Weights(registry.Recorder):
    """Keeps the attention weights of a pass."""

    def take(self, point: CapturePoint, weights: Tensor) -> None:
        super().take(point, weights)
        self.kept.append(weights)


@torch.no_grad()
def of_attention(case: Case) -> dict[str, float]:
    """Attention weights and states of a pass, in use and in training; logits step by step."""
    model, numbers = begun(case)[0], {}
    for mode in ("train", "eval"):
        listener = Weights(getattr(model, mode)())
        listener.kept = []
        token = listening.set(listener)
        torch.manual_seed(5)
        try:
            numbers[mode] = digest([*passes(model), *listener.kept])
        finally:
            listening.reset(token)
    if hasattr(model, "step"):
        prompts = Sequences.of([[4, 5, 6, 7], [8], [9, 10]], registry.PAD)
        state, scores = start(model, prompts if model.continues else registry.source())[0], []
        for tokens in TARGET.split((4, 1, 4), 1):
            logits, state = model.step(tokens, state.select(torch.tensor([2, 0, 1])))
            scores.append(logits.log_softmax(-1))
        numbers["steps"] = digest(scores)
    return numbers


def numbers_in(result: Any) -> Iterator[Tensor]:
    """All numbers of a result: of tensors, parameters, fields, texts and containers."""
    if isinstance(result, Tensor):
        sizes = torch.tensor([result.dim(), *result.shape])
        yield sizes
        values = (sizes if result.is_meta else result).detach().double()
        yield values.nan_to_num(0.5, 2.0, -3.0).asinh().flatten()
    elif isinstance(result, torch.nn.Module):
        yield from numbers_in(result.state_dict())
    elif is_dataclass(result):
        yield from numbers_in([getattr(result, field.name) for field in fields(result)])
    elif isinstance(result, str):
        yield torch.tensor([*map(ord, result), -1])
    elif isinstance(result, Iterable):
        parts = [*(result.items() if isinstance(result, dict) else result)]
        yield torch.tensor([len(parts)])
        for part in parts:
            yield from numbers_in(part)
    else:
        yield torch.tensor([-1.0 if result is None else float(result)])


def filled_with(*sizes: int) -> Tensor:
    """Numbers of which no two are alike."""
    angles = 1 + 1.3 * torch.arange(torch.Size(sizes).numel(), dtype=torch.float64)
    return angles.sin().view(sizes)


def texts(rows: int = 3) -> Sequences:
    """Up to three texts, of 7, 1 and 4 tokens."""
    return Sequences(registry.ids(rows, 7), torch.tensor([7, 1, 4])[:rows])


def of_program(part: str, name: str) -> list[float]:
    """What a program of tests/programs.toml gives: each number is of every 16th of its results."""
    names = dict(
        torch=torch, replace=replace, Sequences=Sequences, texts=texts, ids=registry.ids,
        x=filled_with, filled=filled, model=lambda name, n=0: filled(new_model((name, n))).eval(),
    )  # fmt: skip
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        names["patch"] = patch.setattr
        exec(PROGRAMS[part][name], names)
    return [digest(numbers_in(names["result"][start::16])) for start in range(16)]


PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())
ALL = [*dict.fromkeys((*registry.CASES, *registry.ENCODERS)), *((name, -1) for name in MORE)]
each_case = pytest.mark.parametrize("case", ALL, ids=registry.name_of)
PARTS: dict[str, Callable[[Case], dict[str, float]]] = {
    "models": of_model, "layers": of_layers, "attention": of_attention
}  # fmt: skip


def each_program(part: str) -> pytest.MarkDecorator:
    """Parametrize a test with the names of the programs of a part."""
    return pytest.mark.parametrize("name", PROGRAMS[part])


def sizes() -> dict[str, dict[str, dict[str, Any]]]:
    """The published sizes of all models, as JSON has them."""
    return json.loads(
        json.dumps({name: getattr(model_class(name), "SIZES", {}) for name in MODELS})
    )


def compare(part: str, case: Case) -> None:
    """Check what a part of a tiny model computes against the file."""
    expected = stored()[part].get(registry.name_of(case))
    meant = f"if the change is meant, python tests/{Path(__file__).name}"
    assert PARTS[part](case) == pytest.approx(expected, rel=1e-6), meant


def compare_program(part: str, name: str) -> None:
    """Check what a program gives against the file."""
    expected = stored()[f"programs of {part}"].get(name)
    meant = f"if the change is meant, python tests/{Path(__file__).name}"
    assert of_program(part, name) == pytest.approx(expected, rel=1e-6), meant


if __name__ == "__main__":
    NUMBERS = {p: {registry.name_of(case): of(case) for case in ALL} for p, of in PARTS.items()}
    for part, names in PROGRAMS.items():
        NUMBERS[f"programs of {part}"] = {name: of_program(part, name) for name in names}
    lines = json.dumps({"sizes": sizes(), **NUMBERS}, indent=1).replace("\n   ", " ")
    FILE.write_text(lines.replace("\n  }", " }") + "\n")
