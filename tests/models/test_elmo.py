"""ELMo against its equations, written word by word in float64, and the authors' fixture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from random_weights import randomized
from torch import Tensor
from torch.nn import functional as F

from regard.data.batches import Sequences
from regard.errors import RegardError
from regard.models.elmo import Elmo, ElmoConfig
from regard.text import train
from regard.text.tokenizer import OpenVocabulary

TEXTS = ["the cat sat on the mat", "the dog sat", "a green apple"]
SMALL = dict(
    d_model=10, d_cell=7, d_character=3, filters=((1, 4), (2, 3), (5, 4)), word_length=12,
    dropout=0.0,
)  # fmt: skip
VARIANTS = {
    "as published": {},
    "tight clips": dict(cell_clip=0.15, projection_clip=0.05),
    "no clips": dict(cell_clip=None, projection_clip=None),
    "no residual": dict(residual=False),
    "three layers": dict(layers=3),
    "one layer, tanh, no highway": dict(layers=1, activation="tanh", highway_layers=0),
    "no projection": dict(filters=((2, 2), (3, 3))),
}
SENTENCES = [
    "the zebra , naïve and éléphantine : 日本語 !",
    "cat",
    "antidisestablishmentarianism the",
    " ".join(["mat"] * 40 + [f"w{i}" for i in range(30)]),
]


def tokenizer() -> OpenVocabulary:
    return OpenVocabulary.of(train("words", TEXTS, vocab_size=12))


def build(name: str = "as published", **options) -> Elmo:
    torch.manual_seed(3)
    config = ElmoConfig(tokenizer().vocab_size, **{**SMALL, **VARIANTS[name], **options})
    model = randomized(Elmo(config).eval(), 0.3)
    model.embedding.weight.data[0] = 0
    return model


def batch_of(model: Elmo, texts, words) -> Sequences:
    template = model.template(words)
    rows = [template.apply([ids]).ids for ids in words.encode_many(list(texts))]
    return model.complete(Sequences.of(rows, model.config.pad), words)


# ---- the equations, for one sequence in float64


def spelled(text: str, length: int) -> list[list[int]]:
    """The published ids: bytes 0..255, then <S>, </S>, <W>, </W>, <pad>; one more for all."""
    found = []
    for word in [256, *text.split(), 257]:
        inner = [word] if isinstance(word, int) else list(word.encode("utf-8"))[: length - 2]
        row = [258, *inner, 259]
        found.append([c + 1 for c in row + [260] * (length - len(row))])
    return found


class Naive:
    """The model's weights in float64, and its equations in loops."""

    def __init__(self, model: Elmo):
        self.config = model.config
        self.w = {n: p.detach().double().requires_grad_() for n, p in model.named_parameters()}

    def word(self, characters: list[int]) -> Tensor:
        config, w = self.config, self.w
        vectors = w["words.characters.embedding.weight"][characters].T  # (D, characters)
        filters = []
        for n, (width, count) in enumerate(config.filters):
            name = f"words.characters.convolutions.{n}"
            kernel, bias = w[f"{name}.weight"], w[f"{name}.bias"]
            assert kernel.shape[::2] == (count, width)
            filters.append(F.conv1d(vectors[None], kernel, bias)[0].amax(1))
        x = torch.cat(filters)
        x = x.relu() if config.activation == "relu" else x.tanh()
        for n in range(config.highway_layers):
            name = f"words.highways.{n}"
            carry = (w[f"{name}.gate.weight"] @ x + w[f"{name}.gate.bias"]).sigmoid()
            new = w[f"{name}.transform.weight"] @ x + w[f"{name}.transform.bias"]
            x = carry * new.relu() + (1 - carry) * x
        if "words.projection.weight" in w:
            x = w["words.projection.weight"] @ x + w["words.projection.bias"]
        return x

    def direction(self, side: str, words: list[Tensor], state=None):
        """Hidden states of each layer, and the state after the last word."""
        config, layers, after = self.config, [], []
        for n in range(config.layers):
            w = {k.removeprefix(f"{side}.{n}."): v for k, v in self.w.items()}
            zeros = torch.zeros(config.d_model // 2).double(), torch.zeros(config.d_cell).double()
            hidden, cell = state[n] if state else zeros
            outputs = []
            for x in words:
                gates = w["input.weight"] @ x + w["input.bias"] + w["recurrent.weight"] @ hidden
                i, f, g, o = gates.split(config.d_cell)
                cell = clipped(f.sigmoid() * cell + i.sigmoid() * g.tanh(), config.cell_clip)
                hidden = w["projection.weight"] @ (o.sigmoid() * cell.tanh())
                hidden = clipped(hidden, config.projection_clip)
                outputs.append(hidden + x if n and config.residual else hidden)
            words = outputs
            layers.append(outputs)
            after.append((hidden, cell))
        return layers, after

    def __call__(self, text: str, state=None) -> tuple[list[Tensor], list]:
        """h_0 and every layer, (T, D), and the states of both directions."""
        words = [self.word(one) for one in spelled(text, self.config.word_length)]
        before = state or (None, None)
        ahead, ahead_end = self.direction("ahead", words, before[0])
        back, back_end = self.direction("back", words[::-1], before[1])
        found = [torch.stack([torch.cat([x, x]) for x in words])]
        for forth, turned in zip(ahead, back, strict=True):
            pairs = zip(forth, turned[::-1], strict=True)
            found.append(torch.stack([torch.cat(pair) for pair in pairs]))
        return found, [ahead_end, back_end]

    def mix(self, layers: list[Tensor]) -> Tensor:
        shares = self.w["mix.scalars"].softmax(0)
        return self.w["mix.gamma"] * sum(s * h for s, h in zip(shares, layers, strict=True))


def clipped(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)


@pytest.mark.parametrize("name", VARIANTS)
def test_layers_and_mix_equal_the_equations_in_float64(name):
    model, words = build(name), tokenizer()
    naive, batch = Naive(model), batch_of(model, SENTENCES, words)
    layers, mixed = list(model.states(batch)), model.encode(batch)
    assert len(layers) == model.config.layers + 1
    for row, text in enumerate(SENTENCES):
        expected, _ = naive(text)
        for layer, wanted in zip([*layers, mixed], [*expected, naive.mix(expected)], strict=True):
            found = layer[row, : len(wanted)].double()
            torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-5)
    if name == "tight clips":  # which are reached
        assert layers[1].abs().max().item() == pytest.approx(0.05)


@pytest.mark.parametrize("name", ["as published", "tight clips", "one layer, tanh, no highway"])
def test_gradients_in_training_equal_those_of_the_equations(name):
    model, words = build(name).train(), tokenizer()
    naive, texts = Naive(model), SENTENCES[:3]
    batch = batch_of(model, texts, words)
    weights = torch.linspace(-1, 1, model.config.d_model)
    (model.encode(batch) * weights)[batch.keep].sum().backward()
    sum((naive.mix(naive(text)[0]) * weights.double()).sum() for text in texts).backward()
    for n, parameter in model.named_parameters():
        wanted = naive.w[n].grad
        if wanted is None:
            assert n.startswith("head.") and parameter.grad is None
            continue
        if n == "words.characters.embedding.weight":  # padding of words has no vector to learn
            wanted[0] = 0
        torch.testing.assert_close(parameter.grad.double(), wanted, atol=5e-5, rtol=5e-4)


def test_a_carried_state_goes_on_where_each_direction_ended():
    model, words = build(), tokenizer()
    naive, state, before = Naive(model), None, [None, None]
    for texts in (SENTENCES[:2], [SENTENCES[2], "a dog"], ["the cat sat", SENTENCES[0]]):
        layers, state = model.carried(batch_of(model, texts, words), state)
        for row, text in enumerate(texts):
            expected, before[row] = naive(text, before[row])
            for layer, wanted in zip(layers, expected, strict=True):
                found = layer[row, : len(wanted)].double()
                torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-5)
    assert state.rows == 2


def test_a_state_is_used_once_and_an_empty_row_keeps_its_own():
    model, words = build(), tokenizer()
    _, state = model.carried(batch_of(model, SENTENCES[:2], words))
    kept = state.copy()
    some = batch_of(model, ["the cat", "dog"], words)
    none = replace(some, lengths=torch.tensor([4, 0]))
    _, after = model.carried(none, state)
    assert torch.equal(after.forward.cell[1], kept.forward.cell[1])
    assert not torch.equal(after.forward.cell[0], kept.forward.cell[0])
    with pytest.raises(RegardError, match="was consumed"):
        model.carried(some, state)


def test_both_language_models_equal_the_equations_and_carry_their_state():
    model, words = build(), tokenizer()
    naive, texts = Naive(model), ["the cat sat on", "a zebra dog mat"]
    ahead = torch.tensor(words.encode_many(texts))
    whole = Sequences.full(torch.cat([ahead, ahead.flip(1)]))
    output = model(model.complete(whole, words))
    for row, text in enumerate(texts):
        characters = spelled(text, model.config.word_length)[1:-1]
        vectors = [naive.word(one) for one in characters]
        for side, at, order in (("ahead", row, 1), ("back", row + 2, -1)):
            wanted = torch.stack(naive.direction(side, vectors[::order])[0][-1])
            torch.testing.assert_close(output.hidden[at].double(), wanted, atol=2e-6, rtol=2e-5)
    state, hidden = None, []
    for part in (slice(0, 3), slice(3, 4)):
        piece = Sequences.full(whole.ids[:, part])
        found = model(model.complete(piece, words), state)
        state, hidden = found.state.detach(), [*hidden, found.hidden]
    torch.testing.assert_close(torch.cat(hidden, 1), output.hidden, atol=1e-6, rtol=1e-5)


# ---- words


# ---- options


def test_published_sizes_have_the_published_numbers_of_parameters():
    """allennlp.org/elmo: 93.6, 28.0 and 13.6 million."""
    expected = {"original": 93.6, "medium": 28.0, "small": 13.6}
    for name, millions in expected.items():
        with torch.device("meta"):
            model = Elmo(ElmoConfig(10, output="none", **Elmo.SIZES[name]))
        count = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("mix."))
        assert round(count / 1e6, 1) == millions


# ---- the authors' fixture


def test_the_top_layer_equals_the_authors_fixture(shared):
    """Three streams of ten sentences: batches of one sentence of each, the state carried."""
    h5py = pytest.importorskip("h5py")
    from regard.checkpoints.formats import elmo

    folder = shared("elmo_fixtures/tests/fixtures/model")  # of the authors' bilm-tf
    model = elmo.read(folder).eval()
    words = model.input_tokenizer(elmo.read_tokenizer(folder))
    streams = json.loads((folder / "lm_embeddings_sentences.json").read_text())
    files = [h5py.File(folder / f"lm_embeddings_{n}.hdf5", "r") for n in range(3)]
    state, from_zeros = None, []
    for number in range(10):
        batch = batch_of(model, [stream[number] for stream in streams], words)
        with torch.no_grad():
            layers, state = model.carried(batch, state)
            *_, zeros = model.states(batch)
        for row, file in enumerate(files):
            wanted = torch.from_numpy(file[str(number)][()])  # (2, words, 16)
            inside = slice(1, int(batch.lengths[row]) - 1)
            found = layers[-1][row, inside]
            assert (found - torch.cat([*wanted], -1)).abs().max() < 1e-6
            from_zeros.append(float((zeros[row, inside] - found).abs().max()))
    assert max(from_zeros[:3]) == 0.0 and min(from_zeros[3:]) > 0.01
