"""Which words a prediction reads: a left-to-right model, BERT and XLNet on one sentence.

"New York is a city", of which "New" and "York" are predicted (Yang et al. 2019, section 2.6): BERT
predicts both from "is a city", XLNet "York" from "New", too. What may be read is computed from the
models' own masks; what is read is measured, by replacing one word after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import causal
from regard.data.batches import Sequences
from regard.models.bert import Bert, BertConfig
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.xlnet import Xlnet, XlnetConfig
from regard.tasks.permutation_language_modeling import allowed_of
from regard.visual.charts import Heatmap
from regard.visual.picture import Illustration, Note, Picture, PictureRow

WORDS = ("New", "York", "is", "a", "city")
# large weights, so that what is read moves the predictions visibly
SIZE: dict[str, Any] = dict(d_model=16, heads=2, layers=2, init_range=0.2)
Predict = Callable[[Tensor], Tensor]  # ids (1, T) -> hidden states (P, D) of the predictions


def prediction_contexts(
    words: Sequence[str] = WORDS, predicted: Sequence[int] = (0, 1), seed: int = 0
) -> Illustration:
    """Three models side by side: may the prediction of a word (row) read a word (column)?

    The left column of pictures is 1 where a mask allows it, the right one how far the prediction of
    a small random model moves when that word is replaced.

    Args:
        predicted: indices of the words that BERT masks and XLNet predicts, in XLNet's order. A
            left-to-right model predicts every word.
    """
    count = len(words)
    ranks = np.full(count, -1)
    ranks[list(predicted)] = np.arange(len(predicted))
    allowed = torch.from_numpy(allowed_of(ranks))
    hidden = torch.from_numpy(ranks < 0).expand(len(predicted), -1)
    torch.manual_seed(seed)
    models: dict[str, tuple[Sequence[int], Tensor, Predict]] = {
        "left to right": (
            range(count),
            causal().grid(count, count)[0, 0].tril(-1),
            _left_to_right(),
        ),
        "BERT": (predicted, hidden, _bert(count, predicted)),
        "XLNet": (predicted, allowed[list(predicted)], _xlnet(allowed, predicted)),
    }
    numbers: dict[str, Tensor] = {}
    rows: list[Picture] = [Note((f"Predicted: {', '.join(words[i] for i in predicted)}.",))]
    for name, (targets, may, predict) in models.items():
        does = _changes(predict, count)
        numbers |= {f"{name}, may": may.float(), f"{name}, does": does}
        labels = [words[i] for i in targets]
        pair = [
            Heatmap.of(values, labels, words, f"{name}: {what}")
            for what, values in (("may read", may.float()), ("reads", does))
        ]
        rows.append(PictureRow(tuple(pair)))
    return Illustration(tuple(rows), "What a prediction reads", numbers=numbers)


def _changes(predict: Predict, count: int) -> Tensor:
    """How far each prediction moves when a word is replaced: (P, T)."""
    ids = torch.arange(count)[None]
    with torch.no_grad():
        plain = predict(ids)
        moved = []
        for word in range(count):
            other = ids.clone()
            other[0, word] = count
            moved.append((predict(other) - plain).norm(dim=-1))
    return torch.stack(moved, 1)


def _left_to_right() -> Predict:
    """Word i is predicted after word i - 1; the first one after the token that begins a text."""
    model = GPT2(GPT2Config(20, max_length=16, **SIZE)).eval()
    begin = torch.full((1, 1), 19)
    return lambda ids: model(torch.cat([begin, ids[:, :-1]], 1)).hidden[0]


def _bert(count: int, predicted: Sequence[int]) -> Predict:
    """The predicted words are replaced by a mask, which stands at their positions."""
    model = Bert(BertConfig(20, max_length=16, d_ff=32, **SIZE)).eval()
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[list(predicted)] = True

    def predict(ids: Tensor) -> Tensor:
        masked = Sequences.full(ids.masked_fill(chosen, 19))
        return model.encode(masked)[0, list(predicted)]

    return predict


def _xlnet(allowed: Tensor, predicted: Sequence[int]) -> Predict:
    model = Xlnet(XlnetConfig(20, d_ff=32, **SIZE)).eval()
    extras = {"allowed": allowed[None], "targets": torch.tensor([list(predicted)])}

    def predict(ids: Tensor) -> Tensor:
        batch = Sequences(ids, torch.tensor([ids.size(1)]), extras=extras)
        return model.encode_segment(batch).hidden[0]

    return predict
