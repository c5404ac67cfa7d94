"""Encoders whose batches hold more than ids pass the real batches, blocks and tasks.

One reads the characters of each word (as ELMo does), the other a permutation mask with its targets
(as XLNet does). The tests write only what such a model's own file would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import tokenizers
import torch
from torch import Tensor, nn

from regard.attention.masks import given
from regard.data.batches import IGNORE, Sequences
from regard.data.encoder_inputs import EncodedInputs, InputBatch
from regard.data.layout import ALL, TokenSubset
from regard.data.token_arrays import ReadReport
from regard.layers.recurrent import LSTM, BidirectionalStack
from regard.layers.softmax import Softmax
from regard.layers.task_heads import ClassificationHead, every_token, mean_of_tokens
from regard.models.bert import BertBlock, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder, States
from regard.tasks.classification import TextClassifier
from regard.tasks.encoding import Part, Parts
from regard.tasks.tagging import Tagger
from regard.text import Tokenizer
from regard.text.templates import Template

WORDS = ["[UNK]", "the", "cat", "sleeps", "dog", "barks", "loudly", "a"]
TEXTS = ["the cat sleeps", "a dog barks loudly", "the dog sleeps", "a cat", "the cat barks"]
LONGEST = 8  # characters of a word


@dataclass(frozen=True)
class Config:
    vocab_size: int = len(WORDS)
    d_model: int = 8
    pad: int | None = None
    max_length: int | None = None


def tokenizer() -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return Tokenizer(fast, "words", {"unk": "[UNK]"})


class Small(nn.Module, Encoder):
    """What both encoders share: heads, and texts without special tokens."""

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        pooling = mean_of_tokens if kind == "classes" else every_token
        return ClassificationHead(8, outputs, pooling=pooling)

    def template(self, tokenizer: Tokenizer) -> Template:
        return Template.around((), (), ())


class CharacterEncoder(Small):
    """Words as sums of their characters' vectors, under a biLSTM."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.config = Config()
        self.embedding = nn.Embedding(128, 8, padding_idx=0)
        self.recurrent = BidirectionalStack(LSTM, 8, 8, 2)

    def complete(self, batch: Sequences, tokenizer: Tokenizer) -> Sequences:
        table = torch.zeros(len(WORDS), LONGEST, dtype=torch.long)
        for i in range(len(WORDS)):
            spelled = list(tokenizer.token(i).encode())[:LONGEST]
            table[i, : len(spelled)] = torch.tensor(spelled)
        return replace(batch, extras={"characters": table[batch.ids]})  # (B, T, C)

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embedding(batch.extras["characters"]).sum(2)  # (B, T, C, D) -> (B, T, D)
        yield hidden
        yield tokens.of(self.recurrent(hidden, batch.lengths)[0])


class PermutationEncoder(Small):
    """BERT's blocks under a mask that says which tokens each one may see."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.config = Config()
        self.embedding = nn.Embedding(len(WORDS), 8)
        sizes = BertConfig(len(WORDS), d_model=8, d_ff=12, heads=2, dropout=0.0)
        self.blocks = nn.ModuleList(BertBlock(replace(sizes, attention_dropout=0.0)) for _ in "ab")

    def complete(self, batch: Sequences, tokenizer: Tokenizer) -> Sequences:
        """In the order of the text, backwards: each token sees itself and those behind it."""
        later = torch.ones(batch.width, batch.width, dtype=torch.bool).triu()
        return replace(batch, extras={"permutation": later & batch.keep[:, None, :]})

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embedding(batch.ids)
        yield hidden
        count = batch.width
        mask = given(batch.extras["permutation"]).resolve(count, count, sequences=len(batch))
        for block in self.blocks:
            hidden = block(hidden, mask)
            yield hidden


def classification(encoder: Small) -> TextClassifier:
    model = EncoderWithHeads(encoder, {"classes": encoder.new_head("classes", 2)})
    task = TextClassifier(model, tokenizer(), labels=("cat", "dog"))
    rows = EncodedInputs.of(task.input_format.encode([(text,) for text in TEXTS]))
    targets = torch.tensor([int("dog" in text) for text in TEXTS])
    task.parts = Parts(Part(rows, targets, ReadReport(("texts",))), None, None, 0)
    return task


def batch_of(task: TextClassifier) -> InputBatch:
    inputs = task.input_format.encode([(text,) for text in TEXTS])
    return InputBatch(task.input_format.batch(inputs), torch.arange(len(TEXTS)))


@pytest.mark.parametrize("kind", [CharacterEncoder, PermutationEncoder])
def test_an_encoder_with_extras_learns_a_task_and_predicts(kind):
    task = classification(kind())
    optimizer = torch.optim.Adam(task.module.parameters(), lr=0.05)
    task.module.train()
    for _ in range(60):
        optimizer.zero_grad()
        total, count = task.losses(batch_of(task))[0]["loss"]
        (total / count).backward()
        optimizer.step()
    assert float(total.detach()) / count < 0.1
    assert [one.label for one in task.predict(TEXTS, return_proba=True)] == [
        "cat",
        "dog",
        "dog",
        "cat",
        "cat",
    ]
    alone = task.predict(TEXTS[1:2], return_proba=True)[0]
    together = task.predict(TEXTS, return_proba=True)[1]
    assert alone.label == together.label
    vectors = task.embed(TEXTS)
    assert vectors.shape == (5, 8)
    torch.testing.assert_close(
        torch.from_numpy(task.embed(TEXTS[3])), torch.from_numpy(vectors[3]), atol=1e-6, rtol=1e-5
    )


def test_a_character_encoder_reads_characters_and_not_ids():
    encoder = CharacterEncoder().eval()
    batch = classification(encoder).completed(batch_of(classification(encoder))).texts
    other = replace(batch, ids=torch.zeros_like(batch.ids))
    assert torch.equal(encoder.encode(batch), encoder.encode(other))
    assert batch.extras["characters"].shape == (5, 4, LONGEST)
    moved = batch.select(torch.tensor([3, 0]))
    assert torch.equal(moved.extras["characters"], batch.extras["characters"][[3, 0]])


def test_a_permutation_mask_hides_tokens_that_are_later_in_its_order():
    encoder = PermutationEncoder().eval()
    batch = classification(encoder).completed(batch_of(classification(encoder))).texts
    before = encoder.encode(batch)
    changed = batch.ids.clone()
    changed[1, 0] = 3
    after = encoder.encode(replace(batch, ids=changed))
    assert torch.equal(after[1, 1:], before[1, 1:]) and not torch.equal(after[1, 0], before[1, 0])


def test_targets_of_a_permutation_batch_are_predicted():
    """The tokens that the permutation hides from all others are predicted, as XLNet's are."""
    encoder = PermutationEncoder()
    batch = classification(encoder).completed(batch_of(classification(encoder))).texts
    targets = torch.full_like(batch.ids, IGNORE)
    targets[:, 0] = batch.ids[:, 0]
    batch = replace(batch, extras={**batch.extras, "targets": targets})
    head = Softmax(8, len(WORDS), tied=None, bias=True)
    hidden: Tensor = encoder.encode(batch)
    total, count = head.loss(hidden.flatten(0, 1), batch.extras["targets"].flatten())
    assert count == len(TEXTS)
    expected = nn.functional.cross_entropy(
        head.logits(hidden[:, 0]), targets[:, 0], reduction="sum"
    )
    torch.testing.assert_close(total, expected)
    total.backward()
    assert encoder.embedding.weight.grad.isfinite().all()


def test_a_tagging_task_reads_characters_too():
    encoder = CharacterEncoder()
    model = EncoderWithHeads(encoder, {"tags": encoder.new_head("tags", 2)})
    task = Tagger(model, tokenizer(), labels=("O", "NOUN"))
    (found,) = task.predict(["the cat sleeps"], return_proba=True)
    assert len(found.tags) == 3
