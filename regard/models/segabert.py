"""SegaBERT: "Segatron: Segment-Aware Transformer" (Bai et al. 2021).

    ids -> embed + paragraph + sentence + token + segments -> norm -> L x [...] -> hidden

BERT, but for its positions: one learned vector for each position is replaced by the sum of
three, for the paragraph in the text, the sentence in its paragraph and the token in its sentence
(equation 3 of the paper; sentences are counted from 0 in each paragraph, tokens in each sentence).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.positions import PositionTable
from regard.layers.task_heads import init_weights
from regard.models.bert import BASE_AND_LARGE, Bert, BertConfig
from regard.models.config import Size
from regard.text.sentences import TokenSentences, sentence_ids, sentence_starts

EXTRAS = ("paragraphs", "sentences", "tokens")  # of a batch: indices (B, T) int64
Indices = tuple[int, int, int]  # of a token: paragraph, sentence, token


@dataclass(frozen=True)
class SegaBertConfig(BertConfig):
    """The defaults are the base model.

    paragraphs, sentences, sentence_length: how many indices have a vector of their own; all larger
        ones have the last.
    """

    positions: Literal["learned"] = "learned"
    paragraphs: Size = 50
    sentences: Size = 100
    sentence_length: Size = 512


class SegaPositions(PositionTable):
    """p = paragraph + sentence + token; each index beyond its table is taken for the last."""

    def __init__(self, config: SegaBertConfig):
        super().__init__()
        self.paragraph = nn.Embedding(config.paragraphs, config.d_model)
        self.sentence = nn.Embedding(config.sentences, config.d_model)
        self.token = nn.Embedding(config.sentence_length, config.d_model)

    def of(self, batch: Sequences) -> Tensor:
        """Vectors of the tokens of a batch, (B, T, D), or (1, N, D) of an unpadded batch.

        A batch without indices is one sentence: (T, D).
        """
        if "tokens" not in batch.extras:
            return super().of(batch)
        paragraphs, sentences, tokens = (batch.extras[name] for name in EXTRAS)
        return (
            _clamped(self.paragraph, paragraphs)
            + _clamped(self.sentence, sentences)
            + _clamped(self.token, tokens)
        )

    def forward(self, count: int, start: int = 0) -> Tensor:
        """Vectors of `count` tokens of one sentence from `start`: (T, D)."""
        positions = torch.arange(start, start + count, device=self.token.weight.device)
        return self.at(positions, start + count)

    def at(self, positions: Tensor, end: int) -> Tensor:
        """Vectors of tokens of one sentence: (B, T) -> (B, T, D)."""
        first = self.paragraph.weight[0] + self.sentence.weight[0]
        return first + _clamped(self.token, positions)


def _clamped(table: nn.Embedding, indices: Tensor) -> Tensor:
    vectors: Tensor = table(indices.clamp(max=table.num_embeddings - 1))
    return vectors


class SegaBert(Bert):
    """SegaBERT: "Segatron: Segment-Aware Transformer" (Bai et al. 2021).

    SegaBERT without a head, an `Encoder`.
    """

    positions: SegaPositions
    Config = SegaBertConfig
    SIZES = BASE_AND_LARGE

    def __init__(self, config: SegaBertConfig):
        super().__init__(config)
        self.positions = SegaPositions(config)
        init_weights(self.positions, config.init_range)

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        """A padded batch with the indices of its tokens, unless it has them already.

        Each text of a pair is a paragraph, as in the released programs. Its sentences are found in
        its tokens, in which line breaks are lost; `indexed_input` is for texts with paragraphs. The
        first special token has the indices of the token after it; one after a text has those of the
        token before it, with the next token index.
        """
        if "tokens" in batch.extras:
            return batch
        rows = zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)
        return with_indices(batch, [indices_of(ids[:length], tokenizer) for ids, length in rows])


def with_indices(batch: Sequences, indices: Iterable[Sequence[Indices]]) -> Sequences:
    """A padded batch whose tokens have these indices, a list for each sequence."""
    extras = torch.zeros(3, *batch.ids.shape, dtype=torch.long)
    for row, of_row in enumerate(indices):
        if of_row:
            extras[:, row, : len(of_row)] = torch.tensor(of_row).T
    extras = extras.to(batch.ids.device)
    return replace(batch, extras={**batch.extras, **dict(zip(EXTRAS, extras, strict=True))})


def indexed_input(text: str, tokenizer: Any) -> tuple[list[int], list[Indices]]:
    """The ids of a text between [CLS] and [SEP], and their indices; its lines are paragraphs.

    with_indices(Sequences.of([ids], pad), [indices]) is a batch of it.
    """
    first, last = tokenizer.required_ids("cls", "sep")
    starts = sentence_starts(text)
    ids_of_sentences = sentence_ids(tokenizer, text, [start for start, _ in starts])
    ids, indices = [first], [(0, 0, 0)]
    paragraph, sentence = -1, 0
    for (_, begins), of_sentence in zip(starts, ids_of_sentences, strict=True):
        paragraph, sentence = (paragraph + 1, 0) if begins else (paragraph, sentence + 1)
        ids += of_sentence
        indices += [(paragraph, sentence, token) for token in range(len(of_sentence))]
    return [*ids, last], [*indices, (*indices[-1][:2], indices[-1][2] + 1)]


def indices_of(ids: Sequence[int], tokenizer: Any) -> list[Indices]:
    """The indices of the tokens of an input: texts between special tokens, a paragraph each."""
    edges = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.bos_id, tokenizer.eos_id} - {None}
    indices: list[Indices] = []
    text: list[int] = []
    paragraph = 0
    for number in ids:
        if number not in edges:
            text.append(number)
            continue
        indices += _of_paragraph(text, paragraph, tokenizer)
        paragraph += bool(text)
        text = []
        indices.append(
            (indices[-1][0], indices[-1][1], indices[-1][2] + 1) if indices else (0, 0, 0)
        )
    return indices + list(_of_paragraph(text, paragraph, tokenizer))


def _of_paragraph(ids: Sequence[int], paragraph: int, tokenizer: Any) -> Iterator[Indices]:
    starts = [*_sentences_of(tokenizer).starts(ids), len(ids)]
    for sentence, (start, end) in enumerate(pairwise(starts)):
        for token in range(end - start):
            yield paragraph, sentence, token


@lru_cache(maxsize=4)
def _sentences_of(tokenizer: Any) -> TokenSentences:
    return TokenSentences(tokenizer)
