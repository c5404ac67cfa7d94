"""OpenNMT-py's recurrent translator, written with torch's own layers, and its weights as ours."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.checkpoints.opennmt import seq2seq_from_opennmt
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.errors import CheckpointError

SOURCE_WORDS, TARGET_WORDS, EMBEDDING, WIDTH, LAYERS = 11, 13, 6, 8, 2


class InputFeed(nn.Module):
    """The decoder's layers, named as theirs."""

    def __init__(self):
        super().__init__()
        widths = [EMBEDDING + WIDTH] + [WIDTH] * (LAYERS - 1)
        self.layers = nn.ModuleList(nn.LSTMCell(width, WIDTH) for width in widths)


class Theirs:
    """One sentence at a time: bidirectional encoder, input feeding, Luong's attention."""

    def __init__(self, kind: str):
        torch.manual_seed(0)
        self.kind = kind
        self.source = nn.Embedding(SOURCE_WORDS, EMBEDDING)
        self.target = nn.Embedding(TARGET_WORDS, EMBEDDING)
        self.encoder = nn.LSTM(EMBEDDING, WIDTH // 2, LAYERS, bidirectional=True)
        self.decoder = InputFeed()
        self.linear_in = nn.Linear(WIDTH, WIDTH, bias=False)
        self.linear_out = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.generator = nn.Linear(WIDTH, TARGET_WORDS)
        for part in (self.linear_in, self.linear_out, self.generator):
            nn.init.normal_(part.weight)

    def tensors(self, inner: str = "make_embedding.") -> dict[str, torch.Tensor]:
        found = {f"encoder.rnn.{name}": one for name, one in self.encoder.named_parameters()}
        found |= {f"decoder.rnn.{name}": one for name, one in self.decoder.named_parameters()}
        found[f"encoder.embeddings.{inner}emb_luts.0.weight"] = self.source.weight
        found[f"decoder.embeddings.{inner}emb_luts.0.weight"] = self.target.weight
        if self.kind == "general":
            found["decoder.attn.linear_in.weight"] = self.linear_in.weight
        found["decoder.attn.linear_out.weight"] = self.linear_out.weight
        found |= {f"generator.0.{name}": one for name, one in self.generator.named_parameters()}
        return {name: one.detach().clone() for name, one in found.items()}

    @torch.no_grad()
    def log_probs(self, source: list[int], target: list[int]) -> torch.Tensor:
        """(T, V), of the word after each of the target's."""
        memory, (hidden, cell) = self.encoder(self.source(torch.tensor(source)))
        joined = [
            [torch.cat([state[2 * n], state[2 * n + 1]]) for n in range(LAYERS)]
            for state in (hidden, cell)
        ]
        fed, out = torch.zeros(WIDTH), []
        for word in target:
            x = torch.cat([self.target.weight[word], fed])
            for n, layer in enumerate(self.decoder.layers):
                h, c = layer(x[None], (joined[0][n][None], joined[1][n][None]))
                joined[0][n], joined[1][n] = h[0], c[0]
                x = h[0]
            query = self.linear_in(x) if self.kind == "general" else x
            context = (memory @ query).softmax(0) @ memory
            fed = torch.tanh(self.linear_out(torch.cat([context, x])))
            out.append(self.generator(fed).log_softmax(-1))
        return torch.stack(out)


SOURCES = [[4, 5, 6, 7, 3], [8, 3], [9, 10, 4]]
TARGETS = [[2, 5, 6, 7], [2, 12, 8, 4], [2, 6, 6, 6]]


@pytest.mark.parametrize("kind", ["dot", "general"])
def test_converted_weights_give_the_log_probabilities_of_torch_layers(kind):
    theirs = Theirs(kind)
    model = seq2seq_from_opennmt(theirs.tensors())
    assert model.config.attention == kind and model.config.layers == LAYERS
    read = Sequences.of(SOURCES, pad=1)
    given = Sequences.full(torch.tensor(TARGETS) + SOURCE_WORDS)
    with torch.no_grad():
        found = model.head.logits(model(read, given).hidden).log_softmax(-1)
    assert found[..., :SOURCE_WORDS].max() < -1000
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected = theirs.log_probs(source, target)
        torch.testing.assert_close(found[row, :, SOURCE_WORDS:], expected, atol=1e-5, rtol=1e-5)


def test_converted_models_search_and_their_scores_are_those_of_torch_layers():
    theirs = Theirs("general")
    model = seq2seq_from_opennmt(theirs.tensors(inner=""))
    for source, found in zip(
        SOURCES, generate(model, Sequences.of(SOURCES, 1), beams=3, max_tokens=5), strict=True
    ):
        best = found[0]
        words = [token - SOURCE_WORDS for token in best.tokens]
        assert all(0 <= word < TARGET_WORDS for word in words)
        log_probs = theirs.log_probs(source, [2, *words])
        expected = sum(float(log_probs[t, word]) for t, word in enumerate(words))
        if best.finished:
            expected += float(log_probs[len(words), 3])
        assert best.log_prob == pytest.approx(expected, abs=1e-4)


def test_tensors_that_a_seq2seq_lacks_are_named():
    tensors = Theirs("general").tensors()
    with pytest.raises(CheckpointError, match="nothing for 1 of .*: encoder.bridge.0.weight"):
        seq2seq_from_opennmt(tensors | {"encoder.bridge.0.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="have no 'decoder.attn.linear_out.weight'"):
        seq2seq_from_opennmt(
            {name: one for name, one in tensors.items() if "linear_out" not in name}
        )
    gru = tensors | {"decoder.rnn.layers.0.weight_ih": torch.zeros(3 * WIDTH, EMBEDDING + WIDTH)}
    with pytest.raises(CheckpointError, match="has 3 gates, but an LSTM has 4"):
        seq2seq_from_opennmt(gru)
