"""corpus: the tokens of documents, written once for text larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from regard.cli.console import show
from regard.cli.options import AsJson, Quiet
from regard.cli.tokenizer import load_tokenizer


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
    from regard.data.corpus_folder import read_facts

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
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    show({"folder": out, **counts}, f"{out}: {said}", as_json)
