"""The architectures, one a file, in the order of history. A new model is one file and one line."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from regard.errors import ConfigError
from regard.suggest import nearest

# name -> module:Class; the class has a `Config` and, where sizes are published, a table `SIZES`
MODELS = {
    "recurrent": "regard.models.recurrent:RecurrentLanguageModel",
    "seq2seq": "regard.models.seq2seq:Seq2Seq",
    "transformer": "regard.models.transformer:Transformer",
    "transformer-prenorm": "regard.models.transformer_prenorm:PreNormTransformer",
    "gpt": "regard.models.gpt:GPT",
    "bert": "regard.models.bert:Bert",
    "roberta": "regard.models.roberta:Roberta",
    "distilbert": "regard.models.distilbert:DistilBert",
    "gpt2": "regard.models.gpt2:GPT2",
    "features": "regard.models.features:Features",
}


def model_class(name: str) -> Any:
    """The class of this name, imported now.

    Raises:
        ConfigError: no model has this name; the nearest one is offered.
    """
    if name not in MODELS:
        raise ConfigError(f"There is no model {name!r}. {nearest(name, MODELS)}")
    module, attribute = MODELS[name].split(":")
    return getattr(import_module(module), attribute)
