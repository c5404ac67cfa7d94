"""Calls of the `tokenizers` library: its errors, and templates as post-processors.

`tokenizers` raises plain `Exception`s, and its Rust code panics on input that its authors did not
expect, such as a regular expression that exceeds its limits or an index out of range. A panic
becomes a pyo3_runtime.PanicException, which `except Exception` does not catch.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import ByteLevel, PostProcessor, TemplateProcessing
from tokenizers.processors import Sequence as Processors

from regard.errors import DataError, RegardError
from regard.text.templates import Special, Specials, Template

T = TypeVar("T")


def reason(error: BaseException) -> str:
    """The message of an exception of `tokenizers`, in one line.

    Raises:
        BaseException: `error` itself, if `tokenizers` did not cause it: an interrupt or a lack of
            memory.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= 300 else f"{message[:297]}..."


def call(work: Callable[[], T], problem: Callable[[str], RegardError]) -> T:
    """Return `work()`; what `tokenizers` raises in it becomes the error `problem(reason)`."""
    try:
        return work()
    except RegardError:
        raise
    except BaseException as error:
        raise problem(reason(error)) from None


def parse(path: Path, text: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json, read from `path`.

    Raises:
        DataError: `tokenizers` cannot read it.
    """

    def problem(message: str) -> DataError:
        hint = "Was it written by a newer release of `tokenizers`?"
        return DataError(path, None, f"is not a valid tokenizer.json: {message}.", hint)

    return call(lambda: tokenizers.Tokenizer.from_str(text), problem)


# ---- templates


def template_in(processor: PostProcessor | None) -> Template | None:
    """The template of a post-processor, found by applying it to texts of one token each.

    Raises:
        RegardError: it does something else than adding special tokens around the texts.
    """
    if processor is None or isinstance(processor, ByteLevel):
        return None  # it only trims the offsets of tokens
    text = tokenizers.Tokenizer(WordLevel({"x": 0}, unk_token="x")).encode("x")

    def problem(message: str) -> RegardError:
        return RegardError(f"its `post_processor` cannot be used: {message}.")

    single, pair = call(
        lambda: (_parts(processor.process(text)), _parts(processor.process(text, text))), problem
    )
    if (len(single), len(pair)) != (3, 5):
        raise problem("it must put one text, or two, between special tokens, each text once")
    (before, texts, after), (start, first, between, second, end) = single, pair
    return Template(
        (before, after), (start, between, end), (texts[0][1], first[0][1], second[0][1])
    )


def processor_of(
    template: Template, token: Callable[[int], str | None], before: PostProcessor | None = None
) -> PostProcessor:
    """The post-processor by which other libraries apply a template.

    token: gives the token with an id
    before: the post-processor that is replaced; a byte-level one is kept, in front
    """
    alone, first, second = template.segments
    used = {i for part in (*template.single, *template.pair) for i, _ in part}
    tokens = {i: str(token(i)) for i in sorted(used)}
    names = {i: _template_name(name, i) for i, name in tokens.items()}
    around: PostProcessor = TemplateProcessing(
        single=_spelled(names, template.single, (f"$A:{alone}",)),
        pair=_spelled(names, template.pair, (f"$A:{first}", f"$B:{second}")),
        special_tokens=[
            {"id": names[i], "ids": [i], "tokens": [name]} for i, name in tokens.items()
        ],
    )
    return Processors([before, around]) if isinstance(before, ByteLevel) else around


def _parts(encoding: tokenizers.Encoding) -> list[Specials]:
    """The special tokens before, between and after the texts, and the texts' own tokens."""
    parts: list[list[Special]] = [[]]
    columns = zip(encoding.ids, encoding.type_ids, encoding.special_tokens_mask, strict=True)
    for number, segment, special in columns:
        if special:
            parts[-1].append((number, segment))
        else:
            parts += [[(number, segment)], []]
    return [tuple(part) for part in parts]


def _spelled(
    names: Mapping[int, str], around: Sequence[Specials], texts: Sequence[str]
) -> list[str]:
    spelled = [[f"{names[i]}:{segment}" for i, segment in part] for part in around]
    for part, text in zip(spelled[:-1], texts, strict=True):
        part.append(text)
    return [token for part in spelled for token in part]


def _template_name(token: str, number: int) -> str:
    """The name of a token in a template: itself, unless that has a meaning there."""
    return f"special-{number}" if ":" in token or token.startswith("$") else token
