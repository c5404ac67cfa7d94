"""XLNet's head for question answering: a beam search over first and last tokens of the answer
(Yang et al. 2019, appendix A.3 and its code).

    p(a)     = softmax_a(w . h_a + c)                                   a: the first token
    p(b | a) = softmax_b(v . norm(tanh(U [h_b; h_a])) + d)              b: the last token
    none     = u . tanh(V [sum_a p(a) h_a; h_cls])                      the logit of "no answer"

A classifier of spans scores first and last tokens independently; here p(b | a) depends on the first
token. In training, a is the target's first token (teacher forcing), also in `none`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batches import Sequences
from regard.layers.linear import Linear
from regard.layers.task_heads import every_token


@dataclass(frozen=True)
class SpanBeams:
    """The most probable spans of each text.

    starts, start_scores: (B, S) first tokens and log p(a), best first.
    ends, end_scores: (B, S, E) last tokens of each and log p(b | a), best first.
    no_answer: (B,) the logit of no answer.
    """

    starts: Tensor
    start_scores: Tensor
    ends: Tensor
    end_scores: Tensor
    no_answer: Tensor


class SpanSearchHead(nn.Module):
    """The first tokens of an answer, the last tokens after each of them, and whether it has one.

    starts, ends: the beam sizes: S first tokens, and E last tokens for each of them.
    """

    pooling = staticmethod(every_token)

    def __init__(self, d_model: int, *, starts: int, ends: int, norm_eps: float):
        super().__init__()
        self.starts, self.ends = starts, ends
        self.start = Linear(d_model, 1)
        self.end_inner = Linear(2 * d_model, d_model)
        self.end_norm = nn.LayerNorm(d_model, eps=norm_eps)
        self.end = Linear(d_model, 1)
        self.no_answer_inner = Linear(2 * d_model, d_model)
        self.no_answer = Linear(d_model, 1, bias=False)

    def forward(self, hidden: Tensor, batch: Sequences) -> Tensor:
        """(B, T, D) -> (B, T, 1), as `scores`."""
        return self.scores(hidden)

    def scores(self, hidden: Tensor) -> Tensor:
        """The logits of each token as the first of the answer: (..., D) -> (..., 1)."""
        return self.start(hidden)

    def start_logits(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """(B, T, D) -> (B, T), minus infinity at tokens that cannot be in an answer.

        allowed: (B, T) bool, at least one in each row.
        """
        return self.start(hidden)[..., 0].masked_fill(~allowed, -torch.inf)

    def end_logits(self, hidden: Tensor, starts: Tensor, allowed: Tensor) -> Tensor:
        """(B, T, D) and the states of S first tokens (B, S, D) -> (B, S, T)."""
        pairs = torch.broadcast_tensors(hidden[:, None], starts[:, :, None])
        joined = torch.cat(pairs, -1)  # 2 times (B, S, T, D) -> (B, S, T, 2 D)
        inner = self.end_norm(torch.tanh(self.end_inner(joined)))
        return self.end(inner)[..., 0].masked_fill(~allowed[:, None], -torch.inf)

    def no_answer_logits(self, starts: Tensor, summary: Tensor) -> Tensor:
        """The states of the first tokens and of <cls>, (B, D) each -> (B,)."""
        inner = torch.tanh(self.no_answer_inner(torch.cat([starts, summary], -1)))
        return self.no_answer(inner)[..., 0]

    def loss(
        self, hidden: Tensor, spans: Tensor, allowed: Tensor, last: Tensor
    ) -> tuple[Tensor, int]:
        """The sum of the losses of texts, in nats, and their number.

        The loss of a text is the mean of both cross-entropies plus half of the binary cross-entropy
        of "no answer".

        Args:
            hidden: (B, T, D)
            spans: (B, 2) the first and the last token of the answer, both `last` where there is
                none.
            allowed: (B, T) bool, the tokens of which answers consist, and `last`.
            last: (B,) the position of <cls>, which stands for no answer.
        """
        first, final = spans.unbind(-1)
        start = self._at(hidden, first[:, None])  # (B, 1, D)
        none = self.no_answer_logits(start[:, 0], self._at(hidden, last[:, None])[:, 0])
        starts = self.start_logits(hidden, allowed).float()
        ends = self.end_logits(hidden, start, allowed)[:, 0].float()
        tokens = F.cross_entropy(starts, first, reduction="sum") + F.cross_entropy(
            ends, final, reduction="sum"
        )
        impossible = F.binary_cross_entropy_with_logits(
            none.float(), (first == last).float(), reduction="sum"
        )
        return (tokens + impossible) / 2, len(spans)

    def search(self, hidden: Tensor, allowed: Tensor, last: Tensor) -> SpanBeams:
        """The `ends` most probable last tokens for each of the `starts` most probable first tokens;
        fewer if the texts have fewer tokens.

        See `loss` for the arguments.
        """
        starts = self.start_logits(hidden, allowed).float().log_softmax(-1)  # (B, T)
        scores, firsts = starts.topk(min(self.starts, starts.size(1)))  # (B, S)
        after = self.end_logits(hidden, self._at(hidden, firsts), allowed).float().log_softmax(-1)
        end_scores, lasts = after.topk(min(self.ends, after.size(2)))  # (B, S, E)
        mean = torch.einsum("bt,btd->bd", starts.exp().to(hidden.dtype), hidden)
        none = self.no_answer_logits(mean, self._at(hidden, last[:, None])[:, 0])
        return SpanBeams(firsts, scores, lasts, end_scores, none.float())

    @staticmethod
    def _at(hidden: Tensor, positions: Tensor) -> Tensor:
        """The states (B, N, D) at positions (B, N)."""
        return hidden.gather(1, positions[..., None].expand(-1, -1, hidden.size(-1)))
