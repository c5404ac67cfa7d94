"""Names that people know from other libraries, and what they are called here.

    regard.train(task="text-classification", model={"name": "bert-base"}, lr=5e-5, ...)
    model.translate(text, num_beams=4, max_new_tokens=40)

The names are those of transformers, sentence-transformers, datasets, fastai and torch. They are
accepted wherever ours are: in recipes, as keywords, as NAME=VALUE on the command line and over
HTTP. Both names of an option together are an error, since one of the values would have no effect.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.errors import ConfigError


def _names(**by_option: str) -> dict[str, str]:
    """Other names, separated by spaces, by ours -> ours by the others."""
    return {other: ours for ours, others in by_option.items() for other in others.split()}


def _inside(section: str, names: Mapping[str, str]) -> dict[str, str]:
    return {other: f"{section}.{ours}" for other, ours in names.items()}


Named = Mapping[str, Any]  # options and sections by their names
Tables = dict[str, Any]  # the same, changed here

# ------------------------------------------------------------------------------- options

DECODING = _names(
    beams="num_beams beam_size",
    n_best="nbest num_hypotheses",
    length_penalty="lenpen",
    no_repeat_ngram="no_repeat_ngram_size",
    min_tokens="min_new_tokens",
    max_tokens="max_new_tokens",
    max_length_a="max_len_a",
    max_length_b="max_len_b",
    eos="eos_token_id",
    stop="stop_strings",
)
SAMPLING = ("temperature", "top_k", "top_p", "samples", "seed")
# Option of a recipe, by another name: its dotted name here.
OPTIONS = {
    **_inside(
        "training",
        _names(
            epochs="num_train_epochs n_epoch n_epochs num_epochs max_epochs",
            gradient_accumulation_steps="accumulate_grad_batches",
            logging_steps="log_every_n_steps",
            activation_checkpointing="gradient_checkpointing",
            precision="bf16",
        ),
    ),
    **_inside(
        "training.optimizer",
        _names(
            learning_rate="lr lr_max",
            weight_decay="wd",
            eps="adam_epsilon",
            max_grad_norm="clip_grad_norm gradient_clip_val",
        ),
    ),
    **_inside(
        "training.schedule",
        _names(warmup="warmup_ratio warmup_steps num_warmup_steps"),
    ),
    **_inside(
        "training.validation",
        _names(
            eval_steps="evaluation_steps val_check_interval", patience="early_stopping_patience"
        ),
    ),
    **_inside("objective", _names(label_smoothing="label_smoothing_factor")),
    **_inside(
        "data",
        _names(
            train="train_dataset train_data train_file train_df",
            valid="eval_dataset valid_dataset validation_file eval_file valid_df validation_data",
            test="test_dataset test_file test_df test_data",
            batch_size="per_device_train_batch_size train_batch_size bs",
            max_length="max_seq_length max_seq_len max_source_length",
            sequence_length="bptt seq_len seq_length",
            source_language="src_lang source_lang",
            target_language="tgt_lang target_lang",
        ),
    ),
    **_inside(
        "model",
        _names(
            d_model="hidden_size n_embd hidden_dim embed_dim",
            d_ff="intermediate_size ffn_dim encoder_ffn_dim n_inner dim_feedforward",
            heads="num_attention_heads encoder_attention_heads num_heads n_head nhead",
            layers="num_hidden_layers num_layers n_layer n_layers",
            decoder_layers="num_decoder_layers",
            encoder_layers="num_encoder_layers",
            decoder_d_ff="decoder_ffn_dim",
            decoder_heads="decoder_attention_heads",
            max_length="max_position_embeddings n_positions n_ctx",
            tied="tie_word_embeddings tie_weights",
            d_embedding="embedding_size",
            head_dim="d_kv",
            key_value_heads="num_key_value_heads",
            activation="hidden_act activation_function",
            norm_eps="layer_norm_eps layer_norm_epsilon rms_norm_eps",
            init_range="initializer_range",
            segments="type_vocab_size",
            dropout="hidden_dropout_prob resid_pdrop dropout_rate",
            attention_dropout="attention_probs_dropout_prob attn_pdrop",
            embedding_dropout="embd_pdrop",
            head_dropout="classifier_dropout",
            cell="rnn_type cell_type",
        ),
    ),
    **_inside("decoding", DECODING),
}
LORA = _names(rank="r", alpha="lora_alpha", dropout="lora_dropout", targets="target_modules")
EMBEDDING = _names(normalize="normalize_embeddings", granularity="output_value")
# Options of sentence-transformers' `encode` that change no vector.
EMBEDDING_WITHOUT_EFFECT = ("batch_size", "show_progress_bar", "convert_to_numpy")


def _bfloat16(wanted: Any) -> Any:
    return "bfloat16" if wanted is True else None


OUTPUT_VALUES = {"sentence_embedding": "sentence", "token_embeddings": "token"}
# Other name of an option -> its value here; None: the option is not given.
VALUES: dict[str, Callable[[Any], Any]] = {
    "bf16": _bfloat16,
    "normalize_embeddings": lambda value: value or None,
    "output_value": lambda value: OUTPUT_VALUES.get(value, value),
}

# ------------------------------------------------------------------------ tasks and models

TASKS = {
    other.replace("_", "-"): ours
    for ours, others in {
        "tagging": "ner token-classification pos named-entity-recognition pos-tagging",
        "classification": "text-classification sequence-classification sentiment-analysis",
        "multi-label-classification": "multi-label",
        "language-modeling": "causal-lm text-generation clm causal-language-modeling lm",
        "text-to-text": "seq2seq-lm text2text-generation",
        "masked-language-modeling": "masked-lm mlm",
        "permutation-language-modeling": "plm",
        "embedding": "feature-extraction sentence-similarity sentence-embedding",
        "question-answering": "qa extractive-qa extractive-question-answering",
        "captioning": "image-to-text image-captioning",
        "dialogue": "conversational chat",
        "translation": "machine-translation nmt mt",
        "parsing": "constituency-parsing",
    }.items()
    for other in others.split()
}
PAIR_TASKS = ("translation", "summarization", "text-to-text", "dialogue", "sequence-parsing")
CELLS = {"lstm": {}, "gru": {"cell": "gru"}, "rnn": {"cell": "rnn"}}  # of `lstm-lm`
# The size that a name may end with: bert-base-cased, t5-3b.
SIZED = re.compile(
    r"(.+)-(tiny|mini|xsmall|small|medium|base|large|xlarge|xxlarge|big|3b|11b)(-cased|-uncased)?"
)
MODELS: dict[str, tuple[str, str]] = {  # another name -> name and size
    "gpt2-small": ("gpt2", "124M"),
    "gpt2-medium": ("gpt2", "355M"),
    "gpt2-large": ("gpt2", "774M"),
    "gpt2-xl": ("gpt2", "1558M"),
    "openai-gpt": ("gpt", ""),
    "big-bird": ("bigbird", ""),
    "deberta-v2": ("deberta", ""),
    "deberta-v3": ("deberta", ""),
    "xlmr": ("xlm-roberta", ""),
    "cnn": ("kim-cnn", ""),
    "textcnn": ("kim-cnn", ""),
    "text-cnn": ("kim-cnn", ""),
}
# Models whose names alone mean published weights to people; without the size, and with it. The
# miniatures of BERT were published by other names.
PRETRAINED = (
    *("elmo", "gpt", "bert", "roberta", "xlm-roberta", "mpnet", "xlnet", "electra", "albert"),
    *("bigbird", "deberta", "distilbert", "gpt2", "gpt-neo", "llama", "bart", "mbart"),
    *("m2m-100", "t5"),
)
MINIATURES = ("tiny", "mini", "small", "medium")  # of BERT


REGISTERED: set[str] = set()  # names that a user has given to models and tasks


def task_name(name: str) -> str:
    """The name of a task here; a name that is not in the table stays, but for underscores."""
    return name if name in REGISTERED else TASKS.get(_plain(name), name.replace("_", "-"))


def model_options(name: str, task: str) -> dict[str, str]:
    """The options of [model] that a name of a model stands for: {"name": "bert", "size": "base"}.

    A name that is not in the table stays, but for underscores and capitals.
    """
    if name in REGISTERED:
        return {"name": name}
    plain = _plain(name)
    if plain in CELLS and task == "language-modeling":
        return {"name": "lstm-lm"} | CELLS[plain]
    if plain == "lstm" and task:
        return {"name": "lstm-seq2seq" if task in PAIR_TASKS else "bilstm"}
    ours, size = _name_and_size(plain)
    return {"name": ours} | ({"size": size} if size else {})


def _name_and_size(plain: str) -> tuple[str, str]:
    """The name of a model, and its size; "" where the name does not say it."""
    if plain not in MODELS and (sized := SIZED.fullmatch(plain)):
        return MODELS.get(sized[1], (sized[1], ""))[0], sized[2]
    return MODELS.get(plain, (plain, ""))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


# Names of options and tasks, without their sections -> ours, for suggestions.
OTHER_NAMES = {other: ours.rpartition(".")[2] for other, ours in OPTIONS.items()} | TASKS

# ------------------------------------------------------------------------------- columns

# Names of columns of tables by which they are found; of several names the first that is there.
WORDS = ("words", "tokens")
TAGS = ("tags", "ner_tags", "pos_tags", "chunk_tags", "labels")
TARGETS = ("label_text", "label", "labels", "class", "target", "score", "stars")
# of a text with a relation: its words, the first and the last of its head, those of its tail
TACRED = ("token", "subj_start", "subj_end", "obj_start", "obj_end")
TEXTS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")),
    *(("text1", "text2"), ("text_a", "text_b"), ("question", "sentence")),
    *(("text", "head", "tail"), TACRED, ("text",)),
    *(("anchor", "positive"), ("query", "positive"), ("query", "answer"), ("question", "answer")),
    *(("sentence",), ("review",), ("content",)),
)
NEGATIVES = re.compile(r"negatives?(_\d+)?")  # beside a pair
SOURCES = (  # of texts from which others are generated, and these; of relations
    *(("document", "summary"), ("article", "highlights"), ("dialogue", "summary")),
    *(("text", "summary"), ("source", "target"), ("src", "tgt"), ("input", "output")),
    (*TACRED, "relation"),
)
# All usual names: a first line that has no others is probably a header.
COLUMNS = {
    *TARGETS,
    *(name for names in TEXTS for name in names),
    *"article body category comment content context document gold_label headline input".split(),
    *"intent labels output polarity post query question rating review sentiment score".split(),
    *"negative negatives source src stars summary target targets tgt title topic tweet".split(),
    *"cs de en es fi fr hi it ja nl pl pt ro ru zh english french german spanish".split(),
}

# ---------------------------------------------------------------------------- translating

DATA = ("train", "valid", "test")  # options whose mappings are columns of data
DEEPEST = 20  # sections in one another; deeper ones are an error elsewhere


def recipe(tables: Named) -> Tables:
    """The tables of a recipe, or keywords, with our names and values.

    A text for the sections [tokenizer], [optimizer] and [schedule] is their kind or name.

    Raises:
        ConfigError: two names of one option are given.
    """
    moved: dict[str, tuple[str, Any]] = {}
    ours = _own(tables, "", moved)
    for key, (other, value) in moved.items():
        *sections, option = key.split(".")
        table = ours
        for section in sections:
            inner = table.setdefault(section, {})
            if not isinstance(inner, dict):  # the folder of a model
                inner = table[section] = {"path": inner}
            table = inner
        if option in table:
            raise _twice(other, option)
        table[option] = value
    return ours


TWO_STACKS = ("transformer", "transformer-prenorm", "bart", "mbart")  # `layers` is of both


def of_recipe(tables: Named, overrides: Named) -> tuple[Tables, Tables]:
    """Tables and overrides, values by dotted names, with our names, also of task and model.

    A text for `model` replaces the whole section, a name of a model the path, and a path the name.

    Raises:
        ConfigError: two names of one option are given, in the tables or in the overrides.
    """
    ours, changed = recipe(tables), Tables()
    for key, value in overrides.items():
        for name, converted in _as_override(key, value).items():
            if name != key and name in changed:
                raise _twice(key, name)
            changed[name] = converted
    if isinstance(changed.get("model"), str):
        changed = {"model.path" if key == "model" else key: changed[key] for key in changed}
    _drop_replaced_model(ours, overrides, changed)
    for names in (ours, changed):
        if isinstance(names.get("task"), str):
            names["task"] = task_name(names["task"])
    task = str(changed.get("task", ours.get("task", "")))
    model, new = ours.get("model"), changed.get("model.name")
    if isinstance(model, dict) and isinstance(model.get("name"), str):
        ours["model"] = _named_model(model, task)
    if isinstance(new, str):
        changed |= {f"model.{key}": value for key, value in model_options(new, task).items()}
    return ours, changed


def _drop_replaced_model(ours: Tables, overrides: Named, changed: Named) -> None:
    """Remove what overrides of the model replace from the tables: all of [model], or its source."""
    model = ours.get("model")
    if isinstance(overrides.get("model"), str):
        ours["model"] = {}
    elif isinstance(model, dict):
        replaced = {"path"} if "model.name" in changed else set[str]()
        replaced |= {"name", "size"} if "model.path" in changed else set()
        ours["model"] = {key: value for key, value in model.items() if key not in replaced}


def _named_model(model: Named, task: str) -> Tables:
    """[model] with our name, and the size or the cell that the other name says.

    Raises:
        ConfigError: it has another size or cell.
    """
    options = model_options(model["name"], task)
    for option in options.keys() & model.keys() - {"name"}:
        if model[option] not in ("", options[option]):
            wrong = f"and `{option}` is {model[option]!r}. Leave it out"
            raise ConfigError(f"{model['name']!r} has the {option} {options[option]!r}, {wrong}.")
    named = {**model, **options}
    if named["name"] in TWO_STACKS and "layers" in named:
        layers = named.pop("layers")
        named = {"encoder_layers": layers, "decoder_layers": layers, **named}
    return named


def _as_override(key: str, value: Any) -> Tables:
    """The value of a dotted name by our dotted name, or by those of its parts."""
    *sections, name = key.split(".")
    nested: Tables = {name: value}
    for section in reversed(sections):
        nested = {section: nested}
    ours = recipe(nested)
    return {key: value} if ours == nested else dict(_leaves(ours, ""))


def _leaves(table: Named, section: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def _own(table: Named, section: str, moved: dict[str, tuple[str, Any]]) -> Any:
    """The options of a section that have our names; the others are put into `moved`."""
    ours: Tables = {}
    if section == "decoding":
        table = decoding(table)
    for name, value in table.items():
        key = f"{section}.{name}" if section else name
        if (target := _target(name, section)) is not None:
            converted = VALUES[name](value) if name in VALUES else value
            if converted is not None:
                _move(name, converted, target, table, moved)
        elif isinstance(value, Mapping) and name not in DATA and key.count(".") < DEEPEST:
            ours[name] = _own(value, key, moved)
        elif isinstance(value, str) and key.removeprefix("training.") in ("optimizer", "schedule"):
            ours[name] = {"name": value}
        elif isinstance(value, str) and key == "tokenizer":
            ours[name] = {"path" if "/" in value or Path(value).exists() else "kind": value}
        elif key == "model" and _is_name(value):
            ours[name] = {"name": _with_random_weights(value)}
        else:
            ours[name] = value
    return ours


def _is_name(model: Any) -> bool:
    """Whether this is the name of a model, and neither a folder nor ORG/NAME."""
    if not isinstance(model, str) or not model or "/" in model or os.sep in model:
        return False
    return not os.path.exists(model)


def _with_random_weights(model: str) -> str:
    """The name of a model that is trained from random weights.

    Raises:
        ConfigError: to people the name means published weights.
    """
    name, size = _name_and_size(_plain(model))
    miniature = name == "bert" and size in MINIATURES
    if model in REGISTERED or name not in PRETRAINED or miniature:
        return model
    options = f'"name": "{name}"' + (f', "size": "{size}"' if size else "")
    other = f"for random weights give model={{{options}}}"
    raise ConfigError(f"There is no folder {model!r}. Give a folder or ORG/NAME; {other}.")


def _target(name: str, section: str) -> str | None:
    """Our dotted name of an option by another name in a section; None: it is no other name."""
    if section == "model.lora" and name in LORA:
        return f"{section}.{LORA[name]}"
    target = OPTIONS.get(name)
    if target is None:
        return None
    root, _, option = target.partition(".")
    if section == "model.base_model" and root == "model":
        return f"{section}.{option}"
    return target if section.partition(".")[0] in ("", root) else None


def _move(other: str, value: Any, target: str, table: Named, moved: Tables) -> None:
    option = target.rpartition(".")[2]
    if option in table:
        raise _twice(other, option)
    if target in moved:
        raise _twice(moved[target][0], other)
    moved[target] = other, value


def _twice(first: str, second: str) -> ConfigError:
    return ConfigError(f"`{first}` and `{second}` mean the same. Leave one of them out.")


def decoding(named: Named) -> Tables:
    """Options of decoding with our names; None means not given.

    Raises:
        ConfigError: two names of one option are given.
    """
    named = {name: value for name, value in named.items() if value is not None}
    ours = _renamed(named, DECODING)
    if (count := ours.pop("num_return_sequences", None)) is not None:
        option = "n_best" if ours.keys() & {"beams", "n_best"} else "samples"
        if option in ours:
            raise _twice("num_return_sequences", option)
        ours[option] = count
    if ours.pop("do_sample", False) and not ours.keys() & {*SAMPLING}:
        ours["temperature"] = 1.0
    return ours


def embedding(named: Named) -> Tables:
    """Options of `embed` with our names. Raises as `decoding`."""
    if named.get("convert_to_numpy", True) is not True:
        raise ConfigError("`convert_to_numpy` must be True: vectors are arrays of NumPy.")
    options = {name: value for name, value in named.items() if name not in EMBEDDING_WITHOUT_EFFECT}
    return _renamed(options, EMBEDDING)


def _renamed(named: Named, names: Mapping[str, str]) -> Tables:
    ours: Tables = {}
    first: dict[str, str] = {}  # by which name each of our options was given
    for name, value in named.items():
        option = names.get(name, name)
        if (before := first.setdefault(option, name)) != name:
            raise _twice(before, name)
        ours[option] = VALUES[name](value) if name in VALUES and name != option else value
    return ours


# ------------------------------------------------------------------------------- meaning

_LABELS = "The labels are those of the training data."
_NO_WORKERS = "There are no workers: the data are tokenized once, before the training."
_BEST = "A run keeps the weights of the best validation score; `patience` stops it early."
_CROSS = "`regard.cross_validate(..., folds=5)` and `regard cross-validate` do this."
# Names of what is no option here -> what to do.
ELSEWHERE = {
    **dict.fromkeys(("num_labels", "label2id", "id2label", "label_list"), _LABELS),
    **dict.fromkeys(("num_workers", "dataloader_num_workers", "n_jobs"), _NO_WORKERS),
    **dict.fromkeys(("load_best_model_at_end", "metric_for_best_model"), _BEST),
    **dict.fromkeys(("cv", "n_splits", "folds"), _CROSS),
    **dict.fromkeys(("eval_strategy", "evaluation_strategy"), "`eval_steps=0` is each epoch."),
    "pad_token_id": "The padding token is the tokenizer's.",
    "fp16": 'Training is in float32, or with precision = "bfloat16" in [training].',
    "report_to": "For TensorBoard write `tensorboard=true` in [training].",
    "resume_from_checkpoint": "`regard.resume(FOLDER)` continues a run.",
    "convert_to_tensor": "Vectors are NumPy arrays: torch.from_numpy(...) makes a tensor of one.",
    "use_crf": 'The task "crf-tagging" has a CRF.',
    "padding": "Texts are padded to the longest of their batch.",
    "lora_r": 'Write `lora = {rank = 8}` in [model]: model={"path": FOLDER, "lora": {"rank": 8}}.',
}
