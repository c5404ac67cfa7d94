"""Every model computes on a GPU what it computes on the CPU: losses, gradients, tokens, scores.

Where there is no GPU, a mock of one takes its place: it finds tensors on the wrong device. So
`test_on_a_gpu.py` runs them in a process of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

sys.path.append(str(Path(__file__).parents[1]))
from test_registry import (  # noqa: E402
    CASES,
    ENCODERS,
    PAD,
    build,
    hidden,
    ids,
    name_of,
    read_by,
    reads_source,
    source,
)

from regard import ops  # noqa: E402
from regard.data.batches import IGNORE, Sequences  # noqa: E402
from regard.decoding import generate
from regard.decoding.beam import Beam
from regard.decoding.loop import Greedy, Sampling
from regard.errors import ConfigError  # noqa: E402
from regard.models import name_of as models_name  # noqa: E402
from regard.models.encoder_with_heads import HEADS, EncoderWithHeads  # noqa: E402

GPU = torch.device("cuda") if torch.cuda.is_available() else None
# Sequences of steps by kernels that torch has for GPUs alone
ON_GPUS_ALONE = "lstm.torch", "gru.torch", "rnn.torch"
METHODS = {
    "greedy": Greedy(max_tokens=6),
    "sampling": Sampling(max_tokens=6, seed=2),
    "beam": Beam(size=3, n_best=2, max_tokens=6),
}
if GPU is None:  # the mock looks for tensors on the wrong device, of which a beam has the most
    METHODS = {"beam": METHODS["beam"]}


@pytest.fixture(autouse=True)
def gpu(no_kernels: None) -> Iterator[torch.device]:
    if GPU is not None:
        yield GPU
        return
    from mock_gpu import mock_gpu  # registers a second accelerator, which torch has no use for

    with mock_gpu() as device, ops.without(*ON_GPUS_ALONE):
        yield device


def on_the_cpu() -> AbstractContextManager[None]:
    """Inside, the mock is not asked about what the CPU computes."""
    return _disable_current_modes() if GPU is None else nullcontext()


@pytest.fixture(params=CASES, ids=name_of)
def model(request: Any) -> nn.Module:
    with on_the_cpu():
        return build(request.param).double()


@pytest.fixture(params=ENCODERS, ids=name_of)
def encoder(request: Any) -> nn.Module:
    with on_the_cpu():
        return build(request.param).double()


EXACT = dict(rtol=1e-8, atol=1e-9)
# Torch's kernel of weight normalization for GPUs takes the square root of a float64 in float32.
IN_FLOAT32 = dict(rtol=1e-5, atol=1e-6)


def assert_equal(found: Tensor | None, expected: Tensor | None, close: dict = EXACT) -> None:
    """On the CPU, and in float64, in which devices differ by rounding alone."""
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), **close)


def loss_of(model: nn.Module, device: torch.device | str) -> Tensor:
    target = ids(3, 8)
    labels = target[:, 1:].clone()
    labels[1, 4:] = IGNORE
    read = double(source()).to(device)
    states = hidden(model, target[:, :-1].to(device), read)
    loss, _ = model.head.loss(states.flatten(0, 1), labels.flatten().to(device), 0.1)
    return loss


def double(read: Sequences) -> Sequences:
    """With numbers of float64, where a source has numbers."""
    for name, extra in read.extras.items():
        if extra.is_floating_point():
            read.extras[name] = extra.double()
    return read


def test_losses_and_gradients(model: nn.Module, gpu: torch.device) -> None:
    there = deepcopy(model).to(gpu)
    with on_the_cpu():
        expected = loss_of(model, "cpu")
        expected.backward()
    found = loss_of(there, gpu)
    found.backward()
    assert found.device.type == gpu.type
    close = IN_FLOAT32 if GPU is not None and models_name(model) == "conv-seq2seq" else EXACT
    assert_equal(found, expected, close)
    for one, other in zip(there.parameters(), model.parameters(), strict=True):
        assert_equal(one.grad, other.grad, close)


@pytest.mark.skipif(GPU is None, reason="tests/training/test_compiling.py has it without a GPU")
def test_training_mode(model: nn.Module, gpu: torch.device) -> None:
    there = model.to(gpu).train()
    loss = loss_of(there, gpu)
    loss.backward()
    assert loss.isfinite().item()


@pytest.mark.parametrize("name", METHODS)
def test_decoding(model: nn.Module, gpu: torch.device, name: str) -> None:
    read = double(source()) if reads_source(model) else Sequences.of([[4, 5, 6], [7], [8, 9]], PAD)
    there = deepcopy(model).to(gpu)
    with on_the_cpu():
        expected = generate(model, read, METHODS[name])
    found = generate(there, read.to(gpu), METHODS[name])
    for row, other in zip(found, expected, strict=True):
        assert [h.tokens for h in row] == [h.tokens for h in other]
        torch.testing.assert_close([h.score for h in row], [h.score for h in other])


def test_states_of_encoders(encoder: nn.Module, gpu: torch.device) -> None:
    read = read_by(encoder, source(7))
    there = deepcopy(encoder).to(gpu)
    with on_the_cpu():
        expected = encoder.encode(read)
    assert_equal(there.encode(read.to(gpu)), expected)


@pytest.mark.skipif(GPU is None, reason="tests/training/test_compiling.py has it without a GPU")
def test_heads_of_encoders(encoder: nn.Module, gpu: torch.device) -> None:
    read = read_by(encoder, source(7))
    for kind in sorted(HEADS):
        try:
            head = encoder.new_head(kind, 3)
        except ConfigError:
            continue
        model = EncoderWithHeads(encoder, {kind: head.double()}).eval()
        there = deepcopy(model).to(gpu)
        expected, found = model.scores(kind, read), there.scores(kind, read.to(gpu))
        assert_equal(found, expected)
        expected.square().sum().backward()
        found.square().sum().backward()
        for one, other in zip(there.parameters(), model.parameters(), strict=True):
            assert_equal(one.grad, other.grad)
        model.zero_grad()


def test_an_index_by_its_weight(gpu: torch.device) -> None:
    """Of 50,000 weights, most of which are zero, with numbers at the sums."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(64, 50_000, generator=generator).pow(20)
    weights[torch.rand(weights.shape, generator=generator) < 0.7] = 0.0
    sums = weights.double().cumsum(-1) / weights.double().sum(-1, keepdim=True)
    for at in range(0, 50_000, 5_000):
        number = sums[:, at].clamp(max=1 - 2.0**-53)
        index = ops.weighted_index(weights.to(gpu), number.to(gpu)).cpu()
        assert (weights.gather(1, index[:, None]) > 0).all()
