"""A batch whose sequences have dependency trees, as two named extras.

words   (B, T), for each token the position of the first token of its word
heads   (B, T), for each token the position of the first token of the word that governs its own;
        for the root's word that is the word itself
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.errors import RegardError

WORDS, HEADS = "words", "heads"


def with_trees(
    batch: Sequences,
    words: Sequence[Sequence[int | None]],
    heads: Sequence[Sequence[int]],
) -> Sequences:
    """A padded batch with the tree of each of its sequences.

    Args:
        words: of each token of each sequence the number of its word, or None for special tokens,
            which depend on the root.
        heads: of each word of each sequence the number of the word that governs it; the root
            governs itself.

    Raises:
        RegardError: a sequence has not one root, or numbers do not fit its words or tokens.
    """
    word_tokens, governing = (torch.zeros_like(batch.ids) for _ in range(2))
    if not len(words) == len(heads) == len(batch):
        raise RegardError(f"{len(batch)} sequences have {len(words)} words and {len(heads)} heads.")
    for row, (numbers, tree) in enumerate(zip(words, heads, strict=True)):
        first: dict[int, int] = {}  # of each word its first token
        for token, number in enumerate(numbers):
            if number is not None:
                first.setdefault(number, token)
        roots = [word for word, head in enumerate(tree) if head == word]
        fits = len(numbers) == int(batch.lengths[row]) and sorted(first) == list(range(len(tree)))
        if not fits or len(roots) != 1 or not all(0 <= head < len(tree) for head in tree):
            raise RegardError(
                f"Sequence {row + 1}: the heads {tree!r:.80} are no tree of the words "
                f"{numbers!r:.80}, of which each token has one."
            )
        for token, number in enumerate(numbers):
            word_tokens[row, token] = token if number is None else first[number]
            governing[row, token] = first[roots[0] if number is None else tree[number]]
    return replace(batch, extras={**batch.extras, WORDS: word_tokens, HEADS: governing})


def trees_of(batch: Sequences) -> tuple[Tensor, Tensor]:
    """`words` and `heads` of a batch, (B, T) each; padding governs itself.

    Raises:
        RegardError: the batch has no trees.
    """
    missing = [name for name in (WORDS, HEADS) if name not in batch.extras]
    if missing:
        raise RegardError(
            "This model's positions are those of words in a dependency tree, but the batch has no "
            f"extra {' and '.join(map(repr, missing))}. Give it trees with "
            "regard.data.dependency_trees.with_trees."
        )
    position = torch.arange(batch.width, device=batch.ids.device)
    words, heads = (
        torch.where(batch.keep, batch.pad(batch.extras[name]), position) for name in (WORDS, HEADS)
    )
    return words, heads


def ancestors(words: Tensor, heads: Tensor) -> Tensor:
    """Whether a word is that of a token, or governs it at any distance: (B, T) twice -> (B, T, T).

    The last dimension is that of the governing words, at their first tokens.

    Raises:
        RegardError: the heads have a cycle.
    """
    governed = torch.zeros(*words.shape, words.size(1), dtype=torch.bool, device=words.device)
    at = words
    for _ in range(words.size(1)):
        governed.scatter_(2, at[..., None], torch.ones_like(governed[..., :1]))
        above = heads.gather(1, at)
        if torch.equal(above, at):  # all are at a root
            return governed
        at = above
    if words.size(1):
        raise RegardError("The heads of a sequence are no tree: words govern each other.")
    return governed


def depths(governed: Tensor) -> Tensor:
    """How far each token's word is from the root, from `ancestors`: (B, T, T) -> (B, T)."""
    return governed.sum(-1) - 1


def tree_distances(words: Tensor, governed: Tensor) -> Tensor:
    """The relative structural position of two tokens' words (Wang et al. 2019, section 3.2).

    depth_i - depth_j                             where one of the words governs the other
    sign(i - j) (depth_i + depth_j)               elsewhere: the way over the root

    The paper says "at the same dependency edge" in the first line; read here as on one way to the
    root, which is the distance in the tree.

    Args:
        words: (B, T).
        governed: from `ancestors`, (B, T, T).

    Returns:
        (B, T, T), query and key.
    """
    at = words[:, None, :].expand_as(governed)
    above = governed.gather(2, at)  # (B, T, T'), whether the word of T' governs that of T
    related = above | above.mT
    depth = depths(governed)
    difference = depth[:, :, None] - depth[:, None, :]
    order = (words[:, :, None] - words[:, None, :]).sign()
    return torch.where(related, difference, order * (depth[:, :, None] + depth[:, None, :]))
