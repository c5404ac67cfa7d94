"""Characters: every code point is a token, spaces and line ends too; unknown ones are <unk>.

Also ELMo's characters, which are bytes with fixed numbers and need no vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models

from regard.text.bpe_fast import assemble
from regard.text.special_tokens import TrainerInput
from regard.text.word_level import frequent

# ELMo (Peters et al. 2018): bytes are 0..255, then these; ids are one more, 0 is the padded word.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
ELMO_CHARACTERS, ELMO_PADDING = 262, PADDING + 1  # how many ids there are; that of padding


def train(inputs: TrainerInput, *, min_frequency: int = 1) -> Tokenizer:
    """All characters seen at least `min_frequency` times, the most frequent first.

    Decoding gives the text itself, unless a character is unknown.
    """
    inputs.preprocessing.check_split("characters")
    unknown, normalizer = inputs.unknown(), inputs.preprocessing.normalizer()
    counts: Counter[str] = Counter()
    for text in inputs.texts:
        counts.update(normalizer.normalize_str(text) if normalizer else text)
    alphabet = sum(count >= min_frequency for count in counts.values())
    if len(inputs.special_tokens) + alphabet > inputs.vocab_size:
        raise inputs.too_small(alphabet, "Or leave rare characters unknown: min_frequency=…")
    model = models.WordLevel(frequent(inputs, counts, min_frequency), unknown)
    return assemble(model, inputs.preprocessing, decoders.Fuse())


def elmo_word(tokenizer: Any, id: int, per_word: int = 50) -> list[int]:
    """The character ids of a token, (per_word,); bos and eos begin and end a sentence."""
    if id in (tokenizer.bos_id, tokenizer.eos_id):
        return _framed([BEGIN_SENTENCE if id == tokenizer.bos_id else END_SENTENCE], per_word)
    return _framed(tokenizer.token(id).encode(), per_word)


def _framed(word: Sequence[int], per_word: int) -> list[int]:
    """Bytes between the marks of a word's ends, and padding behind them."""
    marked = [BEGIN_WORD, *word[: per_word - 2], END_WORD]
    return [c + 1 for c in marked + [PADDING] * (per_word - len(marked))]
