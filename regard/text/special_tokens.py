"""The roles of special tokens, and what a vocabulary must hold."""

from __future__ import annotations

from collections.abc import Iterable

from regard.errors import ConfigError

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


def need_unknown(kind: str, special_tokens: list[str]) -> str:
    """The name of the unknown token, which this kind of tokenizer needs.

    Raises:
        ConfigError: `special_tokens` has none.
    """
    unknown = roles_of(special_tokens).get("unk")
    if unknown is None:
        raise ConfigError(
            f"kind {kind!r} needs a token for unknown text: `special_tokens` must hold "
            f"<unk> or [UNK], but is {special_tokens}. (byte-bpe needs none.)"
        )
    return unknown


def too_small(vocab_size: int, special_count: int, alphabet: int, hint: str) -> ConfigError:
    """The error for a vocabulary that cannot hold its own alphabet."""
    return ConfigError(
        f"`vocab_size` must be at least {special_count + alphabet} ({special_count} special tokens "
        f"+ an alphabet of {alphabet}), but is {vocab_size}. {hint}"
    )
