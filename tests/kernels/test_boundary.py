"""Arguments of the compiled kernels are checked, and their exceptions become Python errors."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_weights import new_model

from regard import ops
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.errors import RegardError
from regard.kernels import signatures
from regard.kernels.compiled_models import CompiledEncoder, CompiledGenerator
from regard.layers import quantized
from regard.layers.quantized import Panels
from regard.models.conversions import prepare

DRAWN = Path(__file__).with_name("drawn.py")
ERRORS = (RegardError, IndexError)


# ---- every function, in a process of its own


@pytest.mark.slow("regard/kernels")
@pytest.mark.parametrize("kind, threads", [("fast", "1"), ("fast", "3"), ("plain", "2")])
def test_random_arguments_give_the_right_result_or_an_error(libraries, kind, threads):
    command = [sys.executable, str(DRAWN), "1", "4", kind, threads]  # `make sanitize` draws 25
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    last = (done.stdout.splitlines() or ["nothing"])[-1]
    assert done.returncode == 0, f"{done.stderr[-3000:]}\nthe last call was {last}"


def test_every_exported_function_has_a_signature():
    sources = signatures.__file__.replace("signatures.py", "cpp")
    text = "\n".join(path.read_text() for path in sorted(Path(sources).iterdir()))
    defined = set(re.findall(r"^(?:extern \"C\" )?[\w ]+[ *]+(regard_\w+)\(", text, re.M))
    known = {*signatures.FUNCTIONS, *signatures.FLAGS, "regard_error_message", "regard_threads"}
    assert defined == known


def test_structures_have_the_size_of_those_in_the_kernels(libraries):
    own = [ctypes.sizeof(one) for one in signatures.STRUCTURES]
    for library in libraries.values():
        pairs = zip(signatures.sizes(library), own, strict=True)
        assert all(found in (size, -1) for found, size in pairs)


# ---- what an error says


@pytest.mark.parametrize("kind", ["fast", "plain", None])
def test_ids_out_of_range_raise_an_error_with_and_without_kernels(use, kind):
    use(kind)
    packed = torch.zeros(2, 16, 16, 4, dtype=torch.uint8)  # 20 lines, 60 columns
    for wrong in (-1, -17, 20, 31, 1 << 40):
        with pytest.raises(IndexError, match="from 0 to 19"):
            quantized.quantized_rows(
                torch.tensor([3, wrong]), Panels(packed, torch.ones(20), (20, 60))
            )
        with pytest.raises(IndexError, match="from 0 to 8" if kind else "out of bounds"):
            ops.negative_log_likelihood(torch.randn(2, 9), torch.tensor([0, wrong]))


# ---- steps of decoders


SIZES = dict(d_model=64, heads=2)


PAIR = dict(d_ff=64, encoder_layers=1, decoder_layers=2)
DECODERS = {"gpt2": dict(layers=2, max_length=40), "transformer": PAIR}


def decoder(name):
    torch.manual_seed(2)
    return CompiledGenerator(prepare(new_model(name, 50, **SIZES, **DECODERS[name]).eval()))


def started(model):
    state, tokens = start(model, Sequences.of([[3, 4, 5], [1], [7, 8]], 0))
    _, state = model.step(tokens, state)
    return state, tokens


MALFORMED_CACHES = {
    "lengths below 0": lambda c: replace(c, lengths=c.lengths - 9),
    "huge lengths": lambda c: replace(c, lengths=c.lengths + (1 << 40)),
    "fewer lengths": lambda c: replace(c, lengths=c.lengths[:1]),
    "more lengths": lambda c: replace(c, lengths=c.lengths.repeat(5)),
    "int32 lengths": lambda c: replace(c, lengths=c.lengths.int()),
    "negative longest": lambda c: replace(c, longest=-5),
    "fewer lines": lambda c: replace(c, keys=c.keys[:1], values=c.values[:1]),
    "fewer values": lambda c: replace(c, values=c.values[:1]),
    "fewer positions": lambda c: replace(c, keys=c.keys[..., :1, :], values=c.values[..., :1, :]),
    "fewer layers": lambda c: replace(c, keys=c.keys[:, :1], values=c.values[:, :1]),
    "fewer heads": lambda c: replace(c, keys=c.keys[:, :, :1], values=c.values[:, :, :1]),
    "narrower heads": lambda c: replace(c, keys=c.keys[..., :8], values=c.values[..., :8]),
    "flattened": lambda c: replace(c, keys=c.keys[0], values=c.values[0]),
    "other strides": lambda c: replace(c, values=c.values.transpose(0, 1).clone().transpose(0, 1)),
    "float64": lambda c: replace(c, keys=c.keys.double(), values=c.values.double()),
    "an origin out of range": lambda c: with_origin(c, 77),
    "an origin below 0": lambda c: with_origin(c, -1),
}


def with_origin(part, line):
    cache = hasattr(part, "equal_lengths")
    shape = (len(part.lengths), part.keys.size(3)) if cache else (len(part.lengths),)
    return replace(part, origin=torch.full(shape, line))


@pytest.mark.parametrize("malformed", MALFORMED_CACHES)
@pytest.mark.parametrize("part", ["gpt2", "cache", "source"])
def test_a_malformed_state_causes_no_read_out_of_bounds(use, part, malformed):
    use("fast")
    model = decoder("gpt2" if part == "gpt2" else "transformer")
    state, tokens = started(model)
    change = MALFORMED_CACHES[malformed]
    if part == "source" and malformed == "negative longest":
        return
    worse = change(state) if part == "gpt2" else replace(state, **{part: change(vars(state)[part])})
    try:
        model.step(tokens, worse.copy())
    except (*ERRORS, RuntimeError, ValueError, AttributeError):
        pass  # of torch's own path too, which takes what the kernels leave
    fresh, tokens = started(model)
    assert model.step(tokens, fresh)[0].isfinite().all()


# ---- texts


def test_texts_with_invalid_lengths_or_ids_raise_an_error(use):
    use("fast")
    torch.manual_seed(0)
    sizes = dict(d_model=32, d_ff=32, heads=2, layers=2, max_length=20)
    model = CompiledEncoder(prepare(new_model("bert", 60, **sizes).eval()))
    texts = Sequences.of([[3, 4, 5], [1, 2]], 0)
    wanted = model.encode(texts)
    for lengths in ([9, 2], [-1, 2], [3, 1 << 40], [3]):
        with pytest.raises((*ERRORS, RuntimeError)):
            model.encode(Sequences(texts.ids, torch.tensor(lengths)))
    for ids in (texts.ids + 60, texts.ids - 9):
        with pytest.raises((*ERRORS, RuntimeError)):
            model.encode(Sequences(ids, texts.lengths))
    assert torch.equal(model.encode(texts), wanted)


# ---- what kernels throw
