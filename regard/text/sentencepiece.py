"""Reads SentencePiece models of the types unigram and bpe, such as `spiece.model`, ids unchanged.

A model file is a protocol buffer, `ModelProto` of SentencePiece's sentencepiece_model.proto: the
pieces with their scores and types, the options of training and those of normalization. `pipeline`
gives them to the `tokenizers` library.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.errors import DataError, RegardError
from regard.text.preprocessing import roles_of
from regard.text.templates import Template
from regard.text.vocab_files import TokenSettings

SPACE = "▁"  # replaces the space before a word, as the first character of the word
MARIAN = ("source.spm", "target.spm")
M2M_100 = "sentencepiece.bpe.model"
UNIGRAM = ("unigram",)
CUTTING = ("unigram", "bpe")  # types of models that cut texts for a vocabulary of its own
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
Preprocessing = tuple[normalizers.Normalizer, pre_tokenizers.PreTokenizer]
LANGUAGE = "language"  # instead of a role
TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


def is_marian(path: Path) -> bool:
    """Whether a folder has Marian's files and no tokenizer.json."""
    return _holds(path, *MARIAN, "vocab.json")


def is_m2m_100(path: Path) -> bool:
    """Whether a folder has M2M-100's files and no tokenizer.json."""
    return _holds(path, M2M_100, "vocab.json")


def _holds(path: Path, *names: str) -> bool:
    converted = (path / "tokenizer.json").is_file()
    return not converted and all((path / name).is_file() for name in names)


def is_model(name: str) -> bool:
    """Whether a file of this name is a SentencePiece model."""
    return name.endswith((".model", ".spm"))


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary; its id is its position. type: NORMAL, UNKNOWN and so on."""

    text: str
    score: float = 0.0
    type: int = NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """What ids depend on in a model file, and the special pieces by role.

    character_map: the precompiled map of the normalizer.
    dummy_prefix: a text begins with a space, like every word.
    merge_spaces: spaces at both ends are dropped, and several become one.
    """

    pieces: list[Piece]
    character_map: bytes
    dummy_prefix: bool
    merge_spaces: bool
    byte_fallback: bool
    roles: dict[str, str] = field(default_factory=dict)
    kind: str = "unigram"

    @property
    def tokenizer_kind(self) -> str:
        """The kind of a tokenizer of this model."""
        return "sentencepiece" if self.kind == "unigram" else f"sentencepiece-{self.kind}"

    @property
    def unknown_id(self) -> int | None:
        """The id of the piece for unknown characters."""
        ids = [number for number, piece in enumerate(self.pieces) if piece.type == UNKNOWN]
        return ids[0] if ids else None


# ---- the file


def read(path: Path, kinds: Collection[str] = UNIGRAM) -> SentencePieceModel:
    """The model in a file; see `parsed`."""
    return parsed(path, path.read_bytes(), kinds)


def parsed(path: Path, content: bytes, kinds: Collection[str] = UNIGRAM) -> SentencePieceModel:
    """The model in the content of a file, whose name errors give.

    kinds: the types of models that are read.

    Raises:
        DataError: it is no SentencePiece model, or of a type or with an option that is not
            supported.
    """
    try:
        message = _Message(content)
        pieces = [_piece(entry) for entry in message.messages(1)]
        trainer, normalizer = message.message(2), message.message(3)
        kind = TYPES.get(trainer.integer(3, 1), "unknown")
        model = SentencePieceModel(
            pieces,
            normalizer.bytes(2),
            dummy_prefix=bool(normalizer.integer(3, 1)),
            merge_spaces=bool(normalizer.integer(4, 1)),
            byte_fallback=bool(trainer.integer(35, 0)),
            roles=_roles(pieces, trainer),
            kind=kind,
        )
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, RegardError) as error:
        raise DataError(path, None, f"is not a SentencePiece model: {error}.") from None
    if model.kind not in kinds:
        problem = f"is a SentencePiece model of the type {kind}, but only {' and '.join(kinds)}"
        hint = "Use the tokenizer.json of the same model, which `transformers` writes."
        raise DataError(path, None, f"{problem} is supported.", hint)
    _check(path, model, escaped=bool(normalizer.integer(5, 1)), suffix=trainer.integer(24, 0))
    return model


def _check(path: Path, model: SentencePieceModel, *, escaped: bool, suffix: int) -> None:
    """Raise a DataError for what is not supported."""
    if not model.pieces or model.unknown_id is None:
        raise DataError(path, None, "is not a SentencePiece model: it has no unknown piece.")
    if suffix or not escaped:
        name = "treat_whitespace_as_suffix" if suffix else "escape_whitespaces"
        problem = f"has {name} = {str(bool(suffix)).lower()}, which is not supported."
        raise DataError(path, None, problem)
    texts = [piece.text for piece in model.pieces]
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise DataError(path, None, f"has the piece {twice!r} twice.")


def _piece(message: _Message) -> Piece:
    return Piece(message.bytes(1).decode(), message.float(2), message.integer(3, NORMAL))


def _roles(pieces: list[Piece], trainer: _Message) -> dict[str, str]:
    """The special pieces by role: unk, bos, eos and pad by their ids, others by their names."""
    roles = roles_of(piece.text for piece in pieces if piece.type == CONTROL)
    for role, number, default in (("unk", 40, 0), ("bos", 41, 1), ("eos", 42, 2), ("pad", 43, -1)):
        index = trainer.integer(number, default)
        if 0 <= index < len(pieces) and pieces[index].type in (UNKNOWN, CONTROL):
            roles[role] = pieces[index].text
    return roles


class _Message:
    """The fields of a protocol buffer message, by number; the last value of each, or all.

    https://protobuf.dev/programming-guides/encoding/
    """

    def __init__(self, data: bytes):
        self.fields: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self.fields.setdefault(number, []).append(value)

    def integer(self, number: int, default: int) -> int:
        value = self.fields.get(number, [default])[-1]
        if isinstance(value, bytes):
            raise TypeError(f"field {number} is not a number")
        return value

    def bytes(self, number: int) -> bytes:
        value = self.fields.get(number, [b""])[-1]
        if isinstance(value, int):
            raise TypeError(f"field {number} is a number")
        return value

    def float(self, number: int) -> float:
        value: float = struct.unpack("<f", self.bytes(number) or bytes(4))[0]
        return value

    def message(self, number: int) -> _Message:
        return _Message(self.bytes(number))

    def messages(self, number: int) -> list[_Message]:
        return [
            _Message(value) for value in self.fields.get(number, []) if isinstance(value, bytes)
        ]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        key, position = _variable_integer(data, position)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, position = _variable_integer(data, position)
            yield number, value
            continue
        if kind not in (1, 2, 5):
            raise IndexError("a field has an unknown type")
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            length, position = _variable_integer(data, position)
        if position + length > len(data):
            raise IndexError("it is cut off")
        yield number, data[position : position + length]
        position += length


def _variable_integer(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return (value if value < 1 << 63 else value - (1 << 64)), position


# ---- the pipeline of the `tokenizers` library


def pipeline(model: SentencePieceModel) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` with the pieces, the normalization and the decoder of a model.

    Control pieces and unused ones are special tokens there, user-defined ones are added tokens.
    """
    fast = tokenizers.Tokenizer(_bpe(model) if model.kind == "bpe" else _unigram(model))
    fast.normalizer = normalizers.Sequence(list(_normalizers(model)))
    if all(SPACE not in piece.text[1:] for piece in model.pieces):
        fast.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    parts: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if model.byte_fallback:
        parts += [decoders.ByteFallback(), decoders.Fuse()]
    if model.dummy_prefix:
        parts += [] if model.byte_fallback else [decoders.Fuse()]
        parts += [decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(parts)
    control = [piece.text for piece in model.pieces if piece.type in (CONTROL, UNUSED, UNKNOWN)]
    fast.add_special_tokens([AddedToken(name, normalized=False) for name in control])
    user_defined = [piece.text for piece in model.pieces if piece.type == USER_DEFINED]
    fast.add_tokens([AddedToken(name, normalized=False) for name in user_defined])
    return fast


def _unigram(model: SentencePieceModel) -> models.Unigram:
    vocab = [(piece.text, piece.score) for piece in model.pieces]
    return models.Unigram(vocab, model.unknown_id, model.byte_fallback)


def _bpe(model: SentencePieceModel) -> models.BPE:
    """Two neighbouring pieces are merged where the model has both together, the best score first.

    The file has no list of merges: every cut of a piece into two pieces is one.
    """
    vocab = {piece.text: number for number, piece in enumerate(model.pieces)}
    merges = []
    for piece in model.pieces:
        if piece.type == NORMAL:
            cuts = [(piece.text[:i], piece.text[i:]) for i in range(1, len(piece.text))]
            pairs = [cut for cut in cuts if cut[0] in vocab and cut[1] in vocab]
            merges += [(-piece.score, vocab[a], vocab[b], a, b) for a, b in pairs]
    assert model.unknown_id is not None
    return models.BPE(
        vocab=vocab,
        merges=[(a, b) for *_, a, b in sorted(merges)],
        unk_token=model.pieces[model.unknown_id].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _normalizers(model: SentencePieceModel) -> Iterator[normalizers.Normalizer]:
    if model.character_map:
        yield normalizers.Precompiled(model.character_map)
    if model.merge_spaces:
        yield normalizers.Replace(Regex(r"\A +| +\z"), "")
        yield normalizers.Replace(Regex(" {2,}"), " ")
    if model.dummy_prefix:
        yield normalizers.Prepend(SPACE)
    yield normalizers.Replace(" ", SPACE)
    if model.merge_spaces:
        yield normalizers.Replace(Regex(f"{SPACE}+\\z"), "")


# ---- what the tokenizer classes of `transformers` make of a model


@dataclass(frozen=True)
class SentencePieceFamily:
    """How a tokenizer class of `transformers` numbers the pieces of a model.

    pieces: from those of the file.  roles: the special tokens of the class.
    around: the roles of the tokens before a text, between two texts and after the last one;
        LANGUAGE is that of the text.
    languages: those of the class.  usual_language: where no file names that of texts.
    types: of the models that it reads.
    segments: whether the second of two texts is of another segment than the first.
    preprocessing: the class's own normalization and splitting, in place of SentencePiece's.
    """

    pieces: Callable[[list[Piece], TokenSettings], list[Piece]]
    roles: Mapping[str, str]
    around: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    segments: bool = False
    preprocessing: Callable[[SentencePieceModel, TokenSettings], Preprocessing] | None = None
    languages: tuple[str, ...] = ()
    usual_language: str = "en_XX"
    types: tuple[str, ...] = UNIGRAM

    def kind(self, model: SentencePieceModel) -> str:
        """The kind of the tokenizer for a model file of this class."""
        return model.tokenizer_kind if self.preprocessing is None else "unigram"

    def tokenizer(self, model: SentencePieceModel, settings: TokenSettings) -> tokenizers.Tokenizer:
        """The pipeline for a model file of this class."""
        pieces = [*self.pieces(model.pieces, settings)]
        pieces[-1:-1] = [Piece(name, type=CONTROL) for name in self.languages]  # before <mask>
        fast = pipeline(replace(model, pieces=pieces))
        if self.preprocessing is not None:
            fast.normalizer, fast.pre_tokenizer = self.preprocessing(model, settings)
            fast.decoder = decoders.Metaspace()
        return fast

    def language(self, settings: TokenSettings) -> dict[str, str]:
        """LANGUAGE -> the token of `src_lang`, of a class with languages.

        Raises:
            DataError: it is none of them.
        """
        if not self.languages:
            return {}
        named = (settings.config.model_extra or {}).get("src_lang") or self.usual_language
        if named not in self.languages:
            problem = f"`src_lang` must be one of {', '.join(self.languages)}, but is {named!r}."
            raise DataError(settings.path, None, problem)
        return {LANGUAGE: named}

    def template(self, ids: Mapping[str, int]) -> Template:
        """The special tokens around texts; ids: by role."""
        if self.segments:
            return Template.bert(ids["cls"], ids["sep"])
        first, middle, last = (tuple(ids[role] for role in part) for part in self.around)
        return Template.around(first, middle, last)


class XlnetFamily(SentencePieceFamily):
    """XLNet's class: its last special token is a segment of its own."""

    def template(self, ids: Mapping[str, int]) -> Template:
        """A <sep> <cls>, and A <sep> B <sep> <cls>."""
        first, second, last = (ids["sep"], 0), (ids["sep"], 1), (ids["cls"], 2)
        return Template(((), (first, last)), ((), (first,), (second, last)))


def _t5_pieces(pieces: list[Piece], settings: TokenSettings) -> list[Piece]:
    """With the sentinels <extra_id_99>, ..., <extra_id_0> at the end."""
    count = 100 if settings.config.extra_ids is None else settings.config.extra_ids
    return pieces + [Piece(f"<extra_id_{i}>", type=CONTROL) for i in reversed(range(count))]


def _xlm_roberta_pieces(pieces: list[Piece], settings: TokenSettings) -> list[Piece]:
    """fairseq's four special tokens instead of SentencePiece's three, and <mask> at the end."""
    first = [Piece(name, type=CONTROL) for name in ("<s>", "<pad>", "</s>")]
    first.append(Piece("<unk>", type=UNKNOWN))
    return [*first, *pieces[3:], Piece("<mask>", type=CONTROL)]


def _camembert_pieces(pieces: list[Piece], settings: TokenSettings) -> list[Piece]:
    """fairseq's special tokens beside SentencePiece's three, and <mask> at the end."""
    names = ("<s>NOTUSED", "<pad>", "</s>NOTUSED")
    first = [*(Piece(name, type=CONTROL) for name in names), Piece("<unk>", type=UNKNOWN)]
    unused = Piece("<unk>NOTUSED", -100.0, CONTROL)
    return [*first, unused, *pieces[1:], Piece("<mask>", type=CONTROL)]


def _own_pieces(pieces: list[Piece], settings: TokenSettings) -> list[Piece]:
    """As they are in the file."""
    return pieces


def _preprocessing(
    model: SentencePieceModel, settings: TokenSettings, *, lowercases: bool
) -> Preprocessing:
    """Quotation marks, accents and case as ALBERT's and XLNet's classes change them, and then the
    model's own map.

    lowercases: whether texts are lower-cased where no file says it.
    """
    config = settings.config
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(quotes, '"') for quotes in ("``", "''")
    ]
    if not config.keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercases if config.do_lower_case is None else config.do_lower_case:
        steps.append(normalizers.Lowercase())
    if model.character_map:
        steps.append(normalizers.Precompiled(model.character_map))
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    return normalizers.Sequence(steps), pre_tokenizers.Sequence(splits)


def _deberta_pieces(pieces: list[Piece], settings: TokenSettings) -> list[Piece]:
    """With the special tokens at the end that are not in the file, mostly [MASK] alone."""
    present = {piece.text for piece in pieces}
    names = ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]")
    return pieces + [Piece(name, type=CONTROL) for name in names if name not in present]


def _deberta_preprocessing(model: SentencePieceModel, settings: TokenSettings) -> Preprocessing:
    """As DeBERTa's class in `transformers` 5, which does not use the model's own map."""
    config = settings.config
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if config.do_lower_case else []
    steps.append(normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "))
    steps += [normalizers.NFC(), normalizers.Strip(left=False, right=True)]
    scheme = "first" if config.add_prefix_space is False else "always"
    splits: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    if config.split_by_punct:
        splits.insert(0, pre_tokenizers.Punctuation("isolated"))
    return normalizers.Sequence(steps), pre_tokenizers.Sequence(splits)


MBART_LANGUAGES = tuple(
    (
        "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
        "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
    ).split()
)
MBART_50_LANGUAGES = tuple(
    (
        "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
        "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
    ).split()
)
NLLB_LANGUAGES = tuple(
    (
        "ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab "
        "arb_Arab ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn "
        "bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt "
        "bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn "
        "dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn "
        "ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn "
        "gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn "
        "hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn "
        "kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn "
        "kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo "
        "lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn "
        "luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn "
        "mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva "
        "nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn "
        "por_Latn prs_Arab pbt_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng "
        "scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn "
        "spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml "
        "tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn "
        "tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab "
        "uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans "
        "zho_Hant zul_Latn"
    ).split()
)


T5 = SentencePieceFamily(
    _t5_pieces,
    {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    ((), ("eos",), ("eos",)),
)
XLM_ROBERTA = SentencePieceFamily(
    _xlm_roberta_pieces,
    {
        "bos": "<s>",
        "eos": "</s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "cls": "<s>",
        "sep": "</s>",
        "mask": "<mask>",
    },
    (("cls",), ("sep", "sep"), ("sep",)),
)
CAMEMBERT = replace(XLM_ROBERTA, pieces=_camembert_pieces)
LLAMA = SentencePieceFamily(
    _own_pieces, {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, ((), (), ()), types=("bpe",)
)
BERT_ROLES = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "<pad>", "unk": "<unk>"}
ALBERT = SentencePieceFamily(
    _own_pieces,
    BERT_ROLES | {"bos": "[CLS]", "eos": "[SEP]"},
    (("cls",), ("sep",), ("sep",)),
    segments=True,
    preprocessing=partial(_preprocessing, lowercases=True),
)
DEBERTA = SentencePieceFamily(
    _deberta_pieces,
    BERT_ROLES | {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]", "unk": "[UNK]"},
    (("cls",), ("sep",), ("sep",)),
    segments=True,
    preprocessing=_deberta_preprocessing,
)
BIG_BIRD = SentencePieceFamily(
    _own_pieces,
    BERT_ROLES | {"bos": "<s>", "eos": "</s>"},
    (("cls",), ("sep",), ("sep",)),
    segments=True,
)
XLNET = XlnetFamily(
    _own_pieces,
    {
        "bos": "<s>",
        "eos": "</s>",
        "unk": "<unk>",
        "sep": "<sep>",
        "pad": "<pad>",
        "cls": "<cls>",
        "mask": "<mask>",
    },
    ((), ("sep",), ("sep", "cls")),
    preprocessing=partial(_preprocessing, lowercases=False),
)
MBART = replace(XLM_ROBERTA, around=((), (), ("eos", LANGUAGE)), languages=MBART_LANGUAGES)
MBART_50 = replace(
    XLM_ROBERTA,
    around=((LANGUAGE,), (), ("eos",)),
    languages=MBART_LANGUAGES + MBART_50_LANGUAGES,
)
NLLB = replace(MBART_50, languages=NLLB_LANGUAGES, usual_language="eng_Latn", types=CUTTING)
# The names of classes and of model types, in small letters and without hyphens.
FAMILIES = {
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "mbart": MBART,
    "mbart50": MBART_50,
    **dict.fromkeys(("nllb", "m2m100"), NLLB),  # M2M-100 has a vocabulary beside its model
    "xlmroberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "llama": LLAMA,
    "albert": ALBERT,
    "bigbird": BIG_BIRD,
    "debertav2": DEBERTA,
    "xlnet": XLNET,
}


def family_of(path: Path, settings: TokenSettings) -> SentencePieceFamily | None:
    """The family of the class beside a model file; None: no file names a class.

    Raises:
        DataError: the class is not supported, or needs a file that is missing.
    """
    if settings.class_name == "M2M100Tokenizer":
        hint = "Copy it from where the folder comes from."
        raise DataError(path.parent, None, "vocab.json is missing, which has the ids.", hint)
    name = settings.class_name or settings.model_type
    if name is None:
        return None
    family = FAMILIES.get(re.sub("[-_]|tokenizer$", "", name.lower()))
    if family is None:
        raise conversion_error(path, settings.class_name or f"a {settings.model_type} model")
    config = settings.config
    if family is NLLB and (config.model_extra or {}).get("legacy_behaviour"):
        return replace(NLLB, around=((), (), ("eos", LANGUAGE)))
    if family is LLAMA:  # `add_bos_token` and `add_eos_token` say what stands around texts
        first = () if config.add_bos_token is False else ("bos",)
        last = ("eos",) if config.add_eos_token else ()
        return replace(LLAMA, around=(first, (*last, *first), last))
    return family


def find_model(folder: Path) -> Path | None:
    """The SentencePiece model in a folder.

    Raises:
        DataError: it has those of Marian, but no vocab.json.
    """
    names = sorted(path.name for path in folder.iterdir() if is_model(path.name))
    if any(name in names for name in MARIAN):
        missing = [name for name in (*MARIAN, "vocab.json") if not (folder / name).is_file()]
        hint = "Copy it from where the folder comes from."
        problem = f"{missing[0]} is missing, beside which Marian's other files stand."
        raise DataError(folder, None, problem, hint)
    return folder / names[0] if names else None


def conversion_error(path: Path, owner: str) -> DataError:
    """The error for a model file of a class that is not supported, with how to convert it."""
    problem = f"is the SentencePiece model of {owner}, which is not supported."
    hint = (
        "Use the tokenizer.json of the same model, or write it with `transformers` and "
        "`sentencepiece` installed: from transformers import AutoTokenizer; "
        f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained({str(path.parent)!r})"
    )
    return DataError(path, None, problem, hint)
