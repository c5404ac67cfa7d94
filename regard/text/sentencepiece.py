"""Recognizes folders with a SentencePiece model, and says how to convert them.

Files of SentencePiece are not supported. `transformers` converts them to tokenizer.json, which is
supported. Folders of Marian have two such files, one for each language, and a vocabulary.
"""

from __future__ import annotations

from pathlib import Path

from regard.errors import DataError

MARIAN = ("source.spm", "target.spm")
# A folder with one of these files has a supported vocabulary.
READABLE = ("tokenizer.json", "vocab.txt", "encoder.json")


def is_model(name: str) -> bool:
    """Whether a file of this name is a SentencePiece model."""
    return name.endswith((".model", ".spm"))


def check_folder(folder: Path) -> None:
    """Raise an error for a folder whose only vocabulary is a SentencePiece model.

    Raises:
        DataError: it is; the message says how to convert it.
    """
    merges = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
    if merges or any((folder / name).is_file() for name in READABLE):
        return
    names = sorted(path.name for path in folder.iterdir() if is_model(path.name))
    if names:
        raise conversion_error(folder / next((name for name in MARIAN if name in names), names[0]))


def conversion_error(path: Path) -> DataError:
    """The error for a SentencePiece model, with the steps to convert it to tokenizer.json."""
    problem = "is a SentencePiece model, which is not supported."
    if path.name in MARIAN:
        hint = (
            "Marian's class in `transformers` does not write a tokenizer.json. Run the Python code "
            'under "SentencePiece" in docs/tokenizers.md, which writes it; it needs `tokenizers`, '
            "`transformers` and `sentencepiece`. Then open the folder again."
        )
        return DataError(path, None, problem, hint)
    hint = (
        "Use the tokenizer.json of the same model, or write it with `transformers` and "
        "`sentencepiece` installed: from transformers import AutoTokenizer; "
        f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained({str(path.parent)!r})"
    )
    return DataError(path, None, problem, hint)
