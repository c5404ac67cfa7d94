"""The bidirectional LSTM over words and characters, against torch's own layers in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.data.batches import Sequences
from regard.models.word_encoders import BiLSTM, BiLSTMConfig
from regard.text import train

SMALL = dict(d_words=5, d_model=8, d_character=4, d_characters=6, word_length=9, dropout=0.0)
TEXTS = [["the", "cat", "sat"], ["a"], ["zebras", "the", "unheardofword", "é☃", "cat"]]


def tokenizer(vocabulary: int = 8):
    made = train("words", ["the cat sat on a mat the cat"], vocabulary)
    return made.with_roles({"sep": "<sep>"})


def build(characters: str, **options) -> BiLSTM:
    torch.manual_seed(1)
    config = BiLSTMConfig(tokenizer().vocab_size, characters=characters, **{**SMALL, **options})
    model = BiLSTM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch_of(model: BiLSTM, texts: list[list[str]]) -> Sequences:
    reader = model.input_tokenizer(tokenizer())
    rows = [reader.encode(" ".join(words)).ids for words in texts]
    return model.complete(Sequences.of(rows, 0), reader)


def torch_lstm(part, d_in: int, d_model: int) -> nn.LSTM:
    """torch's bidirectional LSTM of one level with the weights of ours."""
    made = nn.LSTM(d_in, d_model // 2, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for layer, end in ((part.ahead[0], ""), (part.back[0], "_reverse")):
            getattr(made, f"weight_ih_l0{end}").copy_(layer.input.weight)
            getattr(made, f"weight_hh_l0{end}").copy_(layer.recurrent.weight)
            getattr(made, f"bias_ih_l0{end}").copy_(layer.input.bias)
            getattr(made, f"bias_hh_l0{end}").zero_()
    return made


def naive_word(model: BiLSTM, word: str) -> Tensor:
    """The vector of the characters of one word: marks of its ends around its bytes."""
    marked = [258, *word.encode()[:7], 259]
    ids = torch.tensor([[one + 1 for one in marked]])
    part = model.characters
    if model.config.characters == "lstm":
        _, (end, _) = torch_lstm(part.recurrent, 4, 6)(part.embedding(ids))
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
    lstm = torch_lstm(model.recurrent, rows[0].size(1), 8)
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


def test_words_outside_of_the_vocabulary_differ_by_their_characters():
    for characters, differ in (("lstm", True), ("cnn", True), ("none", False)):
        model = build(characters)
        found = model.static(batch_of(model, [["zebra", "walrus"]]))
        assert torch.equal(found[0, 0], found[0, 1]) != differ
