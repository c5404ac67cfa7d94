"""The architectures, one family a file. A new model is one class and one line.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.lazy import entry

if TYPE_CHECKING:
    from torch import nn

    from regard.models.protocols import Model

# name -> module:Class; the class has a `Config` and, where sizes are published, a table `SIZES`
MODELS: dict[str, Any] = {
    "lstm-lm": "regard.models.recurrent:RecurrentLanguageModel",
    "awd-lstm": "regard.models.recurrent:AwdLstm",
    "rnnsearch": "regard.models.seq2seq:RNNSearch",
    "lstm-seq2seq": "regard.models.seq2seq:Seq2Seq",
    "bytenet": "regard.models.conv_seq2seq:ByteNet",
    "conv-seq2seq": "regard.models.conv_seq2seq:ConvSeq2Seq",
    "transformer": "regard.models.transformer:Transformer",
    "transformer-prenorm": "regard.models.transformer:PreNormTransformer",
    "elmo": "regard.models.elmo:Elmo",
    "gpt": "regard.models.gpt2:GPT",
    "bert": "regard.models.bert:Bert",
    "roberta": "regard.models.roberta:Roberta",
    "xlm-roberta": "regard.models.roberta:XlmRoberta",
    "mpnet": "regard.models.roberta:Mpnet",
    "segabert": "regard.models.segabert:SegaBert",
    "xlnet": "regard.models.xlnet:Xlnet",
    "electra": "regard.models.electra:Electra",
    "albert": "regard.models.bert:Albert",
    "deberta": "regard.models.deberta:Deberta",
    "bigbird": "regard.models.bigbird:BigBird",
    "distilbert": "regard.models.bert:DistilBert",
    "gpt2": "regard.models.gpt2:GPT2",
    "gpt3": "regard.models.gpt3:GPT3",
    "gpt-neo": "regard.models.gpt3:GPTNeo",
    "llama": "regard.models.llama:Llama",
    "bart": "regard.models.bart:Bart",
    "bart-as-encoder": "regard.models.bart:BartAsEncoder",
    "mbart": "regard.models.bart:MBart",
    "mbart-as-encoder": "regard.models.bart:MBartAsEncoder",
    "m2m-100": "regard.models.transformer:M2M100",
    "t5": "regard.models.t5:T5",
    "t5-encoder": "regard.models.t5:T5Encoder",
    "adaptive-transformer": "regard.models.adaptive_transformer:AdaptiveTransformer",
    "transformer-xl": "regard.models.transformer_xl:TransformerXL",
    "sega-transformer-xl": "regard.models.transformer_xl_variants:SegaTransformerXL",
    "bilstm": "regard.models.word_encoders:BiLSTM",
    "kim-cnn": "regard.models.word_encoders:KimCNN",
    "compressive-transformer": "regard.models.transformer_xl_variants:CompressiveTransformer",
    "show-attend-tell": "regard.models.show_attend_tell:ShowAttendTell",
    "region-transformer": "regard.models.transformer:RegionTransformer",
    "features": "regard.models.composed:Features",
    "decoder-only": "regard.models.composed:DecoderOnly",
}

# as `MODELS`, of language models that count their training text, and learn nothing by gradients
COUNTED: dict[str, Any] = {"kneser-ney": "regard.models.kneser_ney:KneserNey"}
NAMED = ChainMap(MODELS, COUNTED)  # all that a name stands for

# an encoder-decoder -> the encoder with its weights that tasks put a head on; see `as_encoder`
AS_ENCODER = {"bart": "bart-as-encoder", "mbart": "mbart-as-encoder", "t5": "t5-encoder"}


def model_class(name: str) -> Any:
    """The class of this name, imported now.

    Raises:
        ConfigError: no model has this name; the nearest one is offered.
    """
    return entry(NAMED, name, "model")


def encoder_class(name: str) -> Any:
    """The class of this name, which must be that of an encoder.

    Raises:
        ConfigError: no model has this name, or it is no `Encoder`.
    """
    kind = model_class(name)
    if not is_encoder(kind):
        encoders = [model for model in MODELS if is_encoder(model_class(model))]
        raise ConfigError(f"The model {name!r} is no encoder. Those are: {', '.join(encoders)}.")
    return kind


def is_encoder(kind: type) -> bool:
    """Whether the models of a class are encoders."""
    from regard.models.protocols import Encoder

    return issubclass(kind, Encoder)


def as_encoder(model: nn.Module) -> Any:
    """The encoder with the weights of an encoder-decoder; None: there is none for its class."""
    name = AS_ENCODER.get(name_of(model))
    return None if name is None else encoder_class(name).of(model)


def as_encoder_decoder(model: nn.Module) -> Any:
    """The model that reads source and target as one text, with the weights of a language model;
    None: this model is none that predicts each token from those before it.
    """
    from regard.models.protocols import LanguageModel

    if not isinstance(model, LanguageModel) or not model.trained_in_order or model.reads_backward:
        return None
    return model_class("decoder-only").of(model, name_of(model))


def name_of(model: nn.Module | Model) -> str:
    """The name of a model, or of the encoder under heads, in the table of models."""
    kind = type(_body(model))
    location = f"{kind.__module__}:{kind.__name__}"
    return next(name for name, entry in NAMED.items() if entry in (location, kind))


def size_of(model: nn.Module | Model) -> str:
    """The named size that a model has, whatever it was begun from; "" where it has none."""
    body = _body(model)
    sizes, config = body.SIZES, asdict(body.config)
    same = (
        name
        for name, options in sizes.items()
        if all(config[key] == value for key, value in options.items())
    )
    return next(same, "")


def described(model: nn.Module | Model) -> str:
    """Name and size for a reader: "bert, size tiny", "bert, 6 layers of 384"."""
    body, size = _body(model), size_of(model)
    if name_of(body) == "features":
        return f"features of {described(body.encoder)}"
    if size:
        return f"{name_of(body)}, size {size}"
    layers = asdict(body.config).get("layers")
    count = "1 layer" if layers == 1 else f"{layers} layers"
    return name_of(body) + (f", {count} of {body.config.d_model}" if layers else "")


def _body(model: nn.Module | Model) -> Any:
    from regard.models.encoder_with_heads import EncoderWithHeads

    return model.encoder if isinstance(model, EncoderWithHeads) else model
