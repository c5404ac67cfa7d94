"""Masked language modeling: pre-training of BERT and its relatives, with sentence pairs or without.

Devlin et al. 2019, section 3.1: the sum of the mean of -log p(token) over the chosen tokens, and,
where the texts are pairs, of the mean of -log p(follows) over the pairs. Without pairs, as RoBERTa
(Liu et al. 2019, section 4.2), a text is a window of a document. See `regard.data.pretraining`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batches import IGNORE, Sequences
from regard.data.corpus import Corpus, Documents, encode_corpus, read_documents
from regard.data.lm_streams import DocumentWindows
from regard.data.pretraining import (
    MaskedBatch,
    MaskedTexts,
    Masking,
    MaskVocabulary,
    PairRows,
    SentencePairs,
    TextRows,
    WindowRows,
)
from regard.data.readers import read
from regard.data.sampler import EpochSampler
from regard.decoding.steps import evaluating
from regard.errors import ConfigError
from regard.metrics import Perplexity, Protocol, Score, Scores
from regard.metrics.score import NamedScore
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.recipe import Recipe
from regard.tasks.batching import device_of, watched, without_padding
from regard.tasks.distillation import MaskedTeacher, MaskedTeacherSection
from regard.tasks.document_data import DocumentData
from regard.tasks.encoding import headed
from regard.tasks.fill_mask import MaskFiller
from regard.tasks.finite_checks import check_likelihood
from regard.tasks.inputs import as_list, checked_text
from regard.tasks.sections import NewTokenizerRecipe, TokenizerSection
from regard.tasks.task import Task, of_training
from regard.text import Tokenizer

MOST = 512  # tokens of a text where the model reads any number
SAMPLES = 6  # texts that the report of a run shows


class MaskedData(DocumentData):
    """[data]: documents, in texts of at most `max_length` tokens that do not cross documents."""

    max_length: int = Field(default=128, ge=8)
    """Tokens of a text or of a pair, special tokens included; never more than the model reads."""
    sentence_pairs: bool = False
    """Whether texts are pairs of sentences, half of which follow one another, as BERT reads them;
    the model learns which of them do."""
    mlm_probability: float = Field(default=0.15, gt=0, le=1)
    """The share of the tokens of a text that are chosen and predicted."""
    whole_words: bool = False
    """Whether all subwords of a word are chosen together."""
    dupe_factor: int | None = Field(default=None, ge=1)
    """In how many epochs a text has different masks before they repeat. None: in all, as RoBERTa;
    BERT's data had 10, its authors' GPU recipe 5."""


class MaskTokenizer(TokenizerSection):
    """[tokenizer]: a tokenizer that is trained gets the special tokens [CLS], [SEP] and [MASK]."""

    def build(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        """Read the tokenizer that `path` names, or learn one from `texts()`."""
        tokenizer = super().build(texts)
        if self.path is not None:
            return tokenizer
        return tokenizer.with_roles({"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"})


class MaskedRecipe(NewTokenizerRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[TokenizerSection] = MaskTokenizer(kind="wordpiece")

    data: MaskedData
    tokenizer: MaskTokenizer | None = None
    """Where the model is started from a folder: that of the folder."""
    teacher: MaskedTeacherSection | None = None


class MaskedLanguageModel(MaskFiller):
    """An encoder in pre-training, and its tokenizer; afterwards it fills masks."""

    name = "masked-language-modeling"
    commands = ("predict", "embed", "evaluate", "look")
    Recipe: ClassVar[type[Recipe] | None] = MaskedRecipe
    goal = ("loss", "min")
    items: ClassVar[str] = "tokens"
    masked_texts: Mapping[str, MaskedTexts] | None = None
    teacher: MaskedTeacher | None = None

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """None but those of the sections."""
        yield from ()

    @classmethod
    def from_recipe(
        cls, recipe: MaskedRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> MaskedLanguageModel:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: the model has no head for this, the tokenizer no mask, or the data no
                sentence pairs.
            DataError: a file cannot be read.
        """
        data, task = recipe.data, cls.without_data(recipe, model, tokenizer)
        if recipe.teacher is not None:
            longest = task.input_format.max_length
            task.teacher = MaskedTeacher.of(recipe.teacher, task.module, tokenizer, longest)
        vocabulary = MaskVocabulary.of(tokenizer, data.whole_words)
        corpora = data.corpora(tokenizer, structure=data.sentence_pairs)
        masking, masked_texts = Masking(data.mlm_probability, data.dupe_factor), {}
        for part, corpus in zip(("train", "valid"), corpora, strict=True):
            seed = recipe.seed if part == "train" else 0
            rows = task._rows(corpus, data, seed)
            masked_texts[part] = task._texts(rows, vocabulary, masking, seed)
        task.masked_texts = masked_texts
        return task

    @classmethod
    def without_data(
        cls, recipe: MaskedRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> MaskedLanguageModel:
        """The task before its data are read, the model with the heads that it trains."""
        pairs = {"next_sentence": 2} if recipe.data.sentence_pairs else {}
        with_heads = _with_heads(headed(model), {cls.head: 1, **pairs})
        return cls(with_heads, tokenizer, max_length=recipe.data.max_length)

    def _rows(self, corpus: Corpus, data: MaskedData, seed: int) -> TextRows:
        """The texts of a corpus, or its pairs."""
        special = self.input_format.template.special_count(2 if data.sentence_pairs else 1)
        length = (self.input_format.max_length or data.max_length) - special
        if data.sentence_pairs:
            return PairRows(SentencePairs(corpus, length=length, seed=seed), data.batch_size)
        sizes = {"length": length, "batch_size": data.batch_size}
        return WindowRows(DocumentWindows(corpus.tokens, **sizes, seed=seed))

    @classmethod
    def example(cls, recipe: Any, words: int) -> MaskedBatch:
        """A batch as the recipe asks for, whatever the length of a text: for estimates."""
        data = recipe.data
        texts = Sequences.dummy(data.batch_size, data.max_length)
        labels = torch.full_like(texts.ids, IGNORE)
        labels[:, : max(1, round(data.mlm_probability * data.max_length))] = 1
        follows = torch.zeros(data.batch_size, dtype=torch.long) if data.sentence_pairs else None
        return MaskedBatch(texts, labels, follows)

    # ---- scores

    def evaluate(self, texts: Documents | Sequence[str]) -> Scores:
        """How many of the masked tokens of documents are found, and the perplexity of these tokens.

        15 % of the tokens are chosen, always the same ones, in windows of the model's length.

        Args:
            texts: documents, or a list of texts, each of them a document.

        Raises:
            ConfigError: no document has a token.
            RegardError: the likelihood of the masked tokens is not finite.
        """
        if not isinstance(texts, Documents):
            rows = [(checked_text(text, i),) for i, text in enumerate(as_list(texts))]
            texts = Documents((read(rows),))
        longest = self.input_format.max_length or MOST
        data = MaskedData(train=(Path(),), max_length=longest, batch_size=32)
        rows_of = self._rows(encode_corpus(texts, self.tokenizer), data, seed=0)
        vocabulary = MaskVocabulary.of(self.tokenizer, whole_words=False)
        sums = self._sums(self._texts(rows_of, vocabulary, Masking(), seed=0))
        count = int(sums["tokens"])
        tokens = f"{self.tokenizer.kind}-{self.tokenizer.vocab_size}"
        how = f"masked:0.15|window:{data.max_length}|tok:{tokens}|count:{count}"
        perplexity = Perplexity(sums["nats"], count, Protocol("token", tokens)).value
        check_likelihood(sums["nats"], perplexity)
        scores = [
            Score("masked accuracy", sums["found"] / count, how, count, 4),
            Score("masked perplexity", perplexity, how, count, 2),
        ]
        return Scores(scores)

    def rows_to_evaluate(self, files: Sequence[Any], columns: Sequence[int | str]) -> Documents:
        """The documents of files; of tables, the column that is named.

        Raises:
            ConfigError: several columns are named.
        """
        if len(columns) > 1:
            named = ", ".join(map(str, columns))
            raise ConfigError(f"`columns` must name the one that holds texts, but names {named}.")
        return read_documents(files, field=columns[0] if columns else None)

    def _texts(
        self, rows: TextRows, vocabulary: MaskVocabulary, masking: Masking, seed: int
    ) -> MaskedTexts:
        template, pad = self.input_format.template, self.module.config.pad
        return MaskedTexts(rows, template, vocabulary, masking, pad, seed)

    # ---- training

    def start_from_word_vectors(self, recipe: Any) -> None:
        """This task reads no word vectors."""

    def train_batches(self) -> EpochSampler:
        """Masked texts of the corpus, in another order in each epoch."""
        return EpochSampler(of_training(self.masked_texts)["train"])

    def completed(self, batch: Any) -> Any:
        """See `EncoderTask`; what the encoder finds in a text, such as SegaBERT's sentences, it
        finds in the text without masks.
        """
        if not isinstance(batch, MaskedBatch):
            return super().completed(batch)
        return self._completed(batch, self.module.encoder)

    def _completed(self, batch: MaskedBatch, encoder: Encoder) -> MaskedBatch:
        """A batch as an encoder reads it, on the device of the model."""
        masked = batch.texts.ids
        plain = torch.where(batch.labels != IGNORE, batch.labels, masked)
        texts = encoder.complete(replace(batch.texts, ids=plain), self.tokenizer)
        moved = replace(batch, texts=replace(texts, ids=masked))
        return moved.to(device_of(self.module))

    def identity(self) -> dict[str, str]:
        return {} if self.teacher is None else self.teacher.identity()

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Chosen tokens, pairs, and what the losses against a teacher count."""
        pairs = {} if batch.follows is None else {"next_sentence": len(batch)}
        taught = {} if self.teacher is None else self.teacher.counts(batch)
        return {"loss": batch.count, **pairs, **taught}

    def losses(
        self, batch: MaskedBatch, carry: None = None
    ) -> tuple[dict[str, tuple[Tensor, int]], None]:
        """The sum of the cross-entropies of the chosen tokens, that of the pairs, and those of a
        teacher.
        """
        count, moved = batch.count, self.completed(batch)
        texts = without_padding(self.module.encoder, moved.texts)
        hidden = self.module.encoder.encode(texts)  # (B, T, D) or (1, N, D)
        if self.teacher is None:
            labels = moved.labels if texts.layout is None else texts.layout.unpad(moved.labels)
            head = self.module.masked_lm
            losses = {"loss": head.loss(hidden.flatten(0, 1), labels.flatten(), count=count)}
        else:
            teacher_batch = self._completed(batch, self.teacher.encoder)
            counts = self.counts(batch)
            losses = self.teacher.losses(
                self.module, texts.pad(hidden), moved, teacher_batch.texts, counts
            )
        if moved.follows is not None:
            scores = self._pair_scores(hidden, texts)
            total = F.cross_entropy(scores, moved.follows, reduction="sum")
            losses["next_sentence"] = total, len(batch)
        return losses, None

    def _pair_scores(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """The scores of whether the second text of each pair follows, (B, 2) float32."""
        pooled = self.module.pooled("next_sentence", hidden, texts)
        return self.module.scores_from("next_sentence", pooled).float()

    def validate(self) -> dict[str, float]:
        """Cross-entropy in nats per chosen token and how many are found, always of the same masks;
        of pairs these too, and the sum of both losses.
        """
        sums = self._sums(of_training(self.masked_texts)["valid"])
        loss = sums["nats"] / sums["tokens"]
        scores = {"loss": loss, "accuracy": sums["found"] / sums["tokens"]}
        if not sums["pairs"]:
            return scores
        pairs = sums["pair_nats"] / sums["pairs"]
        also = {"masked_lm": loss, "next_sentence_accuracy": sums["pairs_found"] / sums["pairs"]}
        return {**scores, **also, "loss": loss + pairs, "next_sentence": pairs}

    @torch.no_grad()
    def _sums(self, texts: MaskedTexts) -> dict[str, float]:
        """Nats, right answers and numbers of tokens and of pairs, in the first epoch."""
        sums = dict.fromkeys(("tokens", "nats", "found", "pairs", "pair_nats", "pairs_found"), 0.0)
        with evaluating(self.module):
            for batch in watched(texts.epoch(0)):
                self._add(sums, self.completed(batch))
        return sums

    def _add(self, sums: dict[str, float], moved: MaskedBatch) -> None:
        """Add what a batch of the validation data gives."""
        hidden = self.module.encoder.encode(moved.texts)
        chosen = moved.labels != IGNORE
        scores, labels = self.module.masked_lm.logits(hidden[chosen]).float(), moved.labels[chosen]
        sums["tokens"] += len(labels)
        sums["nats"] += float(F.cross_entropy(scores, labels, reduction="sum"))
        sums["found"] += int((scores.argmax(-1) == labels).sum())
        if moved.follows is not None:
            scores = self._pair_scores(hidden, moved.texts)
            sums["pairs"] += len(scores)
            sums["pair_nats"] += float(F.cross_entropy(scores, moved.follows, reduction="sum"))
            sums["pairs_found"] += int((scores.argmax(-1) == moved.follows).sum())

    def samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """Validation texts with masks, the most probable tokens for the chosen ones, and these."""
        batch = of_training(self.masked_texts)["valid"].epoch(0)[0]
        moved = self.completed(batch)
        best, chosen = moved.labels.clone(), moved.labels != IGNORE
        with torch.no_grad(), evaluating(self.module):
            best[chosen] = self.module.masked_lm.logits(
                self.module.encoder.encode(moved.texts)[chosen]
            ).argmax(-1)

        def shown(ids: Tensor) -> str:
            return " ".join(map(self.tokenizer.label, ids.tolist()))

        lengths = batch.texts.lengths.tolist()
        rows = zip(batch.texts.ids, lengths, best.cpu(), batch.labels, strict=True)
        return [
            (
                shown(ids[:length]),
                shown(predicted[labels != IGNORE]),
                shown(labels[labels != IGNORE]),
            )
            for ids, length, predicted, labels in islice(rows, SAMPLES)
        ]

    def attention_inputs(self, recipe: Any) -> tuple[()]:
        """None: the samples are tokens, not texts."""
        return ()

    def notes(self) -> list[str]:
        """How many documents give no pairs."""
        rows = of_training(self.masked_texts)["train"].rows
        if not isinstance(rows, PairRows) or not rows.pairs.single:
            return self.remarks
        single, count = rows.pairs.single, len(rows.pairs.documents)
        note = f"{single:,} of {count:,} documents have one sentence, and are only the second text"
        return [*self.remarks, f"training data: {note} of pairs that do not follow one another"]

    check_test = Task.check_test

    def test(self, recipe: Any) -> Sequence[NamedScore]:
        """Single texts, also of a model that learns pairs."""
        return self.evaluate(recipe.data.records("test")).named if recipe.data.test else ()


def _with_heads(model: EncoderWithHeads, outputs: Mapping[str, int]) -> EncoderWithHeads:
    """The encoder with a head of each kind, the model's own where it has it."""
    heads = {kind: model.with_head(kind, count).heads[kind] for kind, count in outputs.items()}
    return EncoderWithHeads(model.encoder, heads).train(model.training)
