"""Reads tokenizers that others have published, ids unchanged.

Understood are

    a folder           with tokenizer.json, or vocab.json + merges.txt (GPT-2, RoBERTa),
                       or encoder.json + vocab.bpe (GPT-2), or vocab.json alone (GPT), or vocab.txt
    tokenizer.json     of the `tokenizers` library, any model
    vocab.txt          BERT's pieces, one per line; cased or uncased is seen from the pieces
    vocab.json         or encoder.json, with the merges beside it or in `merges`
    RoBERTa's pieces   as text, one per line, with GPT-2's merges in `merges`

The files beside them count as they do in `transformers`: see `regard.text.token_settings`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import DataError, RegardError
from regard.text.added_tokens import add_from_settings
from regard.text.bpe import END, rebuild_merges
from regard.text.bpe_fast import assemble
from regard.text.merges import Pair
from regard.text.normalize import Preprocessing
from regard.text.post_processors import template_in
from regard.text.sentencepiece import check_folder, conversion_error, is_model
from regard.text.special_tokens import roles_of
from regard.text.templates import Template
from regard.text.token_settings import AddedTokenSpec, TokenSettings, added_tokens, read_settings
from regard.text.tokenizer_classes import (
    BERT,
    END_OF_TEXT,
    ROBERTA,
    Family,
    adapted,
    check_unknown_class,
    family_of,
)
from regard.text.tokenizers_calls import check_growth, parse
from regard.text.vocab_files import (
    check_ids,
    parse_json,
    read_lines,
    read_merges,
    read_pieces,
    read_text,
    read_vocab_json,
)
from regard.text.wordpiece import longest_match_tokenizer

VOCAB_NAMES = ("vocab.json", "encoder.json")
MERGES_NAMES = ("merges.txt", "vocab.bpe")
MODELS = {  # the type of model of each kind that `regard_kind` may name
    "bpe": "BPE",
    "byte-bpe": "BPE",
    "unigram": "Unigram",
    "wordpiece": "WordPiece",
    "wordpiece-likelihood": "WordPiece",
    "words": "WordLevel",
    "characters": "WordLevel",
}


@dataclass(frozen=True)
class LoadedTokenizer:
    """What files say of a tokenizer: the parameters of `regard.text.Tokenizer`."""

    fast: tokenizers.Tokenizer
    kind: str
    roles: Mapping[str, str]
    reads_special_tokens: bool
    sides: Mapping[str, str]
    clean_up_spaces: bool
    max_length: int | None


def load(
    path: str | Path, *, merges: str | Path | None = None, lowercase: bool | None = None
) -> LoadedTokenizer:
    """A tokenizer from a folder or file, recognized by its name and content (see this module).

    merges: the merges file, where it does not lie beside the vocabulary
    lowercase: for vocab.txt, whether texts are lower-cased and stripped of accents; None: yes,
        unless a piece has a capital or tokenizer_config.json says otherwise

    Raises:
        DataError: a file is missing or malformed, or what it asks for is not supported.
    """
    path = _main_file(Path(path))
    merges = Path(merges) if merges is not None else None
    if is_model(path.name):
        raise conversion_error(path)
    if path.suffix == ".txt":
        first = read_lines(path)[0]
        return _roberta_pieces(path, merges) if first == "<s>" else _bert(path, lowercase)
    if path.suffix == ".json":
        text = read_text(path)
        content = parse_json(path, text)
        if path.name == "tokenizer.json" or isinstance(content.get("model"), dict):
            return _tokenizer_json(path, text, content)  # "model" may be a piece, too
        return _bpe(path, merges)
    raise DataError(path, None, "is not a known kind of vocabulary.", "Known: .json, .txt, folder.")


def _main_file(path: Path) -> Path:
    """The file that a folder is read from; a file is its own."""
    if not path.is_dir():
        return path
    if (path / "tokenizer.json").is_file():
        return path / "tokenizer.json"
    check_folder(path)
    for name in (*VOCAB_NAMES, "vocab.txt"):
        if (path / name).is_file():
            return path / name
    there = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
    wanted = "tokenizer.json, vocab.json, encoder.json or vocab.txt"
    raise DataError(path, None, f"the folder must hold {wanted}, but holds {there}.")


# ---- tokenizer.json


def _tokenizer_json(path: Path, text: str, content: dict[str, Any]) -> LoadedTokenizer:
    listed = _check_content(path, content)
    settings = read_settings(path, content)
    fit = adapted(path, content, settings)
    start = fit.content
    stated = {number: token for number, (token, _) in settings.added.items()}
    if fit.family is not None and stated != dict(listed):
        start = {**start, "added_tokens": []}  # its class adds what tokenizer_config.json lists
    fast = parse(path, text if start is content else json.dumps(start))
    known = fit.family.defaults if fit.family else {}
    defaults = {role: AddedTokenSpec(name, plain=True) for role, name in known.items()}
    add_from_settings(path, fast, settings, defaults)
    _check_added(path, fast, listed)
    check_unknown_class(path, fast, settings)
    roles = _held(fast, settings, defaults)
    if fit.family in (BERT, ROBERTA):
        _put_class_template(path, fast, fit.family, settings, roles)
    _check_template(path, fast)
    return _made(path, fast, _kind_of(fast), roles or _known_roles(fast), settings)


def _check_content(path: Path, content: dict[str, Any]) -> list[tuple[int, AddedTokenSpec]]:
    """The added tokens of a tokenizer.json whose ids can be used.

    Raises:
        DataError: an id is negative, huge or given twice; a replacement has no bounds.
    """
    model = content.get("model")
    if isinstance(model, dict) and isinstance(model.get("vocab"), dict):
        check_ids(path, model["vocab"])
    listed = added_tokens(path, content)
    check_ids(path, {token.content: number for number, token in listed})
    check_growth(path, content)
    return listed


def _check_added(
    path: Path, fast: tokenizers.Tokenizer, listed: list[tuple[int, AddedTokenSpec]]
) -> None:
    """Every token that tokenizer.json adds must be there, with its id."""
    there = {token.content: number for number, token in fast.get_added_tokens_decoder().items()}
    for number, token in listed:
        if token.content not in there:
            problem = f"adds {token.content!r}, which tokenizer_config.json does not: its "
            problem += "`added_tokens_decoder` must list every added token."
            raise DataError(path, None, problem, f"Add it there, with the id {number}.")
        if there[token.content] != number:
            found = there[token.content]
            problem = f"the added token {token.content!r} must have the id {found}, not {number}."
            raise DataError(path, None, problem, "Number added tokens after the vocabulary.")


def _held(
    fast: tokenizers.Tokenizer, settings: TokenSettings, defaults: Mapping[str, AddedTokenSpec]
) -> dict[str, str]:
    """The special tokens by role: those stated, and defaults that the vocabulary has."""
    unnamed = {r: t.content for r, t in defaults.items() if r not in settings.named}
    return {r: n for r, n in unnamed.items() if fast.token_to_id(n) is not None} | settings.roles


def _put_class_template(
    path: Path,
    fast: tokenizers.Tokenizer,
    family: Family,
    settings: TokenSettings,
    roles: Mapping[str, str],
) -> None:
    """The template that BERT's and RoBERTa's classes put texts into, whatever the file has."""
    cls, sep = (fast.token_to_id(roles[r]) if r in roles else None for r in ("cls", "sep"))
    if cls is None or sep is None:
        return
    if family is BERT:
        wanted = Template.bert(cls, sep)
    else:
        wanted = Template.around((cls,), (sep, sep), (sep,))
    held = fast.post_processor
    if held is not None and _check_template(path, fast) == wanted:
        return
    if held is not None:
        warnings.warn(
            f"{path}: its `post_processor` is not used, but the template of "
            f"{settings.class_name or settings.model_type}, as `transformers` does. The class "
            f'"PreTrainedTokenizerFast" in {settings.path.name} would use it.',
            stacklevel=4,
        )
    if family is BERT:
        fast.post_processor = _bert_template((roles["cls"], cls), (roles["sep"], sep))
    else:
        fast.post_processor = _roberta_template((roles["cls"], cls), (roles["sep"], sep))


def _check_template(path: Path, fast: tokenizers.Tokenizer) -> Template | None:
    """The template of a tokenizer.json.

    Raises:
        DataError: it cannot be read, or has an id that is not in the vocabulary.
    """
    try:
        template = template_in(fast.post_processor)
    except RegardError as error:
        raise DataError(path, None, str(error)) from None
    parts = (*template.single, *template.pair) if template else ()
    for number in (number for part in parts for number, _ in part):
        if fast.id_to_token(number) is None:
            problem = f"its `post_processor` puts the id {number} around texts, which no token has."
            raise DataError(path, None, problem)
    return template


def _made(
    path: Path,
    fast: tokenizers.Tokenizer,
    kind: str,
    roles: Mapping[str, str],
    settings: TokenSettings,
) -> LoadedTokenizer:
    """The tokenizer with what tokenizer_config.json says of its use."""
    config = settings.config
    roles = {role: name for role, name in roles.items() if fast.token_to_id(name) is not None}
    if roles.get("unk") in (roles.get("bos", ""), roles.get("eos", "")) and not config.regard_kind:
        del roles["unk"]  # GPT-2 names the end of a text there, but knows every text
    stated = config.regard_kind or kind
    model = type(fast.model).__name__
    if MODELS.get(stated) != model:
        problem = f"`regard_kind` is {stated!r}, which the model of {path.name}, {model}, is not."
        raise DataError(settings.path, None, problem, f"It is {kind!r}.")
    return LoadedTokenizer(
        fast,
        stated,
        roles,
        reads_special_tokens=not config.split_special_tokens,
        sides=settings.sides(fast.padding),
        clean_up_spaces=bool(config.clean_up_tokenization_spaces) and model != "BPE",
        max_length=settings.max_length,
    )


def _known_roles(fast: tokenizers.Tokenizer) -> dict[str, str]:
    """The roles of special tokens that are known by their names."""
    special_tokens = [t.content for t in fast.get_added_tokens_decoder().values() if t.special]
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT} if END_OF_TEXT in special_tokens else {}
    return roles_of(special_tokens) or ends


def _kind_of(fast: tokenizers.Tokenizer) -> str:
    model = type(fast.model).__name__
    if model == "BPE":
        return "bpe" if fast.model.end_of_word_suffix else "byte-bpe"
    if model == "WordLevel":
        return "characters" if type(fast.pre_tokenizer).__name__ == "Split" else "words"
    return model.lower()


# ---- BERT


def _bert(path: Path, lowercase: bool | None) -> LoadedTokenizer:
    """vocab.txt of BERT: its preprocessing of text, its pieces, [CLS] and [SEP] for who opens it."""
    vocab, settings = read_pieces(path), read_settings(path)
    for special in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        # Some copies of the uncased vocabulary have the special tokens in lower case, too.
        if special not in vocab and special.lower() in vocab:
            vocab[special] = vocab.pop(special.lower())
    vocab = dict(sorted(vocab.items(), key=lambda item: item[1]))
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"} | settings.roles
    unknown, cls, sep = names["unk"], names["cls"], names["sep"]
    for special in (unknown, cls, sep):
        if special not in vocab:
            problem = f"the piece {special} is missing."
            raise DataError(path, None, problem, "A BERT vocabulary has it.")
    lower = _lowercases(path, settings, vocab) if lowercase is None else lowercase
    accents, apart = settings.config.strip_accents, settings.config.tokenize_chinese_chars
    preprocessing = Preprocessing(
        clean=True,
        isolate_cjk=True if apart is None else apart,
        strip_accents=lower if accents is None else accents,
        lowercase=lower,
        split="punctuation",
    )
    fast = longest_match_tokenizer(vocab, preprocessing, unknown)
    fast.post_processor = _bert_template((cls, vocab[cls]), (sep, vocab[sep]))
    known = family_of(settings) is BERT
    return _finish(path, fast, "wordpiece", settings, BERT.defaults if known else roles_of(vocab))


def _bert_template(cls: tuple[str, int], sep: tuple[str, int]) -> processors.PostProcessor:
    tokens = {"cls": cls, "sep": sep}
    return processors.TemplateProcessing(
        single="cls:0 $A:0 sep:0",
        pair="cls:0 $A:0 sep:0 $B:1 sep:1",
        special_tokens=[
            {"id": name, "ids": [number], "tokens": [token]}
            for name, (token, number) in tokens.items()
        ],
    )


def _lowercases(path: Path, settings: TokenSettings, vocab: dict[str, int]) -> bool:
    stated = settings.config.do_lower_case
    if stated is not None:
        return stated
    capital = any(p != p.lower() for p in vocab if not (p.startswith("[") and p.endswith("]")))
    if settings.class_name is not None and family_of(settings) is BERT:
        if capital:
            warnings.warn(
                f"{path} has pieces with capitals, but texts are lower-cased: "
                f"{settings.class_name} does so in `transformers` unless {settings.path.name} has "
                '"do_lower_case": false.',
                stacklevel=5,
            )
        return True
    return not capital


# ---- GPT, GPT-2, RoBERTa


def _bpe(path: Path, merges_path: Path | None) -> LoadedTokenizer:
    """vocab.json with its merges: characters with </w> (GPT) or bytes (GPT-2, RoBERTa)."""
    vocab, settings = read_vocab_json(path), read_settings(path)
    merges = _merges(path, merges_path, vocab)
    if any(piece.endswith(END) and piece != END for piece in vocab):
        return _gpt(path, vocab, merges, settings)
    family = family_of(settings)
    if family is ROBERTA or (family is None and "<s>" in vocab and "<mask>" in vocab):
        return _roberta(path, vocab, merges, settings)
    fast = _bytes(path, vocab, merges, settings)
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT} if END_OF_TEXT in vocab else roles_of(vocab)
    return _finish(path, fast, "byte-bpe", settings, family.defaults if family else ends)


def _merges(path: Path, merges_path: Path | None, vocab: dict[str, int]) -> list[Pair]:
    """The merges given, or beside the vocabulary, or rebuilt from the order of the ids."""
    beside = [p for name in MERGES_NAMES if (p := path.with_name(name)).is_file()]
    if merges_path or beside:
        return read_merges(merges_path or beside[0], vocab)
    try:
        return rebuild_merges(vocab, [*roles_of(vocab).values(), END_OF_TEXT, "\n" + END])
    except ValueError as error:
        problem = f"has no merges beside it ({' or '.join(MERGES_NAMES)}), and its ids do not "
        problem += f"follow the order of learning: {error}."
        raise DataError(path, None, problem, "Give the file in `merges`.") from None


def _gpt(
    path: Path, vocab: dict[str, int], merges: list[Pair], settings: TokenSettings
) -> LoadedTokenizer:
    unknown = settings.roles.get("unk", "<unk>")
    if unknown not in vocab:
        raise DataError(path, None, f"the piece {unknown} is missing.", "GPT's vocabulary has it.")
    model = models.BPE(vocab, merges, unk_token=unknown, end_of_word_suffix=END)
    fast = tokenizers.Tokenizer(model)
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.BPEDecoder(suffix=END)
    return _finish(path, fast, "bpe", settings, roles_of(vocab))


def _bytes(
    path: Path, vocab: dict[str, int], merges: list[Pair], settings: TokenSettings
) -> tokenizers.Tokenizer:
    missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocab.keys())
    if missing:
        problem = f"{len(missing)} of the 256 byte pieces are missing, the first is {missing[0]!r}."
        raise DataError(path, None, problem, "Is it a byte-level vocabulary?")
    preprocessing = Preprocessing(
        split="gpt2-prefix" if settings.config.add_prefix_space else "gpt2"
    )
    return assemble(models.BPE(vocab, merges), preprocessing, decoders.ByteLevel())


def _roberta(
    path: Path, vocab: dict[str, int], merges: list[Pair], settings: TokenSettings
) -> LoadedTokenizer:
    fast = _bytes(path, vocab, merges, settings)
    names = {"cls": "<s>", "sep": "</s>"} | settings.roles
    for special in (names["cls"], names["sep"]):
        if special not in vocab:
            problem = f"the piece {special} is missing."
            raise DataError(path, None, problem, "A RoBERTa vocabulary has it.")
    ends = ((names[role], vocab[names[role]]) for role in ("cls", "sep"))
    fast.post_processor = _roberta_template(*ends)
    defaults = {**ROBERTA.defaults, **roles_of(vocab)}
    return _finish(path, fast, "byte-bpe", settings, defaults, ROBERTA)


def _roberta_template(cls: tuple[str, int], sep: tuple[str, int]) -> processors.PostProcessor:
    return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)


def _roberta_pieces(path: Path, merges_path: Path | None) -> LoadedTokenizer:
    """RoBERTa's pieces as text, one after the other, with GPT-2's merges.

    Bytes that are not UTF-8 are written \\xNN. A piece with a line feed takes several lines, and
    the control characters 0 to 3 are written as a space, the third such piece and following.
    """
    if merges_path is None:
        hint = "Give GPT-2's vocab.bpe (or merges.txt) in `merges`."
        raise DataError(path, None, "these pieces need the merges they were made with.", hint)
    byte_of = _bytes_of_characters()
    pairs = [line.split(" ") for line in read_lines(merges_path)[1:] if line.count(" ") == 1]
    known = [*byte_of, *("".join(pair) for pair in pairs)]
    written = {_as_text(piece, byte_of): piece for piece in known}
    vocab = _match_lines(path, written)
    return _roberta(path, vocab, read_merges(merges_path, vocab), read_settings(path))


def _match_lines(path: Path, written: dict[str, str]) -> dict[str, int]:
    """Piece -> id for lines of pieces written as text; a line feed inside a piece is healed."""
    lines = read_lines(path)
    special_tokens = {"<s>", "<pad>", "</s>", "<unk>", "<mask>", END_OF_TEXT}
    controls = iter("\0\1\2\3")
    vocab: dict[str, int] = {}
    at = 0
    while at < len(lines):
        for span in (1, 2, 3):
            text = "\n".join(lines[at : at + span])
            piece = written.get(text)
            if piece is None and (text in special_tokens or text.startswith("madeupword")):
                piece = text
            if text == " " and piece in vocab:
                piece = written.get(next(controls, ""))
            if piece is not None and piece not in vocab:
                break
        else:
            problem = f"{lines[at]!r} is not a piece that the merges make, or stands twice."
            raise DataError(path, at + 1, problem, "Do both files belong together?")
        vocab[piece] = len(vocab)
        at += span
    return vocab


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's printable character for each byte, inverted: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + n): byte for n, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


def _as_text(piece: str, byte_of: dict[str, int]) -> str:
    return bytes(byte_of[char] for char in piece).decode("utf-8", "backslashreplace")


def _finish(
    path: Path,
    fast: tokenizers.Tokenizer,
    kind: str,
    settings: TokenSettings,
    defaults: Mapping[str, str],
    family: Family | None = None,
) -> LoadedTokenizer:
    """The tokenizer, with the tokens that files beside the vocabulary add to it."""
    tokens = {role: AddedTokenSpec(name, plain=True) for role, name in defaults.items()}
    mask = settings.named.get("mask", tokens.get("mask"))
    if family is ROBERTA and mask is not None and mask.plain:
        # RoBERTa's authors let <mask> swallow the space before it: it stands for " word". So does
        # `transformers` 4, from whose time such folders are; later releases do not.
        named = {**settings.named, "mask": AddedTokenSpec(mask.content, lstrip=True)}
        settings = replace(settings, named=named)
    add_from_settings(path, fast, settings, tokens)
    held = {r: t.content for r, t in tokens.items() if fast.token_to_id(t.content) is not None}
    roles = held | settings.roles
    if fast.post_processor is None:
        _put_ends(fast, roles, settings)
    return _made(path, fast, kind, roles, settings)


def _put_ends(
    fast: tokenizers.Tokenizer, roles: Mapping[str, str], settings: TokenSettings
) -> None:
    """The template that `add_bos_token` and `add_eos_token` ask for, where they do."""
    config = settings.config
    stated = {"bos": config.add_bos_token, "eos": config.add_eos_token}
    asked = [role for role, asks in stated.items() if asks]
    if not asked:
        return
    for role in asked:
        if role not in roles or settings.named.get(role, 0) is None:
            problem = f"`add_{role}_token` asks for a {role} piece, but there is none."
            hint = f"Name one in `{role}_token`, or remove `add_{role}_token`."
            raise DataError(settings.path, None, problem, hint)

    def around(text: str, segment: int) -> list[str]:
        parts = [f"{role}:{segment}" if role in asked else "" for role in ("bos", "eos")]
        return [part for part in (parts[0], f"{text}:{segment}", parts[1]) if part]

    fast.post_processor = processors.TemplateProcessing(
        single=around("$A", 0),
        pair=around("$A", 0) + around("$B", 1),
        special_tokens=[
            {"id": role, "ids": [fast.token_to_id(roles[role])], "tokens": [roles[role]]}
            for role in asked
        ],
    )
