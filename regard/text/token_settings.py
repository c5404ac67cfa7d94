"""The settings in the files beside a vocabulary, merged as `transformers` merges them.

Where tokenizer_config.json has `added_tokens_decoder`, special_tokens_map.json and
added_tokens.json are not read. Otherwise special_tokens_map.json overrides the special
tokens, and added_tokens.json and the `added_tokens` of tokenizer.json list the added tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from regard.errors import DataError
from regard.schema import Fields, checked, data_error
from regard.text.special_tokens import ROLES
from regard.text.vocab_files import MOST_IDS, read_json, read_vocab_json

CONFIG, SPECIALS, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
MODEL = "config.json"
EXTRA, ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
NO_LIMIT = 10**9  # `model_max_length` of 10 ** 30 and the like mean "no limit"


class TokenFields(Fields):
    """A token with its flags, as `tokenizers` writes it."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None
    special: bool | None = None


class ConfigFields(Fields):
    """The fields of tokenizer_config.json that affect ids; `_token` reads the special tokens."""

    tokenizer_class: str | None = None
    regard_kind: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    keep_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    split_special_tokens: bool | None = None
    clean_up_tokenization_spaces: bool | None = None
    model_input_names: list[str] | None = None
    model_max_length: int | float | None = None
    added_tokens_decoder: dict[str, TokenFields] | None = None
    fast_tokenizer_files: list[str] | None = None
    extra_ids: int | None = None


class ModelFields(Fields):
    """The fields of config.json that determine the kind of tokenizer."""

    model_type: str | None = None
    tokenizer_class: str | None = None
    vocab_size: Any = None


class AddedFields(TokenFields):
    """A token of `added_tokens` in tokenizer.json."""

    id: int


@dataclass(frozen=True)
class AddedTokenSpec:
    """An added token and how it is found in a text; see `tokenizers.AddedToken`.

    plain: its file states only its text, no flags
    late: `transformers` reads added_tokens.json before it turns this entry into a token, so the
        entry does not make a token of that file special.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True
    plain: bool = False
    late: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, fields: TokenFields, special: bool | None = None) -> AddedTokenSpec:
        """From the fields of a file. special: overrides their `special`."""
        is_special = bool(fields.special) if special is None else special
        normal = not is_special if fields.normalized is None else fields.normalized
        flags = fields.lstrip, fields.rstrip, fields.single_word, normal, is_special
        return cls(fields.content, *flags)

    def to_added_token(self) -> AddedToken:
        """The token as an object of `tokenizers`."""
        return AddedToken(self.content, **{name: getattr(self, name) for name in FLAGS})


@dataclass(frozen=True)
class TokenSettings:
    """The settings of a vocabulary.

    config: tokenizer_config.json.  path: that file, for errors.
    class_name: of the tokenizer in `transformers`, without "Fast"; None if no file names one.
    model_type: of config.json, which determines the class if none is named.
    vocab_size: of config.json: the number of embeddings of the model beside the vocabulary.
    named: special tokens by role ("pad", "cls"); None where a file says null.
    extra: further special tokens.  added: id -> added token, and the file that lists it.
    """

    path: Path
    config: ConfigFields
    class_name: str | None = None
    model_type: str | None = None
    vocab_size: int | None = None
    named: Mapping[str, AddedTokenSpec | None] = field(default_factory=dict)
    extra: tuple[AddedTokenSpec, ...] = ()
    added: Mapping[int, tuple[AddedTokenSpec, Path]] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, str]:
        """Special tokens by role, without those that are null."""
        return {role: token.content for role, token in self.named.items() if token is not None}

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a text; None for no limit."""
        limit = self.config.model_max_length
        return None if limit is None or limit >= NO_LIMIT else int(limit)

    def sides(self, padding: Any = None, truncation: Any = None) -> dict[str, str]:
        """`padding_side` and `truncation_side`, if the settings or tokenizer.json state them."""
        stated = {"padding_side": padding["direction"]} if padding else {}
        stated |= {"truncation_side": truncation["direction"]} if truncation else {}
        extra = self.config.model_extra or {}
        names = ("padding_side", "truncation_side")
        stated |= {name: extra[name] for name in names if extra.get(name) is not None}
        for name, side in stated.items():
            if side not in ("left", "right"):
                problem = f"`{name}` must be left or right, but is {side!r}."
                raise DataError(self.path, None, problem)
        return stated


def read_settings(vocabulary: Path, content: Mapping[str, Any] | None = None) -> TokenSettings:
    """The settings beside a vocabulary file.

    content: of tokenizer.json, if that is the file: its added tokens are read too.

    Raises:
        DataError: a file is malformed, or one of its fields is not supported.
    """
    path = vocabulary.with_name(CONFIG)
    raw = read_json(path) if path.is_file() else {}
    config = checked(raw, ConfigFields, path, data_error(path))
    _check_files(path, config)
    if config.model_max_length is not None and config.model_max_length < 1:
        problem = f"`model_max_length` must be at least 1, but is {config.model_max_length}."
        raise DataError(path, None, problem)
    class_name, model = _class_of(vocabulary, config)
    stated = _Special.of(path, raw)
    added: dict[int, tuple[AddedTokenSpec, Path]] = {}
    if config.added_tokens_decoder is not None:
        for number, fields in config.added_tokens_decoder.items():
            added[_id(path, number)] = AddedTokenSpec.of(fields), path
    else:
        beside = vocabulary.with_name(SPECIALS)
        if beside.is_file():
            stated = stated.updated(beside, read_json(beside))
        added = _added(vocabulary.with_name(ADDED), stated)
        for number, token in added_tokens(vocabulary, content or {}):
            added[number] = token, vocabulary
    by_content = {token.content: token for token, _ in added.values()}
    named = {r: token and by_content.get(token.content, token) for r, token in stated.named.items()}
    size = model.vocab_size if type(model.vocab_size) is int else None
    others = stated.others()
    return TokenSettings(path, config, class_name, model.model_type, size, named, others, added)


def added_tokens(path: Path, content: Mapping[str, Any]) -> list[tuple[int, AddedTokenSpec]]:
    """The added tokens of a tokenizer.json and their ids, in its order."""
    listed = content.get("added_tokens") or []
    tokens = checked(listed, list[AddedFields], path, data_error(path), "added_tokens")
    return [(fields.id, AddedTokenSpec.of(fields)) for fields in tokens]


def _class_of(vocabulary: Path, config: ConfigFields) -> tuple[str | None, ModelFields]:
    """The name of the tokenizer's class, if a file names it, and the fields of config.json."""
    path = vocabulary.with_name(MODEL)
    model = ModelFields()
    if path.is_file() and path != vocabulary:
        model = checked(read_json(path), ModelFields, path, data_error(path))
    name = config.tokenizer_class or model.tokenizer_class
    return name.removesuffix("Fast") if name else None, model


def _check_files(path: Path, config: ConfigFields) -> None:
    """Raise an error if another file should be read in place of tokenizer.json."""
    for name in config.fast_tokenizer_files or []:
        if name != "tokenizer.json" and path.with_name(name).is_file():
            problem = f"`fast_tokenizer_files` names {name}, but only tokenizer.json is supported."
            raise DataError(
                path, None, problem, "Remove the field, or rename the file to tokenizer.json."
            )


@dataclass(frozen=True)
class _Special:
    """The special tokens of tokenizer_config.json and special_tokens_map.json.

    named: by role.  flagged, plain: by other names, such as `image_token`, with flags or without.
    extra, additional: the lists under the new and the old name; None if there is none. The old one
    is used if the new one is missing.
    """

    named: dict[str, AddedTokenSpec | None]
    flagged: tuple[AddedTokenSpec, ...]
    plain: tuple[AddedTokenSpec, ...]
    extra: tuple[AddedTokenSpec, ...] | None
    additional: tuple[AddedTokenSpec, ...] | None

    def others(self) -> tuple[AddedTokenSpec, ...]:
        """All special tokens without a role, in the order in which `transformers` adds them."""
        listed = self.additional if self.extra is None else self.extra
        return (*self.flagged, *self.plain, *(listed or ()))

    @classmethod
    def of(cls, path: Path, raw: Mapping[str, Any]) -> _Special:
        """Those of tokenizer_config.json."""
        flagged = tuple(_other_names(path, raw, dict))
        plain = tuple(_other_names(path, raw, str))
        extra, additional = (_listed(path, name, raw) for name in (EXTRA, ADDITIONAL))
        if additional is not None and not extra:
            extra, additional = additional, None
        if isinstance(raw.get(EXTRA), dict) and raw[EXTRA]:  # an object of named tokens, not a list
            plain, extra = plain + (extra or ()), None
        return cls(_by_role(path, raw), flagged, plain, extra, additional)

    def updated(self, path: Path, raw: Mapping[str, Any]) -> _Special:
        """These, overridden by special_tokens_map.json."""
        flagged = (*self.flagged, *_other_names(path, raw, dict), *_other_names(path, raw, str))
        extra, plain = _listed(path, EXTRA, raw), self.plain
        if isinstance(raw.get(EXTRA), dict):
            plain, extra = plain + (extra or ()), None
        elif extra is not None:
            extra = tuple(dict.fromkeys((*(self.extra or ()), *extra)))
        else:
            extra = self.extra
        additional = _listed(path, ADDITIONAL, raw) if ADDITIONAL in raw else self.additional
        return _Special(self.named | _by_role(path, raw), flagged, plain, extra, additional)


def _by_role(path: Path, raw: Mapping[str, Any]) -> dict[str, AddedTokenSpec | None]:
    names = {role: f"{role}_token" for role in ROLES}
    return {role: _token(path, name, raw[name]) for role, name in names.items() if name in raw}


def _other_names(path: Path, raw: Mapping[str, Any], kind: type) -> Iterator[AddedTokenSpec]:
    """Special tokens of other fields, such as `image_token`."""
    of_roles = {f"{role}_token" for role in ROLES}
    for name, value in raw.items():
        if not name.endswith("_token") or name in of_roles or not isinstance(value, kind):
            continue
        if kind is str or "content" in value:  # type: ignore[operator]
            if (token := _token(path, name, value)) is not None:
                yield token


def _listed(path: Path, name: str, raw: Mapping[str, Any]) -> tuple[AddedTokenSpec, ...] | None:
    """The tokens of a list, or of an object of named ones; None if the field is missing."""
    if name not in raw:
        return None
    value = raw[name] or []
    value = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, list):
        raise DataError(path, None, f"`{name}` must be a list of tokens, but is {value!r:.80}.")
    tokens = (_token(path, f"{name}.{number}", entry, True) for number, entry in enumerate(value))
    return tuple(token for token in tokens if token is not None)


def _token(path: Path, name: str, value: Any, listed: bool = False) -> AddedTokenSpec | None:
    """The token in a field; None if it is null or empty.

    listed: whether it is in a list. There its flag `special` is used; elsewhere it is special.
    """
    if value is None or value == "":
        return None
    if isinstance(value, dict):
        fields = checked(value, TokenFields, path, data_error(path), name)
        late = path.name == CONFIG
        token = AddedTokenSpec.of(fields, None if late and listed else True)
        return replace(token, late=late) if fields.content else None
    if not isinstance(value, str):
        raise DataError(path, None, f"`{name}` must be a token, but is {value!r:.80}.")
    return AddedTokenSpec(value, plain=True)


def _added(path: Path, stated: _Special) -> dict[int, tuple[AddedTokenSpec, Path]]:
    """The tokens of added_tokens.json by id; special if another field names them as special."""
    if not path.is_file():
        return {}
    named = (*stated.named.values(), *(stated.extra or ()))
    special = {token.content for token in named if token is not None and not token.late}
    added = {}
    for content, number in read_vocab_json(path).items():
        is_special = content in special
        added[number] = AddedTokenSpec(content, normalized=not is_special, special=is_special), path
    return added


def _id(path: Path, number: str) -> int:
    if number.isascii() and number.isdigit() and len(number) <= 9 and int(number) < MOST_IDS:
        return int(number)
    problem = f"`added_tokens_decoder` must have ids from 0 to {MOST_IDS - 1:,} as its keys"
    raise DataError(path, None, f"{problem}, but has {number!r:.40}.")
