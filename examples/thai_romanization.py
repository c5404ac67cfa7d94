"""A published LSTM with attention whose wiring no model of the package has: PyThaiNLP's `thai2rom`.

    pip install onnx onnxruntime pythainlp
    python examples/thai_romanization.py runs/thai2rom

It writes Thai names in Latin letters. `Romanizer` is its wiring, with parts of Regard; its weights
come from two ONNX files in the package `pythainlp`. The folder that is written is used as any
other after `register("thai-romanizer", Romanizer)`: with beams, in batches, with a picture
of its attention.

    source x -> embed -> LSTM in both directions -> memory h_j
    s_0 = [last state ahead; last state back]
    c_i = sum over j of softmax_j(s_(i-1) · W h_j) h_j
    s_i = LSTM([c_i; E y_(i-1)]) from zeros       p(y_i) = softmax(W_o s_i + b)

The published program gives each step of its decoder a state of zeros: what it has written reaches a
step through the query s_(i-1) and the last letter alone. (The bias of its score adds the same to
all positions, which the softmax removes.)
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from pathlib import Path

import tokenizers
import torch
from tokenizers import Regex, decoders, models, pre_tokenizers
from torch import Tensor, nn

import regard
from regard.attention.attend import General
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint
from regard.attention.selection import CrossAttentionStep
from regard.data.batches import Sequences
from regard.layers.linear import Linear
from regard.layers.recurrent import LSTM, BidirectionalStack
from regard.layers.softmax import Softmax
from regard.models.protocols import EncoderDecoder, Output
from regard.state import State
from regard.tasks import register
from regard.tasks.pair_tasks import Translator
from regard.text.tokenizer import Tokenizer

LONGEST = 100  # letters that the program writes at most
PARTS = ("encoder", "decoder")
READ = "source_embedding.weight"
# Tensors of letters that are written, and what stands there for all other letters.
WRITTEN = {"embedding.weight": 0.0, "head.weight": 0.0, "head.bias": -1e4}
SPECIAL = {"pad": "<PAD>", "unk": "<UNK>", "bos": "<start>", "eos": "<end>"}


@dataclass(frozen=True)
class RomanizerConfig:
    """Letters of both scripts are one vocabulary."""

    vocab_size: int
    d_model: int = 256  # of the decoder, and of both directions of the encoder together
    d_embedding: int = 128
    max_length: int | None = None  # no limit
    pad: int = 0
    bos: int = 2
    eos: int = 3


@dataclass
class RomanizerState(State):
    """The query of the next step, s (B, D), and the memory of the source."""

    hidden: Tensor
    source: SourceMemory


class Romanizer(nn.Module, EncoderDecoder[RomanizerState]):
    """See above."""

    Config = RomanizerConfig

    def __init__(self, config: RomanizerConfig):
        super().__init__()
        self.config = config
        width, letter = config.d_model, config.d_embedding
        self.source_embedding = nn.Embedding(config.vocab_size, letter)
        self.embedding = nn.Embedding(config.vocab_size, letter)
        self.encoder = BidirectionalStack(LSTM, letter, width, 1)
        self.score = General(width, width)
        self.cross_attention, self.capture = CrossAttentionStep(), CapturePoint("cross")
        self.gates = Linear(width + letter, 4 * width)  # i, f, g, o
        self.head = Softmax(width, config.vocab_size, tied=None, bias=True)

    def forward(self, source: Sequences, target: Sequences) -> Output:
        """See `EncoderDecoder`; both must be padded."""
        hidden, _ = self._decode(target.ids, self.read(source))
        return Output(hidden)

    def read(self, source: Sequences) -> RomanizerState:
        """The state before the first letter."""
        memory, ends = self.encoder(self.source_embedding(source.ids), source.lengths)
        first = ends[:, 0, : self.config.d_model]  # (B, L=1, hidden and cell) -> (B, D)
        keys = self.score.prepare(memory)[:, None, None]  # (B, S, D) -> (B, L=1, H=1, S, D)
        return RomanizerState(first, SourceMemory(keys, memory[:, None, None], source.lengths))

    def step(self, tokens: Tensor, state: RomanizerState) -> tuple[Tensor, RomanizerState]:
        """Logits (B, T, V) of the letter after each of the letters (B, T), and the next state."""
        state.consume()
        hidden, state = self._decode(tokens, state)
        return self.head.logits(hidden), state

    def _decode(self, ids: Tensor, state: RomanizerState) -> tuple[Tensor, RomanizerState]:
        """s (B, T, D) of each step, and the state after the last one."""
        attend, hidden = self.cross_attention(state.source, self.score, self.capture), state.hidden
        states = []
        for letter in self.embedding(ids).unbind(1):
            gates = self.gates(torch.cat([attend(hidden), letter], 1))
            i, _, g, o = gates.chunk(4, 1)  # f would multiply a cell of zeros
            hidden = o.sigmoid() * torch.tanh(i.sigmoid() * g.tanh())
            states.append(hidden)
        return torch.stack(states, 1), RomanizerState(hidden, state.source)


def main(folder: str) -> None:
    """Convert the weights, save them, and compare with the published program."""
    from pythainlp.transliterate.thai2rom_onnx import romanize

    register("thai-romanizer", Romanizer)
    published = corpus()
    regard.save(converted(published), folder)
    task = regard.load(folder)
    thai, latin = zip(*provinces(published), strict=True)
    ours = task.translate(thai, beams=1, max_tokens=LONGEST)
    theirs = [romanize(name) for name in thai]
    print(f"{sum(map(eq, ours, theirs))} of {len(thai)} names equal those of the program")
    for beams in (1, 4):
        found = task.translate(thai, beams=beams, max_tokens=LONGEST)
        wrong = sum(map(edits, found, latin)) / sum(map(len, latin))
        right = sum(map(eq, found, latin))
        print(f"beams={beams}: {right} of {len(thai)} right, character error rate {wrong:.1%}")


def corpus() -> Path:
    """The folder with the data of the installed `pythainlp`."""
    import pythainlp

    return Path(pythainlp.__file__).parent / "corpus"


def provinces(published: Path) -> list[tuple[str, str]]:
    """The names of Thailand's provinces, in Thai and in lower-case Latin letters."""
    with (published / "thailand_provinces_th.csv").open(encoding="utf-8") as file:
        return [(thai, latin.lower()) for thai, _, latin, _ in csv.reader(file)]


def converted(published: Path) -> Translator:
    """The task with the weights of `thai2rom`, whose files are in this folder."""
    letters = json.loads((published / "thai2rom_loader_onnx.json").read_text(encoding="utf-8"))
    encoder, decoder = (weights(published / f"thai2rom_{part}.onnx") for part in PARTS)
    return romanization(encoder, decoder, letters["char_to_ix"], letters["target_char_to_ix"])


def weights(file: Path) -> dict[str, Tensor]:
    """The tensors of an ONNX graph by name; those of its LSTM as "W", "R" and "B"."""
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(file).graph
    tensors = {one.name: torch.from_numpy(to_array(one).copy()) for one in graph.initializer}
    (lstm,) = (node for node in graph.node if node.op_type == "LSTM")
    return tensors | dict(zip("WRB", (tensors[name] for name in lstm.input[1:4]), strict=True))


def romanization(
    encoder: Mapping[str, Tensor],
    decoder: Mapping[str, Tensor],
    source: Sequence[str],
    target: Sequence[str],
) -> Translator:
    """The task with these weights.

    source, target: the letters of both sides in the order of their ids, `SPECIAL` among them.
    """
    vocabulary = [*source, *(letter for letter in target if letter not in source)]
    tokenizer = letter_tokenizer(vocabulary)
    ids = {role: vocabulary.index(SPECIAL[role]) for role in ("pad", "bos", "eos")}
    width, letter = decoder["linear.weight"].size(1), decoder["character_embedding.weight"].size(1)
    model = Romanizer(RomanizerConfig(len(vocabulary), width, letter, **ids))
    tensors = encoder_tensors(encoder) | decoder_tensors(decoder)
    known, places = tensors[READ], [vocabulary.index(letter) for letter in target]
    unknown = known[tokenizer.unk_id].expand(len(vocabulary) - len(known), -1)
    tensors[READ] = torch.cat([known, unknown])
    for name, missing in WRITTEN.items():
        rows = tensors[name].new_full((len(vocabulary), *tensors[name].shape[1:]), missing)
        rows[places] = tensors[name]
        tensors[name] = rows
    model.load_state_dict(tensors)
    return Translator(model.eval(), tokenizer.with_eos_template())


def letter_tokenizer(vocabulary: Sequence[str]) -> Tokenizer:
    """Each character is a token."""
    ids = {letter: number for number, letter in enumerate(vocabulary)}
    fast = tokenizers.Tokenizer(models.WordLevel(ids, SPECIAL["unk"]))
    fast.add_special_tokens(list(SPECIAL.values()))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    fast.decoder = decoders.Fuse()
    return Tokenizer(fast, "characters", SPECIAL, reads_special_tokens=False)


def encoder_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the embedding and of both directions, under our names."""
    ours = {READ: tensors["character_embedding.weight"]}
    for n, direction in enumerate(("ahead", "back")):
        prefix, biases = f"encoder.{direction}.0.", tensors["B"][n].chunk(2)
        ours[f"{prefix}input.weight"] = in_torch_order(tensors["W"][n])
        ours[f"{prefix}recurrent.weight"] = in_torch_order(tensors["R"][n])
        ours[f"{prefix}input.bias"] = in_torch_order(biases[0] + biases[1])
    return ours


def decoder_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the decoder, under our names; rows of letters in the order of the file."""
    biases = tensors["B"][0].chunk(2)
    return {
        "embedding.weight": tensors["character_embedding.weight"],
        "score.key.weight": tensors["attn.attn.weight"],
        "gates.weight": in_torch_order(tensors["W"][0]),
        "gates.bias": in_torch_order(biases[0] + biases[1]),
        "head.weight": tensors["linear.weight"],
        "head.bias": tensors["linear.bias"],
    }


def in_torch_order(gates: Tensor) -> Tensor:
    """The gates i, o, f, g of ONNX as torch's i, f, g, o."""
    i, o, f, g = gates.chunk(4)
    return torch.cat([i, f, g, o])


def edits(first: str, second: str) -> int:
    """The least number of insertions, deletions and replacements from one text to another."""
    row = list(range(len(second) + 1))
    for n, letter in enumerate(first, 1):
        before, row[0] = row[0], n
        for m, other in enumerate(second, 1):
            before, row[m] = row[m], min(before + (letter != other), row[m] + 1, row[m - 1] + 1)
    return row[-1]


if __name__ == "__main__":
    main(*sys.argv[1:])
