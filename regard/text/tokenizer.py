"""The Tokenizer class, one for every kind: text -> ids and back.

`OpenVocabulary` has ids for words outside of a vocabulary, for models that read their characters:

    tokenizer = OpenVocabulary.of(tokenizer)
    ids = tokenizer.encode("the zebra").ids      "zebra" has an id of vocab_size or above
    tokenizer.token(ids[1])                      "zebra"

A vocabulary has one id for all words that it lacks, and their characters are lost. Here each of
them gets an id of its own when it is first met. These ids mean something to this object alone, and
to those made from it (by `with_template` and the like); they are not written to files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from operator import index
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

import tokenizers

from regard.errors import ConfigError, RegardError
from regard.file_writing import write_text
from regard.lazy import imported
from regard.suggest import nearest
from regard.text.preprocessing import ROLES, processor_of, reason, template_in
from regard.text.templates import Encoding, Template

TARGETS = "target_tokenizer"  # beside a tokenizer of sources, the folder of that of targets


class Tokenizer:
    """Turns text into ids and ids into text. Adds no special tokens; a `Template` does.

    Each role has an attribute, `pad_id`, `bos_id`, `eos_id`, `unk_id`, `cls_id`, `sep_id` and
    `mask_id`: the id of its special token; None: there is none.

    fast: the `tokenizers.Tokenizer` that does the work; owned by this object from now on
    kind: one of `regard.text.KINDS`, or "sentencepiece" for a published model of that library,
        whose ids are those of the library
    roles: {"pad": "<pad>", "eos": "</s>", …}, a subset of `ROLES`
    reads_special_tokens: whether "</s>" in a text is the special token (True) or four plain
        characters (False; a model may still find it in its vocabulary, as in transformers)
    sides: `padding_side` and `truncation_side` of a published file
    clean_up_spaces: whether decoding removes the space before punctuation, as
        tokenizer_config.json asks with `clean_up_tokenization_spaces`
    max_length: the most tokens of a text that tokenizer_config.json allows; None: no limit
    chat_template: the Jinja template of a chat model's prompts; "": there is none
    targets: the tokenizer of what an encoder-decoder writes, and that decodes its ids, where
        sources have a vocabulary of their own, which is this one

    Raises:
        RegardError: a role is unknown, or its token is not in the vocabulary.
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
        chat_template: str = "",
        targets: Tokenizer | None = None,
    ):
        fast.no_padding()  # a published tokenizer.json may carry both, and would cut texts silently
        fast.no_truncation()
        self.kind = kind
        self.roles = dict(roles)
        self.reads_special_tokens = reads_special_tokens
        self.sides = sides or {}
        self.clean_up_spaces, self.max_length = clean_up_spaces, max_length
        self.chat_template, self.targets = chat_template, targets
        # It adds special tokens and trims offsets. Only other libraries use it, from saved files.
        self.post_processor = fast.post_processor
        fast.post_processor = None  # type: ignore[assignment]
        fast.encode_special_tokens = not reads_special_tokens
        self._fast = fast
        for role, token in self.roles.items():
            if role not in ROLES:
                raise RegardError(f"`{role}` is not a role. {nearest(role, ROLES)}")
            if fast.token_to_id(token) is None:
                raise RegardError(f"the {role} token {token!r} is not in the vocabulary.")
        ids = {role: fast.token_to_id(token) for role, token in self.roles.items()}
        self.pad_id, self.bos_id, self.eos_id = (ids.get(role) for role in ("pad", "bos", "eos"))
        self.unk_id, self.mask_id = ids.get("unk"), ids.get("mask")
        self.cls_id, self.sep_id = ids.get("cls"), ids.get("sep")

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.to_str(), self.kind, self.roles, *self._options())

    def _options(self) -> tuple[Any, ...]:
        options = self.reads_special_tokens, self.sides, self.clean_up_spaces, self.max_length
        return (*options, self.chat_template, self.targets)

    # ---- the vocabulary

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, so that an embedding of this size holds every id."""
        count = self._fast.get_vocab_size(with_added_tokens=True)
        if None not in map(self._fast.id_to_token, range(count)):  # the usual case, and quick
            return count
        return max(self._fast.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def closed(self, id: int) -> int:
        """The id in the vocabulary: of most tokenizers itself; see `OpenVocabulary`."""
        return id

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens, the unknown one included."""
        added = self._fast.get_added_tokens_decoder().items()
        special = {i for i, token in added if token.special}
        return frozenset(special | {self.id(token) for token in self.roles.values()})

    def vocab(self) -> dict[str, int]:
        """Token -> id, in the order of the ids."""
        tokens = self._fast.get_vocab(with_added_tokens=True)
        return dict(sorted(tokens.items(), key=lambda item: item[1]))

    def id(self, token: str) -> int:
        """The id of a token, written as in the vocabulary: "##able", "est</w>", "Ġthe".

        Raises:
            RegardError: it is not in the vocabulary.
        """
        number = self._fast.token_to_id(token) if text_problem(token) is None else None
        if number is None:
            raise RegardError(f"the token {token!r} is not in the vocabulary of {self!r}.")
        return number

    def token(self, id: int) -> str:
        """The token with this id.

        Raises:
            RegardError: there is none.
        """
        token = self._fast.id_to_token(int(id)) if is_id(id, self.vocab_size) else None
        if token is None:
            raise RegardError(f"`id` must be an id below {self.vocab_size}, but is {id!r}.")
        return token

    def label(self, id: int) -> str:
        """A token as pictures show it: "brown</w>" as "brown", and "starr", which goes on, as
        "starr@@"; an id of a model from `vocab_size` on as "<54>"."""
        if id >= self.vocab_size:
            return f"<{id}>"
        token = self.token(id)
        if self.kind != "bpe" or id in self.special_ids:
            return token
        return token.removesuffix("</w>") if token.endswith("</w>") else f"{token}@@"

    def required_ids(self, *roles: str) -> list[int]:
        """The ids of special tokens that a model's template needs, such as "cls" and "sep".

        Raises:
            ConfigError: the tokenizer has no token for a role.
        """
        if missing := [role for role in roles if role not in self.roles]:
            raise ConfigError(
                f"This model puts {' and '.join(roles)} tokens around texts, but its tokenizer "
                f"has no {' and no '.join(missing)} token. Name it in tokenizer_config.json "
                f'("{missing[0]}_token"), or use the tokenizer that belongs to the model.'
            )
        return [self.id(self.roles[role]) for role in roles]

    # ---- text -> ids -> text

    @property
    def for_targets(self) -> Tokenizer:
        """What encodes the targets of an encoder-decoder: of most tokenizers itself."""
        return self if self.targets is None else self.targets

    def encode(self, text: str) -> Encoding:
        """The ids, tokens and offsets of one text.

        Raises:
            RegardError: it is no str, has half of a surrogate pair, or the tokenizer's file has a
                rule that fails on it.
        """
        try:
            encoding = self._fast.encode(text, add_special_tokens=False)
        except BaseException as error:  # the library's panics are no `Exception`
            raise self._error([text], error) from None
        return Encoding(encoding.ids, encoding.tokens, encoding.offsets)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of many texts; equal to `[encode(t).ids for t in texts]`.

        Raises:
            RegardError: `texts` is one str or not iterable, or a text cannot be encoded.
        """
        texts = text_list(texts)
        for number, text in enumerate(texts):
            if not isinstance(text, str):  # the library would read a tuple as two texts
                raise RegardError(f"text {number} cannot be encoded: {text_problem(text)}")
        try:
            encoded = self._fast.encode_batch_fast(texts, add_special_tokens=False)
        except BaseException as error:
            raise self._error(texts, error) from None
        return [row.ids for row in encoded]

    def _error(self, texts: Sequence[object], error: BaseException) -> RegardError:
        """The error for texts that cannot be encoded."""
        message = reason(error)
        for number, text in enumerate(texts):
            if problem := text_problem(text):
                where = f"text {number}" if len(texts) > 1 else "the text"
                return RegardError(f"{where} cannot be encoded: {problem}")
        return RegardError(f"a text cannot be encoded by this tokenizer.json: {message}.")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens but the unknown one, which shows lost text."""
        return self.decode_many([ids])[0]

    def decode_many(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """The texts of many sequences of ids, on all cores.

        Ids from `vocab_size` on give nothing: a model may predict more than its tokenizer has.

        Raises:
            RegardError: an id is negative or no whole number, or the file's decoder fails on the
                ids.
        """
        if self.targets is not None:
            return self.targets.decode_many(sequences)
        drop, size = self.special_ids - {self.unk_id}, self.vocab_size
        rows = [[i for i in ids if i not in drop and i < size] for ids in id_lists(sequences)]
        for ids in rows:
            if wrong := [i for i in ids if i < 0]:
                raise RegardError(f"ids must lie in [0, {size}), but one is {wrong[0]}.")
        try:
            texts = self._fast.decode_batch(rows, skip_special_tokens=False)
        except BaseException as error:
            raise RegardError(f"the ids cannot be decoded: {reason(error)}.") from None
        return [clean_up(text) for text in texts] if self.clean_up_spaces else texts

    def words(self, text: str) -> list[str]:
        """The words of a text after normalization; no token is part of two.

        Raises:
            RegardError: it cannot be encoded.
        """
        if problem := text_problem(text):
            raise RegardError(f"the text cannot be encoded: {problem}")
        normalizer, split = self._fast.normalizer, self._fast.pre_tokenizer
        try:
            plain = text if normalizer is None else normalizer.normalize_str(text)
            return [plain] if split is None else [word for word, _ in split.pre_tokenize_str(plain)]
        except BaseException as error:
            raise RegardError(f"the text cannot be cut into words: {reason(error)}.") from None

    # ---- files

    def to_json(self) -> dict[str, Any]:
        """The content of tokenizer.json."""
        content: dict[str, Any] = json.loads(self._fast.to_str())
        if content["model"]["type"] == "Unigram":
            # The library reads back what it wrote only if numbers have few digits; float32 has 9.
            vocab = content["model"]["vocab"]
            content["model"]["vocab"] = [[name, float(f"{score:.9g}")] for name, score in vocab]
        if self.post_processor is not None:
            content["post_processor"] = json.loads(self.post_processor.__getstate__())
        return content

    def save(self, folder: str | PathLike[str], max_length: int | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json, which `transformers` opens.

        Other files of tokenizers in the folder, which would be read with these, are removed.

        max_length: the most tokens that the model in the folder reads; other libraries truncate
            longer texts
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
        if template is not None and template.segment_count > 1:
            config["model_input_names"].insert(1, "token_type_ids")
        limits = [limit for limit in (max_length, self.max_length) if limit is not None]
        if limits:
            config["model_max_length"] = min(limits)
        config |= self.sides
        config |= {"chat_template": self.chat_template} if self.chat_template else {}
        config |= {f"{role}_token": self.roles[role] for role in ROLES if role in self.roles}
        contents = {"tokenizer.json": self.to_json(), "tokenizer_config.json": config}
        for name, content in contents.items():
            write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False))
        for name in ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"):
            (folder / name).unlink(missing_ok=True)
        self.save_targets(folder, max_length)

    def save_targets(self, folder: Path, max_length: int | None) -> None:
        """Write the tokenizer of targets beside this one; one that was there is removed."""
        if self.targets is not None:
            self.targets.save(folder / TARGETS, max_length)
        elif (folder / TARGETS).is_dir():
            shutil.rmtree(folder / TARGETS)

    @classmethod
    def train(
        cls, texts: Iterable[str], kind: str = "bpe", vocab_size: int = 8000, **options: Any
    ) -> Tokenizer:
        """Train a tokenizer; `regard.text.training.train` has the options and errors.

        Tokenizer.train(open("texts.txt"), kind="bpe", vocab_size=8000)
        """
        train = imported("regard.text.training:train")
        trained: Tokenizer = train(kind, texts, vocab_size, **options)
        return trained

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Tokenizer:
        """Read a folder or a file; for formats see `regard.text.published.load`."""
        read: Tokenizer = imported("regard.text.published:load")(path)
        if (targets := Path(path) / TARGETS).is_dir():
            read.targets = Tokenizer.load(targets)
        return read

    def to_str(self) -> str:
        """The text of tokenizer.json."""
        return json.dumps(self.to_json(), ensure_ascii=False)

    def _like(
        self, fast: tokenizers.Tokenizer, roles: Mapping[str, str], targets: Tokenizer | None
    ) -> Tokenizer:
        options = (*self._options()[:-1], targets)
        return Tokenizer(fast, self.kind, roles, *options)

    @property
    def template(self) -> Template | None:
        """The template in tokenizer.json; None: it has none."""
        return template_in(self.post_processor)

    def with_template(self, template: Template) -> Tokenizer:
        """The same tokenizer; by its files, other libraries apply this template."""
        if self.template == template:
            return self
        changed: Tokenizer = object.__new__(type(self))
        vars(changed).update(vars(self))  # not `copy`, which would make it from its text
        changed.post_processor = processor_of(template, self.token, self.post_processor)
        return changed

    def with_eos_template(self) -> Tokenizer:
        """The same tokenizer; by its files, other libraries end every text with the eos token.

        A template that the tokenizer has already is kept. Ids and the fingerprint are unchanged.
        """
        if self.eos_id is None or self.to_json()["post_processor"] is not None:
            return self
        return self.with_template(Template.around((), (self.eos_id,), (self.eos_id,)))

    def with_special_tokens(self, tokens: Sequence[str]) -> Tokenizer:
        """The same with further special tokens; new ones get ids at the end of the vocabulary.

        Raises:
            RegardError: a token is no text, or the ids of the vocabulary are not contiguous.
        """
        targets = self.targets and self.targets.with_special_tokens(tokens)
        return self._like(self._extended(tokens), self.roles, targets)

    def with_roles(self, tokens: Mapping[str, str]) -> Tokenizer:
        """The same with a special token for each of these roles: {"sep": "[DELIMITER]"}.

        Raises:
            RegardError: as `with_special_tokens`; or a role is unknown.
        """
        targets = self.targets and self.targets.with_roles(tokens)
        fast = self._extended(list(tokens.values()))
        return self._like(fast, {**self.roles, **tokens}, targets)

    def _extended(self, tokens: Sequence[str]) -> tokenizers.Tokenizer:
        from regard.text.vocab_files import AddedTokenSpec, add

        for name in tokens:
            if problem := text_problem(name):
                raise RegardError(f"the special token {name!r} cannot be added: {problem}")
        fast = tokenizers.Tokenizer.from_str(self.to_str())
        add(fast, [AddedTokenSpec(name) for name in tokens])
        return fast

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt that ends where the reply to the messages begins; it has all special tokens.

        messages: [{"role": "user", "content": "Who sat?"}]; the template knows its roles

        Raises:
            ConfigError: there is no template, or it refuses the messages.
        """
        if not self.chat_template:
            raise ConfigError("This tokenizer has no chat template: its model does not chat.")
        prompt_of = imported("regard.text.chat:prompt_of")
        tokens = {f"{role}_token": token for role, token in self.roles.items()}
        prompt: str = prompt_of(self.chat_template, messages, tokens)
        return prompt

    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that the ids of a text depend on, the same on every machine."""
        saved = self.to_json()
        matters = {
            name: saved[name] for name in ("model", "normalizer", "pre_tokenizer", "added_tokens")
        }
        # This key is hashed, too; saved runs hold the hash.
        matters |= {"roles": self.roles, "reads_specials": self.reads_special_tokens}
        matters |= {"targets": self.targets.fingerprint()} if self.targets is not None else {}
        text = json.dumps(_without_nulls(matters), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _rebuild(saved: str, *others: Any) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(saved), *others)


def text_list(texts: Iterable[str]) -> list[str]:
    """Several texts as a list.

    Raises:
        RegardError: they are one str, or nothing that can be iterated over.
    """
    if isinstance(texts, str):
        raise RegardError("`texts` must be several texts, but is one str. Use encode(text).")
    try:
        return texts if isinstance(texts, list) else list(texts)
    except TypeError:
        raise RegardError(f"`texts` must be several texts, but is {texts!r:.80}.") from None


def id_lists(sequences: Any) -> list[list[int]]:
    """Sequences of ids, tensors and arrays too, as lists of plain ints.

    Raises:
        RegardError: one is no sequence of whole numbers.
    """
    try:
        return [
            [index(i) for i in (ids.tolist() if hasattr(ids, "tolist") else ids)]
            for ids in sequences
        ]
    except TypeError as error:
        raise RegardError(f"ids must be lists of whole numbers: {error}.") from None


def _without_nulls(value: Any) -> Any:
    # A field that a later release of `tokenizers` adds is null by default.
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def is_id(value: Any, size: int) -> bool:
    """Whether this is a whole number below `size`."""
    return isinstance(value, Integral) and 0 <= int(value) < size


def clean_up(text: str) -> str:
    """A decoded text without the spaces before punctuation and contractions.

    `transformers` does this if tokenizer_config.json has `clean_up_tokenization_spaces`.
    """
    for sign in (".", "?", "!", ","):
        text = text.replace(f" {sign}", sign)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text


def text_problem(text: object) -> str | None:
    """Why this is not a str that can be written as UTF-8; None: it is."""
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


# ---------------------------------------------------------------------------------- open vocabulary


class UnknownWords:
    """The unknown words that were met, in that order; each takes about 150 bytes."""

    def __init__(self, words: Iterable[str] = ()):
        self.words = list(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._adding = Lock()

    def number(self, word: str) -> int:
        """That of a word; a new word gets the next one."""
        with self._adding:
            if word not in self._numbers:
                self._numbers[word] = len(self.words)
                self.words.append(word)
            return self._numbers[word]


class OpenVocabulary(Tokenizer):
    """A tokenizer whose unknown tokens have ids of their own, from `vocab_size` on.

    Args:
        words: the unknown words that were met before; shared, and added to.
        others: those of `Tokenizer`.
    """

    def __init__(
        self,
        fast: tokenizers.Tokenizer,
        kind: str,
        roles: Mapping[str, str],
        *others: Any,
        words: UnknownWords,
    ):
        super().__init__(fast, kind, roles, *others)
        self.unknown_words = words

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Tokenizer:
        """The same tokenizer with an open vocabulary; itself where no token is unknown to it, and
        where it is of a class of its own, as Marian's.
        """
        if type(tokenizer) is not Tokenizer or tokenizer.unk_id is None:
            return tokenizer
        fast = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        others = tokenizer._options()
        return cls(fast, tokenizer.kind, tokenizer.roles, *others, words=UnknownWords())

    def closed(self, id: int) -> int:
        """See `Tokenizer`: that of the unknown token for a word that the vocabulary lacks."""
        return id if id < self.vocab_size else self._unknown

    @property
    def _unknown(self) -> int:
        assert self.unk_id is not None
        return self.unk_id

    def encode(self, text: str) -> Encoding:
        encoding = super().encode(text)
        if self.unk_id not in encoding.ids:
            return encoding
        ids, tokens, unknown = list(encoding.ids), list(encoding.tokens), self.token(self._unknown)
        for n, (start, end) in enumerate(encoding.offsets):
            if ids[n] == self.unk_id and text[start:end] != unknown:
                tokens[n] = text[start:end]
                ids[n] = self.vocab_size + self.unknown_words.number(tokens[n])
        return Encoding(ids, tokens, encoding.offsets)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        texts = text_list(texts)
        rows = super().encode_many(texts)
        return [
            self.encode(text).ids if self.unk_id in ids else ids
            for text, ids in zip(texts, rows, strict=True)
        ]

    def token(self, id: int) -> str:
        words, size = self.unknown_words.words, self.vocab_size
        if is_id(id, size + len(words)) and id >= size:
            return words[int(id) - size]
        return super().token(id)

    def label(self, id: int) -> str:
        """See `Tokenizer`; a word outside of the vocabulary as it is."""
        return self.token(id) if id >= self.vocab_size else super().label(id)

    def __reduce__(self) -> tuple[Any, ...]:
        words = self.unknown_words.words
        return _rebuild_open, (self.to_str(), self.kind, self.roles, self._options(), words)

    def _like(
        self, fast: tokenizers.Tokenizer, roles: Mapping[str, str], targets: Tokenizer | None
    ) -> Tokenizer:
        return OpenVocabulary.of(super()._like(fast, roles, targets))


def _rebuild_open(
    saved: str, kind: str, roles: dict, options: tuple, words: list[str]
) -> Tokenizer:
    fast = tokenizers.Tokenizer.from_str(saved)
    return OpenVocabulary(fast, kind, roles, *options, words=UnknownWords(words))
