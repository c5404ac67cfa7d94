"""The bidirectional LSTM over words and characters, against torch's own layers in float64."""

from __future__ import annotations

import pytest
import torch
from random_weights import randomized
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_twins import torch_lstm

from regard.data.batches import Sequences
from regard.layers.pooling import choice_of
from regard.models.bert import Bert
from regard.models.composed import Features
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.word_encoders import BiLSTM, BiLSTMConfig, KimCNN, KimCNNConfig
from regard.text import train

SMALL = dict(d_words=5, d_model=8, d_character=4, d_characters=6, word_length=9, dropout=0.0)
TEXTS = [["the", "cat", "sat"], ["a"], ["zebras", "the", "unheardofword", "é☃", "cat"]]


def tokenizer(vocabulary: int = 8):
    made = train("words", ["the cat sat on a mat the cat"], vocabulary)
    return made.with_roles({"sep": "<sep>"})


def build(characters: str, **options) -> BiLSTM:
    torch.manual_seed(1)
    config = BiLSTMConfig(tokenizer().vocab_size, characters=characters, **{**SMALL, **options})
    return randomized(BiLSTM(config).double().eval(), 0.3)


def batch_of(model: BiLSTM, texts: list[list[str]]) -> Sequences:
    reader = model.input_tokenizer(tokenizer())
    rows = [reader.encode(" ".join(words)).ids for words in texts]
    return model.complete(Sequences.of(rows, 0), reader)


def naive_word(model: BiLSTM, word: str) -> Tensor:
    """The vector of the characters of one word: marks of its ends around its bytes."""
    marked = [258, *word.encode()[:7], 259]
    ids = torch.tensor([[one + 1 for one in marked]])
    part = model.characters
    if model.config.characters == "lstm":
        _, (end, _) = torch_lstm(part.recurrent)(part.embedding(ids))
        return torch.cat([end[0, 0], end[1, 0]])
    padded = torch.cat([ids, torch.full((1, 9 - ids.size(1)), 261)], 1)  # as long as `word_length`
    return torch.tanh(part.convolutions[0](part.embedding(padded).mT).amax(2))[0]


@pytest.mark.parametrize("characters", ["lstm", "cnn", "none"])
def test_hidden_states_and_gradients_equal_those_of_torchs_layers(characters):
    model = build(characters)
    found = model.encode(batch_of(model, TEXTS))
    known = tokenizer()
    rows = []
    for words in TEXTS:
        vectors = []
        for word in words:
            id = known.encode(word).ids[0]
            outside = id == known.unk_id and characters != "none"
            vector = model.unknown if outside else model.embedding.weight[id]
            parts = [vector] if characters == "none" else [vector, naive_word(model, word)]
            vectors.append(torch.cat(parts))
        rows.append(torch.stack(vectors))
    lengths = torch.tensor([len(row) for row in rows])
    packed = pack_padded_sequence(
        nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths, True, enforce_sorted=False
    )
    lstm = torch_lstm(model.recurrent)
    wanted, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    keep = torch.arange(5) < lengths[:, None]
    torch.testing.assert_close(found[keep], wanted[keep])
    weights = torch.randn_like(found[keep])
    ours = [model.embedding.weight]
    if model.characters is not None:
        ours += [model.unknown, model.characters.embedding.weight]
    for one, other in zip(
        torch.autograd.grad((found[keep] * weights).sum(), ours),
        torch.autograd.grad((wanted[keep] * weights).sum(), ours),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


# ---- kim cnn

KIM = dict(d_words=5, filters=((1, 2), (2, 3), (4, 3)), dropout=0.0)
ROWS = [[3, 4, 5, 6, 7, 3], [8], [4, 4, 9]]


def kim_cnn(vectors: str = "non-static") -> KimCNN:
    torch.manual_seed(1)
    model = KimCNN(KimCNNConfig(10, vectors=vectors, **KIM)).double().eval()
    if model.frozen is not None:
        model.frozen.weight.data.normal_()
    return model


def naive(model: KimCNN, row: list[int]) -> Tensor:
    """c_t = relu(w · x_{t-(h-1)/2 : ...} + b), zeros outside of the text: (T, F)."""
    words = model.embedding.weight[row]
    if model.frozen is not None:
        words = words + model.frozen.weight[row]
    features = []
    for conv, (width, _) in zip(model.convolutions, model.config.filters, strict=True):
        padded = F.pad(words.T, ((width - 1) // 2, width // 2))
        features.append(F.conv1d(padded[None], conv.weight, conv.bias)[0].relu())
    return torch.cat(features).T


@pytest.mark.parametrize("vectors", ["non-static", "static", "multichannel"])
def test_features_and_gradients_equal_the_formula_in_any_batch(vectors):
    model, batch = kim_cnn(vectors), Sequences.of(ROWS, 0)
    found = model.encode(batch)
    learned = [p for p in model.parameters() if p.requires_grad]
    assert len(learned) == (6 if vectors == "static" else 7)
    sums: list[Tensor] = []
    for one, row in zip(found, ROWS, strict=True):
        torch.testing.assert_close(one[: len(row)], naive(model, row))
        sums.append(naive(model, row).square().sum())
    ours = torch.autograd.grad((found * batch.keep[..., None]).square().sum(), learned)
    for one, other in zip(ours, torch.autograd.grad(sum(sums), learned), strict=True):
        torch.testing.assert_close(one, other)


def test_classes_read_the_maximum_over_the_text():
    model = (
        EncoderWithHeads(kim_cnn(), {"classes": kim_cnn().new_head("classes", 3)}).double().eval()
    )
    scores = model.scores("classes", Sequences.of(ROWS, 0))
    for one, row in zip(scores, ROWS, strict=True):
        pooled = naive(model.encoder, row).amax(0)
        torch.testing.assert_close(one, model.heads["classes"].output(pooled))


# ---- features

SIZES = dict(d_model=8, d_ff=12, heads=2, layers=4, max_length=24)
BATCH = Sequences(
    torch.randint(5, 30, (3, 7), generator=torch.Generator().manual_seed(2)),
    torch.tensor([4, 7, 1]),
)


def encoder() -> Bert:
    torch.manual_seed(1)
    made = Bert(Bert.Config(30, **SIZES))
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.3)
    return made


@pytest.mark.parametrize(
    ("layers", "combine"), [(0, "concat"), ((1, 4), "sum"), (None, "concat"), (None, "mix")]
)
def test_features_equal_a_torch_bilstm_over_the_chosen_layers(layers, combine):
    inner = encoder().eval()
    options = dict(feature_layers=layers, combine=combine, d_model=6)
    model = Features.over(inner, "bert", options).eval()
    if combine == "mix":  # it starts as the mean of all layers
        known = choice_of(range(5), "mean")
    else:
        known = choice_of((-4, -3, -2, -1) if layers is None else layers, combine)
    feature, hidden = model.states(BATCH)
    wanted = known(inner.states(BATCH))
    torch.testing.assert_close(feature, wanted)
    packed = pack_padded_sequence(wanted, BATCH.lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(torch_lstm(model.recurrent)(packed)[0], batch_first=True)
    torch.testing.assert_close(hidden[BATCH.keep], expected[BATCH.keep], atol=1e-6, rtol=1e-5)
    assert torch.equal(model.encode(BATCH), hidden)


def test_the_encoder_of_features_is_frozen_and_without_dropout():
    model = Features.over(encoder(), "bert", dict(combine="mix", d_model=6, dropout=0.0)).train()
    assert model.training and not model.encoder.training
    hidden = model.encode(BATCH)
    assert torch.equal(hidden, model.encode(BATCH))
    hidden.square().sum().backward()
    frozen = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert frozen == {f"encoder.{name}" for name, _ in model.encoder.named_parameters()}
    assert (model.choice.scalars.grad != 0).all()
