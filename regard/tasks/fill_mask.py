"""Which words fill the [MASK]s of a text (Devlin et al. 2019, section 3.1).

filled = load("bert").fill("The man went to the [MASK].")
filled.text                             the text with the most probable word
filled.masks[0][:3]                     words for the first mask, with their probabilities
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import tokenizers
import torch
from torch import Tensor

from regard.data.encoder_inputs import EncodedInputs
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, TextError, check_at_least
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.batching import TooLong, watched
from regard.tasks.embedder import batch_budget
from regard.tasks.encoding import EncoderTask
from regard.tasks.finite_checks import check_finite
from regard.tasks.inputs import as_list, checked_text, checked_texts
from regard.tasks.log_likelihoods import check_lengths, pseudo_log_likelihoods
from regard.tasks.next_sentence import NextSentencePredictor, SentenceOrderPredictor
from regard.tasks.predictions import FilledText, MaskCandidate
from regard.text import Tokenizer

MASK = "[MASK]"  # accepted beside the tokenizer's own mask token
CONTINUES = "##"  # how WordPiece writes a subword that continues a word


class MaskFiller(EncoderTask):
    """Fills masks; with a next-sentence head also predicts whether one text follows another."""

    name = "fill-mask"
    prediction_type = FilledText
    commands: ClassVar[tuple[str, ...]] = ("predict", "embed", "look")
    head = "masked_lm"

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
        too_long: TooLong = "error",
    ) -> Any:
        """A text with its masks filled, and the `top` best words of each: a list for a list.

        A mask is written [MASK], or as the tokenizer writes it.

        Raises:
            RegardError: a text has no mask, or is too long.
        """
        if isinstance(texts, str):
            return self._filled([texts], top, too_long)[0]
        return self._filled(as_list(texts), top, too_long)

    def _predictions(
        self, texts: Sequence[str], *, too_long: TooLong = "error"
    ) -> list[FilledText]:
        """Texts with their masks filled, and the best candidates."""
        return self._filled(as_list(texts), 5, too_long)

    def checked(self, texts: Any) -> list[Any]:
        """Texts with masks, each as a tuple."""
        return [(self._with_masks(text, i),) for i, text in enumerate(as_list(texts))]

    def follows(self, first: Any, second: Any, *, too_long: TooLong = "error") -> Any:
        """The probability that the second text follows the first.

        Raises:
            ConfigError: the model has no head for that.
        """
        kinds = [
            task_class
            for task_class in (NextSentencePredictor, SentenceOrderPredictor)
            if task_class.head in self.module.heads
        ]
        if not kinds:
            raise ConfigError(
                "This model fills masks, but has no next-sentence or sentence-order head."
            )
        task = kinds[0](self.module, self.tokenizer, max_length=self.input_format.max_length)
        return task.follows(first, second, too_long=too_long)

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

    def encoded(self, texts: Sequence[Any], too_long: TooLong) -> EncodedInputs:
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

    def _filled(self, texts: list[str], top: int, too_long: TooLong) -> list[FilledText]:
        check_at_least(1, top=top)
        count = min(top, int(self._in_vocabulary.sum()))
        masks: list[list[list[MaskCandidate]]] = [[] for _ in texts]
        for number, shares in self._at_masks(self.encoded(texts, too_long)):
            best, ids = shares.masked_fill(~self._in_vocabulary, -1.0).topk(count)
            pairs = zip(ids.tolist(), best.tolist(), strict=True)
            masks[number].append([self._candidate(i, share) for i, share in pairs])
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
            for batch in watched(rows.longest_first(self.input_format.pad, max_tokens=budget)):
                moved = self.completed(batch)
                masked = (moved.texts.ids == self.tokenizer.mask_id) & moved.texts.keep  # (B, T)
                hidden = self.encoder.encode(moved.texts)[masked]  # (M, D)
                scores = self.module.masked_lm.logits(hidden).float()  # (M, V)
                owners = batch.numbers.repeat_interleave(masked.sum(1).cpu()).tolist()
                check_finite(scores.isfinite().all(-1), owners)
                yield from zip(owners, scores.softmax(-1).cpu(), strict=True)

    def _candidate(self, number: int, probability: float) -> MaskCandidate:
        token = self.tokenizer.token(number)
        word = self.tokenizer.decode([number]).strip() or token
        return MaskCandidate(word, token, probability)

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
