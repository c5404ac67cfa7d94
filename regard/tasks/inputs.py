"""Checks the inputs of tasks: lists of texts, of pairs of texts, or of lists of words.

All methods of all tasks use these functions, so that they accept the same inputs and their errors
give the number of the text.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from os import PathLike
from typing import Any

from regard.data import in_memory
from regard.data.encoder_inputs import Texts
from regard.data.files import ENDINGS, ending, is_file_name
from regard.data.readers import Column, Record, RowReader, columns_in_header, open_table
from regard.errors import ConfigError, DataError, RegardError, TextError, TextTooLong, shown, warn
from regard.text.tokenizer import text_problem

TEXT_NAMES, LABEL = ("text", "text_pair"), "label"  # the columns of rows


def is_single(item: Any) -> bool:
    """Whether this is one text, or one tuple of texts, and not a list of them."""
    pair = isinstance(item, tuple) and all(isinstance(text, str) for text in item)
    return isinstance(item, str) or (pair and bool(item))


def fields_in(item: Any, names: Iterable[str], index: int) -> list[Any]:
    """The fields of an input: of a row or an object those of these names, of a tuple all.

    Raises:
        TextError: an object has neither all of them nor the first one alone.
    """
    if isinstance(item, Mapping):
        first, *others = names
        present = [name for name in (first, *others) if name in item]
        if present not in ([first, *others], [first]):
            alone = f", or {first} alone" if others else ""
            problem = f"must have {', '.join([first, *others])}{alone}, but has"
            raise TextError(index, f"{problem} {', '.join(map(str, item))}.")
        return [item[name] for name in present]
    return list(item) if isinstance(item, list | tuple) else [item]


def without_names(items: list[Any], names: Collection[str]) -> list[Any]:
    """Inputs, of which rows by name become their texts, where these names are of texts alone.

    Raises:
        TextError: a row has not these columns.
    """
    for index, item in enumerate(items):
        if isinstance(item, Mapping) and names and {*names} <= {*TEXT_NAMES}:
            fields = fields_in(item, names, index)
            items[index] = tuple(fields) if len(fields) > 1 else fields[0]
    return items


def as_list(texts: Any) -> list[Any]:
    """The items of a list, a tuple, an array or a generator, as a list.

    Raises:
        RegardError: as `iterate`.
    """
    return list(iterate(texts))


def checked_texts(texts: Any) -> list[str]:
    """As `as_list`, for texts: each item is checked to be a str.

    Raises:
        TextError: an item is not a text.
        RegardError: as `iterate`.
    """
    return [checked_text(text, index) for index, text in enumerate(iterate(texts))]


def iterate(texts: Any) -> Iterator[Any]:
    """An iterator over the texts; of a table, its texts without a target.

    Raises:
        ConfigError: the names of a table's columns do not say which of them are texts.
        RegardError: `texts` is a single str, whose letters would be read as texts, or it is a
            mapping or a set, or it is not iterable.
    """
    if in_memory.is_table(texts):
        return iter(in_memory.text_rows(texts))
    no_rows = type(texts).__name__.endswith("GroupBy")
    if not no_rows and not isinstance(texts, str | bytes | bytearray | memoryview | Mapping | Set):
        try:
            return iter(texts)
        except TypeError:
            pass
    raise RegardError(f"Give a list of texts, [text], but this is {shown(texts)}.")


def checked_text(item: Any, index: int, hint: str = "") -> str:
    """The text as a str, if it is one and can be encoded as UTF-8.

    index: of the text among those given, for the error.  hint: ends the error message.

    Raises:
        TextError: it is not a str, or cannot be encoded.
    """
    if not isinstance(item, str):
        raise TextError(index, f"must be a str, but is {shown(item)}.", hint)
    if not item.isascii() and (problem := text_problem(item)):
        raise TextError(index, f"cannot be encoded: {problem}")
    return str(item)  # converts numpy.str_


def text_or_pair(item: Any, index: int) -> Texts:
    """A text, or a pair of texts, as a tuple of one or two texts.

    Raises:
        TextError: it is neither.
    """
    if isinstance(item, str):
        return (checked_text(item, index),)
    parts = as_strings(item)
    if parts is None or len(parts) not in (1, 2):
        problem = f"must be a text, or a pair of texts (a, b), but is {shown(item)}."
        raise TextError(index, problem)
    return tuple(checked_text(part, index) for part in parts)


def pairs_of(first: Any, second: Any) -> Any:
    """A pair of two texts; of two lists of texts, the list of their pairs.

    Raises:
        RegardError: the lists are not of the same length.
    """
    if isinstance(first, str) and isinstance(second, str):
        return first, second
    pairs = as_list(first), as_list(second)
    if len(pairs[0]) != len(pairs[1]):
        raise RegardError(f"Give as many second texts as first: {len(pairs[0])}, {len(pairs[1])}.")
    return list(zip(*pairs, strict=True))


def text_or_words(item: Any, index: int) -> str | list[str]:
    """A text as a str, or its words as a list.

    Raises:
        TextError: it is neither.
    """
    if isinstance(item, str):
        return checked_text(item, index)
    words = as_strings(item)
    if words is None:
        hint = "Give a text, or its words as a list."
        raise TextError(index, f"is neither text nor words, but {shown(item)}.", hint)
    return [checked_text(word, index) for word in words]


def as_strings(item: Any) -> Sequence[Any] | None:
    """The strings of a list, a tuple or an array; None for anything else."""
    if isinstance(item, str | bytes | bytearray | memoryview | Mapping | Set | Iterator):
        return None
    try:
        parts = list(item)
    except TypeError:
        return None
    return parts if all(isinstance(part, str) for part in parts) else None


def too_long_error(index: int, count: int, limit: int | None) -> TextTooLong:
    """The error for a text of `count` tokens where the model reads at most `limit`."""
    problem = f"has {count} tokens, but this model reads at most {limit}."
    return TextTooLong(index, problem)


@contextmanager
def read_whole() -> Iterator[None]:
    """Inside, the error for a text that is too long does not advise `too_long`: a picture shows a
    whole text, and who asks for it has no such option.
    """
    try:
        yield
    except TextTooLong as error:
        raise error.without_option() from None


def warn_of_truncation(cut: int, total: int, what: str, limit: int | None) -> None:
    """Warn that `cut` of the texts were truncated to what the model reads.

    what: how the message calls the texts, such as "sources".
    """
    tokens = "the tokens" if limit is None else f"{limit:,} tokens, which is what"
    warn(
        f"{cut:,} of {total:,} {what} were cut to {tokens} this model reads; to read more, train "
        "with a larger `max_length` (in [data], or in [model])"
    )


def checked_columns(columns: Any) -> tuple[int | str, ...]:
    """The names or numbers of columns.

    Raises:
        ConfigError: this is no list of them.
    """
    names = columns if isinstance(columns, list | tuple) else ()
    if not names or not all(isinstance(name, str | int) for name in names):
        raise ConfigError(f"`columns` must be a list (['text', 'label']), but is {shown(columns)}.")
    return tuple(names)


def rows_of(
    task: Any,
    sources: Sequence[Any],
    columns: Sequence[int | str] = (),
    delimiter: str | None = None,
) -> Any:
    """The rows of files, or of data in memory, for `evaluate`: those that the task reads.

    columns: of a table; (): those with usual names.  delimiter: of a CSV file, where it is not a
    comma.

    Raises:
        ConfigError, DataError: the files cannot be read, or are running text.
    """
    for source in sources:
        if in_memory.is_running_text(str(source) if in_memory.is_path(source) else source):
            raise ConfigError(
                f"{task.name} is scored on examples with targets, or on a file of them, but "
                f"{str(source)!r:.60} is a text."
            )
    chosen = checked_columns(columns) if columns else ()
    return task.rows_to_evaluate([*map(as_rows, sources)], chosen, delimiter)


def first_record(file: str | PathLike[str], delimiter: str | None = None) -> Mapping[Any, Any]:
    """The first record of a table; {} for a file of another form, which the task knows."""
    if delimiter or ending(str(file)) in ENDINGS:
        with suppress(ConfigError, DataError):
            return next(iter(open_table(file, delimiter=delimiter)))
    return {}


def names_in(source: Any) -> Iterable[str]:
    """The names of the columns of a table, in a file or in memory; none of other data."""
    return first_record(source) if in_memory.is_path(source) else in_memory.column_names(source)


def usual_columns(source: Any, delimiter: str | None = None) -> tuple[int | str, ...]:
    """The columns of texts and target, by their names; () if those of a file do not tell, or if
    they are numbers.

    Raises:
        ConfigError: those of data in memory do not tell.
    """
    if not in_memory.is_path(source):
        return in_memory.infer_columns(source)
    with suppress(ConfigError):
        return columns_in_header(source, None, delimiter, True)
    return ()


def named_columns(
    columns: Sequence[Column], names: Sequence[str] = TEXT_NAMES, target: str = LABEL
) -> dict[str, Column]:
    """The columns of an input and of the target, under their names in rows.

    names: of the first columns; an input may have fewer.

    Raises:
        ConfigError: there are fewer or more.
    """
    if not 2 <= len(columns) <= len(names) + 1:
        raise ConfigError(
            f"A row must have {' and perhaps '.join(names)}, then {target}, but the columns are "
            f"{', '.join(map(str, columns))}."
        )
    return dict(zip((*names[: len(columns) - 1], target), columns, strict=True))


def texts_in(rows: RowReader, row: Record, line: int) -> Texts:
    """The text, or the pair of texts, of a row.

    Raises:
        DataError: one is missing, or is no text.
    """
    return tuple(rows.text(row, name, line) for name in TEXT_NAMES if name in row)


def labelled_rows(
    source: Any,
    columns: Sequence[Column],
    delimiter: str | None = None,
    names: Sequence[str] = TEXT_NAMES,
) -> RowReader:
    """The rows of a table, or of data in memory; without `columns` those with usual names."""
    columns = columns or usual_columns(source, delimiter) or (0, 1)
    return open_table(source, named_columns(columns, names), delimiter=delimiter)


def as_rows(data: Any) -> Any:
    """Data in memory; an iterator, which could be read only once, as a list."""
    return list(data) if isinstance(data, Iterator) else data


def warn_of_blank_texts(texts: Sequence[Any], consequence: str) -> None:
    """Warn of texts, or pairs of texts, without any character but white space."""
    blank = sum(is_single(text) and not "".join(text).strip() for text in texts)
    if blank:
        message = f"{blank:,} of {len(texts):,} texts are blank: {consequence}"
        warn(message)


def warn_if_file(text: Any) -> None:
    """Warn where one text is the name of a file: its contents may have been meant."""
    if isinstance(text, str) and is_file_name(text):
        warn(
            f"{text!r} is processed as a text, but is a file. For what it holds, read it first and "
            "give its lines, or a column of the table.",
        )
