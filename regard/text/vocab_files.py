"""Vocabulary files and the settings beside them, merged as `transformers` does.

Where tokenizer_config.json has `added_tokens_decoder`, special_tokens_map.json and
added_tokens.json are not read. Otherwise special_tokens_map.json overrides the special
tokens, and added_tokens.json and the `added_tokens` of tokenizer.json list the added tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tokenizers
from pydantic import Field
from tokenizers import AddedToken

from regard import schema
from regard.errors import DataError, RegardError, warn
from regard.schema import Fields, checked, data_error
from regard.text.bpe import Pair
from regard.text.preprocessing import ROLES

# Published vocabularies have at most some 300,000 entries. An embedding has a row for every id up
# to the largest, so that one id of 4,294,967,295 would ask for terabytes.
MOST_IDS = 2**24


def read_text(path: Path) -> str:
    """The file as UTF-8, its line ends untouched."""
    try:
        return schema.read_text(path, error=data_error(path))
    except OSError as error:
        held = path.parent.is_dir() and ", ".join(sorted(p.name for p in path.parent.iterdir())[:8])
        hint = f"Its folder holds {held or 'nothing'}."
        raise DataError(path, None, f"cannot be read: {error.strerror}.", hint) from None


def read_lines(path: Path) -> list[str]:
    """The lines of a vocabulary. Only a line feed ends one: tokens may have other line breaks."""
    lines = read_text(path).removesuffix("\n").split("\n")
    if all(line.endswith("\r") for line in lines):  # written on Windows
        lines = [line.removesuffix("\r") for line in lines]
    return lines


def read_vocab_txt(path: Path) -> dict[str, int]:
    """Token -> id of a file with one token per line; its id is the line's number, from 0."""
    vocab: dict[str, int] = {}
    for id, token in enumerate(read_lines(path)):
        if not token or token in vocab:
            problem = f"must be a token that is on no line before, but is {token!r}."
            raise DataError(path, id + 1, problem)
        vocab[token] = id
    return vocab


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Of a key that occurs twice the last value counts.

    Raises:
        DataError: there is no such file, or it is not a JSON object.
    """
    return parse_json(path, read_text(path))


def parse_json(path: Path, text: str) -> dict[str, Any]:
    """As `read_json`, of a text that was read from `path`."""
    content = schema.parse_json(text, str(path), data_error(path))
    if not isinstance(content, dict):
        raise DataError(path, None, f"must be a JSON object, but is a {type(content).__name__}.")
    return content


def read_vocab_json(path: Path) -> dict[str, int]:
    """{"token": id, …}; see `check_ids`."""
    vocab = read_json(path)
    check_ids(path, vocab)
    return vocab


def check_ids(path: Path, vocab: Mapping[str, Any]) -> None:
    """Every id must be a whole number from 0 to `MOST_IDS`, and belong to one token.

    Raises:
        DataError: an id is something else, or two tokens share it.
    """
    ids = vocab.values()
    whole = set(map(type, ids)) <= {int} and len(set(ids)) == len(vocab)
    if not whole or (vocab and not 0 <= min(ids) <= max(ids) < MOST_IDS):
        must = f"must be different whole numbers from 0 to {MOST_IDS - 1:,}"
        raise DataError(path, None, f"the ids of its tokens {must}.")


def read_merges(path: Path, vocab: dict[str, int]) -> list[Pair]:
    """One merge per line, two tokens with a space between; a first line `#version…` is skipped."""
    lines = read_lines(path)
    seen: dict[Pair, int] = {}
    for number, line in enumerate(lines, 1):
        if (number == 1 and line.startswith("#version")) or (number == len(lines) and not line):
            continue
        left, space, right = line.partition(" ")
        pair = left, right
        if not space or pair in seen or not {left, right, left + right} <= vocab.keys():
            problem = f"must be two tokens that make a third one, but is {line!r}."
            raise DataError(path, number, problem, "Do both files belong together?")
        seen[pair] = number
    return list(seen)


# ----------------------------------------------------------------------------------------- settings


CONFIG, SPECIALS, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
CHAT = "chat_template.jinja"
MODEL = "config.json"
EXTRA, ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
NO_LIMIT = 10**9  # `model_max_length` of 10 ** 30 and the like mean "no limit"
Side = Literal["left", "right"]
# The order in which `transformers` adds special tokens that are not in the vocabulary.
ORDER = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


AddedId = Annotated[str, Field(pattern="^[0-9]{1,8}$")]


class TokenFields(Fields):
    """A token with its flags, as `tokenizers` writes it."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None
    special: bool | None = None


class ChatTemplateFields(Fields):
    """One of several chat templates."""

    name: str
    template: str


class ConfigFields(Fields):
    """The fields of tokenizer_config.json that affect ids and prompts; `_token` reads the special
    tokens.
    """

    tokenizer_class: str | None = None
    regard_kind: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    keep_accents: bool | None = None
    split_by_punct: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    split_special_tokens: bool | None = None
    clean_up_tokenization_spaces: bool | None = None
    padding_side: Side | None = None
    truncation_side: Side | None = None
    model_input_names: list[str] | None = None
    model_max_length: Annotated[int | float, Field(ge=1)] | None = None
    added_tokens_decoder: dict[AddedId, TokenFields] | None = None
    extra_ids: int | None = None
    chat_template: str | list[ChatTemplateFields] | None = None


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
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True
    plain: bool = False

    @classmethod
    def of(cls, fields: TokenFields, special: bool | None = None) -> AddedTokenSpec:
        """From the fields of a file. special: overrides their `special`."""
        is_special = bool(fields.special) if special is None else special
        normal = not is_special if fields.normalized is None else fields.normalized
        flags = fields.lstrip, fields.rstrip, fields.single_word, normal, is_special
        return cls(fields.content, *flags)


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

    @property
    def chat_template(self) -> str:
        """The template of prompts, of several the default one; "" where there is none."""
        file, templates = self.path.with_name(CHAT), self.config.chat_template
        if file.is_file():
            return read_text(file)
        if isinstance(templates, list):
            templates = {fields.name: fields.template for fields in templates}.get("default")
        return templates or ""


def read_settings(vocabulary: Path, content: Mapping[str, Any] | None = None) -> TokenSettings:
    """The settings beside a vocabulary file.

    content: of tokenizer.json, if that is the file: its added tokens are read too.

    Raises:
        DataError: a file is malformed, or one of its fields has a value that is not allowed.
    """
    path, beside = vocabulary.with_name(CONFIG), vocabulary.with_name(SPECIALS)
    raw = read_json(path) if path.is_file() else {}
    if raw.get("added_tokens_decoder") is None and beside.is_file():
        raw |= read_json(beside)
    config = checked(raw, ConfigFields, path, data_error(path))
    model, model_path = ModelFields(), vocabulary.with_name(MODEL)
    if model_path.is_file() and model_path != vocabulary:
        model = checked(read_json(model_path), ModelFields, model_path, data_error(model_path))
    class_name = config.tokenizer_class or model.tokenizer_class
    names = {role: f"{role}_token" for role in ROLES}
    named = {role: _token(path, name, raw[name]) for role, name in names.items() if name in raw}
    others = [
        _token(path, name, value)
        for name, value in raw.items()
        if name.endswith("_token") and name not in names.values() and isinstance(value, str | dict)
    ]
    others += [token for name in (EXTRA, ADDITIONAL) for token in _listed(path, name, raw)]
    extra = tuple(token for token in others if token is not None)
    added: dict[int, tuple[AddedTokenSpec, Path]] = {}
    if config.added_tokens_decoder is not None:
        for number, fields in config.added_tokens_decoder.items():
            added[int(number)] = AddedTokenSpec.of(fields), path
    else:
        special = {token.content for token in (*named.values(), *extra) if token is not None}
        added = _added(vocabulary.with_name(ADDED), special)
        added |= {n: (token, vocabulary) for n, token in added_tokens(vocabulary, content or {})}
    by_content = {token.content: token for token, _ in added.values()}
    named = {r: token and by_content.get(token.content, token) for r, token in named.items()}
    return TokenSettings(
        path,
        config,
        class_name.removesuffix("Fast") if class_name else None,
        model.model_type,
        model.vocab_size if type(model.vocab_size) is int else None,
        named,
        extra,
        added,
    )


def added_tokens(path: Path, content: Mapping[str, Any]) -> list[tuple[int, AddedTokenSpec]]:
    """The added tokens of a tokenizer.json and their ids, in its order."""
    listed = content.get("added_tokens") or []
    tokens = checked(listed, list[AddedFields], path, data_error(path), "added_tokens")
    return [(fields.id, AddedTokenSpec.of(fields)) for fields in tokens]


def _listed(path: Path, name: str, raw: Mapping[str, Any]) -> list[AddedTokenSpec | None]:
    """The tokens of a list, or of an object of named ones."""
    value = checked(raw.get(name) or [], list[Any] | dict[str, Any], path, data_error(path), name)
    entries = value.values() if isinstance(value, dict) else value
    return [_token(path, f"{name}.{number}", entry) for number, entry in enumerate(entries)]


def _token(path: Path, name: str, value: Any) -> AddedTokenSpec | None:
    """The special token in a field; None if it is null or empty."""
    kind = TokenFields if isinstance(value, dict) else str | None
    token = checked(value, kind, path, data_error(path), name)
    if isinstance(token, TokenFields):
        return AddedTokenSpec.of(token, special=True) if token.content else None
    return AddedTokenSpec(token, plain=True) if token else None


def _added(path: Path, special: set[str]) -> dict[int, tuple[AddedTokenSpec, Path]]:
    """The tokens of added_tokens.json by id; special if another field names them as special."""
    listed = read_vocab_json(path) if path.is_file() else {}
    flags = {
        name: {"normalized": name not in special, "special": name in special} for name in listed
    }
    return {id: (AddedTokenSpec(name, **flags[name]), path) for name, id in listed.items()}


# ---- the tokens that are found before a text is split


def add(fast: tokenizers.Tokenizer, tokens: Sequence[AddedTokenSpec]) -> None:
    """Add the tokens; one that is not in the vocabulary gets the next free id.

    A token that was added before gets the flags given here.

    Raises:
        RegardError: the next id belongs to another token, because the ids are not contiguous.
    """
    new = [t.content for t in tokens if t.content and fast.token_to_id(t.content) is None]
    before = set(fast.get_vocab(with_added_tokens=True).values()) if new else set()
    fast.add_tokens([AddedToken(t.content, **{f: getattr(t, f) for f in FLAGS}) for t in tokens])
    for content in new:
        number = fast.token_to_id(content)
        if number is None or number in before:
            raise RegardError(
                f"the token {content!r} cannot be added: the ids of the vocabulary are not "
                f"contiguous, and the next id, {number}, is in use. Use contiguous ids, from 0."
            )


def add_from_settings(
    path: Path,
    fast: tokenizers.Tokenizer,
    settings: TokenSettings,
    defaults: Mapping[str, AddedTokenSpec],
) -> None:
    """Add the tokens of the files beside a vocabulary, in the order in which `transformers` does.

    A token for which the model in the folder has no embedding is left out, with a warning: files
    often name a padding token that was never used.

    path: of the vocabulary.  defaults: special tokens by role, for roles that no file names; one is
    used if the vocabulary contains it.

    Raises:
        DataError: the id of a token in a file is not the one that it gets, or a folder that this
            library wrote names a special token that is not in its vocabulary.
    """
    tokens = _tokens_to_add(fast, settings, defaults)
    new = [token.content for token in tokens if fast.token_to_id(token.content) is None]
    listed = {token.content for token, _ in settings.added.values()}
    for role, name in settings.roles.items():
        if name in new and name not in listed and settings.config.regard_kind is not None:
            problem = f"the {role} token {name!r} is not in the vocabulary."
            raise DataError(settings.path, None, problem, "Was the file changed?")
    beyond = list[str]()
    if settings.vocab_size is not None:
        left = max(0, settings.vocab_size - fast.get_vocab_size(with_added_tokens=True))
        if beyond := new[left:]:
            warn(
                f"{settings.path}: {', '.join(map(repr, beyond))} would be added to the "
                f"vocabulary, but the model in this folder has only {settings.vocab_size:,} ids "
                "(`vocab_size` in config.json). It is left out.",
            )
    try:
        add(fast, [token for token in tokens if token.content not in beyond])
    except RegardError as error:
        raise DataError(path, None, str(error)) from None
    for number, (token, file) in settings.added.items():
        actual = fast.token_to_id(token.content)
        if actual != number and token.content not in beyond:
            problem = f"{token.content!r} must have the next free id, {actual}, not {number}."
            raise DataError(file, None, problem, "Does the file belong to this vocabulary?")


def _tokens_to_add(
    fast: tokenizers.Tokenizer, settings: TokenSettings, defaults: Mapping[str, AddedTokenSpec]
) -> list[AddedTokenSpec]:
    """The tokens to be added; those that the tokenizer has already may get other flags."""
    named = {role: settings.named[role] for role in ORDER if role in settings.named}
    unnamed = {role: t for role, t in defaults.items() if role not in settings.named}
    present = {r: t for r, t in unnamed.items() if fast.token_to_id(t.content) is not None}
    by_role = {role: (named | present).get(role) for role in ORDER}
    special = {token.content for token in by_role.values() if token is not None}
    added = [token for _, (token, _) in sorted(settings.added.items(), key=lambda item: item[0])]
    tokens = [replace(t, special=t.special or t.content in special) for t in added]
    listed = {token.content for token in tokens}
    listed |= {token.content for token in fast.get_added_tokens_decoder().values()}
    # A token that occurs with two sets of flags is added twice: the later flags are used.
    new = dict.fromkeys(token for token in (*by_role.values(), *settings.extra) if token)
    tokens += [token for token in new if token.content not in listed]
    return [token for token in tokens if token.content]
