"""The words of running text and where they stand: for tasks that label each word.

Words are those of CoNLL-2003 and the Penn Treebank, which taggers learn from:

- letters and digits, also with one of - ' ’ . _ & between them (`Tel-Aviv`, `O'Brien`, `AT&T`), and
  digits with one of , : / between them (`1,000`, `12:30`, `1/2`)
- `'s`, `'m`, `'d`, `'re`, `'ve`, `'ll` and `n't` at the end of a word are words (`do n't`)
- the period of an abbreviation belongs to it: of an initial (`J. Smith`), of letters with periods
  (`U.S.`), of `ABBREVIATIONS`
- an address (`https://…`, `www.…`, `a@b.org`) is one word, and so is a run of periods or hyphens
- any other sign is a word: a character as it is seen, with its marks and joiners (a grapheme)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import index

from regard.errors import RegardError, shown

Span = tuple[int, int]
Splitter = Callable[[str], Sequence[Span]]
"""Gives (start, stop) of each word of a text, in characters."""

ABBREVIATIONS = frozenset(
    "Mr Mrs Ms Dr Prof Rev Gen Col Maj Capt Lt Sgt Sen Rep Gov Pres St Mt Ft Jr Sr Bros Inc Corp "
    "Co Ltd Dept Univ Assn Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Calif Fla Ariz Colo "
    "Conn Ill Mass Mich Minn Tenn Wash Wis vs etc approx".split()
)
# Of character classes: d a digit, w another character of a word, j joins characters of a word, k
# joins digits, m a mark or a joiner of the character before it, z the one between two signs, f half
# of a flag, p another sign.
_WORD = re.compile(r"[wd]m*z?(?:[wdm]z?|j(?=[wd])|(?<=d)k(?=d))*|ffm*|[jkpfmz]m*(?:z[pjkwf]m*)*z?")
_ADDRESS = re.compile(
    r"(?:https?://|ftp://|www\.)\S*[\w/]|[\w.+-]*\w@\w[\w-]*(?:\.\w[\w-]*)+", re.IGNORECASE
)
_CLITIC = re.compile(r"n['’]t$|['’](?:s|m|d|re|ve|ll)$", re.IGNORECASE)
_INITIALS = re.compile(r"(?:\w\.)*\w", re.UNICODE)
_RUN = re.compile(r"\.+|-+")


class _CharacterClasses(dict[int, str]):
    """The class of each code point, computed when it is first looked up."""

    def __missing__(self, code: int) -> str:
        self[code] = kind = _class_of(chr(code))
        return kind


def _class_of(character: str) -> str:
    if character in "-'’._&":
        return "j"
    if character in ",:/":
        return "k"
    if character.isspace():
        return " "
    if character == "\u200d":
        return "z"
    if "\U0001f1e6" <= character <= "\U0001f1ff":
        return "f"
    category = unicodedata.category(character)
    if category[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff":
        return "m"
    if category[0] in "PS":
        return "p"
    return "d" if category == "Nd" else "w"


_CLASSES = _CharacterClasses()


def word_spans(text: str) -> list[Span]:
    """(start, stop) of each word, in characters: `text[start:stop]` is the word."""
    spans, begun = list[Span](), 0
    for address in _ADDRESS.finditer(text):
        spans += _words_between(text, begun, address.start())
        spans.append(address.span())
        begun = address.end()
    return [*spans, *_words_between(text, begun, len(text))]


def _words_between(text: str, begin: int, end: int) -> Iterator[Span]:
    """The words of a part of a text that holds no address."""
    classes, at = text[begin:end].translate(_CLASSES), 0
    while match := _WORD.search(classes, at):
        start, stop = begin + match.start(), begin + match.end()
        if run := _RUN.match(text, start, end):
            stop = max(stop, run.end())
        elif text[stop : stop + 1] == "." and _is_abbreviated(text, start, stop):
            stop += 1
        clitic = _CLITIC.search(text, start, stop)
        if clitic and clitic.start() > start:
            yield start, clitic.start()
            start = clitic.start()
        yield start, stop
        at = stop - begin


def _is_abbreviated(text: str, start: int, stop: int) -> bool:
    """Whether the period behind a word belongs to it."""
    word = text[start:stop]
    if word in ABBREVIATIONS or ("." in word and _INITIALS.fullmatch(word)):
        return True
    return len(word) == 1 and word.isupper() and bool(text[stop + 1 :].strip())


@dataclass(frozen=True)
class WordSpans:
    """A text, and (start, stop) of each of its words, in characters."""

    text: str
    spans: list[Span]

    @classmethod
    def of(cls, given: str | Sequence[str], splitter: Splitter = word_spans) -> WordSpans:
        """Of a running text; or of a list of words, which are joined by one space.

        Raises:
            RegardError: the splitter gives something else than ascending spans.
        """
        if isinstance(given, str):
            return cls(given, _checked_spans(splitter(given), given))
        spans, start = [], 0
        for word in given:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return cls(" ".join(given), spans)

    @property
    def words(self) -> tuple[str, ...]:
        """The words themselves."""
        return tuple(self.text[start:stop] for start, stop in self.spans)


def _checked_spans(spans: Sequence[Span], text: str) -> list[Span]:
    """The spans of words that a splitter has given for a text.

    Raises:
        RegardError: they are not ascending and within the text.
    """
    try:
        pairs = [(index(start), index(stop)) for start, stop in spans]
    except (TypeError, ValueError):  # no pairs of whole numbers
        pairs = [(1, 0)]
    bounds = [0, *chain.from_iterable(pairs), len(text)]
    if bounds != sorted(bounds) or any(start == stop for start, stop in pairs):
        raise RegardError(
            "`splitter` must give (start, stop) of each word, ascending and within the text of "
            f"{len(text)} characters, but gives {shown(spans)}."
        )
    return pairs
