"""The attention of a task's model for one text, and the mean of its heads as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.tasks.inputs import read_whole, text_or_pair
from regard.visual.attention_record import AttentionRecord, look, run_encoder
from regard.visual.picture import Picture

if TYPE_CHECKING:
    from regard.tasks.task import Task
    from regard.visual.head_grid import HeadGrid
    from regard.visual.heatmap import Heatmap


def attention_of_text(
    task: Task, text: str | Sequence[str], decoding: Mapping[str, Any] | None = None
) -> tuple[AttentionRecord, str]:
    """The attention weights while a task processes a text, and its answer where it decodes.

    Args:
        text: a text, or the texts of a pair for an encoder.
        decoding: options of decoding, where the task decodes.

    Raises:
        RegardError: the model has no attention, the text is too long, or weights are infinite or
            NaN.
    """
    answer = ""
    with look(task) as attention, read_whole():
        if task.decodes:
            answer = task.predict([text], **(decoding or {}))[0]
        else:
            run_encoder(task, [text_or_pair(text, 0)])
    _check_finite(attention)
    return attention, answer


def mean_weights(
    heads: HeadGrid, kind: str | None = None, layer: int | None = None, head: int | None = None
) -> tuple[Heatmap, dict[str, Any]]:
    """The mean of heads as a picture, and the same as plain values.

    Args:
        kind: "encoder", "decoder", "cross" or "query"; None: the main kind of the model.
        layer, head: from 1; None: the mean of all.

    Raises:
        ConfigError: there are no such heads.
    """
    shown = heads.select(kind or heads.main_kind, layer)
    picture = shown.mean(head)
    return picture, {
        "kind": shown.panels[0].kind,
        "layers": [panel.layer for panel in shown.panels],
        "head": head,
        "rows": picture.rows,
        "columns": picture.columns,
        "weights": picture.weights,
    }


def token_weights(
    heads: HeadGrid,
    token: str,
    kind: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> tuple[Picture, dict[str, Any]]:
    """What a token attends to as a picture, and the same as plain values.

    Args:
        token: among the queries; or its index from 0, where no query is spelled like this number.
        kind, layer, head: as for `mean_weights`; without a head in one layer, each of its heads.

    Raises:
        ConfigError: there are no such heads, or the token does not occur once.
    """
    kind = kind or heads.main_kind
    shown = heads.select(kind, layer)
    is_index = token.isdecimal() and token not in shown.shown[0].queries
    weights = shown.token_weights(int(token) if is_index else token, head)
    return weights.picture(), {
        "kind": kind,
        "layers": [panel.layer for panel in shown.panels],
        "head": head,
        "token": weights.token,
        "rows": list(weights.rows),
        "columns": weights.keys,
        "weights": list(weights.rows.values()),
    }


def _check_finite(record: AttentionRecord) -> None:
    """Check the weights: a picture would show those that are not finite as zeros.

    Raises:
        ConfigError: some are infinite or NaN.
    """
    attentions = (one for each in record.passes for one in each.attentions.values())
    if not all(bool(one.weights.isfinite().all()) for one in attentions):
        raise ConfigError(
            "The attention weights are infinite or NaN. The model's weights may have "
            "diverged in training: use others."
        )
