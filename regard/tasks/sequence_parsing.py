"""Constituency parsing as a sequence ("Grammar as a Foreign Language", Vinyals et al. 2015).

    It works .  ->  (S (NP XX )NP (VP XX )VP XX )S

The target has typed brackets, and XX for each word, whose tag is not predicted. Decoding allows
only what can become a tree of exactly the words of the sentence, so that every output is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field

from regard.attention.capture import muted
from regard.data import FieldEncoder, RowReader, TokenArray, read_treebank
from regard.data.readers import Numbered
from regard.decoding import RelativeLimit
from regard.decoding.filters import TreeVocabulary, WellFormedTree
from regard.decoding.steps import Hypotheses, Hypothesis
from regard.errors import ConfigError, TextError
from regard.metrics import Score, Scores
from regard.models.protocols import EncoderDecoder
from regard.tasks import encoding, parsing, sections, text_to_text
from regard.tasks.batching import NonFiniteScores, TooLong, check_too_long, decode_in_order
from regard.tasks.inputs import as_list, too_long_error, warn_of_truncation
from regard.tasks.task import of_training
from regard.text import Tokenizer
from regard.text.languages import LanguageTokens
from regard.text.trees import (
    WORD,
    ConstituencyTree,
    escaped,
    from_linearized,
    linearized,
    read_trees,
)

WORD_TOKEN = "(XX)"  # XX in the vocabulary: no word of a tree has a bracket
LEAST = 3  # tokens of a tree besides its words: the brackets of a root, and the end


def read_tree_pairs(data: Any) -> RowReader:
    """Trees as pairs: `source`, the words of a tree with spaces between them, and `target`, the
    tree in brackets.

    data: of `read_treebank`, or what it reads; or such pairs.
    """

    def change(numbered: Numbered) -> Numbered:
        for line, tree in numbered:
            is_pair = isinstance(tree, dict)
            yield line, tree if is_pair else {"source": _joined(tree.words), "target": str(tree)}

    return (data if isinstance(data, RowReader) else read_treebank(data)).mapped(change)


class TreePairsData(sections.DataSection):
    """[data]: files of trees in brackets, or `.jsonl` with `tree`."""

    several_files: ClassVar[bool] = True
    source_prefix: ClassVar[str] = ""
    source_language: ClassVar[None] = None
    target_language: ClassVar[None] = None

    train: sections.Files
    """The file of the training data."""
    valid: sections.Files | sections.Share | sections.FoldOption
    """A list of one file, as the others; or a share or a fold of the training data."""
    test: sections.Files = ()
    """The file that the trained model is scored on."""
    max_length: int = Field(default=512, ge=4)
    """The most tokens of a sentence and of its tree; never more than the model reads."""
    too_long: Literal["error", "skip"] = "skip"
    """What happens to examples that are longer than the model reads."""
    max_tokens_per_batch: int = Field(default=4096, ge=1)
    """Tokens in the larger of a batch's two arrays, padding included."""

    def read(self, source: Any, part: str) -> RowReader:
        """All trees of a file.

        Raises:
            ConfigError: there are several files, or none.
        """
        return read_tree_pairs(text_to_text.only_file(source, part))

    def texts(self) -> Iterator[str]:
        """Of each training tree the words, then the tokens."""
        for row in self.records("train"):
            yield row["source"]
            yield " ".join(linearized(read_trees(row["target"])[0]))


class BracketTokenizer(sections.TokenizerSection):
    """[tokenizer]: one that is learned from sentences gets a token for each bracket of a label."""

    kind: str = "words"
    """The kind of the tokenizer; `regard list tokenizers` has all."""

    def build(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        """Read the tokenizer that `path` names, or learn one from `texts()`."""
        tokenizer = super().build(lambda: islice(texts(), 0, None, 2))
        brackets = {token for text in islice(texts(), 1, None, 2) for token in text.split()}
        return tokenizer.with_special_tokens([WORD_TOKEN, *sorted(brackets - {WORD})])


class SequenceParsingRecipe(sections.DecodingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[sections.TokenizerSection] = BracketTokenizer()

    data: TreePairsData
    tokenizer: BracketTokenizer | None = None
    """Where the model is started from a folder: that of the folder."""
    objective: text_to_text.TextToTextObjective = text_to_text.TextToTextObjective()
    evaluation: text_to_text.TextToTextEvaluation = text_to_text.TextToTextEvaluation()


@dataclass(frozen=True)
class TreeTokens:
    """Encodes trees in brackets as tokens. ids: of typed brackets and of XX."""

    ids: Mapping[str, int]
    vocab_size: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TreeTokens:
        """Those of a tokenizer's vocabulary.

        Raises:
            ConfigError: it has no brackets.
        """
        vocabulary = tokenizer.vocab()
        labels = [
            token[1:] for token in vocabulary if token[0] == "(" and f"){token[1:]}" in vocabulary
        ]
        labels = [label for label in labels if label]
        if WORD_TOKEN not in vocabulary or not labels:
            raise ConfigError(
                "This tokenizer has no token for the brackets of trees, such as (S and )S. Train "
                "the model from random weights, with a new tokenizer: leave [tokenizer] path out."
            )
        ids = {f"{side}{label}": vocabulary[f"{side}{label}"] for label in labels for side in "()"}
        return cls({WORD: vocabulary[WORD_TOKEN], **ids}, tokenizer.vocab_size)

    @property
    def vocabulary(self) -> TreeVocabulary:
        """As the constraint of decoding has them."""
        opening = {token[1:]: i for token, i in self.ids.items() if token[0] == "("}
        closing = {token[1:]: i for token, i in self.ids.items() if token[0] == ")"}
        return TreeVocabulary(opening, closing, self.ids[WORD])

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """The ids of each tree; a bracket of a label that training lacks is left out."""
        return [
            [self.ids[token] for token in linearized(read_trees(text)[0]) if token in self.ids]
            for text in texts
        ]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens of a tree."""
        names = {number: token for token, number in self.ids.items()}
        return [names[number] for number in ids]


class SequenceParser(text_to_text.TextToText):
    """The constituency tree of a sentence as a sequence.

    most_open: brackets that open one after another, at most.
    """

    name = "sequence-parsing"
    file_ending = "mrg"
    commands = ("predict", "evaluate", "look")
    Recipe = SequenceParsingRecipe
    goal = ("f1", "max")
    metric_names = parsing.METRIC_NAMES
    default_limit = RelativeLimit(4.0, 20)

    def __init__(
        self,
        module: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        most_open: int = 12,
        method: Any = None,
        label_smoothing: float = 0.0,
    ):
        options: text_to_text.TextToTextOptions = {"label_smoothing": label_smoothing}
        super().__init__(module, tokenizer, method=method, **options)
        self.most_open = most_open

    @cached_property
    def trees(self) -> TreeTokens:
        """The tokens of trees in the vocabulary.

        Raises:
            ConfigError: it has no brackets.
        """
        return TreeTokens.of(self.tokenizer)

    # ---- from a recipe

    @classmethod
    def options_in(cls, recipe: SequenceParsingRecipe) -> dict[str, Any]:
        """With what the training trees tell of all trees."""
        trees = (read_trees(row["target"])[0] for row in recipe.data.records("train"))
        return {**super().options_in(recipe), "most_open": max(map(_most_open, trees))}

    @classmethod
    def fields(
        cls, tokenizer: Tokenizer, tokens: LanguageTokens, *, prefix: str = "", **limits: Any
    ) -> tuple[FieldEncoder, FieldEncoder]:
        """How sentences and trees are encoded."""
        (before, after), (start, end) = tokens.source, tokens.target
        return (
            FieldEncoder("sentence", tokenizer, before, after, column="source", **limits),
            FieldEncoder("tree", TreeTokens.of(tokenizer), start, end, column="target", **limits),
        )

    def validate(self) -> dict[str, float]:
        """The scores of the predicted trees, and the cross-entropy of the gold ones per token."""
        data = of_training(self.data)
        gold = [read_trees(text)[0] for text in data.references]
        try:
            predicted = self._parsed([tree.words for tree in gold])
        except NonFiniteScores:
            return dict.fromkeys((*self.metric_names, "loss"), float("nan"))
        loss, count = self._total_loss(self._loss_batches(data.valid))
        return {
            **parsing.bracket_values(parsing.bracket_score(predicted, gold)),
            "loss": loss / count,
        }

    # ---- trees

    def parse(self, texts: Any, **options: Any) -> Any:
        """The tree of a sentence; for a list of sentences, each a text or a list of words, a list.

        Of a sentence that is too long it is that of the words that are read, with a warning.

        options: how to decode, by name (`beams=4`), where not as the model's own method.

        Raises:
            TextError: a text has no word, or one that no tree can have; or `max_tokens` allows no
                tree.
        """
        if isinstance(texts, str):
            return self.parse([texts], **options)[0]
        sentences = self.checked(texts)
        for index, words in enumerate(self._words(sentences)):
            if not words:
                raise TextError(index, "has no word, so it has no tree.")
        self._warn_if_truncated(sentences)
        return self._parsed(sentences, **options)

    def checked(self, texts: Any) -> list[Any]:
        """Sentences as strings or lists of words.

        Raises:
            TextError: a sentence is neither, or has a word that no tree can have.
        """
        return [parsing.sentence_or_words(text, index) for index, text in enumerate(as_list(texts))]

    def _parsed(self, texts: Sequence[Any], **options: Any) -> list[ConstituencyTree]:
        """The tree of each text; of longer ones that of the words that the model reads."""
        trees = self.generate(texts, too_long="truncate", **options)
        return [read_trees(tree)[0] for tree in trees]

    def _warn_if_truncated(self, texts: Sequence[Any]) -> None:
        if cut := self.over_limit(texts):
            limit = self.module.config.max_length
            warn_of_truncation(len(cut), len(texts), "sentences or their trees", limit)

    def hypotheses(
        self, texts: Sequence[str], *, too_long: TooLong = "error", **options: Any
    ) -> Hypotheses:
        """The hypotheses of each text, best first; that of an empty text is empty.

        Sentences with equal numbers of words are decoded together. The tree of a truncated sentence
        is that of the words that were read. `max_tokens` below the shortest tree means that one.

        Raises:
            RegardError: a sentence or its shortest tree is longer than the model's limit and
                `too_long` is "error".
        """
        check_too_long(too_long)
        texts = self.checked(texts)
        long = self.over_limit(texts)
        if long and too_long == "error":
            raise too_long_error(*min(long.items()), self.module.config.max_length)
        method = self._decoding_method(self._language_tokens(), **options)
        sentences = list(map(self._words_read, self._words(texts)))
        hypotheses = [[Hypothesis([], 0.0, 0.0, True)] for _ in texts]
        with muted():
            for count in {*map(len, sentences)} - {0}:
                numbers = [i for i, words in enumerate(sentences) if len(words) == count]
                sources = self._sources([sentences[number] for number in numbers])
                decoded = decode_in_order(self.module, sources, self._constrained(method, count))
                for number, ranked in zip(numbers, decoded, strict=True):
                    hypotheses[number] = ranked
        self._capture(self._sources(sentences), [ranked[0] for ranked in hypotheses])
        return hypotheses

    def over_limit(self, texts: Sequence[str], **options: Any) -> dict[int, int]:
        """The indices of sentences longer than the model's limit, or whose shortest tree is, and
        the tokens of the longer one of both.
        """
        limit = self.module.config.max_length
        sentences = self._words(self.checked(texts))
        lengths = self._sources(sentences).lengths.tolist()
        longer = [max(n, len(s) + LEAST) for n, s in zip(lengths, sentences, strict=True)]
        return {i: n for i, n in enumerate(longer) if limit is not None and n > limit}

    def _words(self, texts: Sequence[Any]) -> list[tuple[str, ...]]:
        """The words of each sentence as a tree has them."""
        return [tuple(map(escaped, parsing.Sentence.of(text).words)) for text in texts]

    def _words_read(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The first words of a sentence, those that the model can read and write."""
        limit = self.module.config.max_length
        words = words if limit is None else words[: limit - LEAST]
        while limit is not None and len(words) > 1 and len(self._sources([words])[0]) > limit:
            words = words[:-1]
        return words

    def _sources(self, sentences: Sequence[Sequence[str]]) -> TokenArray:
        """Sentences as the encoder reads them."""
        encoder = self._source_encoder(self._language_tokens())
        return TokenArray.of(encoder.encode_many(list(map(_joined, sentences))))

    def _constrained(self, method: Any, words: int) -> Any:
        """The method for trees of so many words; its limit allows at least the shortest one."""
        constraint = WellFormedTree(self.trees.vocabulary, words, self.most_open)
        token_limit = method.max_tokens
        if isinstance(token_limit, int):
            token_limit = max(token_limit, words + LEAST)
        return replace(method, filters=(*method.filters, constraint), max_tokens=token_limit)

    def spelled(self, texts: Sequence[str], hypotheses: Hypotheses) -> list[list[str]]:
        """The trees of the hypotheses of each text, in brackets.

        Raises:
            TextError: the limit on the length allows no tree.
        """
        return [
            [self._spelled(index, words, hypothesis) for hypothesis in ranked]
            for index, (words, ranked) in enumerate(
                zip(self._words(texts), hypotheses, strict=True)
            )
        ]

    def _spelled(self, index: int, words: Sequence[str], hypothesis: Hypothesis) -> str:
        if not words:
            return ""
        words = words[: hypothesis.tokens.count(self.trees.ids[WORD])]
        if not hypothesis.finished:
            problem = "has more words than `max_tokens` has tokens, so it has no tree."
            raise TextError(index, problem, "Raise `max_tokens`, or give a shorter text.")
        tokens = self.trees.tokens(hypothesis.tokens)
        return str(from_linearized(tokens, words, [WORD] * len(words)))

    def _outputs(self, rows: RowReader) -> list[tuple[str, str, str]]:
        """The first rows: (words, predicted tree, tree)."""
        sources, trees = text_to_text.fields_of(rows.first(text_to_text.SAMPLES))
        parses = self._parsed([words.split() for words in sources])
        return list(zip(sources, map(str, parses), trees, strict=True))

    # ---- scores

    def scores(self, texts: Sequence[str], references: Sequence[str]) -> list[Score]:
        """The F1 of labelled brackets of trees in brackets, see `bracket_score`."""
        predicted, gold = ([read_trees(text)[0] for text in trees] for trees in (texts, references))
        return [parsing.bracket_score(predicted, gold)]

    def evaluate(self, pairs: Any, *, columns: Sequence[int | str] = (), **options: Any) -> Scores:
        """The score of the predicted trees; `outputs` are these trees in brackets.

        pairs: of `read_treebank`, or trees, or brackets.
        """
        encoding.no_columns(columns)
        sources, references = text_to_text.fields_of(read_tree_pairs(pairs))
        sentences = [words.split() for words in sources]
        self._warn_if_truncated(sentences)
        texts = self.generate(sentences, too_long="truncate", **options)
        return Scores(self.scores(texts, references), texts)

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> RowReader:
        """The trees of a file."""
        encoding.no_columns(columns, delimiter)
        return read_tree_pairs(files[0])


def _most_open(tree: ConstituencyTree) -> int:
    """The most brackets of a tree that open one after another."""
    largest = run = 0
    for token in linearized(tree):
        run = run + 1 if token[0] == "(" else 0
        largest = max(largest, run)
    return largest


def _joined(words: Sequence[str]) -> str:
    """Words as the encoder reads them."""
    return " ".join(map(escaped, words))
