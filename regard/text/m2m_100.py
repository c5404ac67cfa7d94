"""M2M-100's tokenizers: a SentencePiece model, a vocabulary, and a token for each language.

    sentencepiece.bpe.model     how a text is cut into pieces
    vocab.json                  the ids of the pieces

The tokens of the languages, `__en__` and so on, are in no file: their ids follow the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.text import sentencepiece, vocab_files
from regard.text.piece_tokenizer import PieceTokenizer, check_vocabulary, vocabulary
from regard.text.templates import Template
from regard.text.token_settings import ADDITIONAL, read_settings

VOCAB, MODEL = "vocab.json", sentencepiece.M2M_100
ROLES = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
# `language_codes` of tokenizer_config.json -> the languages, in the order of their ids
LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
        "tn tr uk ur uz vi wo xh yi yo zh zu"
    ).split(),
    "wmt21": "en ha is ja cs ru zh de".split(),
}


class M2M100Tokenizer(PieceTokenizer):
    """Cuts by a SentencePiece model and looks pieces up in a vocabulary; see `PieceTokenizer`.

    vocab: token -> id, without the languages.  source: the language of a text, such as "en".
    codes: a key of `LANGUAGES`.  listed: the tokens of languages where texts may contain
        them: all, or none.
    """

    model_file = MODEL

    def __init__(
        self,
        files: Mapping[str, bytes],
        vocab: Mapping[str, int],
        roles: Mapping[str, str],
        source: str = "en",
        codes: str = "m2m100",
        max_length: int | None = None,
        listed: Sequence[str] = (),
    ):
        self.vocab_file, self.source, self.codes = vocab, source, codes
        self.listed = list(listed)
        self.languages = [f"__{code}__" for code in LANGUAGES[codes]]
        ids = {**vocab, **{token: len(vocab) + n for n, token in enumerate(self.languages)}}
        template = Template.around((ids[f"__{source}__"],), (), (ids[roles["eos"]],))
        fast = vocabulary(ids, roles, self.languages, template)
        super().__init__(files, ids, fast, "m2m-100", roles, max_length)

    def read_as_special(self) -> Sequence[str]:
        return [*self.roles.values(), *self.listed]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> M2M100Tokenizer:
        """Read a folder.

        Raises:
            DataError: a file is missing or malformed, or names a language that there is not.
        """
        folder = Path(path)
        settings = read_settings(folder / VOCAB)
        others = settings.config.model_extra or {}
        codes, source = others.get("language_codes") or "m2m100", others.get("src_lang") or "en"
        for name, value, allowed in (
            ("language_codes", codes, [*LANGUAGES]),
            ("src_lang", source, LANGUAGES.get(codes, [])),
        ):
            if value not in allowed:
                problem = f"`{name}` must be one of {', '.join(allowed)}, but is {value!r}."
                raise DataError(settings.path, None, problem)
        vocab = vocab_files.read_vocab_json(folder / VOCAB)
        named = {role: settings.roles.get(role, token) for role, token in ROLES.items()}
        check_vocabulary(folder / VOCAB, vocab, ROLES, named)
        files = {MODEL: (folder / MODEL).read_bytes()}
        sentencepiece.parsed(folder / MODEL, files[MODEL], sentencepiece.CUTTING)
        allowed = [f"__{code}__" for code in LANGUAGES[codes]]
        listed = [token.content for token in settings.extra if token.content in allowed]
        if listed not in ([], allowed):  # their program would give them other ids in texts
            problem = (
                f"`{ADDITIONAL}` must name all languages, {allowed[0]} to {allowed[-1]}, or none."
            )
            raise DataError(settings.path, None, problem)
        return cls(files, vocab, named, source, codes, settings.max_length, listed)

    def save(self, folder: str | PathLike[str], max_length: int | None = None) -> None:
        """Write the files that were read, and tokenizer_config.json; see `Tokenizer`."""
        config: dict[str, Any] = {"tokenizer_class": "M2M100Tokenizer", "src_lang": self.source}
        config |= {"language_codes": self.codes}
        config |= {ADDITIONAL: self.listed} if self.listed else {}
        self.write_files(Path(folder), config, {VOCAB: self.vocab_file}, max_length)

    def fingerprint(self) -> str:
        others = {"language_codes": self.codes, "src_lang": self.source, ADDITIONAL: self.listed}
        return self.digest(self.vocab_file, others)

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.roles, self.source, self.codes, self.max_length, self.listed
        return M2M100Tokenizer, (self.files, self.vocab_file, *options)
