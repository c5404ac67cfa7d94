"""Summarization: a text and its summary, an encoder-decoder, ROUGE.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries": what a summary shares with a
reference is counted in words, in pairs of words, and as the longest common subsequence.
"""

from regard.metrics import ROUGE, Metric
from regard.tasks.text_to_text import TextToText


class Summarizer(TextToText):
    """A model that summarizes a text, with its tokenizer."""

    name = "summarization"
    commands = ("predict", "embed", "evaluate", "look")
    goal = ("rougeL", "max")
    metric_names = ("rouge1", "rouge2", "rougeL")

    summarize = TextToText.generate  # type: ignore[assignment]

    def metrics(self) -> tuple[Metric, ...]:
        """ROUGE-1, ROUGE-2 and ROUGE-L."""
        return tuple(ROUGE(kind) for kind in self.metric_names)
