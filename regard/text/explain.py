"""Training and encoding step by step, as plain data; `render` prints it.

training(words, merges=5)        the merge table of byte-pair encoding, iteration by iteration
likelihood(words, merges=5)      the same for WordPiece by likelihood
encoding(tokenizer, text)        which merges, or which longest matches, encode a text
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import islice

import tokenizers

from regard.errors import ConfigError, RegardError, check_at_least
from regard.text import bpe, wordpiece
from regard.text.bpe import Pair, join
from regard.text.tokenizer import Tokenizer, text_problem


@dataclass(frozen=True)
class TokenCounts:
    """One token of the table.

    history: its first frequency, then each change: (16, -13) is 3 now
    parts: of a merged token, the first frequency by word: (9, 4)
    """

    number: int
    token: str
    history: tuple[int, ...]
    parts: tuple[int, ...] = ()

    @property
    def frequency(self) -> int:
        """The frequency now."""
        return sum(self.history)


@dataclass(frozen=True)
class Iteration:
    """The state after one merge (`merge` is None before the first)."""

    merge: bpe.Merge | None
    words: dict[str, int]
    rows: tuple[TokenCounts, ...]


@dataclass(frozen=True)
class Training:
    """The whole merge table; `iterations[0]` is the state before any merge."""

    iterations: tuple[Iteration, ...]

    @property
    def merges(self) -> list[bpe.Merge]:
        """The merges in order."""
        return [step.merge for step in self.iterations if step.merge]


@dataclass(frozen=True)
class Likelihood:
    """Merges of WordPiece by likelihood, each with the counts behind its score."""

    merges: tuple[wordpiece.ScoredMerge, ...]


@dataclass(frozen=True)
class MergedWord:
    """How byte-pair encoding encodes a word: its symbols, then each merge that applies."""

    word: str
    symbols: tuple[str, ...]
    steps: tuple[bpe.AppliedMerge, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class MatchedWord:
    """How WordPiece encodes a word: each longest match, with what was tried before it."""

    word: str
    steps: tuple[wordpiece.Match, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class LookedUpWord:
    """A word whose tokens need no steps: an entry of the vocabulary, or unknown; of a unigram model
    its most probable segmentation.
    """

    word: str
    tokens: tuple[str, ...]


def training(
    words: Mapping[str, int],
    merges: int,
    symbols_of: Callable[[str], Sequence[str]] = bpe.separate_end,
) -> Training:
    """The merge table of byte-pair encoding; of equal pairs the first read wins.

    words: word -> count, in reading order
    merges: how many merges at most
    symbols_of: how a word becomes symbols, see `regard.text.bpe`

    Raises:
        ConfigError: there are no words, or `merges` is below 1.
    """
    _check(words, merges)
    state = [(list(symbols_of(word)), count) for word, count in words.items()]
    rows = _alphabet(state)
    iterations = [Iteration(None, _written(state), tuple(rows.values()))]
    for merge in islice(bpe.learn(words, symbols_of), merges):
        pair = merge.left, merge.right
        joined = [(join(symbols, pair, merge.symbol), count) for symbols, count in state]
        parts = [
            (len(old) - len(new)) * count
            for (old, count), (new, _) in zip(state, joined, strict=True)
        ]
        _enter(rows, merge, [part for part in parts if part])
        state = joined
        iterations.append(Iteration(merge, _written(state), tuple(rows.values())))
    return Training(tuple(iterations))


def likelihood(words: Mapping[str, int], merges: int) -> Likelihood:
    """The first merges by count(ab) / (count(a) * count(b)); arguments as for `training`."""
    _check(words, merges)
    return Likelihood(tuple(islice(wordpiece.learn_by_likelihood(words), merges)))


def encoding(
    tokenizer: Tokenizer, text: str
) -> list[MergedWord] | list[MatchedWord] | list[LookedUpWord]:
    """How each word of the text is encoded, in the steps of the tokenizer's kind.

    Special tokens written in the text are shown as plain text.

    Raises:
        RegardError: the text cannot be encoded.
    """
    model = tokenizer.to_json()["model"]
    words = tokenizer.words(text)
    if model["type"] == "BPE":
        ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        end = model.get("end_of_word_suffix") or ""
        return [_merged(word, end, ranks, model) for word in words]
    if model["type"] == "WordPiece":
        return [_matched(word, model) for word in words]
    tokenize = tokenizers.Tokenizer.from_str(tokenizer.to_str()).model.tokenize
    return [LookedUpWord(word, tuple(token.value for token in tokenize(word))) for word in words]


# ---- the merge table


def _check(words: Mapping[str, int], merges: int) -> None:
    if not words:
        raise ConfigError("`words` must hold at least one word, but is empty.")
    check_at_least(1, merges=merges)
    for word in words:
        if problem := text_problem(word):
            raise RegardError(f"the word {word!r} cannot be used: {problem}")


def _alphabet(state: list[tuple[list[str], int]]) -> dict[str, TokenCounts]:
    """The table before any merge: </w> first, then the characters as they are read."""
    counts: Counter[str] = Counter({bpe.END: 0})
    for symbols, count in state:
        for symbol in symbols:
            counts[symbol] += count
    present = [(symbol, count) for symbol, count in counts.items() if count]
    return {
        symbol: TokenCounts(n, symbol, (count,)) for n, (symbol, count) in enumerate(present, 1)
    }


def _enter(rows: dict[str, TokenCounts], merge: bpe.Merge, parts: list[int]) -> None:
    """Enter a merge: the frequency that its two tokens lose is that of the merged token."""
    for token in (merge.left, merge.right):
        row = rows[token]
        rows[token] = TokenCounts(row.number, token, (*row.history, -sum(parts)), row.parts)
    merged = rows.get(merge.symbol)
    if merged:  # merged from other tokens before
        history = (*merged.history, sum(parts))
        rows[merge.symbol] = TokenCounts(merged.number, merge.symbol, history, merged.parts)
    else:
        rows[merge.symbol] = TokenCounts(len(rows) + 1, merge.symbol, (sum(parts),), tuple(parts))


def _written(state: list[tuple[list[str], int]]) -> dict[str, int]:
    return {" ".join(symbols): count for symbols, count in state}


# ---- encoding


def _merged(word: str, end: str, ranks: Mapping[Pair, int], model: dict) -> MergedWord:
    symbols = (*word[:-1], word[-1] + end)
    steps = tuple(bpe.apply(symbols, ranks))
    final = steps[-1].symbols if steps else symbols
    tokens = [token if token in model["vocab"] else model["unk_token"] for token in final]
    return MergedWord(word, symbols, steps, tuple(token for token in tokens if token is not None))


def _matched(word: str, model: dict) -> MatchedWord:
    if len(word) > model["max_input_chars_per_word"]:
        return MatchedWord(word, (), (model["unk_token"],))
    steps = tuple(wordpiece.longest_match(word, model["vocab"]))
    tokens = tuple(step.found for step in steps if step.found is not None)
    return MatchedWord(word, steps, tokens if len(tokens) == len(steps) else (model["unk_token"],))


# ---- as text


@singledispatch
def render(explained: object) -> str:
    """Anything that this module returns, as plain text for the terminal or a page."""
    raise TypeError(f"nothing to show for a {type(explained).__name__}")


@render.register
def _(explained: list) -> str:
    return "\n\n".join(map(render, explained))


@render.register
def _(explained: Training) -> str:
    return "\n\n".join(_iteration(number, step) for number, step in enumerate(explained.iterations))


def _iteration(number: int, step: Iteration) -> str:
    if step.merge is None:
        title = "Before the first merge"
    else:
        tie = f", the first read of {len(step.merge.tied)} equal pairs" * (len(step.merge.tied) > 1)
        title = f"Iteration {number}: {step.merge.left} + {step.merge.right} -> {step.merge.symbol}"
        title += f"  (count {step.merge.count}{tie})"
    words = ", ".join(f"'{word}': {count}" for word, count in step.words.items())
    table = [("Number", "Token", "Frequency")]
    table += [(str(row.number), row.token, _sum(row)) for row in step.rows]
    return f"{title}\n{{{words}}}\n{_columns(table)}"


def _sum(row: TokenCounts) -> str:
    """16 - 13 = 3, or 9 + 4 = 13 - 13 = 0 for a merged token."""
    start = " + ".join(map(str, row.parts)) + " = " if len(row.parts) > 1 else ""
    text, total = f"{start}{row.history[0]}", row.history[0]
    for change in row.history[1:]:
        total += change
        text += f" {'-' if change < 0 else '+'} {abs(change)} = {total}"
    return text


@render.register
def _(explained: Likelihood) -> str:
    table = [("Merge", "Symbol", "Score")]
    for merge in explained.merges:
        score = f"{merge.count} / ({merge.count_left} * {merge.count_right}) = {merge.score:.4g}"
        table.append((f"{merge.left} {merge.right}", merge.symbol, score))
    return _columns(table)


@render.register
def _(explained: MergedWord) -> str:
    lines = [("", "", " ".join(explained.symbols))]
    for step in explained.steps:
        rule = f"merge {step.rank + 1}"
        lines.append((rule, f"{step.left} + {step.right}", " ".join(step.symbols)))
    return f"{explained.word} -> {' '.join(explained.tokens)}\n{_columns(lines)}"


@render.register
def _(explained: MatchedWord) -> str:
    lines = [("at", "found", "tried, longest first")]
    for step in explained.steps:
        tried = step.tried if len(step.tried) < 9 else (*step.tried[:3], "…", *step.tried[-4:])
        lines.append((str(step.start), step.found or "nothing", " ".join(tried)))
    return f"{explained.word} -> {' '.join(explained.tokens)}\n{_columns(lines)}"


@render.register
def _(explained: LookedUpWord) -> str:
    return f"{explained.word!r} -> {' '.join(explained.tokens)}"


def _columns(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]
    return "\n".join(f"  {row}".rstrip() for row in padded)
