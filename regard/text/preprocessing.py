"""What all kinds of tokenizers have in common: how a text becomes words, and special tokens.

    text --unicode_form--> --clean, isolate_cjk, strip_accents, lowercase--> --split--> words

By default the text is not changed, and only `split` decides where words end.

The library `tokenizers` raises plain `Exception`s, and its Rust code panics on input that its
authors did not expect, such as a regular expression that exceeds its limits or an index out of
range. A panic becomes a pyo3_runtime.PanicException, which `except Exception` does not catch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import tokenizers
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import ByteLevel, PostProcessor, TemplateProcessing
from tokenizers.processors import Sequence as Processors

from regard.errors import ConfigError, DataError, RegardError
from regard.text.templates import Special, Specials, Template

T = TypeVar("T")
UnicodeForm = Literal["none", "nfc", "nfd", "nfkc", "nfkd"]
Split = Literal["whitespace", "punctuation", "gpt2", "gpt2-prefix", "characters"]
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
    """

    unicode_form: UnicodeForm = "none"
    clean: bool = False
    isolate_cjk: bool = False
    strip_accents: bool = False
    lowercase: bool = False
    split: Split = "whitespace"

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


# ----------------------------------------------------------------------------------- special tokens


# Role -> the names by which a special token of this role is recognized.
ROLES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]"),
    "bos": ("<s>", "<bos>", "[BOS]"),
    "eos": ("</s>", "<eos>", "[EOS]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("<cls>", "[CLS]"),
    "sep": ("<sep>", "[SEP]"),
    "mask": ("<mask>", "[MASK]"),
}


def roles_of(special_tokens: Iterable[str]) -> dict[str, str]:
    """Role -> token, recognized by the names: ["<pad>", "[CLS]"] -> pad and cls."""
    present = set(special_tokens)
    return {role: name for role, names in ROLES.items() for name in names[::-1] if name in present}


def looks_special(token: str) -> bool:
    """Whether a token is written as special tokens usually are, in brackets."""
    return len(token) > 2 and token[0] + token[-1] in ("[]", "<>")


@dataclass(frozen=True)
class TrainerInput:
    """What the trainer of every kind of tokenizer is given.

    kind: of the tokenizer.  texts: read once.  vocab_size: the most tokens.  special_tokens: they
    take the first ids.  preprocessing: what happens to a text before it is cut into tokens.
    """

    kind: str
    texts: Iterable[str]
    vocab_size: int
    special_tokens: list[str]
    preprocessing: Preprocessing

    def words(self) -> Iterator[list[str]]:
        """The normalized words of each text."""
        return map(self.preprocessing.splitter(), self.texts)

    def unknown(self) -> str:
        """The name of the unknown token, which this kind of tokenizer needs.

        Raises:
            ConfigError: `special_tokens` has none.
        """
        unknown = roles_of(self.special_tokens).get("unk")
        if unknown is None:
            raise ConfigError(
                f"kind {self.kind!r} needs a token for unknown text: `special_tokens` must hold "
                f"<unk> or [UNK], but is {self.special_tokens}. (byte-bpe needs none.)"
            )
        return unknown

    def too_small(self, alphabet: int, hint: str) -> ConfigError:
        return too_small(self.vocab_size, len(self.special_tokens), alphabet, hint)


def too_small(vocab_size: int, special_count: int, alphabet: int, hint: str) -> ConfigError:
    """The error for a vocabulary that cannot hold its own alphabet."""
    return ConfigError(
        f"`vocab_size` must be at least {special_count + alphabet} ({special_count} special tokens "
        f"+ an alphabet of {alphabet}), but is {vocab_size}. {hint}"
    )


# --------------------------------------------------------------------------- the library tokenizers


def reason(error: BaseException) -> str:
    """The message of an exception of `tokenizers`, in one line.

    Raises:
        BaseException: `error` itself, if `tokenizers` did not cause it: an interrupt or a lack of
            memory.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= 300 else f"{message[:297]}..."


def call(work: Callable[[], T], problem: Callable[[str], RegardError]) -> T:
    """Return `work()`; what `tokenizers` raises in it becomes the error `problem(reason)`."""
    try:
        return work()
    except RegardError:
        raise
    except BaseException as error:
        raise problem(reason(error)) from None


def parse(path: Path, text: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json, read from `path`.

    Raises:
        DataError: `tokenizers` cannot read it.
    """

    def problem(message: str) -> DataError:
        hint = "Was it written by a newer release of `tokenizers`?"
        return DataError(path, None, f"is not a valid tokenizer.json: {message}.", hint)

    return call(lambda: tokenizers.Tokenizer.from_str(text), problem)


def template_in(processor: PostProcessor | None) -> Template | None:
    """The template of a post-processor, found by applying it to texts of one token each.

    Raises:
        RegardError: it does something else than adding special tokens around the texts.
    """
    if processor is None or isinstance(processor, ByteLevel):
        return None  # it only trims the offsets of tokens
    text = tokenizers.Tokenizer(WordLevel({"x": 0}, unk_token="x")).encode("x")

    def problem(message: str) -> RegardError:
        return RegardError(f"its `post_processor` cannot be used: {message}.")

    single, pair = call(
        lambda: (_parts(processor.process(text)), _parts(processor.process(text, text))), problem
    )
    if (len(single), len(pair)) != (3, 5):
        raise problem("it must put one text, or two, between special tokens, each text once")
    (before, texts, after), (start, first, between, second, end) = single, pair
    return Template(
        (before, after), (start, between, end), (texts[0][1], first[0][1], second[0][1])
    )


def processor_of(
    template: Template, token: Callable[[int], str | None], before: PostProcessor | None = None
) -> PostProcessor:
    """The post-processor by which other libraries apply a template.

    token: gives the token with an id
    before: the post-processor that is replaced; a byte-level one is kept, in front
    """
    alone, first, second = template.segments
    used = {i for part in (*template.single, *template.pair) for i, _ in part}
    tokens = {i: str(token(i)) for i in sorted(used)}
    names = {i: _template_name(name, i) for i, name in tokens.items()}
    around: PostProcessor = TemplateProcessing(
        single=_spelled(names, template.single, (f"$A:{alone}",)),
        pair=_spelled(names, template.pair, (f"$A:{first}", f"$B:{second}")),
        special_tokens=[
            {"id": names[i], "ids": [i], "tokens": [name]} for i, name in tokens.items()
        ],
    )
    return Processors([before, around]) if isinstance(before, ByteLevel) else around


def _parts(encoding: tokenizers.Encoding) -> list[Specials]:
    """The special tokens before, between and after the texts, and the texts' own tokens."""
    parts: list[list[Special]] = [[]]
    columns = zip(encoding.ids, encoding.type_ids, encoding.special_tokens_mask, strict=True)
    for number, segment, special in columns:
        if special:
            parts[-1].append((number, segment))
        else:
            parts += [[(number, segment)], []]
    return [tuple(part) for part in parts]


def _spelled(
    names: Mapping[int, str], around: Sequence[Specials], texts: Sequence[str]
) -> list[str]:
    spelled = [[f"{names[i]}:{segment}" for i, segment in part] for part in around]
    for part, text in zip(spelled[:-1], texts, strict=True):
        part.append(text)
    return [token for part in spelled for token in part]


def _template_name(token: str, number: int) -> str:
    """The name of a token in a template: itself, unless that has a meaning there."""
    return f"special-{number}" if ":" in token or token.startswith("$") else token
