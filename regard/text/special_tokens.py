"""What special pieces are for, and what every vocabulary must hold."""

from __future__ import annotations

from collections.abc import Iterable

from regard.errors import ConfigError

# The part a special piece plays, and the names by which it is known without being told.
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
    """The roles of special pieces, known by their names: ["<pad>", "[CLS]"] -> pad and cls."""
    present = set(special_tokens)
    return {role: name for role, names in ROLES.items() for name in names[::-1] if name in present}


def need_unknown(kind: str, special_tokens: list[str]) -> str:
    """The name of the unknown piece, which this kind cannot do without."""
    unknown = roles_of(special_tokens).get("unk")
    if unknown is None:
        raise ConfigError(
            f"kind {kind!r} needs a piece for what it does not know: `special_tokens` must hold "
            f"<unk> or [UNK], but is {special_tokens}. (byte-bpe needs none.)"
        )
    return unknown


def too_small(vocab_size: int, special_count: int, alphabet: int, hint: str) -> ConfigError:
    """The error for a vocabulary that cannot hold its own alphabet."""
    return ConfigError(
        f"`vocab_size` must be at least {special_count + alphabet} ({special_count} special tokens "
        f"+ an alphabet of {alphabet}), but is {vocab_size}. {hint}"
    )
