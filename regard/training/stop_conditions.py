"""When a training is finished."""

from __future__ import annotations

from regard.data.batches import Batches
from regard.training.counters_and_rng import Counters
from regard.training.options import TrainingOptions


def epochs_done(counters: Counters, batches: Batches) -> float:
    """Completed epochs and the fraction of the present one; whole when an epoch ends."""
    part = counters.epoch_batches / max(1, batches.batches_per_epoch)
    return batches.epoch + min(1.0, part)


def fraction(options: TrainingOptions, counters: Counters, epochs: float) -> float:
    """How much of the training is done, by the limit that will come first."""
    done = (
        (counters.step, options.max_steps),
        (epochs, options.epochs),
        (counters.tokens, options.tokens),
    )
    return min(1.0, max(count / limit for count, limit in done if limit))


def reason_to_end(options: TrainingOptions, counters: Counters, epochs: float) -> str:
    """Which limit is reached, in words; empty while none is."""
    done = (
        ("steps", counters.step, options.max_steps),
        ("epochs", epochs, options.epochs),
        ("tokens", counters.tokens, options.tokens),
    )
    for what, count, limit in done:
        if limit is not None and count >= limit:
            return f"{limit:,} {what if limit != 1 else what.removesuffix('s')}"
    if 0 < options.validation.patience <= counters.stale:
        validations = "1 validation" if counters.stale == 1 else f"{counters.stale} validations"
        return f"no better score in {validations}"
    return ""
