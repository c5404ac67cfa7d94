"""tokenizer, corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from regard.cli.console import emit, show, to_json
from regard.cli.help_texts import Command, Group, with_values
from regard.cli.input_texts import checked_argument, chunks_of, hint_at_file
from regard.cli.options import AsJson, Quiet, Texts, check_none, column_names
from regard.cli.outputs import Force, check_out, replaced
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.text import Tokenizer

MERGES = 5  # that are shown

app = typer.Typer(
    cls=Group,
    help="Train a tokenizer, use it, and see its steps.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TokenizerFolder = Annotated[
    Path,
    Argument(
        metavar="TOKENIZER", help="A run, the folder of a model, or a file such as tokenizer.json."
    ),
]


@app.command(cls=Command)
@with_values
def train(
    files: Annotated[
        list[Path], Argument(metavar="FILE", help="Files of text, one sentence a line, or tables.")
    ],
    out: Annotated[Path, Option(help="The folder that the tokenizer is written to.")],
    kind: Annotated[
        str, Option(metavar="KIND", help="The kind of tokenizer (regard list tokenizers).")
    ] = "bpe",
    vocab_size: Annotated[
        int, Option(help="The number of tokens, special tokens included.")
    ] = 8000,
    lowercase: Annotated[
        bool, Option("--lowercase", help="Lower-case all texts before they are split.")
    ] = False,
    unicode_form: Annotated[
        str,
        Option(
            metavar="FORM", help="Normalize texts to a form of Unicode: none, nfc, nfd, nfkc, nfkd."
        ),
    ] = "none",
    columns: Annotated[
        str | None,
        Option(
            metavar="COLUMNS", help="The columns of tables that hold texts, such as 0,1 or en,de."
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a tokenizer on the texts of files."""
    check_out(out, force)
    from regard.data import read
    from regard.text.training import train as train_tokenizer

    names = [int(c) if c.isdecimal() else c for c in column_names(columns)]
    texts = (text for file in files for text in read(file, names).texts())
    trained = train_tokenizer(
        kind, texts, vocab_size, lowercase=lowercase, unicode_form=unicode_form
    )
    with replaced(out, force):
        trained.save(out)
    facts = {
        "folder": out,
        "kind": trained.kind,
        "vocab_size": trained.vocab_size,
        "fingerprint": trained.fingerprint(),
    }
    show(facts, f"{out}: {trained.kind}, {trained.vocab_size:,} tokens", as_json)


@app.command(cls=Command)
@with_values
def encode(
    tokenizer: TokenizerFolder,
    texts: Texts = None,
    ids: Annotated[
        bool, Option("--ids", help="Print the ids of tokens instead of the tokens.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Split texts into tokens, one line in, one line out.

    With --json each line has the offsets, too.
    """
    if as_json:
        check_none("with --json, which prints both", {"ids": ids})
    encode = load_tokenizer(tokenizer).encode
    form: Callable[[str], str] = (
        (lambda text: to_json(asdict(encode(text))))
        if as_json
        else (lambda text: " ".join(map(str, encode(text).ids)))
        if ids
        else (lambda text: " ".join(encode(text).tokens))
    )
    hint_at_file(texts)
    for chunk in chunks_of(texts):
        emit("".join(f"{form(text)}\n" for text in chunk.texts))


@app.command(cls=Command)
@with_values
def explain(
    tokenizer: Annotated[
        Path | None, Argument(metavar="TOKENIZER", help="The tokenizer that encodes TEXT.")
    ] = None,
    text: Annotated[str | None, Argument(help="The text whose encoding is shown.")] = None,
    words: Annotated[
        str | None, Option(help='Train on these words with their counts: "old:7 older:3".')
    ] = None,
    merges: Annotated[int | None, Option(help="Show the first N merges; default: 5.")] = None,
    kind: Annotated[
        Literal["bpe", "wordpiece-likelihood"] | None,
        Option(help="The kind that is trained on --words; default: bpe."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show step by step what a tokenizer does.

    With --words: how it is trained, merge by merge. With a tokenizer and a text: how the
    text is split.
    """
    from regard.text import explain

    steps: list[Any]
    if words is not None:
        check_none("with --words", {"TOKENIZER": tokenizer})
        counts, count = _counts(checked_argument(words)), MERGES if merges is None else merges
        likelihood = kind == "wordpiece-likelihood"
        steps = [(explain.likelihood if likelihood else explain.training)(counts, count)]
    elif tokenizer is None or text is None:
        raise ConfigError("Give a tokenizer and a text, or words to train on: --words.")
    else:
        check_none("without --words", {"merges": merges, "kind": kind})
        steps = list(explain.encoding(load_tokenizer(tokenizer), checked_argument(text)))
    show([asdict(step) for step in steps], "\n\n".join(map(explain.render, steps)), as_json)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a folder; of a run, the one in its `model`."""
    from regard.text import Tokenizer

    inner = path / "model"
    return Tokenizer.load(inner if (inner / "tokenizer.json").exists() else path)


def _counts(words: str) -> dict[str, int]:
    """ "old:7 older:3" as word -> count; a word without a number counts once."""
    counts: dict[str, int] = {}
    for item in words.split():
        word, _, number = item.rpartition(":") if ":" in item else (item, "", "1")
        if not number.isdecimal() or not word:
            raise ConfigError(f"`--words` must be like 'old:7 older:3', but has {item!r}.")
        counts[word] = counts.get(word, 0) + int(number)
    return counts


def corpus(
    files: Annotated[
        list[Path], Argument(metavar="FILE", help="Files of text, tables, or folders with them.")
    ],
    tokenizer: Annotated[
        Path, Option(help="The tokenizer: a run, the folder of a model, or tokenizer.json.")
    ],
    out: Annotated[Path, Option(help="The folder that the tokens are written to.")],
    documents: Annotated[
        Literal["rows", "blank-lines", "files"] | None,
        Option(
            help="What a document is; default: a row of a table, else what blank lines separate."
        ),
    ] = None,
    field: Annotated[
        str | None, Option(metavar="COLUMN", help="The column of tables that holds the text.")
    ] = None,
    end: Annotated[
        list[str] | None,
        Option(
            metavar="TOKEN", help="Write this token at the end of each document; may be repeated."
        ),
    ] = None,
    structure: Annotated[
        bool, Option("--structure", help="Store where paragraphs and sentences begin, too.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the tokens of documents to a folder, for large data.

    A build that was stopped continues.
    """
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
    show({"folder": out, **counts}, f"{out}: {parts}", as_json)
