"""What the training of tasks on encoders has beside the loss of their head: a second objective, a
threshold that is fitted on the validation data, and word vectors that others trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.data import Sequences
from regard.data.word_vectors import PretrainedVectors, read_word_vectors
from regard.errors import ConfigError, DataError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.text import Tokenizer


@dataclass(frozen=True)
class AuxiliaryLM:
    """The auxiliary objective of fine-tuning: lambda L_1 of equation 5 (Radford et al. 2018).

    head: the model's own over the vocabulary.  weight: lambda, included in the reported loss.
    """

    head: Any
    weight: float

    @classmethod
    def of(cls, model: EncoderWithHeads, weight: float) -> AuxiliaryLM | None:
        """The objective of a model; None where the weight is 0.

        Raises:
            ConfigError: the model does not predict the next token.
        """
        if not weight:
            return None
        encoder: Any = model.encoder
        if not encoder.is_causal:
            raise ConfigError(
                "[objective] `aux_lm_weight` needs a model that predicts the next token, such "
                f"as gpt2, but {type(encoder).__name__} does not. Leave it out."
            )
        any_state = next(encoder.parameters()).new_zeros(1, encoder.config.d_model)
        encoder.head.logits(any_state)  # raises an error without a head
        return cls(encoder.head, weight)

    @staticmethod
    def count(texts: Sequences) -> int:
        """The predicted tokens: all but the first of each sequence."""
        return int((texts.lengths - 1).clamp(min=0).sum())

    def loss(
        self, hidden: Tensor, texts: Sequences, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The weighted sum of -log p(next token) in nats, and the number of predicted tokens.

        count: of these tokens, where it is known.
        """
        targets = texts.next_ids().flatten()
        total, counted = self.head.loss(hidden.flatten(0, 1), targets, count=count)
        return self.weight * total, counted


class FittedThreshold:
    """A threshold that is fitted on validation data, by the weights of the head, which identify
    those of the model: the weights that a training saves at its end need not be those that were
    validated last.

    used: whether the threshold is fitted at all.
    """

    def __init__(self) -> None:
        self.used = False
        self._thresholds: dict[bytes, float] = {}

    def keep(self, head: nn.Module, threshold: float) -> float:
        """Keep the threshold for the weights that the head has now, and return it."""
        self._thresholds[_key(head)] = threshold
        return threshold

    def fit(self, head: nn.Module, validate: Callable[[], object]) -> float:
        """The threshold for the weights that the head has now; `validate` fits it where needed.

        It is 0.5 where it cannot be fitted, since scores are not finite.
        """
        if _key(head) not in self._thresholds:
            validate()
        return self._thresholds.get(_key(head), 0.5)


def _key(head: nn.Module) -> bytes:
    return b"".join(w.detach().float().cpu().numpy().tobytes() for w in head.parameters())


def vectors_for(path: Path, encoder: Encoder, tokenizer: Tokenizer) -> PretrainedVectors:
    """The vectors that a file has for the vocabulary, of the width of the encoder's own.

    Raises:
        ConfigError: the tokens are not words, the encoder has no vectors of words, or theirs have
            another width.
        DataError: the file is damaged, or has a vector for no word.
    """
    kind, name = type(encoder).__name__, "[data] `word_vectors`"
    if tokenizer.kind != "words":
        raise ConfigError(
            f'{name} needs words: set kind = "words" in [tokenizer], which is {tokenizer.kind!r}.'
        )
    if not encoder.word_tables:
        raise ConfigError(f"{name}: {kind} has no vectors of words. Leave it out.")
    numbers = [n for n in range(tokenizer.vocab_size) if n not in tokenizer.special_ids]
    vectors = read_word_vectors(path, list(map(tokenizer.token, numbers)))
    for table in encoder.word_tables:
        if table.embedding_dim != vectors.width:
            raise ConfigError(
                f"{name}: the vectors of {path} have width {vectors.width}, but those of {kind} "
                f"{table.embedding_dim}. Set `d_words` (of a model without it `d_model`), or name "
                "another file."
            )
    if not len(vectors.ids):
        problem = f"has none of the {vectors.words:,} words of the vocabulary."
        raise DataError(path, None, problem, "Is it of another language?")
    return replace(vectors, ids=torch.tensor(numbers)[vectors.ids])


@torch.no_grad()
def put(pretrained: PretrainedVectors, table: nn.Embedding) -> None:
    """Write pretrained vectors, (N, D), into a table, (V, D).

    Words that the file lacks keep their random vectors, scaled to the root mean square of those
    that it has (Kim 2014, section 4.3, asks for the same variance).
    """
    weight = table.weight
    others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    others[pretrained.ids.to(weight.device)] = False
    size = weight[others].square().mean().sqrt()
    if size > 0:  # NaN where there are no others
        weight[others] *= pretrained.vectors.square().mean().sqrt().to(weight.device) / size
    weight[~others] = pretrained.vectors.to(weight)
