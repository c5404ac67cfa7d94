"""Heads with a structure: trees over spans (CKY), and sequences of tags (CRF)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.task_heads import ClassificationHead, TaskHead, every_token

# -------------------------------------------------------------------------------------------- trees
#
# The best trees over a chart of spans, for a whole batch at once (CKY).
#
# A tree is a set of constituents, spans of words that do not cross, with one over all words; its
# score is the sum of theirs. Constituents may have any number of children, words too. So that
# each tree is found once, the children of a constituent are joined from the left:
#
#     item(i, j)   a constituent, s(i, j) + two(i, j); or a word by itself, 0
#     two(i, j)    at least two children: max over k of children(i, k) + item(k, j)
#     children     one item, or two and more
#
# Spans of one width are computed together, from narrow to wide, for all sentences of a batch: N
# words take N steps. A cell [b, i, w - 1] of a chart (B, N, N) is the span of w words from word i
# of sentence b; cells after the last word are ignored.


NEG_INF = float("-inf")


@torch.no_grad()
def best_trees(scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The best tree of each sentence.

    Args:
        scores: the scores of constituents, (B, N, N).
        lengths: the number of words of each sentence, (B,), at least 1.

    Returns:
        The scores of the trees, (B,), and their constituents, (B, N, N) bool.
    """
    count, size, _ = scores.shape
    children = torch.zeros_like(scores)
    items = scores.new_zeros(count, size + 1, size)  # [b, j, N - w]: the item of w words before j
    splits = lengths.new_zeros(scores.shape)
    children[:, :, 0] = items[:, 1:, -1] = scores[:, :, 0].clamp(min=0)
    single = torch.ones_like(scores, dtype=torch.bool)
    for width in range(2, size + 1):
        starts = size - width + 1
        left, right = children[:, :starts, : width - 1], items[:, width:, starts:]
        two, split = (left + right).max(-1)  # (B, starts, width - 1) -> (B, starts)
        item = two + scores[:, :starts, width - 1]
        splits[:, :starts, width - 1] = split
        single[:, :starts, width - 1] = item >= two
        children[:, :starts, width - 1] = torch.maximum(item, two)
        items[:, width:, starts - 1] = item
    row = torch.arange(count, device=scores.device)
    full = items[row, lengths, size - lengths]
    alone = scores[:, 0, 0] if size else full
    constituents = _constituents(scores, lengths, splits, single)
    return torch.where(lengths == 1, alone, full), constituents


def _constituents(scores: Tensor, lengths: Tensor, splits: Tensor, single: Tensor) -> Tensor:
    """The constituents of the best trees, (B, N, N) bool, from wide to narrow spans."""
    count, size, _ = scores.shape
    row = torch.arange(count, device=scores.device)
    constituents = torch.zeros(count, size * size, dtype=torch.int32, device=scores.device)
    joined = torch.zeros_like(constituents)
    constituents[row, lengths - 1] = 1  # the cell of all words
    for width in range(size, 1, -1):
        starts = torch.arange(size - width + 1, device=scores.device)
        cell = starts * size + width - 1
        items, children = constituents[:, cell], joined[:, cell]
        as_item = children * single[:, : len(starts), width - 1]
        constituents[:, cell] = items + as_item
        two = items + children  # (B, starts); an item has two children, and so have children
        left = splits[:, : len(starts), width - 1]  # one less than the words of the first
        joined.scatter_add_(1, starts * size + left, two)
        constituents.scatter_add_(1, (starts + left + 1) * size + width - 2 - left, two)
    chosen = constituents.view(count, size, size) > 0
    words = (constituents + joined).view(count, size, size)[:, :, 0] > 0
    chosen[:, :, 0] = words & ((scores[:, :, 0] > 0) | (lengths == 1)[:, None])
    return chosen


# --------------------------------------------------------------------------------------- k best


@dataclass(frozen=True)
class ScoredTree:
    """A tree of a chart: its score, and its constituents (start, stop, label)."""

    score: float
    spans: list[tuple[int, int, int]]


@torch.no_grad()
def k_best_trees(scores: Tensor, lengths: Tensor, k: int) -> list[list[ScoredTree]]:
    """The `k` best trees of each sentence with labels, best first; fewer where there are fewer.

    Args:
        scores: the scores of the O labels of each cell, (B, N, N, O).
        lengths: the number of words of each sentence, (B,), at least 1.
    """
    chart = _KBest(scores, k)
    return [
        [ScoredTree(score, list(spans)) for score, spans in chart.trees(number, length)]
        for number, length in enumerate(lengths.tolist())
    ]


class _KBest:
    """The K best items and children of each span, with backpointers.

    A backpointer is the index of a candidate: of a split and two ranks, (w - 1) * K * K; of a rank
    of `two` and a rank of a label, K * K; of an item, or of two and more children, 2 * K.
    """

    def __init__(self, scores: Tensor, k: int):
        self.k, (count, size, _, outputs) = k, scores.shape
        labels = scores.topk(min(k, outputs), -1)
        self.labels = labels.indices.cpu().numpy()
        label = _padded(labels.values, k)  # (B, N, N, K)
        shape = (count, size, size, k)
        self.items, self.children = (scores.new_full(shape, NEG_INF) for _ in range(2))
        pointers = [torch.zeros(shape, dtype=torch.long, device=scores.device) for _ in range(3)]
        bare = scores.new_zeros(count, size, 1)
        values, index = torch.cat([label[:, :, 0], bare], -1).topk(k, -1)
        self.items[:, :, 0] = self.children[:, :, 0] = values
        pointers[1][:, :, 0] = index  # k: the word by itself
        self.words = label[:, :, 0]
        for width in range(2, size + 1):
            self._step(width, label, pointers)
        self.splits, self.item_from, self.children_from = (
            pointer.cpu().numpy() for pointer in pointers
        )
        self.items, self.words = self.items.cpu(), self.words.cpu()

    def _step(self, width: int, label: Tensor, pointers: list[Tensor]) -> None:
        """Spans of `width` words."""
        k, starts = self.k, self.items.size(1) - width + 1
        left = self.children[:, :starts, : width - 1]
        at = torch.arange(starts, device=label.device)[:, None]
        words = torch.arange(1, width, device=label.device)
        right = self.items[:, at + words, width - 1 - words]  # (B, starts, width - 1, K)
        pairs = left[..., :, None] + right[..., None, :]
        two, split = pairs.flatten(2).topk(k, -1)  # from (B, starts, (w - 1) * K * K)
        named = two[..., :, None] + label[:, :starts, width - 1, None, :]
        item, item_from = named.flatten(2).topk(k, -1)  # from (B, starts, K * K)
        children, children_from = torch.cat([item, two], -1).topk(k, -1)
        cell = slice(None), slice(starts), width - 1
        self.items[cell], self.children[cell] = item, children
        for choices, chosen in zip(pointers, (split, item_from, children_from), strict=True):
            choices[cell] = chosen

    def trees(self, row: int, length: int) -> Iterator[tuple[float, list[tuple[int, int, int]]]]:
        """The trees of a sentence, best first."""
        scores = self.words[row, 0] if length == 1 else self.items[row, 0, length - 1]
        for rank, score in enumerate(scores.tolist()):
            if score == NEG_INF:
                return
            if length == 1:
                yield score, [(0, 1, int(self.labels[row, 0, 0, rank]))]
            else:
                yield score, self._spans(row, length, rank)

    def _spans(self, row: int, length: int, rank: int) -> list[tuple[int, int, int]]:
        """The constituents of a tree: each part adds its own, and names the parts inside it."""
        spans: list[tuple[int, int, int]] = []
        waiting: list[_Part] = [(self._item, 0, length, rank)]
        while waiting:
            part, start, width, choice = waiting.pop()
            waiting += part(row, start, width, choice, spans)
        return spans

    def _item(self, row: int, start: int, width: int, rank: int, spans: list) -> list[_Part]:
        choice = int(self.item_from[row, start, width - 1, rank])
        if width == 1:
            if choice < self.k:
                label = self.labels[row, start, 0, choice]
                spans.append((start, start + 1, int(label)))
            return []
        two, label = divmod(choice, self.k)
        name = int(self.labels[row, start, width - 1, label])
        spans.append((start, start + width, name))
        return [(self._two, start, width, two)]

    def _two(self, row: int, start: int, width: int, rank: int, spans: list) -> list[_Part]:
        choice = int(self.splits[row, start, width - 1, rank])
        split, ranks = divmod(choice, self.k * self.k)
        first, second = divmod(ranks, self.k)
        return [
            (self._item, start + split + 1, width - split - 1, second),
            (self._children, start, split + 1, first),
        ]

    def _children(self, row: int, start: int, width: int, rank: int, spans: list) -> list[_Part]:
        choice = int(self.children_from[row, start, width - 1, rank])
        if width == 1:
            return [(self._item, start, width, rank)]
        if choice < self.k:
            return [(self._item, start, width, choice)]
        return [(self._two, start, width, choice - self.k)]


# What makes a part of a tree, its first word, its words, and its rank among those of this span.
_Part = tuple[Callable[[int, int, int, int, list], "list[_Part]"], int, int, int]


def _padded(values: Tensor, k: int) -> Tensor:
    """K values in the last dimension, minus infinity for those that are missing."""
    return torch.nn.functional.pad(values, (0, k - values.size(-1)), value=NEG_INF)


# --------------------------------------------------------------------------------------- spans


@dataclass(frozen=True, eq=False)
class Spans:
    """All M spans of the words of B sentences.

    row: the index of the sentence of each span, (M,).
    starts, stops: its first word, and the word after its last one, (M,).
    lengths: the number of words of each sentence, (B,).
    """

    row: Tensor
    starts: Tensor
    stops: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, lengths: Tensor, size: int) -> Spans:
        """The spans of sentences with `lengths` words, (B,), at most `size`."""
        starts, last = torch.triu_indices(size, size, device=lengths.device)
        inside = last < lengths[:, None]  # (B, P)
        if inside.is_meta:  # where costs are estimated every sentence has `size` words
            inside = torch.ones(inside.shape, dtype=torch.bool)
        row, number = (index.to(lengths.device) for index in inside.nonzero(as_tuple=True))
        return cls(row, starts[number], last[number] + 1, lengths)

    def chart(self, values: Tensor, size: int) -> Tensor:
        """Values of the spans, (M,) or (M, O), as a chart (B, N, N) or (B, N, N, O), N = `size`."""
        chart = values.new_zeros(len(self.lengths), size, size, *values.shape[1:])
        chart[self.row, self.starts, self.stops - self.starts - 1] = values
        return chart

    def values(self, chart: Tensor) -> Tensor:
        """The reverse of `chart`."""
        return chart[self.row, self.starts, self.stops - self.starts - 1]

    def sums(self, values: Tensor) -> Tensor:
        """The sum of the values (M,) of each sentence, (B,)."""
        return values.new_zeros(len(self.lengths)).index_add(0, self.row, values)


def max_margin_loss(scores: Tensor, gold: Tensor, spans: Spans) -> Tensor:
    """max over trees T of s(T) + D(T, T*), minus s(T*), for each sentence: (B,).

    D is the Hamming distance between the charts of labels of T and the gold tree T*: the number of
    spans that have different labels, label 0 being no constituent, whose score is 0 (Stern et al.
    2017, section 4; Kitaev and Klein 2018, section 3).

    Args:
        scores: the scores of the labels 1 to O of the spans, (M, O).
        gold: the chart of the gold labels, (B, N, N).
    """
    gold_labels = spans.values(gold)
    labels = torch.arange(1, scores.size(-1) + 1, device=scores.device)
    present = gold_labels > 0
    wrong = (labels != gold_labels[:, None]).to(scores.dtype)  # (M, O)
    augmented = scores + wrong - present[:, None].to(scores.dtype)
    best, index = augmented.detach().max(-1)
    _, chart = best_trees(spans.chart(best, gold.size(1)), spans.lengths)
    values = augmented.gather(-1, index[:, None])[:, 0].where(spans.values(chart), 0.0)
    right = scores.gather(-1, (gold_labels - 1).clamp(min=0)[:, None])[:, 0].where(present, 0.0)
    return spans.sums(values + present.to(scores.dtype) - right).clamp(min=0)


INNER = 250  # width of the hidden layer in both papers
DROPOUT = 0.2


class ChartHead(TaskHead):
    """s(i, j, .) = W relu(norm(U (f_j - f_i) + b)) + c

    f_k is the fencepost between the words k and k + 1: the first half of the hidden state of word k
    and the second half of that of word k + 1. With a bidirectional LSTM these are the states of its
    forward and its backward direction. Vectors for the ends of a sentence are learned.

    outputs: O, the number of labels of constituents.
    """

    pooling = staticmethod(every_token)

    def __init__(self, d_model: int, outputs: int, *, d_inner: int = INNER):
        super().__init__()
        self.ends = nn.Parameter(torch.zeros(2, d_model))  # before the first, after the last word
        self.dropout = Dropout(DROPOUT)
        self.inner = Linear(d_model, d_inner, bias=False)
        self.bias = nn.Parameter(torch.zeros(d_inner))
        self.norm = nn.LayerNorm(d_inner)
        self.output = Linear(d_inner, outputs)

    @property
    def outputs(self) -> int:
        """How many labels there are."""
        return self.output.out_features

    def forward(self, hidden: Tensor, batch: Sequences) -> Tensor:
        """The scores of all M spans of tokens: (B, T, D) or (1, N, D) -> (M, O)."""
        return self.span_scores(batch.pad(hidden), Spans.of(batch.lengths, batch.width))

    def scores(self, pooled: Tensor) -> Tensor:
        """The hidden states themselves: `span_scores` computes the scores when words are known."""
        return pooled

    def span_scores(self, words: Tensor, spans: Spans) -> Tensor:
        """The scores of the labels of spans: (B, N, D) -> (M, O).

        Args:
            words: hidden states of the words; those after a sentence are ignored.
        """
        before, after = self.ends.to(words.dtype).expand(len(words), 1, 2, -1).unbind(2)
        words = torch.cat([before, self.dropout(words), after], 1)  # (B, N + 2, D)
        row = torch.arange(len(words), device=words.device)
        words = words.index_put((row, spans.lengths + 1), self.ends[1].to(words.dtype))
        half = words.size(-1) // 2
        between = torch.cat([words[:, :-1, :half], words[:, 1:, half:]], -1)  # (B, N + 1, D)
        # U (f_j - f_i) = U f_j - U f_i: N + 1 products instead of one for each span.
        projected = self.inner(between)  # (B, N + 1, D')
        differences = (
            projected[spans.row, spans.stops] - projected[spans.row, spans.starts] + self.bias
        )  # (M, D')
        return self.output(self.dropout(self.norm(differences).relu()))


# ---------------------------------------------------------------------------------------------- CRF
#
# Conditional random field over the tags of a sentence (Lafferty et al. 2001, Lample et al. 2016).
#
#     s(x, y) = start[y_1] + sum_t scores[t, y_t] + sum_t transitions[y_t, y_{t+1}] + end[y_W]
#     log p(y | x) = s(x, y) - log sum_{y'} exp s(x, y')
#
# The sum over all sequences of tags is computed from left to right in O(W O^2) (the forward
# algorithm), the best sequence likewise (Viterbi). The probability of a tag at a word is the
# gradient of the log-sum with respect to its score.


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
