"""Translation: pairs of sentences, an encoder-decoder, BLEU."""

from typing import Any, Unpack

from pydantic import field_validator

from regard.errors import RegardError
from regard.metrics import BLEU, CHRF, Metric
from regard.models.protocols import EncoderDecoder
from regard.tasks.text_to_text import (
    TextToText,
    TextToTextEvaluation,
    TextToTextOptions,
    TextToTextRecipe,
)
from regard.text import Tokenizer


class TranslationEvaluation(TextToTextEvaluation):
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


class TranslationRecipe(TextToTextRecipe):
    """A recipe's sections besides [model] and [training]."""

    evaluation: TranslationEvaluation = TranslationEvaluation()


class Translator(TextToText):
    """A model that translates a text, with its tokenizer."""

    name = "translation"
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
        **options: Unpack[TextToTextOptions],
    ):
        super().__init__(module, tokenizer, method=method, **options)
        self.bleu_tokenize = bleu_tokenize

    translate = TextToText.generate  # type: ignore[assignment]

    @classmethod
    def metric_options(cls, recipe: Any) -> dict[str, Any]:
        return {"bleu_tokenize": recipe.evaluation.bleu_tokenize}

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "bleu_tokenize": self.bleu_tokenize}

    def metrics(self) -> tuple[Metric, ...]:
        """BLEU and chrF."""
        return BLEU(tokenize=self.bleu_tokenize), CHRF()
