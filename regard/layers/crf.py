"""Conditional random field over the tags of a sentence (Lafferty et al. 2001, Lample et al. 2016).

    s(x, y) = start[y_1] + sum_t scores[t, y_t] + sum_t transitions[y_t, y_{t+1}] + end[y_W]
    log p(y | x) = s(x, y) - log sum_{y'} exp s(x, y')

The sum over all sequences of tags is computed from left to right in O(W O^2) (the forward
algorithm), the best sequence likewise (Viterbi). The probability of a tag at a word is the gradient
of the log-sum with respect to its score.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.layers.task_heads import ClassificationHead

INIT = 0.1  # transitions start uniform in +- this


class CRF(nn.Module):
    """A linear-chain CRF: transitions between O tags, from the start and to the end of a sentence.

    All methods take the scores (B, W, O) of the tags of each word (emissions), and `keep` (B, W)
    bool, False for padding after a sentence.
    """

    def __init__(self, tags: int):
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(tags, tags))  # from, to
        self.start = nn.Parameter(torch.empty(tags))
        self.end = nn.Parameter(torch.empty(tags))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -INIT, INIT)

    def loss(self, scores: Tensor, tags: Tensor, keep: Tensor) -> Tensor:
        """The sum of -log p(y | x) over the sentences, in nats; tags: (B, W) of each word."""
        tags = tags.masked_fill(~keep, 0)
        return (self.log_normalizer(scores, keep) - self.score(scores, tags, keep)).sum()

    def score(self, scores: Tensor, tags: Tensor, keep: Tensor) -> Tensor:
        """s(x, y) of each sentence: (B,)."""
        if not scores.size(1):
            return scores.new_zeros(len(scores))
        words = scores.gather(2, tags[..., None])[..., 0]  # (B, W, O) -> (B, W)
        steps = self.transitions[tags[:, :-1], tags[:, 1:]]  # (B, W - 1)
        last = tags.gather(1, (keep.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]  # (B,)
        ends = (self.start[tags[:, 0]] + self.end[last]).masked_fill(~keep[:, 0], 0)
        return (words * keep).sum(1) + (steps * keep[:, 1:]).sum(1) + ends

    def log_normalizer(
        self, scores: Tensor, keep: Tensor, allowed: Transitions | None = None
    ) -> Tensor:
        """log sum_y exp s(x, y) over all sequences, or those that are allowed: (B,)."""
        start, transitions, end = self._masked(scores, allowed)
        if not scores.size(1):
            return scores.new_zeros(len(scores))
        total = start + scores[:, 0]  # (B, O), of the sequences that end in each tag
        for t in range(1, scores.size(1)):
            after = (total[:, :, None] + transitions).logsumexp(1) + scores[:, t]
            total = torch.where(keep[:, t, None], after, total)
        return (total + end).logsumexp(1).masked_fill(~keep[:, 0], 0)

    def best(self, scores: Tensor, keep: Tensor, allowed: Transitions | None = None) -> Tensor:
        """The most probable tags (B, W), of those that are allowed; 0 at padding."""
        start, transitions, end = self._masked(scores, allowed)
        rows, words, _ = scores.shape
        if not words:
            return scores.new_zeros(rows, 0, dtype=torch.long)
        into = transitions.t().contiguous()  # (to, from)
        totals = [start + scores[:, 0]]  # (B, O) each, of the best sequence that ends in each tag
        for t in range(1, words):
            after = (totals[-1][:, None] + into).amax(2) + scores[:, t]
            totals.append(torch.where(keep[:, t, None], after, totals[-1]))
        path = [(totals[-1] + end).argmax(1)]
        for t in range(words - 1, 0, -1):  # backtracking: only for the best tags
            before = (totals[t - 1] + into[path[-1]]).argmax(1)
            path.append(torch.where(keep[:, t], before, path[-1]))
        return torch.stack(path[::-1], 1).masked_fill(~keep, 0)

    def probabilities(
        self, scores: Tensor, keep: Tensor, allowed: Transitions | None = None
    ) -> Tensor:
        """p(y_t = y | x) of each tag at each word, (B, W, O); 0 at padding."""
        if not scores.size(1):
            return torch.zeros_like(scores)
        # In inference mode, too, whose tensors have no gradients; their copies here have.
        with torch.inference_mode(False), torch.enable_grad():
            leaf = scores.detach().clone().requires_grad_()
            total = self.log_normalizer(leaf, keep.clone(), allowed).sum()
            return torch.autograd.grad(total, leaf)[0]

    def _masked(self, scores: Tensor, allowed: Transitions | None) -> tuple[Tensor, Tensor, Tensor]:
        """Start, transitions and end with the dtype and device of the scores; forbidden ones are
        large negative numbers.
        """
        parts = [part.to(scores) for part in (self.start, self.transitions, self.end)]
        if allowed is not None:
            low = torch.finfo(scores.dtype).min / 8  # sums of a few of these are finite
            parts[0] = parts[0].masked_fill(~allowed.start.to(scores.device), low)
            parts[1] = parts[1].masked_fill(~allowed.between.to(scores.device), low)
        return parts[0], parts[1], parts[2]


class Transitions:
    """The allowed transitions: tags that may begin a sentence, (O,) bool, and that may follow each
    tag, (O, O) bool, from and to.

    In IOB2 an entity begins with B-, and I- continues an entity of the same type.
    """

    def __init__(self, start: Tensor, between: Tensor):
        self.start, self.between = start, between

    @classmethod
    def of_iob2(cls, labels: tuple[str, ...]) -> Transitions:
        """Those of well-formed IOB2 tags, such as ("B-PER", "I-PER", "O")."""

        def follows(before: str, tag: str) -> bool:
            return not tag.startswith("I-") or before in (tag, "B-" + tag[2:])

        between = [[follows(before, tag) for tag in labels] for before in labels]
        return cls(
            torch.tensor([follows("O", tag) for tag in labels]),
            torch.tensor(between).reshape(len(labels), -1),
        )


class CRFHead(ClassificationHead):
    """Scores of the tags of each token, and the transitions between tags.

    Args:
        tags: the head of a tagger, whose modules this head uses.
    """

    def __init__(self, tags: ClassificationHead):
        nn.Module.__init__(self)
        self.pooling, self.inner, self.dropout = tags.pooling, tags.inner, tags.dropout
        self.output, self.crf = tags.output, CRF(tags.outputs)
