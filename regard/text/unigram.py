"""Training of the unigram language model over subwords, by the `sentencepiece` library.

Kudo 2018, "Subword Regularization": subwords are independent, so that a segmentation x_1 ... x_M
has the probability p(x_1) ... p(x_M). A text is encoded by its most probable segmentation; the
probability of the text is the sum over all of them, which training maximizes by expectation
maximization.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from regard.errors import ConfigError, MissingExtra
from regard.text import sentencepiece
from regard.text.preprocessing import TrainerInput
from regard.text.sentencepiece import SPACE

LINE = 200  # words of a line that the trainer reads; it leaves out very long lines


def train(inputs: TrainerInput, *, character_coverage: float = 0.9995) -> Tokenizer:
    """Train a unigram tokenizer. A word includes the space before it, as the character "▁".

    character_coverage: the share of the characters of the texts that the vocabulary covers; rarer
        characters are unknown

    Raises:
        ConfigError: `vocab_size` cannot hold the characters.
        MissingExtra: `sentencepiece` is not installed.
    """
    inputs.preprocessing.check_split("whitespace")
    unknown = inputs.special_tokens.index(inputs.unknown())
    words = [word for line in inputs.words() for word in line]
    size = inputs.vocab_size - len(inputs.special_tokens)
    if (needed := 1 + _covered(words, character_coverage)) > size:
        raise inputs.too_small(needed, "Or lower `character_coverage`.")
    pieces = (
        []
        if not words
        else _learned(
            words,
            vocab_size=size + 1,  # with their token for unknown characters
            character_coverage=float(character_coverage),
        )
    )
    if SPACE not in (piece.text for piece in pieces):
        least = min((piece.score for piece in pieces), default=0.0)
        pieces = [*pieces[: size - 1], sentencepiece.Piece(SPACE, least)]
    special = [(name, 0.0) for name in inputs.special_tokens]
    learned = [
        (piece.text, piece.score) for piece in pieces if piece.text not in inputs.special_tokens
    ]
    fast = Tokenizer(models.Unigram([*special, *learned], unknown))
    if (normalizer := inputs.preprocessing.normalizer()) is not None:
        fast.normalizer = normalizer
    metaspace = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    fast.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    return fast


def _covered(words: Iterable[str], coverage: float) -> int:
    """How many characters, the most frequent ones first, are this share of the text."""
    counts = Counter(char for word in words for char in word)
    total, covered, characters = sum(counts.values()), 0, 0
    for _, count in counts.most_common():
        if covered >= coverage * total:
            break
        covered, characters = covered + count, characters + 1
    return characters


def _learned(words: Sequence[str], **options: Any) -> list[sentencepiece.Piece]:
    """The subwords that the library learns, the most probable first."""
    try:
        import sentencepiece as library
    except ImportError:
        raise MissingExtra("sentencepiece", "sentencepiece", "Training this tokenizer") from None
    file = BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=(
                " ".join(words[start : start + LINE]) for start in range(0, len(words), LINE)
            ),
            model_writer=file,
            normalization_rule_name="identity",
            hard_vocab_limit=False,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
            **options,
        )
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(f"the unigram tokenizer cannot be trained: {error}") from None
    model = sentencepiece.parsed(Path("the learned model"), file.getvalue())
    return [piece for piece in model.pieces if piece.type == sentencepiece.NORMAL]
