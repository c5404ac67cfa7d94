"""corpus: the tokens of documents, written once for text larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from regard.cli.console import show
from regard.cli.options import AsJson, Quiet
from regard.cli.tokenizer import load_tokenizer


def corpus(
    files: Annotated[list[Path], Argument(help="Texts, tables, or folders with them.")],
    tokenizer: Annotated[Path, Option(help="A run, a model's folder, or tokenizer.json.")],
    out: Annotated[Path, Option(help="The folder that is written.")],
    documents: Annotated[
        Literal["rows", "blank-lines", "files"] | None,
        Option(help="What a document is; default: rows of tables, else what blank lines separate."),
    ] = None,
    field: Annotated[str | None, Option(help="Of tables: the column with the text.")] = None,
    end: Annotated[list[str] | None, Option(help="A token at the end of documents.")] = None,
    structure: Annotated[
        bool, Option("--structure", help="Store paragraphs and sentences, too.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the tokens of documents to a folder. A build that was stopped goes on."""
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
