"""Language modeling: one long text, a model that predicts each token, perplexity.

A model with a state reads the text in parallel streams, from start to end. A model with a context
(`config.max_length`) is trained on blocks and evaluated over windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any, NoReturn, Self, Unpack

import torch
from torch import nn

from regard import decoding, habit_names
from regard.attention.capture import label, muted
from regard.call_options import StateFields
from regard.data.batches import Losses, Sequences, StreamBatch
from regard.data.encoder_inputs import InputFormat
from regard.data.lm_streams import ParallelStreams, SlidingWindows
from regard.data.readers import RowReader
from regard.data.sampler import EpochSampler
from regard.data.token_arrays import TokenArray, encode_texts
from regard.decoding import streaming
from regard.decoding.prefix_cache import PrefixCache, SlidingContext
from regard.decoding.steps import Hypotheses, Hypothesis, evaluating
from regard.errors import ConfigError, check_at_least, warn
from regard.metrics import Perplexity, Protocol, Score, Scores
from regard.metrics.score import NamedScore, check_any
from regard.models.protocols import Encoder, Generator, LanguageModel
from regard.models.wrappers import unwrapped
from regard.tasks import batching, running_text, stateful_perplexity
from regard.tasks.embedder import EmbedsTexts, TextEncoder, batch_budget
from regard.tasks.inputs import checked_texts, warn_if_file
from regard.tasks.log_likelihoods import causal_log_likelihoods, lambada_scores
from regard.tasks.task import LogLikelihoods, Predicts, of_training, results_of
from regard.text import Tokenizer
from regard.text.templates import Template

SAMPLES = 6  # lines that a run's report continues
PROMPT, LONGEST = 4, 200  # words of them that the model reads; characters that are shown
VALID_STEPS = 256  # tokens of a stream at a time, where nothing is learned


class TextGenerator(EmbedsTexts):
    """A model that continues a text, with its tokenizer.

    format: the format of the training text, `lines` or `text` (see [data]); None: the model comes
        from elsewhere, where a text begins with the bos token, or with the eos token that ends the
        text before.
    unit, window, stride, state_options: how perplexity is measured, as in [evaluation].
    """

    name = "language-modeling"
    predict: Predicts[str, str, NoReturn]
    pipeline = "text-generation"
    new_model = "gpt2"
    commands = ("generate", "predict", "embed", "evaluate", "look")
    decodes = True
    Recipe = running_text.LanguageModelingRecipe
    goal = ("loss", "min")
    length_option = "sequence_length"

    def __init__(
        self,
        module: LanguageModel,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        format: str | None = None,
        unit: running_text.Unit = "token",
        window: int | None = None,
        stride: int | None = None,
        **state_options: Unpack[StateFields],
    ):
        self.template = tokenizer.template
        if format == "lines" and tokenizer.eos_id is not None:
            # By its files, other libraries start a line as this model saw lines start.
            start = Template.around((tokenizer.eos_id,), (tokenizer.eos_id,), ())
            if self.template in (None, start):
                self.template, tokenizer = None, tokenizer.with_template(start)
        self.module, self.tokenizer = module, tokenizer
        self.method = method or decoding.options(max_tokens=100)
        self.given_format, self.format = format, format or "text"
        self.unit, self.window, self.stride = unit, window, stride
        self.state_options = stateful_perplexity.StateOptions.of(state_options)
        self.data: running_text.TrainingText | None = None
        self.auxiliary_losses: tuple[running_text.AuxiliaryLoss, ...] = ()
        self.prefix_cache: PrefixCache | None = None

    @property
    def generator(self) -> Generator:
        """With a prefix cache where there is one of this model."""
        cache = self.prefix_cache
        if cache is not None and unwrapped(cache) is self.module:
            return cache
        return super().generator

    @property
    def context(self) -> int | None:
        """The most tokens that the model reads at a time; None: any number, with a state."""
        limit: int | None = self.module.config.max_length
        return limit

    usual_length: int | None = None  # of a batch, where they differ in length

    # ---- from a recipe

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model predicts what comes next."""
        return issubclass(model, LanguageModel) and model.trained_in_order

    @classmethod
    def is_for(cls, model: nn.Module, config: Mapping[str, Any]) -> bool:
        """Whether the model continues a text."""
        return isinstance(model, Generator) and model.continues

    @classmethod
    def from_recipe(
        cls, recipe: running_text.LanguageModelingRecipe, model: LanguageModel, tokenizer: Tokenizer
    ) -> Self:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: a sequence, a window or a stride is longer than the model allows.
            DataError: a text is too short.
        """
        data, limit = recipe.data, model.config.max_length
        window = limit and min(limit, data.sequence_length)
        task = cls.without_data(recipe, model, tokenizer, window)
        cls.check_length(recipe, limit)
        task.protocol()  # raises an error for a window or a stride that is too long
        task.evaluated_model(task.state_options)
        task.auxiliary_losses = recipe.objective.losses(model)
        end = task.line_end()
        train, valid = (
            task._in_order(data.tokens(part, tokenizer, end)) for part in ("train", "valid")
        )
        valid_path = data.train if data.splits_train else data.valid
        for path, text in ((data.train, train), (valid_path, valid)):
            running_text.check_text_length(
                path, len(text.ids) - 1, data.batch_size if limit is None else 1
            )
        batches = running_text.training_batches(train, recipe, limit)
        notes = running_text.text_notes(recipe, limit)
        units = sum(map(task._units, data.records("valid").texts())) if task.unit == "word" else 0
        if recipe.objective.variable_length:
            task.usual_length = data.sequence_length
        task.data = running_text.TrainingText(train, valid, batches, data.batch_size, notes, units)
        return task

    @classmethod
    def without_data(
        cls, recipe: Any, model: LanguageModel, tokenizer: Tokenizer, window: int | None
    ) -> Self:
        """The task before its data are read; window: where the recipe names none."""
        evaluation = recipe.evaluation
        return cls(
            model,
            tokenizer,
            method=recipe.decoding.build(100),
            format=recipe.data.format,
            unit=evaluation.unit,
            window=evaluation.window or window,
            stride=evaluation.stride,
            **evaluation.chosen(),
        )

    @staticmethod
    def example(recipe: running_text.LanguageModelingRecipe, words: int) -> StreamBatch:
        """A batch as the recipe asks for, whatever the length of a line: for estimates."""
        tokens = torch.ones(recipe.data.batch_size, recipe.data.sequence_length, dtype=torch.long)
        return StreamBatch(tokens, tokens, fresh=True)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model, tokenizer and decoding method."""
        protocol = {"unit": self.unit, "window": self.window, "stride": self.stride}
        return {"format": self.given_format, **protocol, **self.state_options.chosen()}

    def notes(self) -> list[str]:
        """What the tokenizer does not keep of the text, and what is not trained of the model."""
        return of_training(self.data).notes

    # ---- training

    def train_batches(self) -> EpochSampler:
        """Windows of parallel streams of the text, or shuffled blocks, epoch after epoch."""
        return EpochSampler(of_training(self.data).batches)

    def counts(self, batch: StreamBatch) -> dict[str, int]:
        """Predicted tokens, and the items of the auxiliary losses."""
        auxiliary = {loss.name: loss.count(batch) for loss in self.auxiliary_losses}
        return {"loss": batch.count, **auxiliary}

    def rate_factor(self, batch: StreamBatch) -> float:
        """The length of a batch in parts of the usual one, where batches differ in length."""
        usual = self.usual_length
        return 1.0 if usual is None else batch.tokens.size(1) / usual

    def losses(self, batch: StreamBatch, carry: Any) -> tuple[Losses, Any]:
        """The sum of the cross-entropies of the next tokens in nats, in training the auxiliary
        losses, and the state after the batch.

        carry: the state after the batch before; None at the start of the text.
        """
        batch = batch.to(batching.device_of(self.module))
        model: Any = self.module if self.module.training else self.generator
        output = model(batch.tokens, None if batch.fresh else carry)
        hidden, targets = output.hidden.flatten(0, 1), batch.targets.flatten()
        loss = self.module.head.loss(hidden, targets, count=batch.count)
        losses = {"loss": loss}
        for auxiliary_loss in self.auxiliary_losses if self.module.training else ():
            losses[auxiliary_loss.name] = auxiliary_loss.total(output), auxiliary_loss.count(batch)
        return losses, None if output.state is None else output.state.detach()

    def validate(self) -> dict[str, float]:
        """Cross-entropy in nats and perplexity per token of the tokenizer; also perplexity per word
        where that is the unit."""
        data = of_training(self.data)
        total, count = self._total_loss(self._parts(data.valid, data.batch_size, self.window, None))
        per_token = Perplexity(total, count, Protocol("token", self._tokenization))
        scores = {"loss": total / count, "perplexity": per_token.value}
        if self.unit == "word":
            scores["perplexity per word"] = replace(per_token, count=data.valid_units).value
        return scores

    # ---- generation

    def generate(self, prompts: Sequence[str] | str = "", **options: Any) -> Any:
        """Prompts with their continuations: a list for a list, one for one prompt.

        With `n_best` or `samples` above 1 each prompt has the list of its texts, best first.
        A text that reaches the end of the model's context stops there, with a warning.

        Args:
            too_long: what happens to a prompt after which `max_tokens` tokens do not fit into the
                context: "error", or "truncate", which cuts its beginning.
            stop: stop sequences, one text or several: a continuation ends before the one that is
                complete first. It may begin and end within tokens; `min_tokens` does not delay it.
            window: go on beyond the model's context: it reads the last tokens that fit into it.
            options: how to decode, by name (`max_tokens=40, top_k=40`), where it differs from the
                model's own method.

        Raises:
            RegardError: a prompt is too long.
        """
        if isinstance(prompts, str):
            warn_if_file(prompts)
            return self.generate([prompts], **options)[0]
        prompts = checked_texts(prompts)
        if options.get("too_long") == "truncate" and (cut := self.over_limit(prompts, **options)):
            warn(
                f"{len(cut):,} of {len(prompts):,} prompts were cut to their last "
                f"{self.token_limit(**options):,} tokens",
            )
        hypotheses = self.hypotheses(prompts, **options)
        return results_of(self.spelled(prompts, hypotheses), options)

    def spelled(self, prompts: Sequence[str], hypotheses: Hypotheses) -> list[list[str]]:
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
        return [prompt + streaming.text_until_stop(self.tokenizer, ids, h) for h in ranked]

    def hypotheses(self, prompts: Sequence[str], **options: Any) -> Hypotheses:
        """The continuations of each prompt, best first; where one of `stop` ends a continuation,
        the tokens of that belong to it.
        """
        encoded, method = self.decoding_inputs(prompts, **options)
        window, stops = options.get("window", False), streaming.checked_stops(options.get("stop"))
        generator = SlidingContext(self.module) if window else self.generator
        with muted():
            decoded = batching.decode_in_order(generator, TokenArray.of(encoded), method)
        hypotheses = [
            [streaming.stopped_hypothesis(self.tokenizer, ids, one, stops) for one in ranked]
            if stops
            else ranked
            for ids, ranked in zip(encoded, decoded, strict=True)
        ]
        best = [ranked[0] for ranked in hypotheses]
        batching.warn_of_length_ends(
            map(len, encoded), best, None if window else self.context, method
        )
        rows = zip(encoded, best, strict=True)
        self.read_ids([[*ids, *hypothesis.tokens] for ids, hypothesis in rows])
        return hypotheses

    def decoding_inputs(
        self,
        prompts: Sequence[str],
        *,
        too_long: batching.TooLong = "error",
        stop: Sequence[str] | str | None = None,
        window: bool = False,
        **options: Any,
    ) -> tuple[list[list[int]], Any]:
        """The ids of prompts, and the method that continues them."""
        method, prompts = self.decoding_method(stop, **options), checked_texts(prompts)
        return self.fitted(self.prompt_ids(prompts), too_long, window, options), method

    def fitted(
        self,
        ids: Sequence[list[int]],
        too_long: batching.TooLong,
        window: bool,
        options: Mapping[str, Any],
    ) -> list[list[int]]:
        """The ids of prompts that the model reads: with a window, the last ones.

        Raises:
            TextTooLong: a prompt is too long and `too_long` is "error".
        """
        if window:
            batching.check_too_long(too_long)
            return [row[-self.context :] for row in ids] if self.context else [*ids]
        if self.context is None:  # any number of tokens may follow
            options = {}
        return batching.fitted_prompts(ids, self.module.text_limit, too_long, options)

    def decoding_method(self, stop: Sequence[str] | str | None = None, **options: Any) -> Any:
        """The method that continues prompts.

        Raises:
            ConfigError: a wrong option, or `stop` for a model that reads backward.
        """
        options = habit_names.decoding({"stop": stop, **options})
        if options.get("forced_bos_token_id") is not None:
            raise ConfigError("`forced_bos_token_id` has no effect on a continued prompt.")
        stops = streaming.checked_stops(options.pop("stop", None))
        method = decoding.with_options(self.method, **options)
        if stops:
            self._check_forward("end a text with a stop sequence")
        return streaming.method_with_stops(method, self.tokenizer, stops)

    def over_limit(self, prompts: Sequence[str], **options: Any) -> dict[int, int]:
        """The indices of prompts too long for `max_tokens` after them, and their tokens."""
        limit = self.token_limit(**options)
        lengths = map(len, self.prompt_ids(checked_texts(prompts)))
        return {i: n for i, n in enumerate(lengths) if limit is not None and n > limit}

    def token_limit(self, **options: Any) -> int | None:
        """The most tokens of a prompt after which `max_tokens` fit into the context."""
        if options.pop("window", False):
            return None
        if self.context is None:
            return self.module.text_limit
        return batching.prompt_capacity(self.context, options)

    def stream(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """The continuation of a prompt, in parts as tokens are generated."""
        self._check_forward("stream a continuation")
        (fitted,), method = self.decoding_inputs([prompt], **options)
        ids, window = self.prompt_ids([prompt])[0], options.get("window", False)
        if len(fitted) < len(ids) and not window:
            warn(f"the prompt was cut to its last {len(fitted):,} tokens")
        source = Sequences.of([fitted], self.module.config.pad).to(batching.device_of(self.module))
        generator = SlidingContext(self.module) if window else self.generator
        steps = streaming.Streaming(generator, source, method)
        text = streaming.GeneratedText(
            self.tokenizer, ids, streaming.checked_stops(options.get("stop"))
        )
        for _, token in steps:
            text.add(token)
            yield from filter(None, [text.ready()])
            if text.stopped:
                return
        text.end()
        yield from filter(None, [text.ready()])
        best = [ranked[0] for ranked in steps.results]
        batching.warn_of_length_ends([len(fitted)], best, None if window else self.context, method)

    def cache_prefixes(self, budget_bytes: int = 2**30) -> PrefixCache:
        """From now on compute prefixes that prompts share once; see `PrefixCache`.

        Args:
            budget_bytes: of keys and values that are stored at most.

        Returns:
            The cache, which counts what it saves; `task.prefix_cache = None` removes it.

        Raises:
            ConfigError: the model has no key/value cache, or the budget is below one byte.
        """
        self.prefix_cache = PrefixCache(self.module, budget_bytes)
        return self.prefix_cache

    # ---- vectors

    def text_encoder(self) -> TextEncoder:
        """The model as an encoder of texts.

        Raises:
            ConfigError: it is not an encoder.
        """
        if not isinstance(self.module, Encoder):
            raise ConfigError(
                f"{type(self.module).__name__} has no hidden states, so it gives no vectors of "
                "texts. Networks do; this model continues texts (generate)."
            )
        config = self.module.config
        template = self.template or self.module.template(self.tokenizer)
        return TextEncoder(
            self.encoder, InputFormat(self.tokenizer, template, self.module.text_limit, config.pad)
        )

    # ---- perplexity

    def protocol(self, window: int | None = None, stride: int | None = None) -> Protocol:
        """How a perplexity is measured; arguments replace the options of the task.

        Raises:
            ConfigError: a stride without a window, or beyond it.
        """
        check_at_least(1, window=window, stride=stride)
        window = window or self.window or self.context
        if self.context is not None and window is not None and window > self.context:
            raise ConfigError(
                f"`window` must be at most the model's context, {self.context:,}, but is "
                f"{window:,}."
            )
        return Protocol(self.unit, self._tokenization, window, stride or self.stride)

    def evaluate(
        self,
        rows: str | PathLike[str] | RowReader | Iterable[str],
        *,
        window: int | None = None,
        stride: int | None = None,
        **state_options: Unpack[StateFields],
    ) -> Scores:
        """Perplexity of a text: a file, a str, or its lines, read once from start to end.

        A list of lines has the perplexity of the file of these lines: each ends in a line break.

        Every token is predicted, the first one from the token that precedes any line; where the
        model has no such token, the first one is not predicted. Words are separated by white space,
        and the end of a line counts as one more, as is usual.

        Args:
            window, stride: tokens that are read at a time, and from one window to the next.
            state_options: how a model that carries a state reads the text; see `StateOptions`.

        Raises:
            ConfigError: the model has no such options, or one is out of range.
            RegardError: the likelihood of the text is not finite.
        """
        protocol = self.protocol(window, stride)
        chosen = stateful_perplexity.StateOptions.of(state_options).chosen()
        options = stateful_perplexity.StateOptions.of({**self.state_options.chosen(), **chosen})
        if protocol.window is not None and (names := list(options.chosen())):
            raise ConfigError(
                f"`{names[0]}` is for a model that carries a state through the whole "
                f"text, but this one reads windows of {protocol.window:,} tokens."
            )
        reader, units = running_text.rows_of_text(rows, self.format), 0

        def counted() -> Iterator[str]:
            nonlocal units
            for text in reader.texts():
                units += self._units(text)
                yield text

        first, end = self._before(), self.line_end()
        ids = self._in_order(encode_texts(counted(), self.tokenizer, first=first, after=end))
        if protocol.window is not None:
            batches = self._parts(ids, 1, protocol.window, protocol.stride)
            nats, tokens = self._total_loss(batches)
        else:
            nats, tokens, protocol = self._carried_loss(ids, options, protocol)
        unknown_id = self.tokenizer.unk_id
        unknown = 0 if unknown_id is None else int((ids.ids == unknown_id).sum())
        count = tokens if self.unit == "token" else units
        check_any(count, "Perplexity")
        result = Perplexity(nats, count, protocol, unknown)
        batching.check_likelihood(result.nats, result.value)
        return Scores([result])

    def evaluated_model(self, options: stateful_perplexity.StateOptions) -> LanguageModel:
        """The model with the memory length and largest distance that evaluation is asked for.

        Raises:
            ConfigError: it has none.
        """
        memory = {"memory_length", "max_distance"}
        chosen = options.model_dump(include=memory, exclude_none=True)
        return self.module.with_memory(**chosen) if chosen else self.module

    def log_likelihoods(self, texts: Any, *, line_end: bool = True) -> Any:
        """log p of each text, alone, in nats; see `regard.tasks.log_likelihoods`.

        line_end: whether the end of the line is part of the text, where texts are lines.
        """
        if isinstance(texts, str):
            return self.log_likelihoods([texts], line_end=line_end)[0]
        first, end = self._before(), self.line_end() if line_end else []
        encoded = self.tokenizer.encode_many(checked_texts(texts))
        rows = [self._turned([*first, *ids, *end]) for ids in encoded]
        return causal_log_likelihoods(
            self.generator, rows, self.module.target_length or VALID_STEPS
        )

    @property
    def likelihoods_by_kind(self) -> dict[str, LogLikelihoods]:
        """Of lines also without their ends; a model that reads backwards starts with the end."""
        kinds: dict[str, LogLikelihoods] = {"causal": self.log_likelihoods}
        if self.line_end() and not self.module.reads_backward:
            kinds["causal-without-line-end"] = partial(self.log_likelihoods, line_end=False)
        return kinds

    def text_ids(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """The ids that precede each text of one line, and those of the text with its line's end."""
        first, end = self._before(), self.line_end()
        return [(first, [*ids, *end]) for ids in self.tokenizer.encode_many(texts)]

    def lambada(self, passages: Sequence[str]) -> list[Score]:
        """Accuracy and perplexity of the last words of passages; see `lambada_scores`."""
        self._check_forward("predict last words")
        return lambada_scores(self.generator, self.tokenizer, checked_texts(passages))

    # ---- parts

    def test(self, recipe: running_text.LanguageModelingRecipe) -> Sequence[NamedScore]:
        """Perplexity of the test data; where it is per word, also bits per byte."""
        scores: Any = super().test(recipe)
        if self.unit != "word" or not scores:
            return scores
        size = sum(len(text.encode()) + 1 for text in recipe.data.records("test").texts())
        protocol = replace(scores[0].protocol, unit="byte")
        return [*scores, replace(scores[0], count=size, protocol=protocol)]

    def samples(self, recipe: running_text.LanguageModelingRecipe) -> list[tuple[str, str]]:
        """The first words of some validation lines, and their continuation by the model."""
        return [sample[:2] for sample in self.test_samples(recipe, "valid")]

    def test_samples(self, recipe: Any, part: str = "test") -> list[tuple[str, str, str]]:
        """The first words of some lines of a part of the data, continued, of test data by sampling:
        the most probable continuations repeat themselves; and the lines."""
        sampling = {"top_k": 20} if part == "test" else {}
        texts = recipe.data.records(part).texts() if part == "valid" or recipe.data.test else ()
        lines = [*islice((text for text in texts if len(text.split()) > PROMPT), SAMPLES)]
        prompts = [" ".join(line.split()[:PROMPT]) for line in lines]
        room = 30 if self.context is None else max(1, min(30, self.context // 2))
        outputs = self.generate(prompts, max_tokens=room, too_long="truncate", **sampling)
        rows = zip(prompts, outputs, lines, strict=True)
        return [(prompt, output, line[:LONGEST]) for prompt, output, line in rows]

    def attention_inputs(self, recipe: running_text.LanguageModelingRecipe) -> list[str]:
        """The first words of some validation lines."""
        lines = islice(recipe.data.records("valid").texts(), SAMPLES)
        return [" ".join(line.split()[:PROMPT]) for line in lines]

    def line_end(self) -> list[int]:
        """The ids at the end of each line of the text: none where line breaks are tokens."""
        return self._line_end() if self.format == "lines" else []

    def _units(self, text: str) -> int:
        line = self.format == "lines"
        size = {"word": len(text.split()), "character": len(text), "byte": len(text.encode())}
        return size.get(self.unit, 0) + line

    @property
    def _tokenization(self) -> str:
        return f"{self.tokenizer.kind}-{self.tokenizer.vocab_size}"

    @torch.no_grad()
    def _total_loss(self, batches: Sequence[Any]) -> tuple[float, int]:
        """Sum of the losses in nats, and the number of predicted tokens."""
        total, count, carry = 0.0, 0, None
        with evaluating(self.module):
            for batch in batching.watched(batches):
                losses, carry = self.losses(batch, carry)
                loss, tokens = losses["loss"]
                total, count = total + float(loss), count + tokens
        return total, count

    def _carried_loss(
        self, ids: TokenArray, options: stateful_perplexity.StateOptions, protocol: Protocol
    ) -> tuple[float, int, Protocol]:
        """The nats and tokens of a text read with a carried state, and how it was read."""
        model = self.evaluated_model(options)
        with evaluating(model):
            likelihood = stateful_perplexity.carried_likelihood(model, ids, options)
        how = stateful_perplexity.signature(model, options)
        carried = {"segments": likelihood.segments, "overlap": likelihood.overlap, "state": how}
        return likelihood.nats, likelihood.count, replace(protocol, **carried)

    def _parts(
        self, text: TokenArray, streams: int, window: int | None, stride: int | None
    ) -> Sequence[StreamBatch]:
        """A text in windows; without a window as `streams` parallel streams."""
        if window is None:
            chosen = self.state_options.target_length
            length = chosen or self.module.target_length or VALID_STEPS
            return ParallelStreams(text, batch_size=streams, sequence_length=length)
        batch_size = max(1, batch_budget(self.module) // window)
        return SlidingWindows(text, window=window, stride=stride, batch_size=batch_size)

    # ---- prompts

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompts, with the first tokens of the tokenizer's template, if it has one; for
        an empty prompt what precedes any line of the text.
        """
        template = self.template
        first = [number for number, _ in template.single[0]] if template else []
        encoded = self.tokenizer.encode_many(prompts)
        return [[*first, *self._turned(ids)] or self._before() for ids in encoded]

    def _turned(self, ids: list[int]) -> list[int]:
        """A text in the order in which the model reads it, or back."""
        return ids[::-1] if self.module.reads_backward else ids

    def _check_forward(self, action: str) -> None:
        if self.module.reads_backward:
            raise ConfigError(
                f"This model reads texts from their end: it cannot {action}. `generate` gives what "
                "comes before a prompt."
            )

    def read_ids(self, texts: list[list[int]]) -> None:
        """One pass over prompts and continuations, where attention capture is on."""
        texts = [ids[: self.context] for ids in texts]  # the last token may be one too many
        tokens = [[self.tokenizer.label(i) for i in ids] for ids in texts]
        if label(target=tokens):
            with torch.no_grad(), evaluating(self.module):
                ids = Sequences.of(texts, self.module.config.pad).ids
                self.module(ids.to(batching.device_of(self.module)))

    def _in_order(self, text: TokenArray) -> TokenArray:
        """A text in the order in which the model reads it."""
        return text.reversed() if self.module.reads_backward else text

    def _before(self) -> list[int]:
        """What precedes any text for this model; empty where that is not known."""
        if self.given_format == "lines":
            return self._line_end()
        line = self.tokenizer.encode("\n").ids
        if self.given_format == "text":
            return line
        config = self.module.config
        ids = (self.tokenizer.bos_id, self.tokenizer.eos_id, config.bos, config.eos)
        first_ids = [i for i in ids if i is not None and i < config.vocab_size]
        return first_ids[:1] or line

    def _line_end(self) -> list[int]:
        if self.format == "text":
            return self.tokenizer.encode("\n").ids
        if self.tokenizer.eos_id is None:
            raise ConfigError(
                "Lines need a tokenizer with a token that ends them, such as </s>, but this one "
                "has none. Train one, or read the data with format = 'text'."
            )
        return [self.tokenizer.eos_id]
