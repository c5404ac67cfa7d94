"""Masked language modeling: which words fill masks, pre-training by that, and pairs of sentences.

    filled = load("bert").fill("The man went to the [MASK].")
    filled.text                             the text with the most probable word
    filled.masks[0][:3]                     words for the first mask, with their probabilities

The loss of pre-training is the sum of the mean of -log p(token) over the chosen tokens, and, where
the texts are pairs, of the mean of -log p(follows) over the pairs (Devlin et al. 2019, section
3.1). Without pairs, as RoBERTa (Liu et al. 2019, section 4.2), a text is a window of a document.
See `regard.data.pretraining`. Heads for pairs of sentences alone come with published weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import tokenizers
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batches import IGNORE, Losses, Sequences
from regard.data.corpus import Corpus, Documents, encode_corpus, read_documents
from regard.data.encoder_inputs import EncodedInputs
from regard.data.lm_streams import DocumentWindows
from regard.data.pretraining import (
    MaskedBatch,
    MaskedTexts,
    MaskVocabulary,
    PairRows,
    SentencePairs,
    TextRows,
    WindowRows,
)
from regard.data.readers import open_table
from regard.data.sampler import EpochSampler
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, TextError, check_at_least
from regard.metrics import Perplexity, Protocol, Score, Scores
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.recipe import Recipe
from regard.tasks import batching
from regard.tasks.embedder import batch_budget
from regard.tasks.encoder_training import MaskedTeacher, MaskedTeacherSection, headed
from regard.tasks.encoding import EncoderTask, no_columns
from regard.tasks.inputs import as_list, checked_text, checked_texts, pairs_of
from regard.tasks.log_likelihoods import check_lengths, pseudo_log_likelihoods
from regard.tasks.running_text import DocumentData
from regard.tasks.sections import NewTokenizerRecipe, Problems, TokenizerSection
from regard.tasks.task import PAIR, Prediction, Predicts, Task, of_training
from regard.text import Tokenizer

FOLLOWS = 0  # the index of "follows" in the head's two scores, in all published files


@dataclass(frozen=True)
class NextSentencePrediction(Prediction):
    """Whether the second text follows the first, and the probability that it does."""

    follows: bool
    probability: float

    def __str__(self) -> str:
        return f"{'follows' if self.follows else 'does not follow'} ({self.probability:.4f})"


class NextSentencePredictor(EncoderTask):
    """Predicts whether one text follows another."""

    name = "next-sentence"
    prediction_type = NextSentencePrediction
    predict: Predicts[tuple[str, str], bool, NextSentencePrediction]
    commands = ("predict", "embed", "look")
    input_columns = PAIR
    head = "next_sentence"

    def follows(self, first: Any, second: Any, *, too_long: batching.TooLong = "error") -> Any:
        pairs = pairs_of(first, second)
        predictions = self.predict(pairs, return_proba=True, too_long=too_long)
        return (
            predictions.probability
            if isinstance(pairs, tuple)
            else [prediction.probability for prediction in predictions]
        )

    def _predictions(
        self, pairs: Sequence[Any], *, too_long: batching.TooLong = "error"
    ) -> list[NextSentencePrediction]:
        """Whether the second text of each pair follows the first, with the probability."""
        scores = self.text_scores(self.encoded(pairs, too_long))  # (pairs, 2)
        probabilities = scores.softmax(-1)[:, FOLLOWS].tolist()
        return [
            NextSentencePrediction(probability >= 0.5, probability) for probability in probabilities
        ]

    def checked(self, texts: Any) -> list[Any]:
        """Pairs of texts.

        Raises:
            TextError: an item is one text.
        """
        pairs = super().checked(texts)
        for index, pair in enumerate(pairs):
            if len(pair) != 2:
                hint = "Whether a text follows is asked of two: give a pair (a, b)."
                raise TextError(index, f"is one text, {pair[0]!r:.80}.", hint)
        return pairs


MASK = "[MASK]"  # accepted beside the tokenizer's own mask token
CONTINUES = "##"  # how WordPiece writes a subword that continues a word


@dataclass(frozen=True)
class MaskCandidate:
    """A word for a mask: as text, as the vocabulary writes it, and its probability."""

    word: str
    token: str
    probability: float


@dataclass(frozen=True)
class FilledText(Prediction):
    """A text with the most probable word at each mask; and for each mask the best candidates.

    The probability of a candidate is that for this mask alone: the best words of several masks need
    not be the best together.
    """

    text: str
    masks: list[list[MaskCandidate]]


class MaskFiller(EncoderTask):
    """Fills masks."""

    name = "fill-mask"
    prediction_type = FilledText
    predict: Predicts[str, str, FilledText]
    commands: ClassVar[tuple[str, ...]] = ("predict", "embed", "look")
    head = "masked_lm"
    pipeline = "fill-mask"

    def __init__(
        self, module: EncoderWithHeads, tokenizer: Tokenizer, *, max_length: int | None = None
    ):
        super().__init__(module, tokenizer, max_length=max_length)
        if tokenizer.mask_id is None:
            raise ConfigError(
                "This model fills masks, but its tokenizer has no mask token. Name it in "
                'tokenizer_config.json ("mask_token"), or use the tokenizer of the model.'
            )
        self._mask = tokenizer.token(tokenizer.mask_id)
        self.input_format = replace(
            self.input_format, tokenizer=_reading_masks(tokenizer, self._mask)
        )
        # Whether the mask includes the space before it, so that a word comes with its space.
        added = {token["id"]: token for token in tokenizer.to_json()["added_tokens"]}
        self._takes_space = bool(added.get(tokenizer.mask_id, {}).get("lstrip"))
        self._in_vocabulary = torch.zeros(module.config.vocab_size, dtype=torch.bool)
        self._in_vocabulary[list(tokenizer.vocab().values())] = True

    # ---- masks

    def fill(
        self,
        texts: Any,
        *,
        top: int = 5,
        too_long: batching.TooLong = "error",
    ) -> Any:
        """A text with its masks filled, and the `top` best words of each: a list for a list.

        A mask is written [MASK], or as the tokenizer writes it.

        Raises:
            RegardError: a text has no mask, or is too long.
        """
        return self.predict(texts, return_proba=True, top=top, too_long=too_long)

    def checked(self, texts: Any) -> list[Any]:
        """Texts with masks, each as a tuple."""
        return [(self._with_masks(text, i),) for i, text in enumerate(as_list(texts))]

    def log_likelihoods(self, texts: Any) -> Any:
        """The pseudo-log-likelihood of each text, in nats: see `regard.tasks.log_likelihoods`.

        Raises:
            TextError: a text is empty, is too long, or has a mask.
        """
        if isinstance(texts, str):
            return self.log_likelihoods([texts])[0]
        texts = checked_texts(texts)
        inputs = self.input_format.encode([(text,) for text in texts])
        for index, (text, item) in enumerate(zip(texts, inputs, strict=True)):
            if not text.strip() or not item.counts[0]:
                raise TextError(index, "is empty, or has no token.", "Leave it out.")
            if MASK in text or self.tokenizer.mask_id in item.ids:
                raise TextError(index, f"has a mask: {text!r:.80}.", "Masks have no likelihood.")
        check_lengths([len(item) for item in inputs], self.input_format.max_length)
        return pseudo_log_likelihoods(self, inputs)

    def encoded(self, texts: Sequence[Any], too_long: batching.TooLong) -> EncodedInputs:
        """The examples of texts with masks.

        Raises:
            RegardError: a text has no mask, or loses one because it is too long.
        """
        masked = self.checked(texts)
        inputs = super().encoded([text for (text,) in masked], too_long)
        assert isinstance(inputs, EncodedInputs)
        for i, (text,) in enumerate(masked):
            if int((inputs.ids[i] == self.tokenizer.mask_id).sum()) != text.count(self._mask):
                limit = self.input_format.max_length
                problem = f"is cut to {limit} tokens and loses a mask with its end."
                raise TextError(i, problem, "Shorten it.")
        return inputs

    def _with_masks(self, text: Any, index: int) -> str:
        """The text with masks as the tokenizer writes them."""
        text = checked_text(text, index).replace(MASK, self._mask)
        if self._mask not in text:
            other_form = "" if self._mask == MASK else f" (or {self._mask})"
            problem = f"has no {MASK}{other_form} to be filled: {text!r:.80}."
            raise TextError(index, problem, "Write one where a word is to be filled in.")
        return text

    # ---- words

    def _predictions(
        self, texts: Sequence[str], *, too_long: batching.TooLong = "error", top: int = 5
    ) -> list[FilledText]:
        """Texts with their masks filled, and the `top` best candidates."""
        check_at_least(1, top=top)
        count = min(top, int(self._in_vocabulary.sum()))
        masks: list[list[list[MaskCandidate]]] = [[] for _ in texts]
        for number, shares in self._at_masks(self.encoded(texts, too_long)):
            best, ids = shares.masked_fill(~self._in_vocabulary, -1.0).topk(count)
            candidates = []
            for i, share in zip(ids.tolist(), best.tolist(), strict=True):
                token = self.tokenizer.token(i)
                word = self.tokenizer.decode([i]).strip() or token
                candidates.append(MaskCandidate(word, token, share))
            masks[number].append(candidates)
        return [
            FilledText(self._put(self._with_masks(text, 0), candidates), candidates)
            for text, candidates in zip(texts, masks, strict=True)
        ]

    def _at_masks(self, rows: EncodedInputs) -> Iterator[tuple[int, Tensor]]:
        """For each mask the index of its text and the probabilities of all words, (V,)."""
        if not len(rows):
            return
        with torch.no_grad(), evaluating(self.module):
            budget = batch_budget(self.encoder)
            for batch in batching.watched(
                rows.longest_first(self.input_format.pad, max_tokens=budget)
            ):
                moved = self.completed(batch)
                masked = (moved.texts.ids == self.tokenizer.mask_id) & moved.texts.keep  # (B, T)
                hidden = self.encoder.encode(moved.texts)[masked]  # (M, D)
                scores = self.module.masked_lm.logits(hidden).float()  # (M, V)
                owners = batch.numbers.repeat_interleave(masked.sum(1).cpu()).tolist()
                batching.check_finite(scores.isfinite().all(-1), owners)
                yield from zip(owners, scores.softmax(-1).cpu(), strict=True)

    def _put(self, text: str, masks: Sequence[Sequence[MaskCandidate]]) -> str:
        """The text with the best candidate of each mask."""
        before, *rest = text.split(self._mask)
        for candidates, after in zip(masks, rest, strict=True):
            best = candidates[0]
            continues = self.tokenizer.kind == "wordpiece" and best.token.startswith(CONTINUES)
            word = best.word.removeprefix(CONTINUES) if continues else best.word
            spaceless = self._takes_space and not best.token.startswith("Ġ")
            before = before.rstrip() if continues or spaceless else before
            before += word + after
        return before


def _reading_masks(tokenizer: Tokenizer, mask: str) -> Tokenizer:
    """The same tokenizer, which encodes a mask in a text as the mask token."""
    added = {token["content"] for token in tokenizer.to_json()["added_tokens"]}
    with_mask = tokenizer if mask in added else tokenizer.with_special_tokens([mask])
    fast = tokenizers.Tokenizer.from_str(with_mask.to_str())
    return Tokenizer(fast, tokenizer.kind, tokenizer.roles, reads_special_tokens=True)


MOST = 512  # tokens of a text where the model reads any number
SHARE = 0.15  # of the tokens of a text that are chosen


class MaskedData(DocumentData):
    """[data]: documents, in texts of at most `max_length` tokens that do not cross documents."""

    max_length: int = Field(default=128, ge=8)
    """Tokens of a text or of a pair, special tokens included; never more than the model reads."""
    sentence_pairs: bool = False
    """Whether texts are pairs of sentences, half of which follow one another, as BERT reads them;
    the model learns which of them do."""
    mlm_probability: float = Field(default=SHARE, gt=0, le=1)
    """The share of the tokens of a text that are chosen and predicted."""
    whole_words: bool = False
    """Whether all subwords of a word are chosen together."""


class MaskTokenizer(TokenizerSection):
    """[tokenizer]: a tokenizer that is trained gets the special tokens [CLS], [SEP] and [MASK]."""

    def completed(self, tokenizer: Tokenizer) -> Tokenizer:
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
    new_model = "bert"
    commands = ("predict", "embed", "evaluate", "look")
    Recipe: ClassVar[type[Recipe] | None] = MaskedRecipe
    goal = ("loss", "min")
    items: ClassVar[str] = "tokens"
    masked_texts: Mapping[str, MaskedTexts] | None = None
    teacher: MaskedTeacher | None = None

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """None but those of the sections."""
        yield from ()

    @classmethod
    def from_recipe(cls, recipe: MaskedRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
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
        masked_texts = {}
        for part, corpus in zip(("train", "valid"), corpora, strict=True):
            seed = recipe.seed if part == "train" else 0
            rows = task._rows(corpus, data, seed)
            masked_texts[part] = task._texts(rows, vocabulary, data.mlm_probability, seed)
        task.masked_texts = masked_texts
        return task

    @classmethod
    def without_data(cls, recipe: MaskedRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task before its data are read, the model with the heads that it trains."""
        pairs = {"next_sentence": 2} if recipe.data.sentence_pairs else {}
        with_heads = _with_heads(headed(model), {cls.head: 1, **pairs})
        return cls(with_heads, tokenizer, **cls.options_in(recipe))

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
            texts = Documents((open_table(checked_texts(texts)),))
        longest = self.input_format.max_length or MOST
        data = MaskedData(train=(Path(),), max_length=longest, batch_size=32)
        rows_of = self._rows(encode_corpus(texts, self.tokenizer), data, seed=0)
        vocabulary = MaskVocabulary.of(self.tokenizer, whole_words=False)
        sums = self._sums(self._texts(rows_of, vocabulary, SHARE, seed=0))
        count = int(sums["tokens"])
        tokens = f"{self.tokenizer.kind}-{self.tokenizer.vocab_size}"
        how = f"masked:{SHARE}|window:{data.max_length}|tok:{tokens}|count:{count}"
        perplexity = Perplexity(sums["nats"], count, Protocol("token", tokens)).value
        batching.check_likelihood(sums["nats"], perplexity)
        scores = [
            Score("masked accuracy", sums["found"] / count, how, count, 4),
            Score("masked perplexity", perplexity, how, count, 2),
        ]
        return Scores(scores)

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> Documents:
        """The documents of files; of tables, the column that is named.

        Raises:
            ConfigError: several columns are named, or a delimiter.
        """
        no_columns((), delimiter)
        if len(columns) > 1:
            named = ", ".join(map(str, columns))
            raise ConfigError(f"`columns` must name the one that holds texts, but names {named}.")
        return read_documents(files, field=columns[0] if columns else None)

    def _texts(
        self, rows: TextRows, vocabulary: MaskVocabulary, share: float, seed: int
    ) -> MaskedTexts:
        template, pad = self.input_format.template, self.module.config.pad
        return MaskedTexts(rows, template, vocabulary, share, pad, seed)

    # ---- training

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
        return moved.to(batching.device_of(self.module))

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Chosen tokens, pairs, and what the losses against a teacher count."""
        pairs = {} if batch.follows is None else {"next_sentence": len(batch)}
        taught = {} if self.teacher is None else self.teacher.counts(batch)
        return {"loss": batch.count, **pairs, **taught}

    def losses(self, batch: MaskedBatch, carry: None = None) -> tuple[Losses, None]:
        """The sum of the cross-entropies of the chosen tokens, that of the pairs, and those of a
        teacher.
        """
        count, moved = batch.count, self.completed(batch)
        texts = batching.without_padding(self.module.encoder, moved.texts)
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
            for batch in batching.watched(texts.epoch(0)):
                moved = self.completed(batch)
                hidden, chosen = self.module.encoder.encode(moved.texts), moved.labels != IGNORE
                judged = [(self.module.masked_lm.logits(hidden[chosen]), moved.labels[chosen])]
                if moved.follows is not None:
                    judged.append((self._pair_scores(hidden, moved.texts), moved.follows))
                numbers = [number for pair in judged for number in _judged(*pair)]
                for name, number in zip(sums, numbers, strict=False):
                    sums[name] += number
        return sums

    samples = Task.samples  # they would be tokens, not texts
    attention_inputs = Task.attention_inputs

    check_test = Task.check_test


def _judged(scores: Tensor, labels: Tensor) -> tuple[int, float, int]:
    """How many are judged, the sum of their cross-entropies in nats, and how many are right."""
    nats = F.cross_entropy(scores.float(), labels, reduction="sum")
    return len(labels), float(nats), int((scores.argmax(-1) == labels).sum())


def _with_heads(model: EncoderWithHeads, outputs: Mapping[str, int]) -> EncoderWithHeads:
    """The encoder with a head of each kind, the model's own where it has it."""
    heads = {kind: model.with_head(kind, count).heads[kind] for kind, count in outputs.items()}
    return EncoderWithHeads(model.encoder, heads).train(model.training)
