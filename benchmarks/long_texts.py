"""python -m benchmarks.long_texts [--lengths 512 1024 ...] [--rounds N] [--train] [--quick]

BigBird from short texts to long ones: seconds and peak memory of its attention and of a model, at
each length and as ratios to the length before, beside dense attention and the same model with it.
Each measurement has a process of its own. `--train`: with the backward pass. Dense attention is
left out beyond `--dense` tokens.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
BASE = dict(d_model=768, d_ff=3072, heads=12)


@dataclass(frozen=True)
class Setting:
    """What one process measures."""

    what: str  # "attention", "dense attention", "model" or "dense model"
    length: int
    rounds: int
    train: bool
    sizes: dict[str, int]
    threads: int = 2


@dataclass(frozen=True)
class Found:
    """Of one setting: the median of its rounds, and the memory beyond that before the first."""

    setting: Setting
    seconds: float
    megabytes: float


def main(arguments: list[str] | None = None) -> list[Found]:
    """Measure, and print a line for each setting as it comes."""
    given = _arguments(arguments)
    sizes = dict(BASE, layers=given.layers, block_size=64, random_blocks=3)
    if given.quick:
        sizes = dict(
            d_model=32, d_ff=64, heads=2, layers=given.layers, block_size=16, random_blocks=1
        )
    found = []
    for what in ("attention", "dense attention", "model", "dense model"):
        before: Found | None = None
        print(f"\n{what}{', forward and backward' if given.train else ''}")
        print(f"{'tokens':>8} {'seconds':>9} {'x':>6} {'MB':>9} {'x':>6}")
        for length in given.lengths:
            if what.startswith("dense") and length > given.dense:
                continue
            setting = Setting(what, length, given.rounds, given.train, sizes, given.threads)
            one = _in_a_process(setting)
            found.append(one)
            ratios = ("", "")
            if before is not None:
                slower = one.seconds / before.seconds
                larger = one.megabytes / max(1e-9, before.megabytes)
                ratios = f"{slower:.2f}", f"{larger:.2f}"
            print(
                f"{length:>8} {one.seconds:>9.3f} {ratios[0]:>6} {one.megabytes:>9.1f} "
                f"{ratios[1]:>6}",
                flush=True,
            )
            before = one
    return found


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--dense", type=int, default=4096, help="the longest dense attention")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    return parser.parse_args(arguments)


def _in_a_process(setting: Setting) -> Found:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (setting,))


def measured(setting: Setting) -> Found:
    """The seconds of a round, and by how much the peak of the process's memory grew."""
    import torch

    from regard.malloc import keep_freed_blocks

    keep_freed_blocks()  # as the command line does
    torch.set_num_threads(setting.threads)
    torch.manual_seed(0)
    run = _attention(setting) if "attention" in setting.what else _model(setting)
    before, seconds = _peak(), []
    with torch.set_grad_enabled(setting.train):
        for _ in range(setting.rounds + 1):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return Found(setting, median(seconds[1:]), _peak() - before)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _attention(setting: Setting) -> Callable[[], Any]:
    import torch

    from regard.attention.attend import attend
    from regard.models.bigbird import BigBird, BigBirdConfig
    from regard.ops import ALL_KEYS

    sizes = setting.sizes
    shape = 1, sizes["heads"], setting.length, sizes["d_model"] // sizes["heads"]
    heads = [torch.randn(shape, requires_grad=setting.train) for _ in range(3)]
    model = BigBird(BigBirdConfig(8, max_length=setting.length, **{**sizes, "layers": 1}))

    def run() -> None:
        mask = ALL_KEYS if "dense" in setting.what else model.mask(_batch(setting), 0)
        context = attend(*heads, mask=mask)
        if setting.train:
            context.sum().backward()

    return run


def _model(setting: Setting) -> Callable[[], Any]:
    from regard.models.bigbird import BigBird, BigBirdConfig

    kind = "full" if "dense" in setting.what else "block-sparse"
    config = BigBirdConfig(
        1000, max_length=setting.length, attention=kind, dropout=0.0, attention_dropout=0.0,
        **setting.sizes,
    )  # fmt: skip
    model, batch = BigBird(config).train(setting.train), _batch(setting)

    def run() -> None:
        hidden = model.encode(batch)
        if setting.train:
            model.zero_grad()
            hidden.sum().backward()

    return run


def _batch(setting: Setting) -> Any:
    from regard.data.batches import Sequences

    return Sequences.dummy(1, setting.length)


if __name__ == "__main__":
    main()
