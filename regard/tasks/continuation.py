"""Tasks that continue texts: prompts, their continuations, stop sequences, a cache of prefixes."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from regard import decoding
from regard.attention.capture import label, muted
from regard.data.batches import Sequences
from regard.data.token_arrays import TokenArray
from regard.decoding.generated_text import (
    GeneratedText,
    checked_stops,
    method_with_stops,
    stopped_hypothesis,
    text_until_stop,
)
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.steps import evaluating
from regard.decoding.streaming import Streaming
from regard.errors import ConfigError
from regard.models.protocols import Generator, LanguageModel
from regard.models.wrappers import unwrapped
from regard.tasks.batching import TooLong, decode_in_order, device_of
from regard.tasks.embedder import EmbedsTexts
from regard.tasks.inputs import checked_text, checked_texts, warn_if_file
from regard.tasks.prompts import fitted_prompts, prompt_capacity, warn_of_length_ends
from regard.text import Tokenizer


class ContinuesTexts(EmbedsTexts, ABC):
    """A task whose model continues texts.

    method: how it decodes.
    prefix_cache: of the model, where there is one.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    method: Any
    prefix_cache: PrefixCache | None = None

    @abstractmethod
    def _before(self) -> list[int]:
        """What precedes any text for this model; empty where that is not known."""

    @property
    def generator(self) -> Generator:
        """See `TaskVerbs`; with a prefix cache where there is one of this model."""
        cache = self.prefix_cache
        if cache is not None and unwrapped(cache) is self.model:
            return cache
        return super().generator

    @property
    def context(self) -> int | None:
        """The most tokens that the model reads at a time; None: any number, with a state."""
        limit: int | None = self.model.config.max_length
        return limit

    def generate(
        self,
        prompts: Sequence[str] | str = "",
        *,
        too_long: TooLong = "error",
        stop: Sequence[str] | str | None = None,
        **options: Any,
    ) -> Any:
        """Prompts with their continuations: a list for a list, one for one prompt.

        A text that reaches the end of the model's context stops there, with a warning.

        Args:
            too_long: what happens to a prompt after which `max_tokens` tokens do not fit into the
                context: "error", or "truncate", which cuts its beginning.
            stop: stop sequences, one text or several: a continuation ends before the one that is
                complete first. It may begin and end within tokens; `min_tokens` does not delay it.
            options: how to decode, by name (`max_tokens=40, top_k=40`), where it differs from the
                model's own method.

        Raises:
            RegardError: a prompt is too long.
        """
        if isinstance(prompts, str):
            warn_if_file(prompts)
            return self.generate([prompts], too_long=too_long, stop=stop, **options)[0]
        prompts = checked_texts(prompts)
        if too_long == "truncate" and (cut := self.over_limit(prompts, **options)):
            warnings.warn(
                f"{len(cut):,} of {len(prompts):,} prompts were cut to their last "
                f"{prompt_capacity(self.context, options):,} tokens",
                stacklevel=2,
            )
        hypotheses = self.hypotheses(prompts, too_long=too_long, stop=stop, **options)
        return [texts[0] for texts in self.spelled(prompts, hypotheses)]

    predict = generate

    def spelled(
        self, prompts: Sequence[str], hypotheses: Sequence[Sequence[Hypothesis]]
    ) -> list[list[str]]:
        """The texts of the hypotheses of each prompt: the prompt and its continuation."""
        return [
            self._spelled(ids, ranked)
            for ids, ranked in zip(self.prompt_ids(prompts), hypotheses, strict=True)
        ]

    def _spelled(self, ids: list[int], ranked: Sequence[Hypothesis]) -> list[str]:
        texts = self.tokenizer.decode_many(self._turned([*ids, *h.tokens]) for h in ranked)
        if not any(h.stops for h in ranked):
            return texts
        prompt = self.tokenizer.decode(ids)
        return [prompt + text_until_stop(self.tokenizer, ids, h) for h in ranked]

    def hypotheses(
        self,
        prompts: Sequence[str],
        *,
        too_long: TooLong = "error",
        stop: Sequence[str] | str | None = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """The continuations of each prompt, best first; where one of `stop` ends a continuation,
        the tokens of that belong to it.
        """
        encoded, method = self.decoding_inputs(prompts, too_long=too_long, stop=stop, **options)
        with muted():
            decoded = decode_in_order(self.generator, TokenArray.of(encoded), method)
        stops = checked_stops(stop)
        hypotheses = [
            [stopped_hypothesis(self.tokenizer, ids, one, stops) for one in ranked]
            if stops
            else ranked
            for ids, ranked in zip(encoded, decoded, strict=True)
        ]
        best = [ranked[0] for ranked in hypotheses]
        warn_of_length_ends(map(len, encoded), best, self.context, method)
        rows = zip(encoded, best, strict=True)
        self.read_ids([[*ids, *hypothesis.tokens] for ids, hypothesis in rows])
        return hypotheses

    def decoding_inputs(
        self,
        prompts: Sequence[str],
        *,
        too_long: TooLong = "error",
        stop: Sequence[str] | str | None = None,
        **options: Any,
    ) -> tuple[list[list[int]], Any]:
        """The ids of prompts, and the method that continues them."""
        method, prompts = self.decoding_method(stop, **options), checked_texts(prompts)
        return fitted_prompts(self.prompt_ids(prompts), self.context, too_long, options), method

    def decoding_method(self, stop: Sequence[str] | str | None = None, **options: Any) -> Any:
        """The method that continues prompts.

        Raises:
            ConfigError: a wrong option, or `stop` for a model that reads backward.
        """
        method, stops = decoding.with_options(self.method, **options), checked_stops(stop)
        if stops:
            self._check_forward("end a text with a stop sequence")
        return method_with_stops(method, self.tokenizer, stops)

    def over_limit(self, prompts: Sequence[str], **options: Any) -> dict[int, int]:
        """The indices of prompts too long for `max_tokens` after them, and their tokens."""
        most = self.token_limit(**options)
        lengths = map(len, self.prompt_ids(checked_texts(prompts)))
        return {i: n for i, n in enumerate(lengths) if most is not None and n > most}

    def token_limit(self, **options: Any) -> int | None:
        """The most tokens of a prompt after which `max_tokens` fit into the context."""
        return prompt_capacity(self.context, options)

    def stream(
        self,
        prompt: str = "",
        *,
        too_long: TooLong = "error",
        stop: Sequence[str] | str | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """The continuation of a prompt, in parts as tokens are generated."""
        self._check_forward("stream a continuation")
        method = self.decoding_method(stop, **options)
        ids = self.prompt_ids([checked_text(prompt, 0)])[0]
        fitted = fitted_prompts([ids], self.context, too_long, options)[0]
        if len(fitted) < len(ids):
            warnings.warn(f"the prompt was cut to its last {len(fitted):,} tokens", stacklevel=2)
        source = Sequences.of([fitted], self.model.config.pad).to(device_of(self.model))
        steps = Streaming(self.generator, source, method)
        text = GeneratedText(self.tokenizer, ids, checked_stops(stop))
        for _, token in steps:
            text.add(token)
            yield from filter(None, [text.ready()])
            if text.stopped:
                return
        text.end()
        yield from filter(None, [text.ready()])
        best = [ranked[0] for ranked in steps.results]
        warn_of_length_ends([len(fitted)], best, self.context, method)

    def cache_prefixes(self, budget_bytes: int = 2**30) -> PrefixCache:
        """From now on compute prefixes that prompts share once; see `PrefixCache`.

        Args:
            budget_bytes: of keys and values that are stored at most.

        Returns:
            The cache, which counts what it saves; `task.prefix_cache = None` removes it.

        Raises:
            ConfigError: the model has no key/value cache, or the budget is below one byte.
        """
        self.prefix_cache = PrefixCache(self.model, budget_bytes)
        return self.prefix_cache

    # ---- prompts

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompts, with the first tokens of the tokenizer's template, if it has one; for
        an empty prompt what precedes any line of the text.
        """
        template = self.tokenizer.template
        first = [number for number, _ in template.single[0]] if template else []
        encoded = self.tokenizer.encode_many(list(prompts))
        return [[*first, *self._turned(ids)] or self._before() for ids in encoded]

    def _turned(self, ids: list[int]) -> list[int]:
        """A text in the order in which the model reads it, or back."""
        return ids[::-1] if self.model.reads_backward else ids

    def _check_forward(self, what: str) -> None:
        if self.model.reads_backward:
            raise ConfigError(
                f"This model reads texts from their end: it cannot {what}. `generate` gives what "
                "comes before a prompt."
            )

    def read_ids(self, texts: list[list[int]]) -> None:
        """One pass over prompts and continuations, where attention capture is on."""
        texts = [ids[: self.context] for ids in texts]  # the last token may be one too many
        tokens = [[self.tokenizer.label(i) for i in ids] for ids in texts]
        if label(target=tokens):
            with torch.no_grad(), evaluating(self.model):
                ids = Sequences.of(texts, self.model.config.pad).ids
                self.model(ids.to(device_of(self.model)))
