"""Results as JSON, for the command line and for answers of the server."""

import json
import math
from typing import Any


def to_json(facts: Any) -> str:
    """JSON on one line; paths become strings, NaN and infinity null."""
    try:
        return json.dumps(facts, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_with_nulls(facts), ensure_ascii=False, default=str, allow_nan=False)


def to_json_bytes(facts: Any) -> bytes:
    """The same without spaces, in UTF-8, as the server sends it: lists of numbers take a fifteenth
    of the time. Arrays are lists, which are made one by one: they take ten times the memory.
    """
    import numpy as np
    from pydantic_core import to_json

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else str(value)

    return to_json(facts, inf_nan_mode="null", fallback=plain)


def _with_nulls(facts: Any) -> Any:
    """The same with None instead of numbers that JSON does not have."""
    if isinstance(facts, float):
        return facts if math.isfinite(facts) else None
    if isinstance(facts, dict):
        return {key: _with_nulls(value) for key, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [_with_nulls(value) for value in facts]
    return facts
