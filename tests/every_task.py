"""A folder with a tiny random model for every task, and for the kinds of models that differ."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.data.images import PATCH_FEATURES
from regard.experiments import runs
from regard.models.bert import Bert
from regard.models.conv_seq2seq import ByteNet, ConvSeq2Seq
from regard.models.electra import Electra
from regard.models.elmo import Elmo
from regard.models.encoder_with_heads import EncoderWithHeads, new_head
from regard.models.gpt2 import GPT2
from regard.models.recurrent import RecurrentLanguageModel
from regard.models.seq2seq import Seq2Seq
from regard.models.show_attend_tell import ShowAttendTell
from regard.models.t5 import T5
from regard.models.transformer import RegionTransformer, Transformer
from regard.models.transformer_xl import TransformerXL
from regard.models.xlnet import Xlnet
from regard.tasks import TASKS, task_class
from regard.text import Tokenizer, train

WORDS = "the old cat sat on a warm mat and was sleeping in the sun who where".split()
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# what encoder-decoders are for: pairs of texts; trees, and turns of dialogues
ENCODER_DECODERS = ("translation", "summarization", "text-to-text", "span-corruption")
OF_ENCODER_DECODERS = (*ENCODER_DECODERS, "sequence-parsing", "dialogue")
LIMIT = 24  # tokens that the encoders read
# task -> the kind of its head and the number of its answers
HEADS = {
    "classification": ("classes", 3),
    "regression": ("classes", 1),
    "multi-label-classification": ("classes", 3),
    "tagging": ("tags", 3),
    "parsing": ("chart", 3),
    "crf-tagging": ("crf", 3),
    "question-answering": ("span", 2),
    "multiple-choice": ("multiple_choice", 1),
    "fill-mask": ("masked_lm", 1),
    "masked-language-modeling": ("masked_lm", 1),
    "next-sentence": ("next_sentence", 2),
    "replaced-tokens": ("replaced", 1),
}
# Those that bring a head.
LABELS = ["no", "perhaps", "yes"]
OWN_HEADS = {name: (task_class(name).head, 3) for name in TASKS if task_class(name).new_head}
# Those that ELMo has heads for.
ELMO_TASKS = ("classification", "tagging", "question-answering", "multiple-choice", "regression")
# Sizes of the translators that have no `layers`.
_LAYERS = ((3, 8), (3, 16))
CONVOLUTIONAL: dict[type, dict[str, Any]] = {
    ConvSeq2Seq: dict(encoder=_LAYERS, decoder=_LAYERS, max_length=LIMIT),
    ByteNet: dict(dilations=(1, 2), sets=1),
}
# Those heads that BERT has not.
BODIES = {"replaced-tokens": Electra}
SETTINGS: dict[str, dict[str, Any]] = {
    "classification": {"labels": ["no", "perhaps", "yes"]},
    "multi-label-classification": {"labels": ["old", "sunny", "warm"]},
    "tagging": {"labels": ["B-X", "I-X", "O"]},
    "parsing": {"labels": ["NP", "S", "S VP"]},
    "crf-tagging": {"labels": ["B-X", "I-X", "O"]},
    "question-answering": {"max_length": LIMIT, "doc_stride": 4, "max_question_length": 6},
}


TAGGING = ("tagging", "crf-tagging")  # tasks whose texts may be lists of words


def lines(count: int = 60, seed: int = 1) -> list[str]:
    """Lines of words that the tokenizers know."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 8))) for _ in range(count)]


def encoder(task: str) -> Any:
    """A task on a small BERT."""
    tokenizer = train("wordpiece", lines(), 60, special_tokens=SPECIALS)
    kind = BODIES.get(task, Bert)
    return headed(task, kind(_config(kind, tokenizer, max_length=LIMIT)), tokenizer)


def gpt_classifier() -> Any:
    """A classifier on a model that reads from left to right."""
    tokenizer = train("byte-bpe", lines(), 300)
    return headed("classification", GPT2(_config(GPT2, tokenizer, max_length=LIMIT)), tokenizer)


def xl_classifier() -> Any:
    """A classifier on a model with a memory and an adaptive softmax."""
    tokenizer = train("words", lines(), 60)
    return headed("classification", TransformerXL(_config(TransformerXL, tokenizer)), tokenizer)


def headed(task: str, body: Any, tokenizer: Tokenizer) -> Any:
    """An encoder under the head of a task."""
    model, tokenizer = task_class(task).prepared(EncoderWithHeads(body, {}), tokenizer)
    settings = SETTINGS.get(task, {"labels": LABELS} if task in OWN_HEADS else {})
    if head := (HEADS | OWN_HEADS).get(task):
        model = EncoderWithHeads(model.encoder, {head[0]: new_head(model.encoder, *head)})
    return task_class(task)(model, tokenizer, **settings)


def language(kind: type = RecurrentLanguageModel, task: str = "language-modeling") -> Any:
    """A language model."""
    tokenizer = train("words", lines(), 60)
    if task.startswith("hybrid"):
        tokenizer = tokenizer.with_roles({"mask": "[MASK]"})
    limit = {"max_length": LIMIT} if kind is GPT2 else {}
    limit = {"cutoffs": (6,), "divisor": 2, "memory_length": 6} if kind is TransformerXL else limit
    model = kind(_config(kind, tokenizer, **limit))
    return task_class(task)(model, tokenizer, format="lines")


def permuted() -> Any:
    """XLNet as its pre-training leaves it."""
    tokenizer = with_marks(train("words", lines(), 60))
    task = task_class("permutation-language-modeling")
    return task(Xlnet(_config(Xlnet, tokenizer)), tokenizer, format="lines")


def elmo(task: str) -> Any:
    """An encoder that reads the characters of words under the head of a task."""
    tokenizer = train("words", lines(), 14)  # some words are unknown
    return headed(task, Elmo(_elmo_config(tokenizer)), tokenizer)


def bidirectional() -> Any:
    """ELMo as its pre-training leaves it."""
    tokenizer = train("words", lines(), 14)
    task = task_class("bidirectional-language-modeling")
    return task(Elmo(_elmo_config(tokenizer)), tokenizer)


def _elmo_config(tokenizer: Tokenizer) -> Any:
    filters = ((1, 4), (3, 4))
    return _config(Elmo, tokenizer, d_cell=12, d_character=4, filters=filters, word_length=9)


def xlnet_classifier() -> Any:
    """A classifier on a model that reads distances alone, and pools at the last token."""
    tokenizer = with_marks(train("words", lines(), 60))
    return headed("classification", Xlnet(_config(Xlnet, tokenizer)), tokenizer)


def with_marks(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the tokens that XLNet puts around texts."""
    marked = tokenizer.with_roles({"sep": "<sep>", "cls": "<cls>"})
    return marked.with_template(Xlnet.template(marked))


def translator(kind: type = Transformer, task: str = "translation") -> Any:
    """A translator, or an encoder-decoder for another task."""
    tokenizer = train("words", lines(), 60)
    more: dict[str, Any] = (
        dict(max_length=LIMIT) if kind is Transformer else CONVOLUTIONAL.get(kind, {})
    )
    return task_class(task)(kind(_config(kind, tokenizer, **more)), tokenizer)


def tree_writer() -> Any:
    """An encoder-decoder that writes trees."""
    tokenizer = train("words", lines(), 60)
    tokenizer = tokenizer.with_special_tokens(["(XX)", "(S", ")S", "(NP", ")NP", "(VP", ")VP"])
    model = Transformer(_config(Transformer, tokenizer, max_length=2 * LIMIT))
    return task_class("sequence-parsing")(model, tokenizer)


def captioner(kind: type = ShowAttendTell, **options: Any) -> Any:
    """A captioner of small images."""
    tokenizer = train("words", lines(), 60)
    config = _config(kind, tokenizer, d_region=PATCH_FEATURES, **options)
    return task_class("captioning")(kind(config), tokenizer, regions="patches")


def span_corruption() -> Any:
    """A small T5, with sentinels."""
    names = [f"<extra_id_{number}>" for number in (3, 2, 1, 0)]
    tokenizer = train("words", lines(), 60).with_special_tokens(names)
    config = _config(T5, tokenizer, head_dim=8, max_length=LIMIT)
    return task_class("span-corruption")(T5(config), tokenizer)


def _config(kind: Any, tokenizer: Tokenizer, **more: Any) -> Any:
    """A small size of a model; fields that it does not have are left out."""
    fields = kind.Config.__dataclass_fields__
    sizes = dict(d_model=16, d_ff=16, heads=2, layers=1, encoder_layers=1, decoder_layers=1)
    special = {f"{role}": getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos")}
    given = {name: value for name, value in (sizes | special).items() if name in fields}
    return kind.Config(tokenizer.vocab_size, **given, **more)


# name of a folder -> what makes its task; every task is there, and some on other kinds of models
MAKERS: dict[str, Callable[[], Any]] = {
    **{name: (lambda name=name: encoder(name)) for name in (*HEADS, *OWN_HEADS, "embedding")},
    "classification-gpt2": gpt_classifier,
    "language-modeling": language,
    "language-modeling-gpt2": lambda: language(GPT2),
    "language-modeling-transformer-xl": lambda: language(TransformerXL),
    "hybrid-language-modeling": lambda: language(GPT2, "hybrid-language-modeling"),
    "permutation-language-modeling": permuted,
    "bidirectional-language-modeling": bidirectional,
    **{f"{task}-elmo": (lambda task=task: elmo(task)) for task in (*ELMO_TASKS, "embedding")},
    "classification-xlnet": xlnet_classifier,
    "classification-transformer-xl": xl_classifier,
    "translation": translator,
    "summarization": lambda: translator(task="summarization"),
    "text-to-text": lambda: translator(task="text-to-text"),
    "dialogue": lambda: translator(task="dialogue"),
    "span-corruption": span_corruption,
    "captioning": captioner,
    "captioning-transformer": lambda: captioner(RegionTransformer),
    "sequence-parsing": tree_writer,
    "translation-seq2seq": lambda: translator(Seq2Seq),
    "translation-conv-seq2seq": lambda: translator(ConvSeq2Seq),
    "translation-bytenet": lambda: translator(ByteNet),
}


def task_of(name: str) -> str:
    """The task of a folder."""
    return max((task for task in TASKS if name.startswith(task)), key=len)


def make(folder: Path) -> dict[str, Path]:
    """Write all of them."""
    found = {}
    for name, maker in MAKERS.items():
        torch.manual_seed(1)
        task = maker()
        with torch.no_grad():
            for weights in task.module.parameters():
                weights.add_(torch.randn_like(weights), alpha=0.3)
        runs.save(task, folder / name)
        found[name] = folder / name
    return found
