"""Random configurations over every field that `transformers` has for a model, and their models."""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from their_encoders import T, V, transformers
from torch import nn

Values = dict[str, tuple[Any, ...]]
ACTIVATIONS = (
    *("gelu", "gelu_new", "gelu_python", "gelu_fast", "gelu_pytorch_tanh", "gelu_10", "quick_gelu"),
    *("relu", "relu2", "relu6", "leaky_relu", "laplace", "silu", "swish", "hardswish", "mish"),
    *("tanh", "sigmoid", "linear"),
)
VOCABULARIES = (V, V + 1, 37, 101)  # ids in texts are below V
DROPOUTS = (0.0, 0.1, 0.4)
# Of every model. `is_encoder_decoder` and `is_decoder` are the only ones that make another model.
COMMON: Values = {
    "output_hidden_states": (False, True),
    "dtype": (None, "float32", "float16"),
    "chunk_size_feed_forward": (0, 5),
    "problem_type": (None, "regression", "single_label_classification"),
    "use_cache": (True, False),
    "bos_token_id": (0, 2, 30),
}
# Written by their program from other fields, or the same for every draw.
NOT_DRAWN = {
    *("transformers_version", "architectures", "return_dict", "id2label", "label2id"),
    *("is_encoder_decoder", "is_decoder", "add_cross_attention"),
}
# Read by their programs, but no fields of their classes.
UNDECLARED = {
    *("decoder_start_token_id", "position_buckets", "share_att_key", "norm_rel_ebd", "cls_dropout"),
    *("conv_kernel_size", "conv_act"),
}


@dataclass(frozen=True)
class DrawnFamily:
    """A family of models and the values from which each of its fields is drawn.

    same: fields with the value of another one in every draw.
    refused: fields whose other values ours must refuse by name -> one of these values.
    """

    name: str
    values: Values
    endings: tuple[str, ...]
    refused: dict[str, Any] = field(default_factory=dict)

    @property
    def config_class(self) -> Any:
        return getattr(transformers, f"{self.name}Config")

    def fields(self) -> set[str]:
        return {one.name for one in dataclasses.fields(self.config_class)} - NOT_DRAWN

    def drawn(self, seed: int) -> dict[str, Any]:
        """A value for each field; those that this class does not have are left out."""
        draw = random.Random(f"{self.name} {seed}")
        known = COMMON | self.values
        names = self.fields() | UNDECLARED & {*self.values}
        return {name: draw.choice(known[name]) for name in sorted(names)}

    def model(self, ending: str, seed: int, **changes: Any) -> nn.Module:
        torch.manual_seed(seed)
        config = self.config_class(**(self.drawn(seed) | changes), attn_implementation="eager")
        model = getattr(transformers, self.name + ending)(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:  # their tables of sines do not
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model.eval()


def saved_config(model: nn.Module, **changes: Any) -> dict[str, Any]:
    """config.json as their `save_pretrained` writes it."""
    config = json.loads(model.config.to_json_string())
    return config | {"architectures": [type(model).__name__]} | changes


# ------------------------------------------------------------------------------------ encoders

ENCODER_ENDINGS = (
    *("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMultipleChoice"),
)
ENCODER: Values = {
    "vocab_size": VOCABULARIES,
    "hidden_size": (12, 24),
    "num_hidden_layers": (1, 2, 3),
    "num_attention_heads": (1, 2, 3, 6),
    "intermediate_size": (1, 7, 20),
    "hidden_act": ACTIVATIONS,
    "hidden_dropout_prob": DROPOUTS,
    "attention_probs_dropout_prob": DROPOUTS,
    "classifier_dropout": (None, *DROPOUTS),
    "max_position_embeddings": (T + 2, T + 9),
    "type_vocab_size": (1, 2, 5),
    "initializer_range": (0.02, 0.5),
    "layer_norm_eps": (1e-12, 1e-5, 0.1),
    "pad_token_id": (0, 1, 3),
    "eos_token_id": (2, 5),
    "sep_token_id": (66, 99),  # before which their BigBird finds no answers
    "tie_word_embeddings": (True, False),
}
CAUSAL = {"is_decoder": True, "add_cross_attention": True}
DRAWN_ENCODERS = {
    "bert": DrawnFamily(
        "Bert", ENCODER, (*ENCODER_ENDINGS, "ForPreTraining", "ForNextSentencePrediction"), CAUSAL
    ),
    "roberta": DrawnFamily(
        "Roberta", ENCODER | {"max_position_embeddings": (T + 4, T + 9)}, ENCODER_ENDINGS, CAUSAL
    ),
    "xlm-roberta": DrawnFamily(
        "XLMRoberta", ENCODER | {"max_position_embeddings": (T + 4, T + 9)}, ENCODER_ENDINGS, CAUSAL
    ),
    "mpnet": DrawnFamily(
        "MPNet",
        ENCODER | {"pad_token_id": (1,), "relative_attention_num_buckets": (32,)},
        ENCODER_ENDINGS,
        {"pad_token_id": 0, "relative_attention_num_buckets": 16},
    ),
    "electra": DrawnFamily(
        "Electra",
        ENCODER
        | {
            "embedding_size": (3, 7, 12, 24),
            "summary_type": ("first",),
            "summary_use_proj": (True,),
            "summary_activation": ("gelu", "tanh", "relu"),
            "summary_last_dropout": DROPOUTS,
        },
        (*ENCODER_ENDINGS, "ForPreTraining"),
        CAUSAL | {"summary_type": "mean", "summary_use_proj": False},
    ),
    "albert": DrawnFamily(
        "Albert",
        ENCODER
        | {
            "embedding_size": (3, 7, 12, 24),
            "num_hidden_layers": (1, 2, 5),
            "num_hidden_groups": (1, 2),
            "inner_group_num": (1,),
            "classifier_dropout_prob": DROPOUTS,
        },
        (*ENCODER_ENDINGS, "ForPreTraining"),
    ),
    "big_bird": DrawnFamily(
        "BigBird",
        ENCODER
        | {
            "attention_type": ("block_sparse", "original_full"),
            "use_bias": (True, False),
            "rescale_embeddings": (False, True),
            "block_size": (2, 3, 16),  # this short a text is read with full attention
            "num_random_blocks": (1, 2, 3),
        },
        ENCODER_ENDINGS,
        CAUSAL,
    ),
    "deberta-v2": DrawnFamily(
        "DebertaV2",
        ENCODER
        | {
            "type_vocab_size": (0, 1, 5),
            "relative_attention": (True, True, False),
            "max_relative_positions": (-1, 7, 40),
            "position_biased_input": (True, False),
            "pos_att_type": (None, "c2p", ["p2c"], "p2c|c2p", ["c2p", "p2c"]),
            "pooler_dropout": DROPOUTS,
            "pooler_hidden_act": ACTIVATIONS,
            "legacy": (True, False),
            "position_buckets": (-1, 0, 3, 9),
            "share_att_key": (True, False),
            "norm_rel_ebd": ("none", "layer_norm"),
            "cls_dropout": (None, *DROPOUTS),
            "conv_kernel_size": (0, 3, 5),
            "conv_act": ACTIVATIONS,
        },
        ENCODER_ENDINGS,
        CAUSAL | {"conv_groups": 3, "attention_head_size": 1},
    ),
    "distilbert": DrawnFamily(
        "DistilBert",
        ENCODER
        | {
            "dim": (12, 24),
            "n_layers": (1, 2, 3),
            "n_heads": (1, 2, 3, 6),
            "hidden_dim": (1, 7, 20),
            "activation": ACTIVATIONS,
            "dropout": DROPOUTS,
            "attention_dropout": DROPOUTS,
            "qa_dropout": DROPOUTS,
            "seq_classif_dropout": DROPOUTS,
            "sinusoidal_pos_embds": (False, True),
        },
        ENCODER_ENDINGS,
    ),
    "gpt_neo": DrawnFamily(
        "GPTNeo",
        ENCODER
        | {
            "num_layers": (3,),
            "num_heads": (1, 2, 3, 6),
            "attention_types": (
                [[["global", "local"], 1], [["local"], 1]],
                [[["local", "global"], 1], [["local"], 1]],
                [[["global"], 3]],
                [[["local"], 2], [["global"], 1]],
            ),
            "window_size": (1, 2, 5, 300),
            "activation_function": ACTIVATIONS,
            "intermediate_size": (None, 7, 20),
            "resid_dropout": DROPOUTS,
            "embed_dropout": DROPOUTS,
            "attention_dropout": DROPOUTS,
            "classifier_dropout": DROPOUTS,
            "layer_norm_epsilon": (1e-12, 1e-5, 0.1),
        },
        ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    ),
    "llama": DrawnFamily(
        "Llama",
        ENCODER
        | {
            "num_key_value_heads": (None, 1),
            "head_dim": (None, 2, 6),
            "hidden_act": ACTIVATIONS,
            "rms_norm_eps": (1e-6, 1e-5, 0.1),
            "rope_parameters": (
                None,
                {"rope_type": "default", "rope_theta": 7.0},
                {"rope_type": "linear", "rope_theta": 90.0, "factor": 3.0},
                {
                    "rope_type": "llama3",
                    "rope_theta": 30.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 12,
                },
            ),
            "attention_bias": (False, True),
            "mlp_bias": (False, True),
            "attention_dropout": DROPOUTS,
            "pretraining_tp": (1, 2),
        },
        ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    ),
}

# --------------------------------------------------------------------------- encoder-decoders

FAIRSEQ: Values = {
    "vocab_size": VOCABULARIES,
    "d_model": (12, 24),
    "encoder_layers": (1, 2),
    "decoder_layers": (1, 3),
    "encoder_attention_heads": (1, 2, 3, 6),
    "decoder_attention_heads": (1, 2, 3, 6),
    "encoder_ffn_dim": (1, 7, 20),
    "decoder_ffn_dim": (1, 8, 20),
    "encoder_layerdrop": (0.0, 0.3),
    "decoder_layerdrop": (0.0, 0.3),
    "activation_function": ACTIVATIONS,
    "dropout": DROPOUTS,
    "attention_dropout": DROPOUTS,
    "activation_dropout": DROPOUTS,
    "classifier_dropout": DROPOUTS,
    "init_std": (0.02, 0.5),
    "max_position_embeddings": (24, 31),
    "scale_embedding": (True, False),
    "pad_token_id": (0, 1, 30),  # not in the texts
    "eos_token_id": (2, 29),
    "forced_eos_token_id": (None, 2),
    "decoder_start_token_id": (2, 5, 30),
    "tie_word_embeddings": (True, False),
    # Marian's
    "decoder_vocab_size": (None,),
    "share_encoder_decoder_embeddings": (True,),
}
ALONE = {"tie_word_embeddings": "no", "is_decoder": True, "is_encoder_decoder": False}
T5_VALUES: Values = {
    "vocab_size": VOCABULARIES,
    "d_model": (8, 12),
    "d_kv": (2, 4, 6),
    "d_ff": (1, 7, 20),
    "num_layers": (1, 2, 3),
    "num_decoder_layers": (None, 1, 2),
    "num_heads": (1, 3),
    "relative_attention_num_buckets": (4, 5, 6, 7, 8, 32),
    "relative_attention_max_distance": (17, 20, 128),
    "dropout_rate": DROPOUTS,
    "classifier_dropout": DROPOUTS,
    "layer_norm_epsilon": (1e-6, 0.1),
    "initializer_factor": (1.0, 0.5),
    "feed_forward_proj": (
        *("relu", "gelu", "silu", "tanh", "gelu_new", "gated-gelu", "gated-silu", "gated-relu"),
        *("gated-gelu_new", "gated-quick_gelu"),
    ),
    "pad_token_id": (0, 3),
    "eos_token_id": (1, 29),
    "decoder_start_token_id": (0, 3, 7),
    "tie_word_embeddings": (True, False),
}
GENERATING = ("ForConditionalGeneration",)
DRAWN_ENCODER_DECODERS = {
    "marian": DrawnFamily("Marian", FAIRSEQ, ("MTModel",), ALONE),
    "marian-separate": DrawnFamily(
        "Marian",
        FAIRSEQ
        | {
            "decoder_vocab_size": (None, V, 43),
            "share_encoder_decoder_embeddings": (False,),
            "tie_word_embeddings": (True, False),
        },
        ("MTModel",),
        {"share_encoder_decoder_embeddings": "no", "tie_word_embeddings": "no"},
    ),
    "pegasus": DrawnFamily("Pegasus", FAIRSEQ, GENERATING, ALONE),
    "bart": DrawnFamily("Bart", FAIRSEQ, GENERATING, ALONE),
    "mbart": DrawnFamily("MBart", FAIRSEQ, GENERATING, ALONE),
    "m2m_100": DrawnFamily(
        "M2M100",
        FAIRSEQ
        | {"pad_token_id": (0, 1)},  # their table has no rows for the positions after others
        GENERATING,
        ALONE,
    ),
    "t5": DrawnFamily("T5", T5_VALUES, GENERATING, {"is_encoder_decoder": False}),
    "mt5": DrawnFamily("MT5", T5_VALUES, GENERATING, {"is_encoder_decoder": False}),
    "umt5": DrawnFamily("UMT5", T5_VALUES, GENERATING, {"is_encoder_decoder": False}),
}

# --------------------------------------------------------------------------------------- XLNet

XLNET = DrawnFamily(
    "XLNet",
    {
        "vocab_size": VOCABULARIES,
        "d_model": (12, 24),
        "n_layer": (1, 2, 3),
        "n_head": (1, 2, 3, 6),
        "d_inner": (1, 7, 20),
        "d_head": (None,),
        "ff_activation": ACTIVATIONS,
        "attn_type": ("bi", "uni"),
        "initializer_range": (0.02, 0.5),
        "layer_norm_eps": (1e-12, 0.1),
        "dropout": DROPOUTS,
        "mem_len": (None, 0, 1, 3, 5, 9, 512),
        "reuse_len": (None, 0, 2, 5),
        "use_mems_eval": (True, False),
        "use_mems_train": (True, False),
        "bi_data": (False,),
        "clamp_len": (-1, 1, 3, 20),
        "same_length": (False, True),
        "summary_type": ("last", "first", "mean", "cls_index"),
        "summary_use_proj": (True,),
        "summary_activation": ("tanh", "gelu", "relu", ""),
        "summary_last_dropout": DROPOUTS,
        "start_n_top": (1, 5),
        "end_n_top": (1, 5),
        "chunk_size_feed_forward": (0, 1),  # which must divide the length of every segment
        "pad_token_id": (0, 5, None),
        "bos_token_id": (1, 2),
        "eos_token_id": (2, 7),
        "tie_word_embeddings": (True, False),
    },
    (
        *("Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification"),
        *("ForQuestionAnsweringSimple", "ForMultipleChoice"),
    ),
    {
        "d_head": 5,
        "attn_type": "tri",
        "bi_data": True,
        "summary_use_proj": False,
        "summary_type": "attn",
    },
)
