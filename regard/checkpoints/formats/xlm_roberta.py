"""XLM-R's published layout: RoBERTa's, under other names of its architectures."""

from __future__ import annotations

from dataclasses import replace

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.roberta import ROBERTA
from regard.models.xlm_roberta import XlmRoberta

XLM_ROBERTA = replace(
    ROBERTA,
    model=XlmRoberta,
    family="XLMRoberta",
    model_type="xlm-roberta",
    unsupported_architectures={"XLMRobertaForCausalLM": bert.CAUSAL},
)
