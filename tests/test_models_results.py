"""What `regard.models` gives is what it gave before: tests/results/models.json.

Tiny models have weights that are not drawn, and compute in double precision, so that other
computers get the same numbers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from models import test_registry as registry
from stored_results import check, digest, each_section, stored
from torch import Tensor

from regard.data.batches import Sequences
from regard.models import MODELS, model_class

Case = tuple[str, int]
ids = registry.ids

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
TARGET = ids(3, 9)
ALL = [*dict.fromkeys((*registry.CASES, *registry.ENCODERS)), *((name, -1) for name in MORE)]


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


def numbers_of(case: Case) -> dict[str, float]:
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


def x(*sizes: int) -> Tensor:
    """Numbers of which no two are alike."""
    angles = 1 + 1.3 * torch.arange(torch.Size(sizes).numel(), dtype=torch.float64)
    return angles.sin().view(sizes)


def texts(rows: int = 3) -> Sequences:
    """Up to three texts, of 7, 1 and 4 tokens."""
    return Sequences(registry.ids(rows, 7), torch.tensor([7, 1, 4])[:rows])


def model(name: str, n: int = 0) -> Any:
    """A tiny model in use."""
    return filled(new_model((name, n))).eval()


def cases(name: str) -> list[Case]:
    """All tiny configurations of a model."""
    return [case for case in ALL if case[0] == name]


def of_model(name: str) -> dict[str, dict[str, float]]:
    """The numbers of all tiny configurations of a model."""
    return {registry.name_of(case): numbers_of(case) for case in cases(name)}


def test_every_model_has_a_section():
    for folder in ("models", "layers", "attention"):
        assert stored(folder).keys() >= MODELS.keys()


@each_section("models")
def test_statements_give_what_they_gave_before(section):
    check("models", section)
