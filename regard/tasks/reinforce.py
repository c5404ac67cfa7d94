"""REINFORCE: the gradient of choices that were drawn, such as those of hard attention.

    loss = -sum_t log p(y_t | s)  -  weight sum_t (R_t - b_t) log p(s_t)  -  entropy sum_t H[s_t]

(Xu et al. 2015, section 4.1; Williams 1992). s_t is the choice at step t, and R_t the sum of
log p(y | s) over the tokens from t on, since a choice changes none before it; R_t has no gradient
here. The baseline b_t is the moving average of log p per token, times the tokens from t on; the
paper averages log p of whole captions. It depends on no choice of this batch, so the expectation of
the gradient is exact.

The model gives log p(s_t) and H[s_t] in `Output.extras`; see `regard.attention.selection`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from regard.attention.selection import CHOICE_ENTROPY, CHOICE_LOG_PROBS
from regard.data.batches import IGNORE
from regard.errors import ConfigError
from regard.layers.softmax import token_losses
from regard.models.protocols import EncoderDecoder, Output
from regard.recipe import Options
from regard.state import State
from regard.tasks.sections import differing


class ReinforceObjective(Options):
    """Options of [objective] for a model that draws choices in training."""

    reinforce_weight: float = Field(default=0.2, ge=0)
    """The weight of the gradient of the choices, compared with that of the tokens."""
    choice_entropy_weight: float = Field(default=0.1, ge=0)
    """The weight of the entropy of the distribution of choices."""
    baseline_decay: float = Field(default=0.9, ge=0, lt=1)
    """The decay of the moving average of the reward."""


@dataclass
class RewardMean(State):
    """The moving average of log p per target token, in nats: (1,)."""

    mean: Tensor


@dataclass(frozen=True)
class Reinforce:
    """The weights of the terms.

    With 1 and 0.002, as in the paper's program, choices of a small translator collapse onto one
    position: see docs/concepts/attention-forms.md.
    """

    weight: float
    entropy: float
    decay: float = 0.9

    @classmethod
    def of(cls, model: EncoderDecoder, objective: ReinforceObjective | None = None) -> Self | None:
        """What a recipe asks for; None where the model draws no choices.

        Raises:
            ConfigError: options are given for a model that draws no choices.
        """
        options = objective or ReinforceObjective()
        if CHOICE_LOG_PROBS in model.extras:
            weights = options.reinforce_weight, options.choice_entropy_weight
            return cls(*weights, options.baseline_decay)
        why = 'is of a model that draws choices in training, such as one with selection = "hard"'
        for name, problem in differing(options, "", [*ReinforceObjective.model_fields], why):
            raise ConfigError(f"[objective] `{name.strip('.')}` {problem}")
        return None

    def loss(
        self, model: EncoderDecoder, output: Output, targets: Tensor, before: RewardMean | None
    ) -> tuple[Tensor, RewardMean]:
        """The second and third term, summed over the batch, and the new moving average.

        Args:
            output: of the model in training.
            targets: (B, T), -100 does not count.
            before: the moving average; None: minus the logarithm of the vocabulary's size, the
                reward of a model that knows nothing.
        """
        counts = targets != IGNORE
        log_probs = token_log_probs(model, output.hidden, targets).masked_fill(~counts, 0.0)
        if before is None:
            start = -math.log(model.config.vocab_size)
            before = RewardMean(log_probs.new_full((1,), start))
        # Sums over the tokens from t on, and how many they are.
        reward, left = (_from_here_on(values) for values in (log_probs, counts.to(log_probs)))
        advantage = reward - before.mean * left
        choices, entropy = output.extras[CHOICE_LOG_PROBS], output.extras[CHOICE_ENTROPY]
        term = self.weight * advantage.to(choices.dtype) * choices + self.entropy * entropy
        mean = log_probs.sum() / counts.sum().clamp(min=1)
        after = RewardMean(self.decay * before.mean + (1 - self.decay) * mean)
        return -term.masked_fill(~counts, 0.0).sum(), after


def token_log_probs(model: EncoderDecoder, hidden: Tensor, targets: Tensor) -> Tensor:
    """log p(target), without a gradient: (B, T, D) and (B, T) -> (B, T) float64."""
    logits: Callable[[Tensor], Tensor] = model.head.logits
    with torch.no_grad():
        flat = hidden.detach().flatten(0, 1)
        target_ids = targets.flatten().clamp(min=0)
        parts = token_losses(flat, target_ids, logits, model.config.vocab_size)
        return -torch.cat([*parts, flat.new_zeros(0, dtype=torch.float64)]).view(targets.shape)


def _from_here_on(values: Tensor) -> Tensor:
    """The sum of each value and of those after it in its row, (B, T)."""
    return values.flip(1).cumsum(1).flip(1)
