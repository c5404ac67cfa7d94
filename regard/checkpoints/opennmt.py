"""Weights of OpenNMT-py's recurrent translators as a `Seq2Seq`.

    model = seq2seq_from_opennmt(tensors, bos=2, eos=3)

Its LSTMs with input feeding and dot or general attention (Luong et al. 2015) are `Seq2Seq` with
`first_state` = "encoder" and an output that is not tied. There are two vocabularies; here they are
one after the other: source words keep their ids, and the id of a target word is its own plus the
number of source words. No source word is ever generated. Gates are in the order i, f, g, o, as in
`torch.nn.LSTM`. docs/concepts/attention-forms.md has the table of names.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.errors import CheckpointError
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig

NEVER = -1e4  # the bias of words that are not generated
WORDS = ("embeddings.make_embedding.emb_luts.0.weight", "embeddings.emb_luts.0.weight")


def seq2seq_from_opennmt(
    tensors: Mapping[str, Tensor], *, bos: int = 2, eos: int = 3, pad: int = 1
) -> Seq2Seq:
    """The model with these weights: those of `model` and, as "generator.0…", of `generator`.

    Args:
        bos, eos: of the target vocabulary.  pad: of the source vocabulary.

    Raises:
        CheckpointError: a tensor is missing, or is of something that `Seq2Seq` does not have.
    """
    left = _Tensors(tensors)
    source, target = (left.embedding(side) for side in ("encoder", "decoder"))
    found = {"embedding.weight": torch.cat([source, target])}
    found |= _encoder(left)
    found |= _decoder(left, target.size(1))
    weight, bias = left.take("generator.0.weight"), left.take("generator.0.bias")
    found["head.weight"] = torch.cat([weight.new_zeros(len(source), weight.size(1)), weight])
    found["head.bias"] = torch.cat([bias.new_full((len(source),), NEVER), bias])
    left.check_all_taken()
    config = Seq2SeqConfig(
        vocab_size=len(source) + len(target),
        d_model=weight.size(1),
        layers=sum(name.startswith("decoder.gates.") for name in found) // 2 + 1,
        d_embedding=source.size(1),
        tied=False,
        first_state="encoder",
        attention="general" if "decoder.score.key.weight" in found else "dot",
        dropout=0.0,
        pad=pad,
        bos=len(source) + bos,
        eos=len(source) + eos,
    )
    model = Seq2Seq(config).eval()
    model.load_state_dict(found)
    return model


class _Tensors:
    """The tensors of a file that nothing has taken."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.left = dict(tensors)

    def take(self, *names: str) -> Tensor:
        """The one with one of these names."""
        for name in names:
            if name in self.left:
                return self.left.pop(name)
        raise CheckpointError(f"The weights have no {names[0]!r}: they are no LSTM of OpenNMT-py.")

    def embedding(self, side: str) -> Tensor:
        """Of the encoder or the decoder."""
        return self.take(*(f"{side}.{name}" for name in WORDS))

    def cell(self, start: str, end: str) -> tuple[Tensor, Tensor, Tensor]:
        """The weights of inputs and state, and the sum of the biases, of an LSTM layer."""
        parts = (self.take(f"{start}{name}{end}") for name in ("weight_ih", "weight_hh"))
        inputs, state = parts
        if inputs.size(0) != 4 * state.size(1):
            gates = inputs.size(0) // state.size(1)
            raise CheckpointError(f"{start}weight_ih{end} has {gates} gates, but an LSTM has 4.")
        return inputs, state, self.take(f"{start}bias_ih{end}") + self.take(f"{start}bias_hh{end}")

    def check_all_taken(self) -> None:
        """Check that each tensor has become one of ours."""
        if self.left:
            names = ", ".join(sorted(self.left)[:4])
            raise CheckpointError(
                f"`Seq2Seq` has nothing for {len(self.left)} of the tensors: {names}. It has LSTMs "
                "with input feeding, dot or general attention, no bridge and no copying."
            )


def _encoder(left: _Tensors) -> dict[str, Tensor]:
    found, n = {}, 0
    while f"encoder.rnn.weight_ih_l{n}" in left.left:
        for ours, ending in ((f"ahead.{n}", f"_l{n}"), (f"back.{n}", f"_l{n}_reverse")):
            inputs, state, bias = left.cell("encoder.rnn.", ending)
            found[f"encoder.{ours}.input.weight"] = inputs
            found[f"encoder.{ours}.input.bias"] = bias
            found[f"encoder.{ours}.recurrent.weight"] = state
        n += 1
    return found


def _decoder(left: _Tensors, d_embedding: int) -> dict[str, Tensor]:
    inputs, state, bias = left.cell("decoder.rnn.layers.0.", "")
    word, fed = inputs.split([d_embedding, inputs.size(1) - d_embedding], 1)
    found = {"decoder.words.weight": word, "decoder.words.bias": bias}
    found["decoder.gates.0.weight"] = torch.cat([fed, state], 1)
    n = 1
    while f"decoder.rnn.layers.{n}.weight_ih" in left.left:
        inputs, state, bias = left.cell(f"decoder.rnn.layers.{n}.", "")
        found[f"decoder.gates.{n}.weight"] = torch.cat([inputs, state], 1)
        found[f"decoder.gates.{n}.bias"] = bias
        n += 1
    found["decoder.combine.weight"] = left.take("decoder.attn.linear_out.weight")
    if "decoder.attn.linear_in.weight" in left.left:
        found["decoder.score.key.weight"] = left.take("decoder.attn.linear_in.weight").t()
    return found
