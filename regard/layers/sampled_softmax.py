"""Sampled softmax: in training the normalization is over the target and a sample of other words.

    loss = -log( exp(r_t) / (exp(r_t) + sum_{k sampled, k != t} exp(r_k)) ),  r_k = s_k - log q_k

(Jean et al. 2015; Jozefowicz et al. 2016, section 3.1.) s are the logits, q_k is the expected count
of word k in a sample. Words are drawn without replacement from the log-uniform (Zipfian)
distribution, p_k = log((k + 2) / (k + 1)) / log(V + 1), so that ids must be sorted by frequency,
the most frequent first, as those of a trained vocabulary of words are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.layers.softmax import Softmax, without_ignored

BISECTIONS = 60


class SampledSoftmax(Softmax):
    """A `Softmax` over V words; in training each loss is over its target and `samples` words.

    One sample, drawn from torch's default generator, serves all targets of a call.

    Raises:
        ValueError: there are fewer words than samples.
    """

    def __init__(self, d_model: int, vocab_size: int, samples: int):
        super().__init__(d_model, vocab_size, tied=None, bias=True)
        if not 1 <= samples <= vocab_size:
            raise ValueError(
                f"`negative_samples` must be at most the {vocab_size} words of the vocabulary, "
                f"but is {samples}."
            )
        self.samples = samples
        probabilities = zipfian(vocab_size)
        expected = expected_counts(probabilities, samples)
        for name, values in (("probabilities", probabilities), ("log_expected", np.log(expected))):
            self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """See `Softmax`; in evaluation, and with `smoothing`, it is the loss over all words."""
        if not self.training or smoothing:
            return super().loss(hidden, targets, smoothing, count)
        hidden, targets = without_ignored(hidden, targets, count)
        probabilities: Tensor = self.probabilities  # type: ignore[assignment]
        sampled = torch.multinomial(probabilities, self.samples)  # (S,)
        return self.sampled_loss(hidden, targets, sampled), targets.numel()

    def sampled_loss(self, hidden: Tensor, targets: Tensor, sampled: Tensor) -> Tensor:
        """The sum of the losses in nats with a sample: (N, D), (N,) ids and (S,) ids -> ()."""
        correction: Tensor = self.log_expected  # type: ignore[assignment]
        bias = torch.zeros_like(correction) if self.bias is None else self.bias
        bias = bias - correction
        target_logits = (hidden * self.weight[targets]).sum(1) + bias[targets]  # (N,)
        sampled_logits = torch.addmm(bias[sampled], hidden, self.weight[sampled].t())  # (N, S)
        sampled_logits = sampled_logits.masked_fill(targets[:, None] == sampled, float("-inf"))
        logits = torch.cat([target_logits[:, None], sampled_logits], 1).float()
        return (logits.logsumexp(1) - target_logits.float()).sum()


def zipfian(vocab_size: int) -> np.ndarray:
    """p_k = log((k + 2) / (k + 1)) / log(V + 1), (V,) in float64."""
    ranks = np.log(np.arange(1, vocab_size + 2))
    return np.diff(ranks) / ranks[-1]


def expected_counts(probabilities: np.ndarray, samples: int) -> np.ndarray:
    """q, the probability that each word is in a sample of `samples` different words: (V,).

    In n draws with replacement it is 1 - (1 - p_k)^n; n is chosen so that these sum to `samples`.
    """
    if samples == len(probabilities):
        return np.ones_like(probabilities)
    low, high = float(samples), 1e12
    for _ in range(BISECTIONS):
        tries = (low * high) ** 0.5
        drawn = -np.expm1(tries * np.log1p(-probabilities))
        low, high = (tries, high) if drawn.sum() < samples else (low, tries)
    return -np.expm1(high * np.log1p(-probabilities))
