"""tokenizer, corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument

from regard.cli import console, options
from regard.cli.help_texts import with_flag_types
from regard.cli.options import flag
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.text import Tokenizer

MERGES = 5  # that are shown

app = typer.Typer(help="Train a tokenizer, use it, and see its steps.", no_args_is_help=True)

TokenizerFolder = Annotated[
    Path,
    Argument(help="A run, the folder of a model, or a file such as tokenizer.json."),
]


@app.command()
@with_flag_types
def train(
    files: Annotated[
        list[Path], Argument(metavar="FILE", help="Files of text, one sentence a line, or tables.")
    ],
    out: Path = flag("The folder that the tokenizer is written to.", ...),
    kind: str = flag("The kind of tokenizer (regard list tokenizers).", "bpe"),
    vocab_size: int = flag("The number of tokens, special tokens included.", 8000),
    lowercase: bool = flag("Lower-case all texts before they are split.", False),
    unicode_form: str = flag(
        "Normalize texts to a form of Unicode: none, nfc, nfd, nfkc, nfkd.", "none"
    ),
    columns: str | None = flag("The columns of tables that hold texts, such as 0,1 or en,de."),
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a tokenizer on the texts of files."""
    options.check_out(out, force)
    from regard.data import open_table
    from regard.text.training import train as train_tokenizer

    names = [int(c) if c.isdecimal() else c for c in options.column_names(columns)]
    texts = (text for file in files for text in open_table(file, names).texts())
    trained = train_tokenizer(
        kind, texts, vocab_size, lowercase=lowercase, unicode_form=unicode_form
    )
    with options.replaced(out, force):
        trained.save(out)
    facts = {
        "folder": out,
        "kind": trained.kind,
        "vocab_size": trained.vocab_size,
        "fingerprint": trained.fingerprint(),
    }
    console.show(facts, f"{out}: {trained.kind}, {trained.vocab_size:,} tokens", as_json)


@app.command()
@with_flag_types
def encode(
    tokenizer: TokenizerFolder,
    texts: options.Texts = None,
    ids: bool = flag("Print the ids of tokens instead of the tokens.", False),
    as_json: options.AsJson = False,
) -> None:
    """Split texts into tokens, one line in, one line out.

    With --json each line has the offsets, too.
    """
    if as_json:
        options.check_none("with --json, which prints both", {"ids": ids})
    encode = load_tokenizer(tokenizer).encode
    form: Callable[[str], str] = (
        (lambda text: console.to_json(asdict(encode(text))))
        if as_json
        else (lambda text: " ".join(map(str, encode(text).ids)))
        if ids
        else (lambda text: " ".join(encode(text).tokens))
    )
    console.check_no_file(texts)
    for chunk in console.chunks_of(texts):
        console.emit("".join(f"{form(text)}\n" for text in chunk.texts))


@app.command()
@with_flag_types
def explain(
    tokenizer: Annotated[Path | None, Argument(help="The tokenizer that encodes TEXT.")] = None,
    text: Annotated[str | None, Argument(help="The text whose encoding is shown.")] = None,
    words: str | None = flag('Train on these words with their counts: "old:7 older:3".'),
    merges: int | None = flag("Show the first N merges; default: 5."),
    kind: Literal["bpe", "wordpiece-likelihood"] | None = flag(
        "The kind that is trained on --words; default: bpe."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Show step by step what a tokenizer does.

    With --words: how it is trained, merge by merge. With a tokenizer and a text: how the
    text is split.
    """
    from regard.text import explain

    steps: list[Any]
    if words is not None:
        options.check_none("with --words", {"TOKENIZER": tokenizer})
        counts, count = (
            _counts(console.checked_argument(words)),
            MERGES if merges is None else merges,
        )
        likelihood = kind == "wordpiece-likelihood"
        steps = [(explain.likelihood if likelihood else explain.training)(counts, count)]
    elif tokenizer is None or text is None:
        raise ConfigError("Give a tokenizer and a text, or words to train on: --words.")
    else:
        options.check_none("without --words", {"merges": merges, "kind": kind})
        steps = list(explain.encoding(load_tokenizer(tokenizer), console.checked_argument(text)))
    console.show([asdict(step) for step in steps], "\n\n".join(map(explain.render, steps)), as_json)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a folder; of a run, the one in its `model`."""
    from regard.text import Tokenizer

    inner = path / "model"
    return Tokenizer.load(inner if (inner / "tokenizer.json").exists() else path)


def _counts(words: str) -> dict[str, int]:
    """ "old:7 older:3" as word -> count; a word without a number counts once."""
    counts: dict[str, int] = {}
    for item in words.split():
        word, number = options.parts_of("--words", item, r"(.+?)(?::(\d+))?", "old:7")
        counts[word] = counts.get(word, 0) + int(number or 1)
    return counts


def corpus(
    files: Annotated[
        list[Path], Argument(metavar="FILE", help="Files of text, tables, or folders with them.")
    ],
    tokenizer: Path = flag("The tokenizer: a run, the folder of a model, or tokenizer.json.", ...),
    out: Path = flag("The folder that the tokens are written to.", ...),
    documents: Literal["rows", "blank-lines", "files"] | None = flag(
        "What a document is; default: a row of a table, else what blank lines separate."
    ),
    field: str | None = flag("The column of tables that holds the text."),
    end: list[str] | None = flag("Write this token at the end of each document; may be repeated."),
    structure: bool = flag("Store where paragraphs and sentences begin, too.", False),
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the tokens of documents to a folder, for large data."""
    from regard.data import build_corpus, read_documents
    from regard.data.corpus import read_facts

    tokens = load_tokenizer(tokenizer)
    column = int(field) if field and field.isdecimal() else field
    build_corpus(
        read_documents(files, documents, field=column),
        tokens,
        out,
        end=[tokens.id(token) for token in end or ()],
        structure=structure,
        progress=not quiet,
    )
    counts = read_facts(out).counts
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    console.show({"folder": out, **counts}, f"{out}: {parts}", as_json)
