"""The shapes that are decoded, and their random weights, which all sides read from one folder."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cache import cached


@dataclass(frozen=True)
class Shape:
    """A decoder of this shape continues `rows` prompts of `prompt` tokens by `new` tokens each.

    family: "gpt2", or "llama" with `shared` heads of keys and values.
    inner: the width of the feed-forward layer; None: four times `width`.
    """

    family: str = "gpt2"
    width: int = 768
    inner: int | None = None
    heads: int = 12
    shared: int = 12
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
        attention = 2 * self.width**2 * (1 + self.shared / self.heads)
        feed = (3 if self.family == "llama" else 2) * self.width * self.d_ff
        return round(self.layers * (attention + feed)) + self.vocab_size * self.width

    @property
    def d_ff(self) -> int:
        """The width of the feed-forward layer."""
        return self.inner or 4 * self.width

    def settings(self) -> dict[str, int]:
        """As a worker gets it."""
        return asdict(self)

    def folder(self, cache: Path) -> Path:
        """Weights of this shape, written once by `transformers`."""
        name = f"{self.family}-{self.width}x{self.layers}-{self.vocab_size}-{self.length}-numbers"
        return cached(cache / name, lambda made: _write(self, made))


def _write(shape: Shape, path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(1)
    never = dict(bos_token_id=None, eos_token_id=None)  # nothing ends early
    if shape.family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=shape.vocab_size,
            max_position_embeddings=shape.length,
            hidden_size=shape.width,
            intermediate_size=shape.d_ff,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.shared,
            tie_word_embeddings=True,
            **never,
        )
    else:
        config = transformers.GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.length,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            **never,
        )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
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
