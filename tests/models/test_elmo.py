"""ELMo's carried state, its published sizes, and the authors' fixture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

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
SENTENCES = [
    "the zebra , naïve and éléphantine : 日本語 !",
    "cat",
    "antidisestablishmentarianism the",
    " ".join(["mat"] * 40 + [f"w{i}" for i in range(30)]),
]


def tokenizer() -> OpenVocabulary:
    return OpenVocabulary.of(train("words", TEXTS, vocab_size=12))


def build() -> Elmo:
    torch.manual_seed(3)
    config = ElmoConfig(tokenizer().vocab_size, **SMALL)
    model = Elmo(config).eval()
    with torch.no_grad():  # biases of zero hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.embedding.weight[0] = 0
    return model


def batch_of(model: Elmo, texts, words) -> Sequences:
    template = model.template(words)
    rows = [template.apply([ids]).ids for ids in words.encode_many(list(texts))]
    return model.complete(Sequences.of(rows, model.config.pad), words)


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


def test_published_sizes_have_the_published_numbers_of_parameters():
    """allennlp.org/elmo: 93.6, 28.0 and 13.6 million."""
    expected = {"original": 93.6, "medium": 28.0, "small": 13.6}
    for name, millions in expected.items():
        with torch.device("meta"):
            model = Elmo(ElmoConfig(10, output="none", **Elmo.SIZES[name]))
        count = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("mix."))
        assert round(count / 1e6, 1) == millions


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
