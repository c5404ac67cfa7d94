"""Reads tokenizers that others have published, ids unchanged.

Understood are

    a folder           with tokenizer.json, or vocab.json + merges.txt (GPT-2, RoBERTa),
                       or encoder.json + vocab.bpe (GPT-2), or vocab.json alone (GPT), or vocab.txt
    tokenizer.json     of the `tokenizers` library, any model
    vocab.txt          BERT's pieces, one per line; cased or uncased is seen from the pieces
    vocab.json         or encoder.json, with the merges beside it or in `merges`
    RoBERTa's pieces   as text, one per line, with GPT-2's merges in `merges`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import DataError, RegardError
from regard.text.bpe import END, rebuild_merges
from regard.text.bpe_kinds import assemble
from regard.text.files import read_json, read_lines, read_merges, read_pieces, read_vocab_json
from regard.text.normalize import Handling
from regard.text.pairs import Pair
from regard.text.roles import ROLES, roles_of
from regard.text.tokenizer import Tokenizer
from regard.text.wordpiece import longest_match_tokenizer

VOCAB_NAMES = ("vocab.json", "encoder.json")
MERGES_NAMES = ("merges.txt", "vocab.bpe")
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")  # the second has the last word
ADDED = "added_tokens.json"  # pieces beyond the vocabulary and their ids
END_OF_TEXT = "<|endoftext|>"


def load(
    path: str | Path, *, merges: str | Path | None = None, lowercase: bool | None = None
) -> Tokenizer:
    """A tokenizer from a folder or file, recognized by its name and content (see this module).

    merges: the merges file, where it does not lie beside the vocabulary
    lowercase: for vocab.txt, whether texts are lower-cased and stripped of accents; None: yes,
        unless a piece has a capital or tokenizer_config.json says otherwise
    """
    path = _main_file(Path(path))
    merges = Path(merges) if merges is not None else None
    if path.suffix == ".model":
        hint = "Use the tokenizer.json of the same model."
        raise DataError(path, None, "is a SentencePiece model, which is not read.", hint)
    if path.suffix == ".txt":
        first = read_lines(path)[0]
        return _roberta_pieces(path, merges) if first == "<s>" else _bert(path, lowercase)
    if path.suffix == ".json":
        if path.name == "tokenizer.json" or isinstance(read_json(path).get("model"), dict):
            return _tokenizer_json(path)  # "model" may be a piece, too
        return _bpe(path, merges)
    raise DataError(path, None, "is not a known kind of vocabulary.", "Known: .json, .txt, folder.")


def _main_file(path: Path) -> Path:
    """The file that a folder is read from; a file is its own."""
    if not path.is_dir():
        return path
    for name in ("tokenizer.json", *VOCAB_NAMES, "vocab.txt"):
        if (path / name).is_file():
            return path / name
    there = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
    wanted = "tokenizer.json, vocab.json, encoder.json or vocab.txt"
    raise DataError(path, None, f"the folder must hold {wanted}, but holds {there}.")


# ---- tokenizer.json


def _tokenizer_json(path: Path) -> Tokenizer:
    try:
        fast = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        read_json(path)  # which does, where it is no JSON
        hint = "Was it written by a newer release of `tokenizers`?"
        raise DataError(path, None, f"does not parse as tokenizer.json: {error}.", hint) from None
    config = _settings(path)
    kind = config.get("regard_kind") or _kind_of(fast)
    roles = _stated(path, config) or _known_roles(fast)
    try:
        reads = not config.get("split_special_tokens", False)
        return Tokenizer(fast, kind, roles, reads, _sides(path, config, fast.padding))
    except RegardError as error:
        raise DataError(path.with_name("tokenizer_config.json"), None, str(error)) from None


def _settings(path: Path) -> dict[str, Any]:
    """What the files beside a vocabulary say of its use."""
    beside = [path.with_name(name) for name in SETTINGS]
    found: dict[str, Any] = {}
    for file in beside:
        found |= read_json(file) if file.is_file() else {}
    return found


def _stated(path: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The roles that the settings name, such as `cls_token`."""
    given = {role: settings.get(f"{role}_token") for role in ROLES}
    named: dict[str, Any] = {
        r: v.get("content") if isinstance(v, dict) else v for r, v in given.items() if v
    }
    for role, name in named.items():
        if not isinstance(name, str):
            problem = f"`{role}_token` must be a piece, but is {name!r}."
            raise DataError(path.with_name(SETTINGS[-1]), None, problem)
    return named


def _sides(path: Path, settings: dict[str, Any], padding: Any = None) -> dict[str, str]:
    """The sides that the settings name, or tokenizer.json where it pads by itself."""
    stated = {"padding_side": padding["direction"]} if padding else {}
    names = ("padding_side", "truncation_side")
    stated |= {name: settings[name] for name in names if settings.get(name) is not None}
    for name, side in stated.items():
        if side not in ("left", "right"):
            problem = f"`{name}` must be left or right, but is {side!r}."
            raise DataError(path.with_name(SETTINGS[-1]), None, problem)
    return stated


def _known_roles(fast: tokenizers.Tokenizer) -> dict[str, str]:
    """The roles of specials that are known by their names."""
    specials = [t.content for t in fast.get_added_tokens_decoder().values() if t.special]
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT} if END_OF_TEXT in specials else {}
    return roles_of(specials) or ends


def _kind_of(fast: tokenizers.Tokenizer) -> str:
    model = type(fast.model).__name__
    if model == "BPE":
        return "bpe" if fast.model.end_of_word_suffix else "byte-bpe"
    if model == "WordLevel":
        return "characters" if type(fast.pre_tokenizer).__name__ == "Split" else "words"
    return model.lower()


# ---- BERT


def _bert(path: Path, lowercase: bool | None) -> Tokenizer:
    """vocab.txt of BERT: its handling of text, its pieces, [CLS] and [SEP] for who opens it."""
    vocab, settings = read_pieces(path), _settings(path)
    stated = _stated(path, settings)
    for special in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        # Some copies of the uncased vocabulary have the specials in lower case, too.
        if special not in vocab and special.lower() in vocab:
            vocab[special] = vocab.pop(special.lower())
    vocab = dict(sorted(vocab.items(), key=lambda item: item[1]))
    unknown, cls, sep = (stated.get(role, f"[{role.upper()}]") for role in ("unk", "cls", "sep"))
    for special in (unknown, cls, sep):
        if special not in vocab:
            problem = f"the piece {special} is missing."
            raise DataError(path, None, problem, "A BERT vocabulary has it.")
    lower = _lowercases(settings, vocab) if lowercase is None else lowercase
    accents = settings.get("strip_accents")
    handling = Handling(
        clean=True,
        isolate_cjk=settings.get("tokenize_chinese_chars", True),
        strip_accents=lower if accents is None else accents,
        lowercase=lower,
        split="punctuation",
    )
    fast = longest_match_tokenizer(vocab, handling, unknown)
    fast.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    return _finish(path, fast, "wordpiece", roles_of(vocab) | stated)


def _lowercases(settings: dict[str, Any], vocab: dict[str, int]) -> bool:
    stated = settings.get("do_lower_case")
    if stated is not None:
        return bool(stated)
    return not any(p != p.lower() for p in vocab if not (p.startswith("[") and p.endswith("]")))


# ---- GPT, GPT-2, RoBERTa


def _bpe(path: Path, merges_path: Path | None) -> Tokenizer:
    """vocab.json with its merges: characters with </w> (GPT) or bytes (GPT-2, RoBERTa)."""
    vocab = read_vocab_json(path)
    merges = _merges(path, merges_path, vocab)
    if any(piece.endswith(END) and piece != END for piece in vocab):
        return _gpt(path, vocab, merges)
    if "<s>" in vocab and "<mask>" in vocab:
        return _roberta(path, vocab, merges)
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT} if END_OF_TEXT in vocab else roles_of(vocab)
    roles = ends | _stated(path, _settings(path))
    return _finish(path, _bytes(path, vocab, merges), "byte-bpe", roles)


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


def _gpt(path: Path, vocab: dict[str, int], merges: list[Pair]) -> Tokenizer:
    if "<unk>" not in vocab:
        raise DataError(path, None, "the piece <unk> is missing.", "GPT's vocabulary has it.")
    model = models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix=END)
    fast = tokenizers.Tokenizer(model)
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.BPEDecoder(suffix=END)
    return _finish(path, fast, "bpe", roles_of(vocab) | _stated(path, _settings(path)))


def _bytes(path: Path, vocab: dict[str, int], merges: list[Pair]) -> tokenizers.Tokenizer:
    missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocab.keys())
    if missing:
        problem = f"{len(missing)} of the 256 byte pieces are missing, the first is {missing[0]!r}."
        raise DataError(path, None, problem, "Is it a byte-level vocabulary?")
    prefix = _settings(path).get("add_prefix_space", False)
    handling = Handling(split="gpt2-prefix" if prefix else "gpt2")
    return assemble(models.BPE(vocab, merges), handling, decoders.ByteLevel())


def _roberta(path: Path, vocab: dict[str, int], merges: list[Pair]) -> Tokenizer:
    fast = _bytes(path, vocab, merges)
    roles = {"cls": "<s>", "sep": "</s>"} | roles_of(vocab) | _stated(path, _settings(path))
    fast.post_processor = processors.RobertaProcessing(
        ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]), trim_offsets=True, add_prefix_space=False
    )
    # The published tokenizer lets <mask> swallow the space before it: it stands for " word".
    mask = _settings(path).get("mask_token")
    swallows = mask.get("lstrip", False) if isinstance(mask, dict) else True
    fast.add_special_tokens([AddedToken("<mask>", lstrip=swallows, normalized=False)])
    return _finish(path, fast, "byte-bpe", roles)


def _roberta_pieces(path: Path, merges_path: Path | None) -> Tokenizer:
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
    return _roberta(path, vocab, read_merges(merges_path, vocab))


def _match_lines(path: Path, written: dict[str, str]) -> dict[str, int]:
    """Piece -> id for lines of pieces written as text; a line feed inside a piece is healed."""
    lines = read_lines(path)
    specials = {"<s>", "<pad>", "</s>", "<unk>", "<mask>", END_OF_TEXT}
    controls = iter("\0\1\2\3")
    vocab: dict[str, int] = {}
    at = 0
    while at < len(lines):
        for span in (1, 2, 3):
            text = "\n".join(lines[at : at + span])
            piece = written.get(text)
            if piece is None and (text in specials or text.startswith("madeupword")):
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


def _finish(path: Path, fast: tokenizers.Tokenizer, kind: str, roles: dict[str, str]) -> Tokenizer:
    """The tokenizer, with the pieces that a file beside the vocabulary adds to it.

    A role is left open where the settings name a piece for it that nothing holds.
    """
    names = dict.fromkeys(roles.values())
    present = {t.content for t in fast.get_added_tokens_decoder().values()}
    new = [n for n in names if n not in present and fast.token_to_id(n) is not None]
    fast.add_special_tokens([AddedToken(name, normalized=False) for name in new])
    for name, number in sorted(_added(path).items(), key=lambda item: item[1]):
        fast.add_tokens([AddedToken(name, normalized=name not in names, special=name in names)])
        if fast.token_to_id(name) != number:
            problem = (
                f"{name!r} must have the next free id, {fast.token_to_id(name)}, not {number}."
            )
            raise DataError(path.with_name(ADDED), None, problem, "Is it of this vocabulary?")
    held = {role: name for role, name in roles.items() if fast.token_to_id(name) is not None}
    settings = _settings(path)
    _put_ends(path, fast, held, settings)
    return Tokenizer(fast, kind, held, sides=_sides(path, settings))


def _put_ends(
    path: Path, fast: tokenizers.Tokenizer, roles: dict[str, str], settings: dict[str, Any]
) -> None:
    """The template that `add_bos_token` and `add_eos_token` ask for, where they do."""
    asked = [role for role in ("bos", "eos") if settings.get(f"add_{role}_token")]
    if not asked:
        return
    for role in asked:
        if role not in roles:
            problem = f"`add_{role}_token` asks for a {role} piece, but there is none."
            hint = f"Name one in `{role}_token`, or remove `add_{role}_token`."
            raise DataError(path.with_name(SETTINGS[-1]), None, problem, hint)
    names = {role: roles[role] if role in asked else "" for role in ("bos", "eos")}

    def around(text: str, segment: int) -> list[str]:
        parts = [f"{name}:{segment}" if name else "" for name in names.values()]
        return [part for part in (parts[0], f"{text}:{segment}", parts[1]) if part]

    fast.post_processor = processors.TemplateProcessing(
        single=around("$A", 0),
        pair=around("$A", 0) + around("$B", 1),
        special_tokens=[(roles[role], fast.token_to_id(roles[role])) for role in asked],
    )


def _added(path: Path) -> dict[str, int]:
    file = path.with_name(ADDED)
    return read_vocab_json(file) if file.is_file() else {}
