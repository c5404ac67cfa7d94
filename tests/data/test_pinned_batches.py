"""The batches of a seed are those of earlier releases: a training goes on after an update."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
import torch

from regard.data import lm_streams as lm
from regard.data import pretraining as pre
from regard.data.corpus import Corpus
from regard.data.lm_streams import DocumentWindows, ParallelStreams, ShuffledBlocks
from regard.data.pretraining import MaskedTexts, MaskVocabulary, PairRows, WindowRows
from regard.data.sampler import Buckets, EpochSampler
from regard.data.token_arrays import TokenArray
from regard.errors import CheckpointError, ConfigError
from regard.tasks.permutation_language_modeling import PermutationOptions, PermutedStreams
from regard.text.templates import Template

DRAW = np.random.Generator(np.random.PCG64(3))
DOCUMENTS = TokenArray.of([DRAW.integers(10, 60, n).tolist() for n in (31, 1, 0, 47, 90, 20)], 60)
TEXT = DOCUMENTS.joined()
STARTS = np.unique([*DOCUMENTS.offsets, *range(0, 189, 7)])  # of sentences
HALF = np.arange(60) % 2 == 1
WORDS = MaskVocabulary(4, np.arange(10, 60), pre.WordStarts(HALF, np.arange(60) % 7 == 0))


def windows(**changed) -> DocumentWindows:
    given = dict(length=13, batch_size=4, seed=2) | changed
    return DocumentWindows(DOCUMENTS, **given)


def masked(rows, vocabulary=WORDS) -> MaskedTexts:
    return MaskedTexts(rows, Template.bert(1, 2), vocabulary, 0.3, None, 5)


def permuted(reuse=None, batch_size=2, sequence_length=17, **options) -> PermutedStreams:
    sizes = dict(batch_size=batch_size, sequence_length=sequence_length, reuse=reuse, seed=4)
    return PermutedStreams(TEXT, PermutationOptions(**options), **sizes)


def buckets(max_tokens=500, **options) -> Buckets:
    columns = DOCUMENTS, DOCUMENTS.reversed()
    return Buckets(columns, (9, None), seed=6, max_tokens=max_tokens, **options)


def pairs(length=24) -> pre.SentencePairs:
    return pre.SentencePairs(Corpus(DOCUMENTS, STARTS, STARTS), length=length, seed=8)


def sentences(**options) -> lm.BidirectionalStreams:
    text = lm.BidirectionalText.of(DOCUMENTS, 1, 2, 50, 3)
    return lm.BidirectionalStreams(text, **(dict(batch_size=3, sequence_length=10) | options))


EPOCHS = {
    "parallel": (lambda: ParallelStreams(TEXT, batch_size=4, sequence_length=9), 1692068034),
    "variable": (
        lambda: lm.VariableStreams(TEXT, batch_size=2, sequence_length=12, seed=1),
        2073343068,
    ),
    "blocks": (lambda: ShuffledBlocks(TEXT, batch_size=3, sequence_length=8, seed=1), 2489858314),
    "windows": (lambda: windows(smallest=3), 3086782361),
    "both directions": (lambda: sentences(restart_every=3), 426669755),
    "buckets": (lambda: buckets(max_tokens=100, pool=4), 3345515570),
    "no pools": (lambda: buckets(pool=None, batch_size=2), 3699457909),
    "masks": (lambda: masked(WindowRows(windows(pad=9))), 3046404311),
    "single masks": (
        lambda: masked(WindowRows(windows()), MaskVocabulary(4, WORDS.drawn)),
        3217630741,
    ),
    "pairs": (lambda: masked(PairRows(pairs(), 3)), 3662080762),
    "spans": (
        lambda: pre.CorruptedWindows(windows(smallest=2), range(99, 60, -1), 2, 1, 0),
        893303755,
    ),
    "permuted": (permuted, 811141317),
    "reused": (lambda: permuted(10, every=3, longest_span=3, both_directions=False), 4242852739),
}


def plain(value):
    """Tensors and dataclasses as lists and dicts."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    value = value._asdict() if isinstance(value, lm.WindowBatch) else value
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    return value if fields is None else {name: plain(part) for name, part in fields.items()}


@pytest.mark.parametrize("name", EPOCHS)
def test_batches_and_positions_are_those_of_earlier_releases(name):
    make, checksum = EPOCHS[name]
    data = make()
    batches = [[*map(plain, data.epoch(number))] for number in range(3)]
    assert zlib.crc32(repr((batches, data.identity())).encode()) == checksum


@pytest.mark.parametrize("name", EPOCHS)
def test_a_sampler_goes_on_anywhere_with_the_same_data_alone(name):
    data = EPOCHS[name][0]()
    whole = EpochSampler(data)
    positions = [json.loads(json.dumps(whole.position()))]
    came = []
    while whole.epoch < 2:
        came.append((plain(next(whole)), whole.epoch))
        positions.append(json.loads(json.dumps(whole.position())))
    assert [batch for batch, _ in came] == [
        *map(plain, [*data.epoch(0), *data.epoch(1)]),
        came[-1][0],
    ]
    other = EpochSampler(data)
    for at, position in enumerate(positions[:-1]):
        other.restore(position)
        assert other.position() == position
        assert [(plain(next(other)), other.epoch) for _ in came[at : at + 2]] == came[at : at + 2]
    for field in data.identity():
        with pytest.raises(CheckpointError, match=f"has {field} = 'x', but here"):
            other.restore(positions[0] | {field: "x"})
    for batch in (-1, len(data.epoch(0)) + 1):
        with pytest.raises(CheckpointError, match=f"is batch {batch} of epoch 0, which has"):
            other.restore(positions[0] | {"batch": batch})


def test_the_masks_of_a_text_depend_on_its_number_and_the_epoch_alone():
    def texts(size, epoch):
        data = masked(WindowRows(windows(batch_size=size, seed=size)))
        rows = ([*batch.texts.ids, *batch.labels] for batch in data.epoch(epoch))
        return sorted(bytes(row[row > 0].tolist()) for batch in rows for row in batch)

    assert texts(4, 0) == texts(3, 0) != texts(3, 1)


# Of the others, stored results have it.
LEAST = [
    (lambda **n: ShuffledBlocks(TEXT, seed=1, **n), dict(batch_size=1, sequence_length=1)),
    (lambda **n: lm.SlidingWindows(TEXT, window=1, **n), dict(batch_size=1, stride=1)),
]


def refused(make, option, wanted, **numbers):
    with pytest.raises(ConfigError, match=f"{option}.*{wanted}"):
        make(**numbers)


@pytest.mark.parametrize(("make", "least"), LEAST)
def test_the_least_numbers_are_taken_and_lower_ones_are_not(make, least):
    make(**least)
    for option, number in least.items():
        refused(make, option, number - 1, **least | {option: number - 1})


def test_a_text_that_is_exactly_as_long_as_its_rows_need_is_taken():
    count = len(TEXT.ids)
    assert len(ParallelStreams(TEXT, batch_size=count - 1, sequence_length=9)) == 1
    refused(ParallelStreams, "batch_size", count, text=TEXT, batch_size=count, sequence_length=9)
    two = TokenArray.of([[5, 6]])
    (pair,) = ShuffledBlocks(two, batch_size=1, sequence_length=1, seed=1).epoch(0)
    assert plain(pair) == dict(tokens=[[5]], targets=[[6]], fresh=True)
    refused(
        ShuffledBlocks, "", 1, text=TokenArray.of([[5]]), batch_size=1, sequence_length=1, seed=1
    )
    assert len(permuted(sequence_length=count).epoch(0)) == 1
    refused(permuted, "sequence_length", "less", sequence_length=count + 1)
    assert len(permuted(17).epoch(0)) == 11 and len(permuted(6).epoch(0)) == 29
    refused(permuted, "reuse_len", 18, reuse=18)
    refused(permuted, "reuse_len", 5, reuse=5)
    assert windows(smallest=13).count == 12
    refused(windows, "smallest", 14, smallest=14)
    refused(lm.SlidingWindows, "stride", 6, text=TEXT, window=5, stride=6)
