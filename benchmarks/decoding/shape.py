"""The shapes that are decoded, and their random weights, which all sides read from one folder."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cache import cached


@dataclass(frozen=True)
class Shape:
    """A GPT-2 of this shape continues `rows` prompts of `prompt` tokens by `new` tokens each."""

    width: int = 768
    heads: int = 12
    layers: int = 12
    vocab_size: int = 50257
    length: int = 1024
    rows: int = 1
    prompt: int = 16
    new: int = 128

    def prompts(self) -> list[list[int]]:
        """Random tokens, always the same."""
        draw = random.Random(1)
        return [
            [draw.randrange(self.vocab_size) for _ in range(self.prompt)] for _ in range(self.rows)
        ]

    @property
    def tokens(self) -> int:
        """New tokens altogether."""
        return self.rows * self.new

    @property
    def matrices(self) -> int:
        """Weights that are read for a token: those of the layers' matrices and of the output."""
        return 12 * self.layers * self.width**2 + self.vocab_size * self.width

    def settings(self) -> dict[str, int]:
        """As a worker gets it."""
        return asdict(self)

    def folder(self, cache: Path) -> Path:
        """Weights of this shape, written once by `transformers`."""
        name = f"gpt2-{self.width}x{self.layers}-{self.vocab_size}-{self.length}-numbers"
        return cached(cache / name, lambda made: _write(self, made))


def _write(shape: Shape, path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=None,
        eos_token_id=None,  # nothing ends early
    )
    GPT2LMHeadModel(config).save_pretrained(path)
    write_numbers(path, shape.vocab_size)


def write_numbers(folder: Path, vocab_size: int, special: Sequence[str] = ()) -> None:
    """A tokenizer whose vocabulary is the numbers of its tokens: "0 17 4" -> [0, 17, 4].

    special: names of the first tokens, in place of their numbers.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = [*special, *(str(i) for i in range(len(special), vocab_size))]
    vocabulary = {name: i for i, name in enumerate(names)}
    numbers = Tokenizer(models.WordLevel(vocabulary, unk_token=names[-1]))
    numbers.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    numbers.add_special_tokens(list(special))
    numbers.save(str(folder / "tokenizer.json"))
