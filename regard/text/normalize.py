"""What happens to a text before its words are cut into tokens: normalization and pre-tokenization.

    text --unicode_form--> --clean, isolate_cjk, strip_accents, lowercase--> --split--> words

By default the text is not changed, and only `split` decides where words end.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from regard.errors import ConfigError, shown
from regard.suggest import nearest

UNICODE_FORMS: dict[str, Callable[[], Normalizer]] = {
    "nfc": normalizers.NFC,
    "nfd": normalizers.NFD,
    "nfkc": normalizers.NFKC,
    "nfkd": normalizers.NFKD,
}

# Where words end. gpt2 and gpt2-prefix also map every byte to a printable character.
SPLITS: dict[str, Callable[[], PreTokenizer]] = {
    "whitespace": pre_tokenizers.WhitespaceSplit,  # the white space is dropped
    "punctuation": pre_tokenizers.BertPreTokenizer,  # and each punctuation mark is a word
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),  # nothing is dropped
    "gpt2-prefix": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "characters": lambda: pre_tokenizers.Split("", "isolated"),  # one word per code point
}


@dataclass(frozen=True)
class Preprocessing:
    """The steps before a text is cut into tokens, in their order.

    unicode_form: "none", or "nfc", "nfd", "nfkc", "nfkd"
    clean: drop control characters, turn every white space into a plain space (as BERT does)
    isolate_cjk: put spaces around each Chinese character (as BERT does)
    strip_accents: drop combining marks after canonical decomposition
    lowercase: by Unicode's rules, context-free
    split: a key of `SPLITS`

    Raises:
        ConfigError: `unicode_form` or `split` is unknown, or another field is no bool.
    """

    unicode_form: str = "none"
    clean: bool = False
    isolate_cjk: bool = False
    strip_accents: bool = False
    lowercase: bool = False
    split: str = "whitespace"

    def __post_init__(self) -> None:
        for name, allowed in (("unicode_form", ["none", *UNICODE_FORMS]), ("split", list(SPLITS))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(
                    f"`{name}` is {value!r}, which is unknown. {nearest(str(value), allowed)}"
                )
        for name in ("clean", "isolate_cjk", "strip_accents", "lowercase"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"`{name}` must be true or false, but is {shown(value)}.")

    def check_split(self, *allowed: str) -> None:
        """Raise a ConfigError unless `split` is one of those that a kind of tokenizer allows."""
        if self.split not in allowed:
            known = " or ".join(allowed)
            raise ConfigError(f"`split` must be {known} for this kind, but is {self.split!r}.")

    def normalizer(self) -> Normalizer | None:
        """The part that changes characters; None: none are changed."""
        parts: list[Normalizer] = []
        if self.unicode_form != "none":
            parts.append(UNICODE_FORMS[self.unicode_form]())
        if self.clean or self.isolate_cjk or self.strip_accents or self.lowercase:
            parts.append(
                normalizers.BertNormalizer(
                    clean_text=self.clean,
                    handle_chinese_chars=self.isolate_cjk,
                    strip_accents=self.strip_accents,
                    lowercase=self.lowercase,
                )
            )
        return normalizers.Sequence(parts) if len(parts) > 1 else parts[0] if parts else None

    def pre_tokenizer(self) -> PreTokenizer:
        """The part that splits a text into words."""
        return SPLITS[self.split]()

    def splitter(self) -> Callable[[str], list[str]]:
        """A function text -> normalized words, for trainers that count words themselves."""
        normalizer, split = self.normalizer(), self.pre_tokenizer().pre_tokenize_str
        if normalizer is None:
            return lambda text: [word for word, _ in split(text)]
        rewrite = normalizer.normalize_str
        return lambda text: [word for word, _ in split(rewrite(text))]
