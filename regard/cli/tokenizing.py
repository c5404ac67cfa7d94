"""tokenizer train, encode, explain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.console import AsJson, dumps, emit, say, show
from regard.cli.lines import chunks_of, one_argument
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.text import Tokenizer

app = typer.Typer(help="Learn a tokenizer, use it, and see what it does.", no_args_is_help=True)

Source = Annotated[
    Path, typer.Argument(help="A run's folder, a model's, or a file such as tokenizer.json.")
]


@app.command()
def train(
    files: Annotated[list[Path], typer.Argument(help="Texts, a line a sentence.")],
    out: Annotated[Path, typer.Option(help="The folder that it is written to.")],
    kind: Annotated[str, typer.Option(help="One of: regard list tokenizers.")] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Tokens, special tokens included.")] = 8000,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Texts are lower-cased.")] = False,
    unicode_form: Annotated[str, typer.Option(help="none, nfc, nfd, nfkc or nfkd.")] = "none",
    columns: Annotated[
        str | None, typer.Option(help="Of tables: numbers or names, commas between.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn a tokenizer from texts."""
    from regard.data import read
    from regard.text.training import train as learn

    names = [int(c) if c.isdecimal() else c for c in columns.split(",")] if columns else []
    texts = (text for file in files for text in read(file, names).texts())
    made = learn(kind, texts, vocab_size, lowercase=lowercase, unicode_form=unicode_form)
    made.save(out)
    facts = {
        "folder": out,
        "kind": made.kind,
        "vocab_size": made.vocab_size,
        "fingerprint": made.fingerprint(),
    }
    show(facts, f"{out}: {made.kind}, {made.vocab_size:,} pieces", as_json)


@app.command()
def encode(
    tokenizer: Source,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="- reads standard input.")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Numbers instead of pieces.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cut texts into pieces: one line in, one line out. JSON tells the offsets, too."""
    loaded = _load(tokenizer)
    form: Callable[[str], str] = (
        (lambda text: dumps(asdict(loaded.encode(text))))
        if as_json
        else (lambda text: " ".join(map(str, loaded.encode(text).ids)))
        if ids
        else (lambda text: " ".join(loaded.encode(text).tokens))
    )
    for chunk in chunks_of(texts):
        emit("".join(f"{form(text)}\n" for text in chunk.texts))


@app.command()
def explain(
    tokenizer: Annotated[
        Path | None, typer.Argument(help="How this one encodes TEXT; see also --words, --file.")
    ] = None,
    text: Annotated[str | None, typer.Argument(help="What is encoded.")] = None,
    words: Annotated[
        str | None, typer.Option(help='Learn from these: "old:7 older:3 finest:9 lowest:4".')
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Learn from the words of this text.")] = None,
    merges: Annotated[int, typer.Option(help="How many merges are shown.")] = 5,
    kind: Annotated[
        Literal["bpe", "wordpiece-likelihood"], typer.Option(help="What is learned.")
    ] = "bpe",
    as_json: AsJson = False,
) -> None:
    """Show step by step what a tokenizer does.

    With --words or --file: how it is learned, merge by merge, and where the library's fast trainer
    would choose another merge. With a tokenizer and a text: how the text is cut.
    """
    from regard.text import explain

    if words is not None or file is not None:
        if tokenizer is not None:
            raise ConfigError("Give a tokenizer and a text, or --words or --file, but not both.")
        counts = _counted(one_argument(words)) if words is not None else _read(file)
        shown: list[Any] = [explain.likelihood(counts, merges)]
        if kind == "bpe":
            shown = [explain.training(counts, merges), explain.compare(counts, merges)]
    elif tokenizer is None or text is None:
        raise ConfigError("Give a tokenizer and a text, or words to learn from: --words or --file.")
    else:
        shown = list(explain.encoding(_load(tokenizer), one_argument(text)))
    show([asdict(one) for one in shown], "\n\n".join(map(explain.render, shown)), as_json)


def _load(path: Path) -> Tokenizer:
    """That of a run, where it is one."""
    from regard.text import Tokenizer

    inner = path / "model"
    return Tokenizer.load(inner if (inner / "tokenizer.json").exists() else path)


def _counted(words: str) -> dict[str, int]:
    """ "old:7 older:3" as word -> count; a word without a number counts once."""
    counts: dict[str, int] = {}
    for item in words.split():
        word, _, number = item.rpartition(":") if ":" in item else (item, "", "1")
        if not number.isdecimal() or not word:
            raise ConfigError(f"`--words` must be like 'old:7 older:3', but has {item!r}.")
        counts[word] = counts.get(word, 0) + int(number)
    return counts


def _read(file: Any) -> dict[str, int]:
    from regard.data import read
    from regard.text.explain import count_words

    counts = count_words(read(file).texts())
    say(f"{len(counts):,} different words")
    return counts
