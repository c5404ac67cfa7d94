"""The start of a generation: the state before the first tokens, and the tokens to feed."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from regard.attention.cache import HEADROOM, extremes
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.models.wrappers import unwrapped
from regard.state import State


def start(model: Generator, source: Sequences | None) -> tuple[State, Tensor]:
    """The state before the first step, and the tokens to feed to that step, (B, 1).

    For an encoder-decoder: the state after its encoder has read the source, and `bos`. For a
    language model: the state before the last token of each prompt, and that token. An empty prompt,
    or None for one sequence without a prompt, begins with `model.first_token`.

    Args:
        source: on the device of the model; prompts may have different lengths.

    Raises:
        ConfigError: an encoder-decoder is given no source; or a prompt is empty, and the model has
            no `first_token`.
    """
    if not model.continues:
        if source is None:
            raise ConfigError(
                f"{type(unwrapped(model)).__name__} needs a source: only a model that continues a "
                "text can start from nothing."
            )
        return model.read(source), source.ids.new_full((len(source), 1), model.config.bos)
    state: State = model.empty(1 if source is None else len(source))
    if source is None:
        device = next(iter(state.tensors().values())).device
        source = Sequences.of([[]], model.config.pad).to(device)
    return _after_prompts(model, source, state)


def _after_prompts(model: Generator, prompts: Sequences, state: State) -> tuple[State, Tensor]:
    """The state after all tokens of the prompts but the last, and the last ones, (B, 1)."""
    counts = (prompts.lengths - 1).clamp(min=0)  # (B,)
    shortest, longest = extremes(prompts.lengths)
    if longest > 1:
        state = state.expect_tokens(longest + HEADROOM)  # else the first new token copies the cache
        state = model.prefill(prompts.ids[:, : longest - 1], state, counts)
    # One column more, so that a batch of empty prompts has a last token too.
    ids = F.pad(prompts.ids, (0, 1), value=model.config.pad or 0)  # (B, T) -> (B, T + 1)
    last = ids.gather(1, counts[:, None])  # (B, T + 1) -> (B, 1)
    if shortest or not len(prompts):
        return state, last
    return state, last.masked_fill(prompts.lengths[:, None] == 0, model.first_token)
