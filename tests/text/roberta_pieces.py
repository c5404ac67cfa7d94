"""RoBERTa's vocabulary from a list of its tokens as text, as the folder that is published.

Bytes that are not UTF-8 are written \\xNN there. A token with a line feed takes several lines, and
the control characters 0 to 3 are written as a space, the third such token and following.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from regard.text.published import bytes_of_characters


@cache
def roberta_folder(pieces: Path, merges: Path) -> Path:
    """A folder with vocab.json and merges.txt."""
    folder, byte_of = Path(tempfile.mkdtemp()), bytes_of_characters()
    text = merges.read_bytes().decode("utf-8")
    pairs = [line.split(" ") for line in text.split("\n")[1:] if line.count(" ") == 1]
    tokens = [*byte_of, *("".join(pair) for pair in pairs)]
    written = {
        bytes(byte_of[char] for char in token).decode("utf-8", "backslashreplace"): token
        for token in tokens
    }
    lines = pieces.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    (folder / "vocab.json").write_text(json.dumps(_match_lines(lines, written)))
    (folder / "merges.txt").write_text(text)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    return folder


def _match_lines(lines: list[str], written: dict[str, str]) -> dict[str, int]:
    """Token -> id for lines of tokens written as text; several lines may be one token."""
    special_tokens = {"<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"}
    controls = iter("\0\1\2\3")
    vocab: dict[str, int] = {}
    number = 0
    while number < len(lines):
        for span in (1, 2, 3):
            text = "\n".join(lines[number : number + span])
            token = written.get(text)
            if token is None and (text in special_tokens or text.startswith("madeupword")):
                token = text
            if text == " " and token in vocab:
                token = written.get(next(controls, ""))
            if token is not None and token not in vocab:
                break
        else:
            raise AssertionError(lines[number])
        vocab[token] = len(vocab)
        number += span
    return vocab
