"""The roles of special tokens, and what a vocabulary must hold."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from regard.errors import ConfigError
from regard.text.normalize import Preprocessing

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
