"""Model folders as they are found: published configs of each family, made small and mutated.

`drawn(draw, folder)` writes one folder: weights of `transformers`, a config.json with the fields
of a published one, a tokenizer, and mutations of each of the kinds in `MUTATIONS`.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from drawn_folders import BYTES, GPT, UNIGRAMS, WORDPIECES, tokenizer_json
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# ----------------------------------------------------------------------------------- configs

SIZES = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20)
PAIR = dict(
    d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
    decoder_attention_heads=3, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=24,
    scale_embedding=True, num_hidden_layers=2, vocab_size=len(UNIGRAMS) + 3, pad_token_id=2,
    eos_token_id=1, decoder_start_token_id=2, bos_token_id=1,
)  # fmt: skip
GPT_SIZES = dict(n_embd=12, n_layer=2, n_head=3, n_positions=24, n_ctx=24)
BERT_SIZES = SIZES | dict(
    vocab_size=len(WORDPIECES) + 3, max_position_embeddings=24, pad_token_id=2
)

# The fields of published files, their sizes replaced.
PUBLISHED: dict[str, dict[str, Any]] = {
    "bert": {
        "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
        "model_type": "bert", "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True,
        "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform", "classifier_dropout": None,
    } | BERT_SIZES,
    "roberta": {
        "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02,
        "layer_norm_eps": 1e-05, "model_type": "roberta", "pad_token_id": 1,
        "type_vocab_size": 1, "vocab_size": len(BYTES) + 3, "max_position_embeddings": 26,
        "output_past": True, "use_cache": True,
    } | SIZES,
    "distilbert": {
        "activation": "gelu", "attention_dropout": 0.1, "dim": 12, "dropout": 0.1,
        "finetuning_task": "sst-2", "hidden_dim": 20, "initializer_range": 0.02,
        "max_position_embeddings": 24, "model_type": "distilbert", "n_heads": 3, "n_layers": 2,
        "output_past": True, "pad_token_id": 2, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": len(WORDPIECES) + 3,
    },
    "gpt2": {
        "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1,
        "bos_token_id": BYTES["<|endoftext|>"], "eos_token_id": BYTES["<|endoftext|>"],
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": len(BYTES) + 3,
    } | GPT_SIZES,
    "openai-gpt": {
        "afn": "gelu", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "openai-gpt", "n_special": 0,
        "predict_special_tokens": True, "resid_pdrop": 0.1, "summary_activation": None,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "vocab_size": len(GPT) + 3,
    } | GPT_SIZES,
    "marian": {
        "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
        "add_final_layer_norm": False, "attention_dropout": 0.0, "classif_dropout": 0.0,
        "classifier_dropout": 0.0, "decoder_layerdrop": 0.0, "dropout": 0.1,
        "encoder_layerdrop": 0.0, "extra_pos_embeddings": 2, "init_std": 0.02,
        "force_bos_token_to_be_generated": False, "is_encoder_decoder": True,
        "model_type": "marian", "normalize_before": False, "normalize_embedding": False,
        "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
        "use_cache": True,
    } | PAIR,
    "pegasus": {
        "activation_dropout": 0.1, "activation_function": "relu", "add_bias_logits": False,
        "add_final_layer_norm": True, "attention_dropout": 0.1, "classif_dropout": 0.0,
        "decoder_layerdrop": 0.0, "dropout": 0.1, "encoder_layerdrop": 0.0,
        "extra_pos_embeddings": 1, "force_bos_token_to_be_generated": False,
        "gradient_checkpointing": False, "is_encoder_decoder": True, "model_type": "pegasus",
        "normalize_before": True, "normalize_embedding": False,
        "static_position_embeddings": True, "use_cache": True,
    } | PAIR,
}  # fmt: skip
NAMES = {
    "bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "gpt2": "GPT2",
    "openai-gpt": "OpenAIGPT", "marian": "Marian", "pegasus": "Pegasus",
}  # fmt: skip
TOKENIZERS = {"distilbert": "bert", "openai-gpt": "gpt", "pegasus": "marian"}
HEADS = {
    **dict.fromkeys(("bert", "roberta", "distilbert"), (
        "Model", "ForMaskedLM", "ForSequenceClassification", "ForSequenceClassification",
        "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice",
    )),
    "gpt2": ("LMHeadModel", "ForSequenceClassification", "ForTokenClassification"),
    "openai-gpt": ("LMHeadModel", "ForSequenceClassification"),
    "marian": ("MTModel",),
    "pegasus": ("ForConditionalGeneration",),
}  # fmt: skip
SEQ2SEQ = ("marian", "pegasus")
LABELLED = ("ForSequenceClassification", "ForTokenClassification")

# Fields that published files of other models and programs have, and no class of these families.
UNKNOWN: dict[str, Any] = {
    "auto_map": {"AutoModel": "modeling_x.XModel"}, "eos_token_ids": 0, "cell": {}, "vocab": "x",
    "pre_trained": "", "sentence_transformers": {"version": "4.1.0"}, "inner_group_num": 1,
    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity", "gap_size": 0,
    "net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0, "adapters": {},
    "down_scale_factor": 1, "train_batch_size": 32, "fine_tuned_on": "squad", "model_max_length": 9,
    "unsloth_version": "2024.9", "rope_theta": 1e4, "hidden_dropout": 0.3, "embedding_dim": 7,
    "_commit_hash": "6a5f", "return_dict": True, "num_beams": 5, "temperature": 0.3, "xla": None,
    "repetition_penalty": 1.3, "length_penalty": 2.0, "do_sample": True, "max_length": 60,
    "no_repeat_ngram_size": 3, "early_stopping": True, "bad_words_ids": [[1]], "language": "en",
    "tie_encoder_decoder": False, "encoder_stride": 16, "is_training": True,
}  # fmt: skip
# Fields of the classes with values that change no result.
WITHOUT_EFFECT: dict[str, Any] = {
    "use_cache": False, "chunk_size_feed_forward": 1, "output_hidden_states": True,
    "initializer_range": 0.3, "dtype": "float16", "torch_dtype": "bfloat16",
    "output_attentions": False, "transformers_version": "3.0.0", "finetuning_task": "x",
    "tokenizer_class": None, "prefix": " ", "torchscript": False,
}  # fmt: skip
# Fields that change results, each with a value for which there is no such model here.
DECISIVE: dict[str, Any] = {
    "is_decoder": True, "quantization_config": {"quant_method": "gptq", "bits": 4},
    "position_embedding_type": "relative_key", "hidden_act": "gleu", "afn": "gleu",
    "activation_function": "gleu", "activation": "gleu", "num_attention_heads": 5, "n_head": 5,
    "architectures": ["XForMusic"],
}  # fmt: skip


@dataclass
class Found:
    """A drawn folder.

    kind: the name of their class.  config, tensors, files: what is written; files by name, besides
        config.json and the weights.
    changes: the mutations that were drawn.
    refusable: names of fields of which an error is as good as equal results.
    unread: (file, field) of fields that were put into files of sentence-transformers, which does
        not open them.
    """

    family: str
    kind: str
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    files: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    refusable: set[str] = field(default_factory=set)
    pickled: bool = False
    unread: list[tuple[str, str]] = field(default_factory=list)

    @property
    def ending(self) -> str:
        """The name of their class without that of the family."""
        return self.kind.removeprefix(NAMES[self.family])

    def write(self, folder: Path) -> None:
        """All files of the folder."""
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.pickled:
            torch.save(self.tensors, folder / "pytorch_model.bin")
        else:
            save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for name, content in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text, encoding="utf-8")


def drawn(draw: Random, folder: Path) -> Found:
    """Write a folder with drawn mutations."""
    family = draw.choice([*PUBLISHED, "bert", "roberta", "distilbert"])
    found = plain(family, draw.choice(HEADS[family]), draw, folder)
    for name, mutate in MUTATIONS.items():
        if draw.random() < 0.4 and mutate(found, draw) is not False:
            found.changes.append(name)
    found.write(folder)
    return found


def plain(family: str, ending: str, draw: Random, folder: Path) -> Found:
    """A folder without mutations, not written."""
    kind, config = NAMES[family] + ending, dict(PUBLISHED[family])
    config["architectures"] = [kind]
    if ending in LABELLED:
        names = [f"L{i}" for i in range(draw.randint(2, 4))]
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    tokenizer = tokenizer_json(TOKENIZERS.get(family, family), draw)
    stated = {"tokenizer_class": "PreTrainedTokenizerFast"} if family in SEQ2SEQ else {}
    files = {"tokenizer.json": tokenizer, "tokenizer_config.json": stated}
    if family in ("gpt2", "openai-gpt") and ending == "ForSequenceClassification":
        config["pad_token_id"] = config["eos_token_id"] = draw.randrange(5, 9)
    return Found(family, kind, config, weights(kind, config, draw, folder), files)


def weights(
    kind: str, config: dict[str, Any], draw: Random, folder: Path
) -> dict[str, torch.Tensor]:
    """Random weights as `transformers` writes them for a class and a config."""
    torch.manual_seed(draw.randrange(1000))
    of = getattr(transformers, kind)
    model = of(of.config_class(**config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for file in folder.iterdir():
        file.unlink()
    return {name: tensor.clone() for name, tensor in tensors.items()}


# ----------------------------------------------------------------------------------- mutations


def unknown_fields(found: Found, draw: Random) -> None:
    """Fields that no class of the family knows, and names that nobody knows."""
    for name in draw.sample([*UNKNOWN], draw.randint(1, 8)):
        found.config.setdefault(name, UNKNOWN[name])
    for _ in range(draw.randint(0, 2)):
        name = "".join(draw.choices(string.ascii_lowercase + "_", k=draw.randint(1, 12)))
        found.config.setdefault(name, draw.choice([1, -0.5, "x", True, None, [1], {"a": [{}]}]))


def fields_without_effect(found: Found, draw: Random) -> None:
    """Fields of the class at values that change nothing, and values that are null."""
    for name in draw.sample([*WITHOUT_EFFECT], draw.randint(1, 4)):
        found.config[name] = WITHOUT_EFFECT[name]


def missing_fields(found: Found, draw: Random) -> None:
    """Fields that have the class's default, which may as well be absent."""
    default = getattr(transformers, found.kind).config_class()
    same = [
        name
        for name, value in found.config.items()
        if name not in ("model_type", "architectures") and getattr(default, name, None) == value
    ]
    for name in draw.sample(same, draw.randint(0, len(same))):
        del found.config[name]


def missing_architectures(found: Found, draw: Random) -> bool | None:
    """No `architectures`: tensors and labels must say which head there is."""
    if draw.random() < 0.5:
        return False
    del found.config["architectures"]
    return None


def other_dtype(found: Found, draw: Random) -> None:
    """Weights in half precision; the config may say something else."""
    dtype = draw.choice([torch.float16, torch.bfloat16])
    found.tensors = {
        name: tensor.to(dtype)
        for name, tensor in found.tensors.items()
        if "embed_positions" not in name  # sines, which no half-precision folder holds
    }
    if draw.random() < 0.6:
        name = str(dtype).removeprefix("torch.")
        found.config[draw.choice(["dtype", "torch_dtype"])] = name


def leftover_tensors(found: Found, draw: Random) -> None:
    """Tensors of other heads, of no model, of layers beyond the last, and old buffers."""
    prefix = {"bert": "bert.", "roberta": "roberta.", "distilbert": "distilbert."}.get(found.family)
    extra = {"stray.weight": torch.randn(3), "loss.weight": torch.ones(2)}
    if prefix is not None:
        prefix = prefix if any(name.startswith(prefix) for name in found.tensors) else ""
        layers = "transformer.layer" if found.family == "distilbert" else "encoder.layer"
        extra[f"{prefix}{layers}.5.output.dense.bias"] = torch.randn(12)
        extra[f"{prefix}embeddings.position_ids"] = torch.arange(24)[None]
    if found.family == "bert" and "architectures" in found.config:
        extra["cls.seq_relationship.weight"] = torch.randn(2, 12)
        extra["cls.predictions.bias"] = torch.randn(found.config["vocab_size"])
    for name in draw.sample(sorted(extra), draw.randint(1, min(3, len(extra)))):
        found.tensors.setdefault(name, extra[name])


def other_labels(found: Found, draw: Random) -> bool | None:
    """Names that repeat, numbers as names, no names at all, or a wrong way back."""
    if "id2label" not in found.config:
        return False
    names, count = found.config["id2label"], len(found.config["id2label"])
    choice = draw.randrange(5)
    if choice == 0:
        names["0"] = names["1"]
        found.refusable |= {"label2id"}
    elif choice == 1:
        found.config["id2label"] = {str(i): i for i in range(count)}
        del found.config["label2id"]
    elif choice == 2:
        del found.config["id2label"], found.config["label2id"]
        found.config["num_labels"] = count
    elif choice == 3:
        found.config["label2id"] = {"L0": count}
        found.refusable |= {"label2id"}
    elif found.ending == "ForSequenceClassification" and "architectures" not in found.config:
        return False  # nobody could tell it from a tagger
    else:
        names["0"] = "O"
        names |= {str(i): f"B-{i}" for i in range(1, count)}
        del found.config["label2id"]
    return None


def problem_type(found: Found, draw: Random) -> bool | None:
    """Several answers at once, or several numbers, which no task here predicts."""
    if found.ending != "ForSequenceClassification":
        return False
    kinds = ["multi_label_classification", "regression", "single_label_classification"]
    found.config["problem_type"] = draw.choice(kinds)
    if found.config["problem_type"] == "regression":
        found.refusable |= {"problem_type"}
    return None


def other_names(found: Found, draw: Random) -> bool | None:
    """Norms as TensorFlow names them, a pickle for weights, or names of the base class."""
    choice = draw.randrange(3)
    if choice == 0 and found.family == "bert":
        pairs = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new, old in pairs:
            found.tensors = {n.replace(new, old): t for n, t in found.tensors.items()}
    elif choice == 1:
        found.pickled = True
    elif found.family in ("gpt2", "openai-gpt"):
        aliases = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers"}
        for own, other in (aliases | {"n_positions": "max_position_embeddings"}).items():
            found.config[other] = found.config.pop(own)
    elif found.family == "distilbert":
        aliases = {"dim": "hidden_size", "n_layers": "num_hidden_layers"}
        for own, other in (aliases | {"n_heads": "num_attention_heads"}).items():
            found.config[other] = found.config.pop(own)
    else:
        return False
    return None


def tokenizer_settings(found: Found, draw: Random) -> None:
    """Limits and sides in tokenizer_config.json, truncation and padding in tokenizer.json."""
    config = found.files["tokenizer_config.json"]
    if draw.random() < 0.6:
        config["model_max_length"] = draw.choice([9, 16, 24, 512, int(1e30)])
    if draw.random() < 0.6:
        config["truncation_side"] = draw.choice(["left", "right"])
    if draw.random() < 0.3:
        config["padding_side"] = draw.choice(["left", "right"])
    if draw.random() < 0.3:
        config["clean_up_tokenization_spaces"] = draw.random() < 0.5
    if draw.random() < 0.3:
        rule = {"max_length": 11, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
        found.files["tokenizer.json"] = found.files["tokenizer.json"] | {"truncation": rule}


def generation(found: Found, draw: Random) -> bool | None:
    """generation_config.json of a model that generates, with fields of several methods."""
    if found.ending not in ("LMHeadModel", "MTModel", "ForConditionalGeneration"):
        return False
    known = {
        "repetition_penalty": 1.3, "bad_words_ids": [[5], [4, 3]], "penalty_alpha": 0.6,
        "temperature": 0.7, "top_k": 4, "top_p": 0.9, "typical_p": 0.8, "do_sample": False,
        "num_beams": 2, "length_penalty": 0.8, "no_repeat_ngram_size": 3, "max_length": 20,
        "early_stopping": True, "diversity_penalty": 0.0, "min_length": 2, "num_beam_groups": 1,
        "_from_model_config": True, "transformers_version": "4.27.0", "temperatur": 1,
    }  # fmt: skip
    names = draw.sample([*known], draw.randint(1, 7))
    found.files["generation_config.json"] = {name: known[name] for name in names}
    found.refusable |= {"penalty_alpha"} & {*names}
    return None


def decisive_field(found: Found, draw: Random) -> bool | None:
    """A field of which no model here computes the value."""
    if draw.random() < 0.75:
        return False
    known = {*found.config, "is_decoder", "quantization_config"}
    name = draw.choice([name for name in DECISIVE if name in known])
    if name == "is_decoder" and found.family not in ("bert", "roberta"):
        return False
    found.config[name] = DECISIVE[name]
    found.refusable |= {name}
    return None


ALSO_CALLED = {
    "hidden_size": {"dim", "n_embd"},
    "num_hidden_layers": {"n_layers", "n_layer"},
    "num_attention_heads": {"n_heads"},
}
SIZE_FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "dim", "n_layers"),
    *("n_embd", "n_layer", "n_head", "n_positions", "d_model", "encoder_layers"),
)


def odd_numbers(found: Found, draw: Random) -> bool | None:
    """-1 for no token, several ends, null for a default, 12.0 for 12."""
    choice, config = draw.randrange(4), found.config
    if choice == 0:
        if config.get("pad_token_id") == config.get("eos_token_id") and found.ending in LABELLED:
            return False  # their classifier of GPT takes the last token that is no padding
        config["pad_token_id"] = -1
        if found.family in ("roberta", *SEQ2SEQ):  # positions and sources need a padding token
            found.refusable |= {"pad_token_id"}
    elif choice == 1:
        config["eos_token_id"] = draw.choice([[1, 2], [4, 3, 1], [2]])
    elif choice == 2:
        default = getattr(transformers, found.kind).config_class()
        empty = [n for n in vars(default) if getattr(default, n) is None and n not in config]
        for name in draw.sample(empty, min(len(empty), draw.randint(1, 5))):
            config[name] = None
    else:
        twice = ("num_hidden_layers",) if found.family in SEQ2SEQ else ()  # an alias
        names = [n for n in SIZE_FIELDS if type(config.get(n)) is int and n not in twice]
        name = draw.choice(names)
        config[name] = float(config[name])
        found.refusable |= {name} | ALSO_CALLED.get(name, set())
    return None


# Of sentence-transformers: fields of their files that change no vector, by file.
UNREAD: dict[str, dict[str, Any]] = {
    "sentence_bert_config.json": {"my_note": "x", "pooling": "mean", "version": {"a": 1}},
    "1_Pooling/config.json": {"layers": [1], "dropout": 0.1, "note": "x", "pooler": True},
    "2_Normalize/config.json": {"p": 2, "eps": 1e-12},
}
HARMLESS: dict[str, Any] = {
    "model_args": {"trust_remote_code": True}, "tokenizer_args": {}, "unpad_inputs": False,
    "model_kwargs": {"attn_implementation": "eager"}, "config_args": {"trust_remote_code": True},
    "do_lower_case": False, "transformer_task": "feature-extraction",
}  # fmt: skip
DECISIVE_VECTORS: dict[str, dict[str, Any]] = {
    "sentence_bert_config.json": {
        "query_length": 3, "transformer_task": "fill-mask", "module_output_name": "x",
        "tokenizer_args": {"truncation_side": "left"}, "model_args": {"num_hidden_layers": 1},
    },
    "1_Pooling/config.json": {"pooling_mode_median": True, "pooling_mode": "median"},
    "config_sentence_transformers.json": {"model_type": "SparseEncoder"},
}  # fmt: skip


def sentence_transformers(found: Found, draw: Random) -> bool | None:
    """The files of sentence-transformers around an encoder, with further fields."""
    if found.ending != "Model" or found.family not in ("bert", "roberta", "distilbert"):
        return False
    kinds = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
    pooling: dict[str, Any] = {"word_embedding_dimension": 12, "pooling_mode": draw.choice(kinds)}
    if draw.random() < 0.5:
        flags = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens"}
        used = draw.choice([*flags])
        names = {f"pooling_mode_{flag}": kind == used for kind, flag in flags.items()}
        pooling = {"word_embedding_dimension": 12, **names}
    parts = ["Transformer", "Pooling", "Normalize"][: draw.randint(2, 3)]
    found.files |= {
        "modules.json": [
            {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "",
             "type": f"sentence_transformers.models.{kind}", "kwargs": []}
            for i, kind in enumerate(parts)
        ],
        "1_Pooling/config.json": pooling,
        "2_Normalize/config.json": {},
        "sentence_bert_config.json": {"max_seq_length": draw.choice([None, 7, 16])},
        "config_sentence_transformers.json": {
            "__version__": {"pytorch": "2"}, "similarity_fn_name": "dot", "my_note": [1],
            "prompts": {"query": "q: "}, "default_prompt_name": None,
        },
    }  # fmt: skip
    for name in draw.sample([*HARMLESS], draw.randint(0, 3)):
        found.files["sentence_bert_config.json"][name] = HARMLESS[name]
    for file, fields in UNREAD.items():
        for name in draw.sample([*fields], draw.randint(0, 2)):
            found.files[file][name] = fields[name]
            found.unread.append((file, name))
    if draw.random() < 0.2:
        file = draw.choice([*DECISIVE_VECTORS])
        name = draw.choice([*DECISIVE_VECTORS[file]])
        found.files[file][name] = DECISIVE_VECTORS[file][name]
        found.refusable |= {
            name,
            *(f"{name}.{n}" for n in ("truncation_side", "num_hidden_layers")),
        }
    return None


Mutation = Callable[[Found, Random], bool | None]
MUTATIONS: dict[str, Mutation] = {
    one.__name__: one
    for one in (
        unknown_fields, fields_without_effect, missing_architectures, leftover_tensors,
        other_dtype, other_labels, problem_type, tokenizer_settings, generation,
        decisive_field, missing_fields, other_names, odd_numbers, sentence_transformers,
    )
}  # fmt: skip
