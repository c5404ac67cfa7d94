"""Text -> tokens: seven kinds of tokenizer, trained here or read from published files.

    tokenizer = Tokenizer.train(lines, "byte-bpe", vocab_size=8000)
    tokenizer = Tokenizer.load("runs/demo/model")

Adding a kind is one file with a `train` function and one line in `KINDS`.

Internal: names that `regard` itself does not have may change with every version.
"""

from typing import TYPE_CHECKING, Any

from regard.lazy import names_of

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer as Tokenizer

# kind: the function that trains it (imported on demand), and how it treats text by default.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bpe": ("regard.text.bpe:train", {"split": "whitespace"}),
    "byte-bpe": ("regard.text.bpe:train_bytes", {"split": "gpt2"}),
    "wordpiece": (
        "regard.text.wordpiece:train",
        {"split": "punctuation", "clean": True, "isolate_cjk": True},
    ),
    "wordpiece-likelihood": (
        "regard.text.wordpiece:train_likelihood",
        {"split": "punctuation", "clean": True, "isolate_cjk": True},
    ),
    "unigram": ("regard.text.unigram:train", {"split": "whitespace"}),
    "words": ("regard.text.closed_vocabulary:train_words", {"split": "whitespace"}),
    "characters": ("regard.text.closed_vocabulary:train_characters", {"split": "characters"}),
}

_names, __getattr__ = names_of(
    __name__,
    {
        "preprocessing": "Preprocessing",
        "templates": "Encoding",
        "tokenizer": "Tokenizer",
        "training": "train",
    },
)
__all__ = ["KINDS", *_names]


def __dir__() -> list[str]:
    return sorted([*globals(), *_names])
