"""A language model of this library as a model of `transformers`, where that has none of its kind.

AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

opens the folder of an LSTM or of a Transformer-XL: the folder names these classes, and this library
must be installed. So the evaluation pipeline of the BabyLM challenge scores these. To generate with
them, use this library.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from regard.errors import RegardError
from regard.models.protocols import LanguageModel
from regard.tasks.folders import load
from regard.tasks.log_likelihoods import hidden_states


class RegardConfig(PretrainedConfig):
    """The fields of config.json; this library reads them from the folder."""

    model_type = "regard"


class RegardForCausalLM(PreTrainedModel):
    """A language model, with the interface of `transformers`."""

    config_class = RegardConfig

    def __init__(self, config: RegardConfig, model: LanguageModel):
        super().__init__(config)
        self.model = model

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, path: Any, *args: Any, config: Any, **options: Any
    ) -> Any:
        """The model of a folder, in float32 on the CPU."""
        task: Any = load(path, device="cpu")
        return cls(config, task.module).eval()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> CausalLMOutput:
        """Logits (B, T, V) of the token after each of texts (B, T) that start together.

        Raises:
            RegardError: `attention_mask` has padding on the left.
        """
        if attention_mask is not None and not attention_mask[:, 0].all():
            raise RegardError('Texts must be padded on the right: use padding_side="right".')
        hidden = hidden_states(self.model, input_ids, self.model.target_length)
        return CausalLMOutput(logits=self.model.head.logits(hidden))
