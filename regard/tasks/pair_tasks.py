"""Tasks from text to text with metrics of their own: translation, summarization, dialogue.

Summaries are scored by ROUGE (Lin 2004): what one shares with a reference is counted in words, in
pairs of words, and as the longest common subsequence.

A dialogue model replies to what was said before:

    turns before -> history </s> -> model -> reply

Each turn of a dialogue is a reply to its history, which is empty for the first one. The model is an
encoder-decoder, or a language model that reads history and reply as one text (`decoder-only`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Unpack

from pydantic import Field, field_validator

from regard.data.datasets.records import read_dialogues, replies
from regard.data.in_memory import is_path
from regard.data.readers import RowReader
from regard.data.token_arrays import FieldEncoder
from regard.errors import RegardError
from regard.metrics import BLEU, CHRF, ROUGE, Metric
from regard.models.protocols import EncoderDecoder
from regard.tasks import text_to_text
from regard.tasks.encoding import no_columns
from regard.tasks.inputs import checked_texts
from regard.tasks.task import of_training
from regard.text import Tokenizer
from regard.text.languages import LanguageTokens


class TranslationEvaluation(text_to_text.TextToTextEvaluation):
    """[evaluation]"""

    bleu_tokenize: str = "13a"
    """sacreBLEU's tokenizer; "none" for text that is tokenized already."""

    @field_validator("bleu_tokenize")
    @classmethod
    def _usable(cls, name: str) -> str:
        try:
            BLEU(tokenize=name)
        except RegardError as error:
            raise ValueError(f"cannot be used: {error}") from None
        return name


class TranslationRecipe(text_to_text.TextToTextRecipe):
    """A recipe's sections besides [model] and [training]."""

    evaluation: TranslationEvaluation = TranslationEvaluation()


class Translator(text_to_text.TextToText):
    """A model that translates a text, with its tokenizer."""

    name = "translation"
    published_as = ("marian", "mbart", "m2m_100")
    pipeline = "translation"
    commands = ("predict", "embed", "evaluate", "look")
    Recipe = TranslationRecipe
    goal = ("bleu", "max")
    metric_names = ("bleu",)

    def __init__(
        self,
        module: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        bleu_tokenize: str = "13a",
        **options: Unpack[text_to_text.TextToTextOptions],
    ):
        super().__init__(module, tokenizer, method=method, **options)
        self.bleu_tokenize = bleu_tokenize

    translate = text_to_text.TextToText.generate  # type: ignore[assignment]

    def metrics(self) -> tuple[Metric, ...]:
        """BLEU and chrF."""
        return BLEU(tokenize=self.bleu_tokenize), CHRF()


class Summarizer(text_to_text.TextToText):
    """A model that summarizes a text, with its tokenizer."""

    name = "summarization"
    published_as = ("pegasus",)
    pipeline = "summarization"
    commands = ("predict", "embed", "evaluate", "look")
    goal = ("rougeL", "max")
    metric_names = ("rouge1", "rouge2", "rougeL")

    summarize = text_to_text.TextToText.generate  # type: ignore[assignment]

    def metrics(self) -> tuple[Metric, ...]:
        """ROUGE-1, ROUGE-2 and ROUGE-L."""
        return tuple(ROUGE(kind) for kind in self.metric_names)


class DialogueData(text_to_text.PairsData):
    """[data]: files of dialogues, as `regard.data.read_dialogues` takes them."""

    history: int | None = Field(default=None, ge=0)
    """Turns before a reply that the model reads; all where it is not given."""
    too_long: Literal["error", "truncate", "skip"] = "truncate"
    """A history that is too long loses its beginning, a reply its end."""

    def read(self, source: Any, part: str) -> Any:
        """The dialogues of one file."""
        return read_dialogues(text_to_text.only_file(source, part))

    def records(self, part: str) -> RowReader:
        """The replies of the dialogues of "train", "valid" or "test"; a share takes whole ones."""
        return replies(super().records(part), self.history)


class DialogueRecipe(text_to_text.PairsRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: DialogueData


class DialogueModel(text_to_text.TextToText):
    """A model that replies, with its tokenizer.

    history: turns before a reply that it reads; None: all.
    """

    name = "dialogue"
    file_ending = "json"
    commands = ("generate", "predict", "evaluate", "look")
    Recipe = DialogueRecipe
    default_limit: ClassVar[int] = 40
    metric_names: ClassVar[tuple[str, ...]] = ("chrf",)
    reads_empty = True

    def __init__(
        self,
        module: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        history: int | None = None,
        **options: Unpack[text_to_text.TextToTextOptions],
    ):
        super().__init__(module, tokenizer, method=method, **options)
        self.history = history

    @classmethod
    def fields(
        cls, tokenizer: Tokenizer, tokens: LanguageTokens, *, prefix: str = "", **limits: Any
    ) -> tuple[FieldEncoder, FieldEncoder]:
        """A history that is too long loses its oldest tokens."""
        source, target = super().fields(tokenizer, tokens, prefix=prefix, **limits)
        return replace(source, truncation_side="left"), target

    def reply(self, turns: Any, **options: Any) -> Any:
        """What follows the turns of a dialogue, of which the last `history` are read.

        Args:
            turns: a list of texts, empty for the first turn; one text is a list of one. Several
                dialogues, a list of such lists, have a list of replies.
            options: how to decode, by name.
        """
        dialogues = [turns] if isinstance(turns, str) else list(turns)
        single = all(isinstance(turn, str) for turn in dialogues)
        histories = [
            self.history_of(checked_texts(one)) for one in ([dialogues] if single else dialogues)
        ]
        texts = self.generate(histories, too_long="truncate", **options)
        return texts[0] if single else texts

    def history_of(self, turns: Sequence[str]) -> str:
        """What the model reads of the turns before a reply."""
        first = 0 if self.history is None else max(0, len(turns) - self.history)
        return " ".join(turns[first:])

    def validate(self) -> dict[str, float]:
        """The cross-entropy of the replies, in nats per token."""
        loss, count = self._total_loss(self._loss_batches(of_training(self.data).valid))
        return {"loss": loss / count}

    def metrics(self) -> tuple[Metric, ...]:
        """chrF of the generated replies."""
        return (CHRF(),)

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> RowReader:
        """The replies of a file of dialogues; or rows in memory of a history and its reply."""
        if not is_path(files[0]):
            return super().rows_to_evaluate(files, columns)
        no_columns(columns, delimiter)
        return replies(read_dialogues(text_to_text.only_file(files, "data")), self.history)
