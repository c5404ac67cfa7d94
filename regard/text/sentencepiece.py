"""Folders whose tokenizer is a SentencePiece model: recognized, and refused with a way out.

The files of SentencePiece are not read. `transformers` reads them and writes tokenizer.json, which
is read. Marian's folders have two such files, one for each language, and a vocabulary.
"""

from __future__ import annotations

from pathlib import Path

from regard.errors import DataError

MARIAN = ("source.spm", "target.spm")
# A folder with one of these has a vocabulary that is read.
READ = ("tokenizer.json", "vocab.txt", "encoder.json")


def is_model(name: str) -> bool:
    """Whether a file of this name is a SentencePiece model."""
    return name.endswith((".model", ".spm"))


def check_folder(folder: Path) -> None:
    """Refuse a folder whose vocabulary is in a SentencePiece model alone.

    Raises:
        DataError: it is; the message says how it is converted.
    """
    merges = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
    if merges or any((folder / name).is_file() for name in READ):
        return
    names = sorted(path.name for path in folder.iterdir() if is_model(path.name))
    if names:
        raise refusal(folder / next((name for name in MARIAN if name in names), names[0]))


def refusal(path: Path) -> DataError:
    """The error for a SentencePiece model, which says how it becomes a tokenizer.json."""
    problem = "is a SentencePiece model, which is not read."
    if path.name in MARIAN:
        hint = (
            "Marian's class in `transformers` writes no tokenizer.json. Thirteen lines of Python "
            'do, with `tokenizers`, `transformers` and `sentencepiece`: see "SentencePiece" in '
            "docs/tokenizers.md. The folder then opens with the tokenizer.json they write."
        )
        return DataError(path, None, problem, hint)
    hint = (
        "Use the tokenizer.json of the same model, or write it with `transformers` and "
        "`sentencepiece` installed: from transformers import AutoTokenizer; "
        f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained({str(path.parent)!r})"
    )
    return DataError(path, None, problem, hint)
