"""The unigram language model over subwords: all segmentations of a text, and the best one.

Kudo 2018, "Subword Regularization": subwords are independent, so that a segmentation x_1 ... x_M
has the probability p(x_1) ... p(x_M). All segmentations of a text are the paths of a lattice, in
which an edge is a subword. The text is encoded by the best path (equation 4); the probability of
the text is the sum over all paths (equation 3), which training maximizes by expectation
maximization.

A character that is not in the vocabulary is unknown: its score is `UNKNOWN_PENALTY` less than the
smallest score.

It is trained with the `sentencepiece` library.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from regard.errors import ConfigError, MissingExtra
from regard.text import sentencepiece
from regard.text.preprocessing import TrainerInput
from regard.text.sentencepiece import SPACE

UNKNOWN_PENALTY = 10.0
USER_DEFINED_SCORE = -0.1
BYTE_NAME = "<0x[0-9A-F]{2}>"


@dataclass(frozen=True)
class Edge:
    """A subword in the lattice of a text.

    start, end: it is `text[start:end]`.
    score: its logarithmic probability in nats.
    known: whether it is in the vocabulary.
    """

    start: int
    end: int
    subword: str
    score: float
    known: bool = True


class UnigramModel:
    """Subwords with logarithmic probabilities.

    scores: subword -> log p(subword) in nats.
    unknown: the score of an unknown character; None: the smallest score - `UNKNOWN_PENALTY`.
    """

    def __init__(self, scores: Mapping[str, float], unknown: float | None = None):
        self.scores = dict(scores)
        smallest = min(self.scores.values(), default=0.0)
        self.unknown = smallest - UNKNOWN_PENALTY if unknown is None else unknown

    @cached_property
    def max_length(self) -> int:
        """The length of the longest subword in characters."""
        return max(map(len, self.scores), default=1)

    def edges(self, text: str) -> list[Edge]:
        """The lattice: all subwords of the text, and its unknown characters, by start, then end."""
        edges = []
        for start in range(len(text)):
            ends = range(start + 1, min(start + self.max_length, len(text)) + 1)
            subwords = [text[start:end] for end in ends]
            if not subwords or subwords[0] not in self.scores:
                edges.append(Edge(start, start + 1, text[start], self.unknown, known=False))
            edges += [
                Edge(start, start + len(subword), subword, self.scores[subword])
                for subword in subwords
                if subword in self.scores
            ]
        return edges

    def best(self, text: str) -> list[Edge]:
        """The most probable segmentation (equation 4): Viterbi's algorithm.

        Of equally probable paths it is the one whose last subword is the longest.
        """
        scores = [0.0, *[-inf] * len(text)]
        last: list[Edge | None] = [None] * (len(text) + 1)
        for edge in self.edges(text):
            score = scores[edge.start] + edge.score
            if last[edge.end] is None or score > scores[edge.end]:
                scores[edge.end], last[edge.end] = score, edge
        path: list[Edge] = []
        edge_to = last[len(text)]
        while edge_to is not None:
            path.append(edge_to)
            edge_to = last[edge_to.start]
        return path[::-1]

    def log_likelihood(self, text: str) -> float:
        """log P(text), the sum over all segmentations (equation 3), in nats."""
        prefixes = [0.0] + [-inf] * len(text)  # of each beginning of the text
        for edge in self.edges(text):
            path = prefixes[edge.start] + edge.score
            prefixes[edge.end] = float(np.logaddexp(prefixes[edge.end], path))
        return prefixes[-1]


def unknown_joined(path: Iterable[Edge]) -> list[Edge]:
    """The path with each run of unknown characters as one edge, which gets one id."""
    joined: list[Edge] = []
    for edge in path:
        if joined and not (edge.known or joined[-1].known):
            before = joined.pop()
            subword, score = before.subword + edge.subword, before.score + edge.score
            edge = Edge(before.start, edge.end, subword, score, known=False)
        joined.append(edge)
    return joined


def model_of(saved: Mapping[str, Any]) -> UnigramModel:
    """The unigram language model in the contents of a tokenizer.json of the type Unigram.

    Special tokens are not subwords, nor are the names of bytes, such as <0x0A>, with
    `byte_fallback`. A user-defined token has the score `USER_DEFINED_SCORE`.
    """
    added = {token["content"]: token["special"] for token in saved["added_tokens"]}
    is_byte = re.compile(BYTE_NAME if saved["model"]["byte_fallback"] else "(?!)").fullmatch
    vocab = saved["model"]["vocab"]
    normal = {name: score for name, score in vocab if name not in added and not is_byte(name)}
    user_defined = {name: USER_DEFINED_SCORE for name, special in added.items() if not special}
    return UnigramModel(normal | user_defined, UnigramModel(normal).unknown)


# ----------------------------------------------------------------------------------------- training


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
