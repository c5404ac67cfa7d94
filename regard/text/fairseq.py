"""fairseq's vocabularies: a dictionary, and the BPE codes that cut words for it.

    dict.txt      or dict.de.txt: a token and its count a line; "@@" ends a token inside a word
    bpecodes      of subword-nmt, or as another name of `CODES`; without it, tokens are words

The ids 0 to 3 are <s>, <pad>, </s> and <unk>, which are in no file. A tokenizer of sources and one
of targets make a pair: `source.targets = target`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import decoders, models

from regard.errors import DataError
from regard.file_writing import write_text
from regard.text import vocab_files
from regard.text.bpe import END
from regard.text.bpe_fast import assemble
from regard.text.normalize import Preprocessing
from regard.text.piece_tokenizer import PieceTokenizer, vocabulary
from regard.text.templates import Template
from regard.text.tokenizer import Tokenizer

DICT, CODES = "dict.txt", ("bpecodes", "bpe.codes", "codes", "code")
ROLES = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
GOES_ON = "@@"


class FairseqTokenizer(PieceTokenizer):
    """Cuts words by BPE codes and looks subwords up in a dictionary; see `PieceTokenizer`.

    files: the contents of the dictionary and, if there are any, of the codes.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        ids_of: Mapping[str, int],
        merges: list[tuple[str, str]],
        targets: Tokenizer | None = None,
    ):
        self.merges = merges
        template = Template.around((), (), (ids_of["</s>"],))
        fast = vocabulary(ids_of, ROLES, (), template)
        fast.decoder = decoders.Sequence([decoders.Fuse()])
        super().__init__(files, ids_of, fast, "fairseq", ROLES, targets=targets)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> FairseqTokenizer:
        """Read a folder, or a dictionary with the codes beside it.

        Raises:
            DataError: a line is not a token and a count, or a token occurs twice.
        """
        file = Path(path) / DICT if Path(path).is_dir() else Path(path)
        codes = next((path for name in CODES if (path := file.with_name(name)).is_file()), None)
        ids = {token: number for number, token in enumerate(ROLES.values())}
        for number, line in enumerate(vocab_files.read_lines(file), 1):
            token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
            if not token or not count.isdecimal() or token in ids:
                problem = f"must be a token that is new and its count, but is {line!r:.80}."
                raise DataError(file, number, problem)
            ids[token] = len(ids)
        lines = vocab_files.read_lines(codes) if codes else []
        pairs = [line.split(" ")[:2] for line in lines if line and not line.startswith("#")]
        if codes and (wrong := [n for n, pair in enumerate(pairs) if len(pair) < 2]):
            raise DataError(codes, wrong[0] + 1, "must be a pair of subwords.")
        files = {DICT: file.read_bytes()} | ({CODES[0]: codes.read_bytes()} if codes else {})
        return cls(files, ids, [(first, second) for first, second in pairs])

    @cached_property
    def pieces(self) -> Tokenizer:
        """Cuts texts into subwords, the last one of a word with </w>; without codes into words."""
        if CODES[0] not in self.files:
            model: models.Model = models.WordLevel(dict(self.ids_of), ROLES["unk"])
            return Tokenizer(assemble(model, Preprocessing()), "words", {"unk": ROLES["unk"]})
        parts = [ROLES["unk"], *self.ids_of, *(part for pair in self.merges for part in pair)]
        letters = dict.fromkeys(letter for part in parts[1:] for letter in part.removesuffix(END))
        names = [parts[0], *letters, *(letter + END for letter in letters)]
        names += ["".join(pair) for pair in self.merges]
        vocab = {name: number for number, name in enumerate(dict.fromkeys(names))}
        model = models.BPE(vocab, self.merges, unk_token=parts[0], end_of_word_suffix=END)
        return Tokenizer(assemble(model, Preprocessing()), "bpe", {"unk": parts[0]})

    def name_of(self, piece: str) -> str:
        if CODES[0] not in self.files or piece == ROLES["unk"]:
            return piece
        return piece.removesuffix(END) if piece.endswith(END) else piece + GOES_ON

    def decode_many(self, sequences: Any) -> list[str]:
        """See `Tokenizer`; words are joined by one space."""
        if self.targets is not None:
            return self.targets.decode_many(sequences)
        drop = self.special_ids - {self.unk_id}
        rows = [[self.token(i) for i in ids if i not in drop] for ids in sequences]
        return [f"{' '.join(row)} ".replace(f"{GOES_ON} ", "").rstrip() for row in rows]

    def save(self, folder: str | PathLike[str], max_length: int | None = None) -> None:
        """Write the files that were read; see `Tokenizer`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_text(Path(folder) / name, content.decode())
        self.save_targets(Path(folder), max_length)

    def fingerprint(self) -> str:
        return self.digest(self.ids_of)

    def __reduce__(self) -> tuple[Any, ...]:
        return FairseqTokenizer, (self.files, self.ids_of, self.merges, self.targets)
