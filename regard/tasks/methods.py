"""The methods of the objects that `regard.load` and `run.model` give, with their types.

    model = regard.load("runs/translator")
    model.translate("ein Haus")             one text: one result
    model.translate(["ein Haus", "zwei"])   several: a list with a result for each
    model.tag("ein Haus")                   NotSupportedError: names the methods that it has

Every task inherits all of them, so that an editor completes them and a type checker knows them. A
task overrides those that it supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, Unpack, overload

from regard import habit_names
from regard.errors import ConfigError, NotSupportedError
from regard.lazy import imported
from regard.schema import joined_with_or
from regard.suggest import nearest
from regard.tasks.inputs import as_list, warn_if_file
from regard.text.word_spans import Splitter, word_spans

if TYPE_CHECKING:
    import numpy as np
    import torch

    from regard.metrics.score import ScoreReport, Scores
    from regard.tasks.batching import TooLong
    from regard.tasks.method_options import (
        DecodingOptions,
        EmbedOptions,
        FillOptions,
        OneTextOptions,
        TextSearchOptions,
    )
    from regard.tasks.predictions import FilledText, Prediction, TextMatch
    from regard.tasks.spans import SpanPrediction


class Methods:
    """What users call.

    labels: the names of what a task predicts, where it has them.
    reads_images: whether its inputs are names of image files, not texts.
    decodes: whether it generates texts; other tasks have `_predictions`, those for a list of texts.
    """

    name: ClassVar[str]
    decodes: ClassVar[bool] = False
    reads_images: ClassVar[bool] = False
    module: Any
    labels: tuple[str, ...] = ()
    _predictions: Callable[..., Sequence[Prediction]]

    # ---- of all tasks

    def predict(self, texts: Any, *, return_proba: bool = False, **options: Any) -> Any:
        """The result for a text, or a list of the results for several.

        Args:
            texts: what a text is depends on the task: a str; a pair, which is a tuple of two; a
                question with its choices; the file of an image.
            return_proba: return instead of each result a prediction, which also has probabilities
                or scores: see `prediction_type` of the task.
            options: `too_long="truncate"` cuts texts that are longer than the model reads, as
                training and `evaluate` do, which say how many; here they are an error without it.
                Of a task that generates texts see `DecodingOptions`.

        Raises:
            TextError: an item is not a text for this task, or is too long.
            RegardError: this is neither a text nor a list of texts.
        """
        if self.decodes:
            if return_proba:
                self._not_supported("predict(return_proba=True)")
            if not isinstance(texts, str) or self.reads_images:
                return self.generate(texts, **options)
            warn_if_file(texts)
            return self.generate([texts], **options)[0]
        warn_if_file(texts)
        if options.get("n_best", 1) != 1 and not return_proba:
            raise ConfigError("`n_best` results of a text have scores: give return_proba=True.")
        self._check_options_of_predict(options)
        single = self.is_one(texts)
        predictions = self._predictions([texts] if single else as_list(texts), **options)
        results = predictions if return_proba else [one.result for one in predictions]
        return results[0] if single else results

    def _check_options_of_predict(self, options: Iterable[str]) -> None:
        """Check that `predict` of this task has these options.

        Raises:
            ConfigError: it has not.
        """
        parameters = signature(self._predictions).parameters.values()
        known = ["return_proba", *(one.name for one in parameters if one.kind == one.KEYWORD_ONLY)]
        unknown = next((name for name in options if name not in known), None)
        if unknown and not any(one.kind == one.VAR_KEYWORD for one in parameters):
            raise ConfigError(f"`predict` has no option {unknown!r}. {nearest(unknown, known)}")

    def is_one(self, texts: Any) -> bool:
        """Whether this is one text for `predict`, and no list of them."""
        return isinstance(texts, str)

    def evaluate(self, data: Any, **options: Any) -> Scores:
        """The scores of the predictions for data with their targets, by name.

        Args:
            data: rows of texts and their target, a table with named columns, or a reader.
            options: `columns=["text", "label"]` names those of a table; of a task that generates
                texts see `DecodingOptions`.
        """
        self._not_supported("evaluate")

    def save(self, folder: str | Path, *, license: str | None = None) -> None:
        """Write the model as a folder that `regard.load` opens: see `regard.save`."""
        imported("regard.tasks.folders:save")(self, folder, license=license)

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device, such as "cuda:1"; returns the same object.

        Raises:
            ConfigError: there is no such device.
        """
        self.module.to(imported("regard.tasks.folders:device_for")(str(device)))
        return self

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        from regard.tasks.batching import device_of

        return device_of(self.module)

    # ---- of classifiers, taggers and parsers

    @overload
    def predict_proba(
        self, texts: str | tuple[str, str], *, too_long: TooLong = "error"
    ) -> dict[str, float]: ...
    @overload
    def predict_proba(self, texts: Any, *, too_long: TooLong = "error") -> Any: ...
    def predict_proba(self, texts: Any, *, too_long: TooLong = "error") -> Any:
        """The probability of each label: for one text a dict, for a list an array (N, labels), in
        the order of `labels`. Of questions with choices: arrays, in the order of the choices.
        """
        self._not_supported("predict_proba")

    def classification_report(self, rows: Any) -> ScoreReport:
        """Scores of each label; rows as of `evaluate`."""
        self._not_supported("classification_report")

    @overload
    def tag(self, texts: str, *, splitter: Splitter = ...) -> list[str]: ...
    @overload
    def tag(
        self, texts: Iterable[str | Sequence[str]], *, splitter: Splitter = ...
    ) -> list[list[str]]: ...
    def tag(self, texts: Any, *, splitter: Splitter = word_spans) -> Any:
        """The tag of each word of a text; of a list of texts, a list of tags for each.

        Args:
            texts: a text, or a list of texts, each a string or a list of its words:
                `["Anna", "slept"]` is two texts, `[["Anna", "slept"]]` the two words of one.
            splitter: a function from a text to (start, stop) of each word, in characters; without
                it words are those of CoNLL-2003 (`regard.text.word_spans`).
        """
        self._not_supported("tag")

    def parse(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The constituency tree of a sentence. In a list, a sentence may be a list of its words."""
        self._not_supported("parse")

    def choose(self, questions: Any, *, too_long: TooLong = "error") -> Any:
        """The best choice for a question: a mapping with `context`, `question` and `choices`."""
        self._not_supported("choose")

    @overload
    def answer(self, question: str, context: str) -> SpanPrediction: ...
    @overload
    def answer(self, question: Sequence[str], context: Sequence[str]) -> list[SpanPrediction]: ...
    def answer(self, question: Any, context: Any) -> Any:
        """The answer to a question from its context; of two lists, that of each pair."""
        self._not_supported("answer")

    @overload
    def follows(self, first: str, second: str, *, too_long: TooLong = "error") -> float: ...
    @overload
    def follows(
        self, first: Sequence[str], second: Sequence[str], *, too_long: TooLong = "error"
    ) -> list[float]: ...
    def follows(self, first: Any, second: Any, *, too_long: TooLong = "error") -> Any:
        """The probability that the second text follows the first; of two lists, pair by pair."""
        self._not_supported("follows")

    # ---- of masked language models

    @overload
    def fill(self, texts: str, **options: Unpack[FillOptions]) -> FilledText: ...
    @overload
    def fill(self, texts: Iterable[str], **options: Unpack[FillOptions]) -> list[FilledText]: ...
    def fill(self, texts: Any, **options: Unpack[FillOptions]) -> Any:
        """A text with its masks filled, and the `top` best words for each."""
        self._not_supported("fill")

    # ---- of tasks that generate texts: with `n_best` or `samples` above 1 a list for each text

    @overload
    def generate(self, texts: str = "", **options: Unpack[OneTextOptions]) -> str: ...
    @overload
    def generate(self, texts: Iterable[str], **options: Unpack[OneTextOptions]) -> list[str]: ...
    @overload
    def generate(self, texts: Any = "", **options: Unpack[DecodingOptions]) -> Any: ...
    def generate(self, texts: Any = "", **options: Unpack[DecodingOptions]) -> Any:
        """The text that the model generates: a prompt with its continuation, or a target."""
        self._not_supported("generate")

    @overload
    def translate(self, texts: str, **options: Unpack[OneTextOptions]) -> str: ...
    @overload
    def translate(self, texts: Iterable[str], **options: Unpack[OneTextOptions]) -> list[str]: ...
    @overload
    def translate(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any: ...
    def translate(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The translation of a text."""
        self._not_supported("translate")

    @overload
    def summarize(self, texts: str, **options: Unpack[OneTextOptions]) -> str: ...
    @overload
    def summarize(self, texts: Iterable[str], **options: Unpack[OneTextOptions]) -> list[str]: ...
    @overload
    def summarize(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any: ...
    def summarize(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The summary of a text."""
        self._not_supported("summarize")

    @overload
    def caption(self, images: str | Path, **options: Unpack[OneTextOptions]) -> str: ...
    @overload
    def caption(
        self, images: Iterable[str | Path], **options: Unpack[OneTextOptions]
    ) -> list[str]: ...
    @overload
    def caption(self, images: Any, **options: Unpack[DecodingOptions]) -> Any: ...
    def caption(self, images: Any, **options: Unpack[DecodingOptions]) -> Any:
        """What an image shows; images are named by their files."""
        self._not_supported("caption")

    @overload
    def reply(self, turns: str | Sequence[str], **options: Unpack[OneTextOptions]) -> str: ...
    @overload
    def reply(
        self, turns: Sequence[Sequence[str]], **options: Unpack[OneTextOptions]
    ) -> list[str]: ...
    @overload
    def reply(self, turns: Any, **options: Unpack[DecodingOptions]) -> Any: ...
    def reply(self, turns: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The reply to a dialogue: a list of its turns, or the only one; or replies to several."""
        self._not_supported("reply")

    def stream(self, prompt: str = "", **options: Unpack[DecodingOptions]) -> Iterator[str]:
        """The continuation of a prompt, in parts as tokens are generated."""
        self._not_supported("stream")

    def hypotheses(self, texts: Sequence[str], **options: Unpack[DecodingOptions]) -> Any:
        """For each text its hypotheses, best first: tokens, scores and log-probabilities."""
        self._not_supported("hypotheses")

    # ---- of tasks with vectors of texts

    def embed(
        self, texts: Any, *, too_long: TooLong = "error", **options: Unpack[EmbedOptions]
    ) -> Any:
        """The vector of a text, (D,), or of several, (N, D); or of their words or tokens."""
        self._not_supported("embed")

    def embed_stream(
        self, texts: Iterable[Any], *, too_long: TooLong = "error", **options: Unpack[EmbedOptions]
    ) -> Iterator[np.ndarray]:
        """The vectors of any number of texts, in order, in constant memory."""
        self._not_supported("embed_stream")

    def encode(
        self, sentences: Any, *, normalize_embeddings: bool = False, **options: Unpack[EmbedOptions]
    ) -> np.ndarray:
        """The vectors of sentences, as `encode` of sentence-transformers: long ones are cut."""
        self._not_supported("encode")

    @overload
    def search(
        self, query: str, texts: Any, top_k: int = 10, **options: Unpack[TextSearchOptions]
    ) -> list[TextMatch]: ...
    @overload
    def search(
        self,
        query: Iterable[str],
        texts: Any,
        top_k: int = 10,
        **options: Unpack[TextSearchOptions],
    ) -> list[list[TextMatch]]: ...
    def search(
        self, query: Any, texts: Any, top_k: int = 10, **options: Unpack[TextSearchOptions]
    ) -> Any:
        """The `top_k` texts that are most similar to a query, best first; or to each of several."""
        self._not_supported("search")

    def similarity(
        self, a: Any, b: Any, *, too_long: TooLong = "error", **options: Unpack[EmbedOptions]
    ) -> Any:
        """The cosines of texts: a number for two texts, (len(a), len(b)) for lists."""
        self._not_supported("similarity")

    # ---- of language models

    @overload
    def log_likelihoods(self, texts: str) -> float: ...
    @overload
    def log_likelihoods(self, texts: Iterable[str]) -> list[float]: ...
    def log_likelihoods(self, texts: Any) -> Any:
        """The log-likelihood of a text in nats; of a masked language model the pseudo one."""
        self._not_supported("log_likelihoods")

    def lambada(self, passages: Sequence[str]) -> Any:
        """The scores of predicting the last words of passages."""
        self._not_supported("lambada")

    def cache_prefixes(self, budget_bytes: int = 2**30) -> Any:
        """Compute prefixes that prompts share once, from now on."""
        self._not_supported("cache_prefixes")

    # ---- which of them a task has

    @classmethod
    def has(cls, method: str) -> bool:
        """Whether the task supports this method."""
        return getattr(cls, method) is not getattr(Methods, method) or method in OF_EVERY_TASK

    @classmethod
    def methods(cls) -> tuple[str, ...]:
        """The names of the methods that the task supports."""
        return tuple(name for name in METHODS if cls.has(name))

    def __dir__(self) -> list[str]:
        """What a notebook offers after `model.`: these methods, and what the model holds."""
        return [*self.methods(), *OFFERED, *(("labels",) if self.labels else ())]

    def _not_supported(self, method: str) -> NoReturn:
        """Raise the error for a method that the task does not support.

        Raises:
            NotSupportedError: always.
        """
        own = joined_with_or([f"`{name}`" for name in self.methods()]).replace(" or ", " and ")
        raise NotSupportedError(
            f"{type(self).__name__} (task {self.name}) does not support `{method}`. It has {own}."
        )


def results_of(ranked: Sequence[Sequence[str]], options: Mapping[str, Any]) -> list[Any]:
    """Of the texts that are generated for each input, best first, the best; or all of them where
    the options ask for several.
    """
    own = habit_names.decoding(options)
    several = any(own.get(name, 1) > 1 for name in SEVERAL)
    return [list(texts) if several else texts[0] for texts in ranked]


SEVERAL = ("n_best", "samples")
OFFERED = ("device", "module", "name", "tokenizer")
OF_EVERY_TASK = ("predict", "save", "to")
# method -> what it does, the first sentence of its docstring
METHODS = {
    name: " ".join((value.__doc__ or "").partition(".\n")[0].split()).rstrip(".")
    for name, value in vars(Methods).items()
    if callable(value) and not name.startswith("_") and name not in ("has", "is_one", "methods")
}
