"""Convolutional translators: layers that cannot be, steps beyond the source, and the start."""

from __future__ import annotations

import pytest
import torch

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.conv_seq2seq import ByteNet, ByteNetConfig, ConvSeq2Seq, ConvSeq2SeqConfig

WORDS = 17
SHAPES = {
    "even widths": dict(encoder=((3, 6),) * 2, decoder=((3, 6),) * 2),
    "other widths": dict(encoder=((1, 4), (5, 7)), decoder=((2, 5), (4, 5), (1, 8))),
    "wider than the text": dict(encoder=((9, 6),), decoder=((8, 6),), tied=True),
}


def tiny(shape="other widths", **options):
    torch.manual_seed(0)
    sizes = dict(d_model=6, dropout=0.3, max_length=9)
    model = ConvSeq2Seq(ConvSeq2SeqConfig(WORDS, **sizes | SHAPES[shape] | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases are no longer 0, nor norms those of the start
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.double()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(encoder=((2, 4),)), "must be odd, to have a middle: 2"),
        (dict(encoder=()), "`encoder` must have at least one layer"),
        (dict(decoder=()), "`decoder` must have at least one layer"),
    ],
)
def test_layers_that_cannot_be_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**options)


# ---- bytenet

LONG_SOURCES = [[5, 6, 7, 2], [8], [9, 10, 11, 12, 13, 14, 2], [4, 2]]
BYTENETS = {
    "relu": dict(dilations=(1, 2, 4), sets=1),
    "multiplicative": dict(unit="multiplicative", dilations=(1, 3), sets=1, kernel=5),
    "two sets, many columns": dict(sets=2, length_ratio=1.7, extra_columns=3),
    "fewer columns than words": dict(length_ratio=0.3, kernel=1),
}


def bytenet(shape="relu", **options):
    torch.manual_seed(0)
    sizes = dict(d_model=6, dilations=(1, 2), dropout=0.3)
    model = ByteNet(ByteNetConfig(WORDS, **sizes | BYTENETS[shape] | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model.double()


@pytest.mark.parametrize("shape", BYTENETS)
@torch.no_grad()
def test_steps_go_on_when_the_source_is_used_up(shape):
    model, source = bytenet(shape), Sequences.of(LONG_SOURCES, 0)
    target = torch.randint(3, WORDS, (4, 23), generator=torch.Generator().manual_seed(2))
    whole = model.head.logits(model(source, Sequences.full(target)).hidden)
    state, found = model.read(source), []
    assert state.columns.values.size(3) < 23
    for count in (1, 1, 5, 1, 9, 1, 1, 4):
        at = state.read.longest
        scores, state = model.step(target[:, at : at + count], state)
        found.append(scores)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(d_model=7), "`d_model` must be even, but is 7"),
        (dict(kernel=2), "`kernel` must be odd"),
        (dict(sets=5001), "must make at most 10,000 blocks, but make 15,003"),
        (dict(dilations=()), "`dilations` must name at least one"),
    ],
)
def test_blocks_that_cannot_be_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        bytenet(**options)


@pytest.mark.parametrize("sets", [1, 6])
@torch.no_grad()
def test_at_the_start_words_and_columns_are_of_one_size(sets):
    """Of their sum, which enters the decoder, neither hides the other."""
    torch.manual_seed(3)
    model = ByteNet(ByteNetConfig(WORDS, 64, dilations=(1, 2, 4, 8, 16), sets=sets))
    columns = model.read(Sequences.of(LONG_SOURCES[2:3], 0)).columns.values[
        :, 0, 0, : len(LONG_SOURCES[2])
    ]
    ratio = columns.square().mean().sqrt() / model.embedding.weight.square().mean().sqrt()
    assert 0.5 < ratio < 2
