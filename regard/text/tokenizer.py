"""The one tokenizer class: text -> ids and back, whatever the kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import tokenizers

from regard.errors import ConfigError, RegardError
from regard.file_writing import write_text
from regard.suggest import nearest
from regard.text.post_processors import processor_of, template_in
from regard.text.special_tokens import ROLES
from regard.text.templates import Template
from regard.text.tokenizers_calls import call, reason


@dataclass(frozen=True)
class Encoding:
    """A text as tokens. `offsets[i]` is the (start, end) of token i in characters of the text.

    `text[start:end]` is what token i stands for, before lower-casing and the like. Several
    byte-level tokens of one character all point at that character; a leading space that a
    byte-level piece carries belongs to it.
    """

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """Turns text into ids and ids into text. Never adds special tokens by itself.

    fast: the `tokenizers.Tokenizer` that does the work; owned by this object from now on
    kind: one of `regard.text.KINDS`, or "unigram" for a file read from elsewhere
    roles: {"pad": "<pad>", "eos": "</s>", …}, a subset of `ROLES`
    reads_special_tokens: whether "</s>" standing in a text is read as that special (True) or as
        four plain characters (False)
    sides: on which side other libraries pad and cut, where their files say it: `padding_side` and
        `truncation_side`; here nothing depends on it
    clean_up_spaces: whether decoding removes the space before punctuation, as
        tokenizer_config.json asks with `clean_up_tokenization_spaces`
    max_length: the most tokens of a text that tokenizer_config.json allows; None for no limit
    """

    def __init__(
        self,
        fast: tokenizers.Tokenizer,
        kind: str,
        roles: Mapping[str, str],
        reads_special_tokens: bool = True,
        sides: Mapping[str, str] | None = None,
        clean_up_spaces: bool = False,
        max_length: int | None = None,
    ):
        fast.no_padding()  # a published tokenizer.json may carry both, and would cut texts silently
        fast.no_truncation()
        self.kind = kind
        self.roles = dict(roles)
        self.reads_special_tokens = reads_special_tokens
        self.sides = dict(sides or {})
        self.clean_up_spaces, self.max_length = clean_up_spaces, max_length
        # It adds special tokens and trims offsets. Only other libraries use it, from the file.
        self.post_processor = fast.post_processor
        fast.post_processor = None  # type: ignore[assignment]
        fast.encode_special_tokens = not reads_special_tokens
        self._fast = fast
        for role, piece in self.roles.items():
            if role not in ROLES:
                raise RegardError(f"`{role}` is not a role. {nearest(role, ROLES)}")
            if fast.token_to_id(piece) is None:
                raise RegardError(f"the {role} piece {piece!r} is not in the vocabulary.")
        self.pad_id = self._role_id("pad")
        self.bos_id = self._role_id("bos")
        self.eos_id = self._role_id("eos")
        self.unk_id = self._role_id("unk")
        self.cls_id = self._role_id("cls")
        self.sep_id = self._role_id("sep")
        self.mask_id = self._role_id("mask")

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.to_str(), self.kind, self.roles, *self._options())

    def _options(self) -> tuple[bool, dict[str, str], bool, int | None]:
        return self.reads_special_tokens, self.sides, self.clean_up_spaces, self.max_length

    # ---- the vocabulary

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, so that an embedding of this size holds every id."""
        count = self._fast.get_vocab_size(with_added_tokens=True)
        if None not in map(self._fast.id_to_token, range(count)):  # the usual case, and quick
            return count
        return max(self._fast.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def _role_id(self, role: str) -> int | None:
        return self._fast.token_to_id(self.roles[role]) if role in self.roles else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of every special piece, the unknown one included."""
        added = self._fast.get_added_tokens_decoder().items()
        special = {i for i, token in added if token.special}
        return frozenset(special | {self.id(piece) for piece in self.roles.values()})

    def vocab(self) -> dict[str, int]:
        """piece -> id, in the order of the ids."""
        pieces = self._fast.get_vocab(with_added_tokens=True)
        return dict(sorted(pieces.items(), key=lambda item: item[1]))

    def id(self, piece: str) -> int:
        """The id of a piece as the vocabulary spells it ("##able", "est</w>", "Ġthe")."""
        found = self._fast.token_to_id(piece) if text_problem(piece) is None else None
        if found is None:
            raise RegardError(f"the piece {piece!r} is not in the vocabulary of {self!r}.")
        return found

    def token(self, id: int) -> str:
        """The piece with this id."""
        found = self._fast.id_to_token(int(id)) if _is_id(id, self.vocab_size) else None
        if found is None:
            raise RegardError(f"`id` must be an id below {self.vocab_size}, but is {id!r}.")
        return found

    def label(self, id: int) -> str:
        """A piece as pictures show it: `brown</w>` is "brown", a part that goes on is "starr@@"."""
        piece = self.token(id)
        if self.kind != "bpe" or id in self.special_ids:
            return piece
        return piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@"

    def required_ids(self, *roles: str) -> list[int]:
        """The ids of special tokens that a model's own template needs, such as "cls" and "sep".

        Raises:
            ConfigError: the tokenizer has no piece for a role.
        """
        found = [self._role_id(role) for role in roles]
        missing = [role for role, number in zip(roles, found, strict=True) if number is None]
        if missing:
            raise ConfigError(
                f"This model marks its texts with {' and '.join(roles)} pieces, but its tokenizer "
                f"has no {' and no '.join(missing)} piece. Name it in tokenizer_config.json "
                f'("{missing[0]}_token"), or use the tokenizer that belongs to the model.'
            )
        return [number for number in found if number is not None]

    # ---- text -> ids -> text

    def encode(self, text: str) -> Encoding:
        """One text with its pieces and their places in the text.

        Raises:
            RegardError: it is no text, or has half of a character (a lone surrogate); the
                tokenizer's file has a rule that fails on it.
        """
        try:
            found = self._fast.encode(text, add_special_tokens=False)
        except BaseException as error:  # the library's panics are no `Exception`
            raise self._refusal([text], error) from None
        return Encoding(found.ids, found.tokens, found.offsets)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of many texts, on all cores; equal to `[encode(t).ids for t in texts]`."""
        if isinstance(texts, str):
            raise RegardError("`texts` must be several texts, but is one str. Use encode(text).")
        try:
            texts = texts if isinstance(texts, list) else list(texts)
        except TypeError:
            raise RegardError(f"`texts` must be several texts, but is {texts!r:.80}.") from None
        if set(map(type, texts)) - {str}:  # the library would read a tuple as two texts
            for number, text in enumerate(texts):
                if not isinstance(text, str):
                    raise RegardError(f"text {number} cannot be encoded: {text_problem(text)}")
        try:
            rows = self._fast.encode_batch_fast(texts, add_special_tokens=False)
        except BaseException as error:
            raise self._refusal(texts, error) from None
        return [row.ids for row in rows]

    def _refusal(self, texts: Sequence[Any], error: BaseException) -> RegardError:
        """The error for the first text that cannot be encoded, and why."""
        said = reason(error)
        for number, text in enumerate(texts):
            where = f"text {number}" if len(texts) > 1 else "the text"
            if (problem := text_problem(text)) is not None:
                return RegardError(f"{where} cannot be encoded: {problem}")
            try:
                self._fast.encode(text, add_special_tokens=False)
            except BaseException as inner:
                problem = f"{where} cannot be encoded: {reason(inner)}. It is {text!r:.80}."
                return RegardError(f"{problem} {_hint(said)}")
        return RegardError(f"the texts cannot be encoded: {said}.")

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids. Specials are dropped; the unknown piece stays, for text was lost there."""
        return self.decode_many([ids])[0]

    def decode_many(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Texts of many rows of ids, on all cores.

        Raises:
            RegardError: an id is none of the vocabulary; the file's decoder fails on the ids.
        """
        drop = self.special_ids - {self.unk_id}
        try:
            kept = [[i for i in _as_list(row) if i not in drop] for row in rows]
        except TypeError as error:
            raise RegardError(f"ids must be lists of whole numbers: {error}.") from None
        for row in kept:
            try:
                inside = not row or (0 <= min(row) and max(row) < self.vocab_size)
            except TypeError:
                inside = False
            if not inside:
                wrong = next(i for i in row if not _is_id(i, self.vocab_size))
                raise RegardError(f"ids must lie in [0, {self.vocab_size}), but one is {wrong!r}.")
        try:
            texts = self._fast.decode_batch(kept, skip_special_tokens=False)
        except BaseException as error:
            raise RegardError(f"the ids cannot be decoded: {reason(error)}.") from None
        return [clean_up(text) for text in texts] if self.clean_up_spaces else texts

    def words(self, text: str) -> list[str]:
        """The words that pieces never cross, after normalization (for explaining)."""
        problem = text_problem(text)
        if problem:
            raise RegardError(f"the text cannot be encoded: {problem}")
        normalizer, cut = self._fast.normalizer, self._fast.pre_tokenizer

        def found() -> list[str]:
            plain = text if normalizer is None else normalizer.normalize_str(text)
            return [plain] if cut is None else [word for word, _ in cut.pre_tokenize_str(plain)]

        return call(found, lambda said: RegardError(f"the text cannot be cut into words: {said}."))

    # ---- files

    def to_json(self) -> dict[str, Any]:
        """The whole tokenizer as tokenizer.json holds it."""
        found = json.loads(self._fast.to_str())
        if self.post_processor is not None:
            found["post_processor"] = json.loads(self.post_processor.__getstate__())
        return found

    def save(self, folder: str | Path, max_length: int | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json, which `transformers` opens.

        max_length: the longest row of the model beside it, where others cut texts that are longer.
        Files in which another tokenizer kept more of itself are removed: they would be read along.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": self.clean_up_spaces,
            "split_special_tokens": not self.reads_special_tokens,
            "regard_kind": self.kind,
            "model_input_names": ["input_ids", "attention_mask"],
        }
        template = self.template
        if template is not None and template.segment_count > 1:  # the model tells two texts apart
            config["model_input_names"].insert(1, "token_type_ids")
        limits = [limit for limit in (max_length, self.max_length) if limit is not None]
        if limits:
            config["model_max_length"] = min(limits)
        config |= self.sides
        config |= {f"{role}_token": self.roles[role] for role in ROLES if role in self.roles}
        for name, content in (
            ("tokenizer.json", self.to_json()),
            ("tokenizer_config.json", config),
        ):
            write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False))
        for name in ("special_tokens_map.json", "added_tokens.json"):
            (folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Tokenizer:
        """Read a folder or a file; see `regard.text.published.load` for what is understood."""
        from regard.text.published import load

        return cls(**vars(load(path, **options)))

    def to_str(self) -> str:
        """tokenizer.json as it would be saved."""
        return json.dumps(self.to_json(), ensure_ascii=False)

    def with_backend(self, fast: tokenizers.Tokenizer) -> Tokenizer:
        """A tokenizer like this one whose work another does: pieces added, a template changed."""
        return self._like(fast, self.roles)

    def _like(self, fast: tokenizers.Tokenizer, roles: Mapping[str, str]) -> Tokenizer:
        return Tokenizer(fast, self.kind, roles, *self._options())

    @property
    def template(self) -> Template | None:
        """The template that tokenizer.json holds; None where it holds none."""
        return template_in(self.post_processor)

    def with_template(self, template: Template) -> Tokenizer:
        """The same tokenizer; its files tell other libraries to put texts into this template."""
        if self.template == template:
            return self
        fast = tokenizers.Tokenizer.from_str(self.to_str())
        fast.post_processor = processor_of(template, self.token, fast.post_processor)
        return self.with_backend(fast)

    def with_eos_template(self) -> Tokenizer:
        """The same, but its files tell other libraries to end every text with the eos piece.

        Ids and the fingerprint are unchanged. What a file says already is left as it is.
        """
        if self.eos_id is None or self.to_json()["post_processor"] is not None:
            return self
        return self.with_template(Template.around((), (self.eos_id,), (self.eos_id,)))

    def with_special_tokens(self, pieces: Sequence[str]) -> Tokenizer:
        """The same with further special pieces at the end of the vocabulary.

        Raises:
            RegardError: a name is no text, or the ids of the vocabulary have holes.
        """
        from regard.text.added_tokens import add
        from regard.text.token_settings import AddedTokenSpec

        for name in pieces:
            if problem := text_problem(name):
                raise RegardError(f"the special token {name!r} cannot be added: {problem}")
        fast = tokenizers.Tokenizer.from_str(self.to_str())
        add(fast, [AddedTokenSpec(name) for name in pieces])
        return self.with_backend(fast)

    def with_roles(self, pieces: Mapping[str, str]) -> Tokenizer:
        """The same with a special piece in each of these roles: {"sep": "[DELIMITER]"}.

        A piece that is not in the vocabulary comes to its end.
        """
        fast = tokenizers.Tokenizer.from_str(
            self.with_special_tokens(list(pieces.values())).to_str()
        )
        return self._like(fast, {**self.roles, **pieces})

    def fingerprint(self) -> str:
        """sha256 of all that decides the ids of a text, the same on every machine."""
        saved = self.to_json()
        matters = {
            name: saved[name] for name in ("model", "normalizer", "pre_tokenizer", "added_tokens")
        }
        # The key is part of the hash, and so of saved runs.
        matters |= {"roles": self.roles, "reads_specials": self.reads_special_tokens}
        text = json.dumps(_without_nulls(matters), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _rebuild(saved: str, *others: Any) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(saved), *others)


def _as_list(row: Any) -> list[int]:
    """A list of plain ints; tensors and arrays know `tolist`."""
    return row.tolist() if hasattr(row, "tolist") else list(row)


def _without_nulls(value: Any) -> Any:
    # A field that a later release of `tokenizers` adds is null until somebody uses it.
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _is_id(value: Any, size: int) -> bool:
    """Whether this is a whole number below `size`."""
    try:
        return 0 <= index(value) < size
    except TypeError:
        return False


def _hint(said: str) -> str:
    """What to do where the library says this."""
    if "unk" in said.lower():
        return "The vocabulary has no token for what it does not know: add one to it."
    return "The normalizer or pre-tokenizer of its tokenizer.json fails on such texts: change it."


def clean_up(text: str) -> str:
    """A decoded text without the spaces that stand before punctuation and short forms.

    As `transformers` does it where tokenizer_config.json has `clean_up_tokenization_spaces`.
    """
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text


def text_problem(text: Any) -> str | None:
    """Why this is not a text that has UTF-8 bytes, naming the text; None when it is one."""
    if not isinstance(text, str):
        return f"it must be a str, but is {type(text).__name__} ({text!r:.80})."
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = text[max(0, error.start - 20) : error.start + 20]
        return (
            f"character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}, "
            f"in {near!r}. Repair it with text.encode('utf-16', 'surrogatepass')"
            ".decode('utf-16', 'replace')."
        )
    return None
