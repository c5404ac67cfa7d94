"""The heads of fine-tuning: classes, tags, spans, masked tokens.

    scores = W drop(a(U drop(h)))        at every token, or at the token that represents a text

Families of models differ in the pooling, in the inner layer (BERT's pooler is one) and in dropout,
which are the arguments of one head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.dropout import Dropout
from regard.layers.feedforward import activation_of
from regard.layers.linear import Linear
from regard.layers.softmax import Softmax, without_ignored
from regard.suggest import nearest

# Hidden states (B, T, D), or unpadded (1, N, D), and their batch -> what a head reads.
PoolingFunction = Callable[[Tensor, Sequences], Tensor]


def every_token(hidden: Tensor, batch: Sequences) -> Tensor:
    """No pooling: (B, T, D) or (1, N, D), same."""
    return hidden


def first_token(hidden: Tensor, batch: Sequences) -> Tensor:
    """The first token of each sequence, BERT's [CLS]: (B, T, D) or (1, N, D) -> (B, D)."""
    return batch.first(hidden)


@dataclass(frozen=True)
class LastToken:
    """The last token of each sequence, GPT's [EXTRACT]: (B, T, D) or (1, N, D) -> (B, D).

    skip: tokens with this id at the end are skipped. `transformers` skips the padding id so, even
        where a text itself ends in it. None: none are skipped.
    """

    skip: int | None = None

    def __call__(self, hidden: Tensor, batch: Sequences) -> Tensor:
        if self.skip is None:
            return batch.last(hidden)
        counted = (batch.pad(batch.ids) != self.skip) & batch.keep  # (B, T)
        last = (counted * torch.arange(batch.width, device=hidden.device)).argmax(1)  # (B,)
        if batch.layout is not None:
            return hidden[0, batch.layout.offsets.starts[: len(batch)] + last]
        return hidden[torch.arange(len(batch), device=hidden.device), last]


last_token = LastToken()


@dataclass(frozen=True)
class LastTokenWithId:
    """The last token with one id in each sequence, BART's </s>: (B, T, D) or (1, N, D) -> (B, D).

    A sequence without it has the state of its last token.
    """

    id: int

    def __call__(self, hidden: Tensor, batch: Sequences) -> Tensor:
        has_id = (batch.pad(batch.ids) == self.id) & batch.keep  # (B, T)
        positions = torch.arange(batch.width, device=hidden.device)
        last = torch.where(has_id, positions, -1).amax(1)  # (B,)
        last = torch.where(last < 0, (batch.lengths - 1).clamp(min=0), last)
        return batch.pad(hidden)[torch.arange(len(batch), device=hidden.device), last]


def mean_of_tokens(hidden: Tensor, batch: Sequences) -> Tensor:
    """The mean over the tokens of each sequence: (B, T, D) or (1, N, D) -> (B, D)."""
    return batch.mean(hidden)


def max_of_tokens(hidden: Tensor, batch: Sequences) -> Tensor:
    """The maximum over the tokens of each sequence, or zeros: (B, T, D) -> (B, D)."""
    largest = batch.pad(hidden).masked_fill(~batch.keep[..., None], -torch.inf).amax(1)
    return largest.masked_fill((batch.lengths == 0)[:, None], 0.0)


@dataclass(frozen=True)
class ConcatPooling:
    """[h_T, max, mean] of each sequence (Howard & Ruder 2018, section 3.3): (B, T, D) -> (B, 3 D).

    h_T is the last hidden state. A sequence without a token has zeros.

    backward: whether the model reads texts from their end, so that h_T is at the first position.
    """

    backward: bool = False

    def __call__(self, hidden: Tensor, batch: Sequences) -> Tensor:
        padded = batch.pad(hidden)
        at = torch.zeros_like(batch.lengths) if self.backward else (batch.lengths - 1).clamp(min=0)
        end = padded[torch.arange(len(batch), device=hidden.device), at]
        parts = torch.stack([end, max_of_tokens(hidden, batch), batch.mean(hidden)], 1)  # (B, 3, D)
        # (B, 3, D) -> (B, 3 D)
        return parts.masked_fill((batch.lengths == 0)[:, None, None], 0.0).flatten(1)


class TaskHead(nn.Module):
    """A head that computes scores from hidden states.

    pooling: from the hidden states of a batch to the input of `scores`.
    """

    pooling: PoolingFunction

    @property
    def outputs(self) -> int | None:
        """O, where the number of scores is chosen; None: the kind of the head determines it."""
        return None

    def forward(self, hidden: Tensor, batch: Sequences) -> Tensor:
        """(B, T, D) or (1, N, D) -> (B, O); without pooling (B, T, O) or (1, N, O)."""
        return self.scores(self.pooling(hidden, batch))

    def scores(self, pooled: Tensor) -> Tensor:
        """From pooled hidden states to O scores: (..., D) -> (..., O)."""
        raise NotImplementedError


class DenseActivation(nn.Module):
    """a(U drop(h) + b), of width `d_out`; None: D."""

    def __init__(
        self, d_model: int, activation: str, dropout: float = 0.0, *, d_out: int | None = None
    ):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = Linear(d_model, d_out or d_model)
        self.activation = activation_of(activation)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., D), or (..., d_out)"""
        return self.activation(self.dense(self.dropout(hidden)))


class Pooler(TaskHead):
    """tanh(U h + b) at the first token, trained with BERT (Devlin et al. 2019, section A.1)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.inner = DenseActivation(d_model, "tanh")

    pooling = staticmethod(first_token)

    def scores(self, pooled: Tensor) -> Tensor:
        """Of hidden states of first tokens: (..., D) -> (..., D)."""
        return self.inner(pooled)


class ClassificationHead(TaskHead):
    """`outputs` scores for a text, or for each of its tokens where `pooling` is `every_token`."""

    def __init__(
        self,
        d_model: int,
        outputs: int,
        *,
        pooling: PoolingFunction,
        inner: nn.Module | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.pooling, self.inner = pooling, inner
        self.dropout = Dropout(dropout)
        self.output = Linear(d_model, outputs, bias=bias)

    @property
    def outputs(self) -> int:
        """O, the number of scores."""
        return self.output.out_features

    def scores(self, pooled: Tensor) -> Tensor:
        """Of pooled hidden states: (..., D) -> (..., O)."""
        if self.inner is not None:
            pooled = self.inner(pooled)
        return self.output(self.dropout(pooled))


class MaskedLMHead(TaskHead):
    """p(token) = softmax(E norm(a(U h + b)) + c), E the embedding (Devlin et al. 2019, section
    3.1).

    A `TaskHead`, and a `Head` over the vocabulary with `logits` and `loss`.
    """

    def __init__(self, d_model: int, activation: str, norm_eps: float, softmax: Softmax):
        super().__init__()
        width = softmax.weight.size(1)  # that of the embedding
        self.inner = DenseActivation(d_model, activation, d_out=width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.softmax = softmax

    pooling = staticmethod(every_token)

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return self.softmax.logits(self.norm(self.inner(hidden)))

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The sum of the losses in nats, and the number of targets; see `Softmax.loss`."""
        # The head is computed only at masked tokens: about one in seven.
        hidden, targets = without_ignored(hidden, targets, count)
        transformed = self.norm(self.inner(hidden))
        return self.softmax.loss(transformed, targets, smoothing, targets.numel())


# ----------------------------------------------------------------------------- heads of a family

TASK_HEADS = ("classes", "tags", "span", "multiple_choice")  # the heads that every encoder has
# Standard deviation of the initial matrices of task heads, of models without one in their config.
HEAD_INIT = 0.02


def init_weights(module: nn.Module, std: float) -> nn.Module:
    """Matrices and embeddings normal around 0, biases 0 (Radford et al. 2018, section 4.1)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
    return module


def dense_head(
    width: int,
    outputs: int,
    activation: str,
    *,
    pooling: PoolingFunction = first_token,
    inner_dropout: float = 0.0,
    dropout: float = 0.0,
) -> ClassificationHead:
    """A head for texts whose inner layer is as wide as the model: W drop(a(U drop(h)))."""
    inner = DenseActivation(width, activation, inner_dropout)
    return ClassificationHead(width, outputs, pooling=pooling, inner=inner, dropout=dropout)


def token_head(
    encoder: Any,
    kind: str,
    outputs: int,
    *,
    dropout: float,
    span_dropout: float = 0.0,
) -> ClassificationHead:
    """A linear layer over every token, after dropout: "tags", or "span" with 2 outputs.

    Raises:
        ConfigError: the family has no head of that kind.
    """
    width = encoder.config.d_model
    if kind == "tags":
        return ClassificationHead(width, outputs, pooling=every_token, dropout=dropout)
    if kind == "span":
        return ClassificationHead(width, 2, pooling=every_token, dropout=span_dropout)
    raise no_head(encoder, kind, TASK_HEADS)


def linear_head(
    encoder: Any,
    kind: str,
    outputs: int,
    *,
    pooling: PoolingFunction,
    d_pooled: int | None = None,
) -> nn.Module:
    """A new head, a linear layer after dropout, for an encoder without a pooler.

    Args:
        outputs: of the heads "classes", "multiple_choice" and "tags"; "span" has 2.
        pooling: what "classes" and "multiple_choice" read of a text, (B, T, D) -> (B, `d_pooled`).
        d_pooled: None: D, the width of the encoder.

    Raises:
        ConfigError: there is no head of that kind.
    """
    width, dropout = d_pooled or encoder.config.d_model, encoder.config.dropout
    if kind in ("classes", "multiple_choice"):
        return ClassificationHead(width, outputs, pooling=pooling, dropout=dropout)
    return token_head(encoder, kind, outputs, dropout=dropout, span_dropout=dropout)


def no_head(encoder: object, kind: str, known: Sequence[str]) -> ConfigError:
    """The error for a head that a family does not have; `known` are those that it has."""
    return ConfigError(f"{type(encoder).__name__} has no head {kind!r}. {nearest(kind, known)}")
