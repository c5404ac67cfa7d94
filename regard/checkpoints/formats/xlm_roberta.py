"""XLM-R's and CamemBERT's published layouts: RoBERTa's, under other names of the architectures."""

from __future__ import annotations

from dataclasses import replace

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.roberta import ROBERTA
from regard.models.roberta import XlmRoberta

XLM_ROBERTA = replace(
    ROBERTA,
    model=XlmRoberta,
    family="XLMRoberta",
    model_type="xlm-roberta",
    unsupported_architectures={"XLMRobertaForCausalLM": bert.CAUSAL},
)
CAMEMBERT = replace(
    ROBERTA,
    family="Camembert",
    model_type="camembert",
    unsupported_architectures={"CamembertForCausalLM": bert.CAUSAL},
)
