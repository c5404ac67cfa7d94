"""The training of a model that counts its text (`CountedModel`), without steps and gradients.

It reads the batches that a recurrent model reads with the same options, but each of them once,
however many epochs are asked for: a text that is counted twice tells nothing new.
"""

import time
from itertools import islice
from typing import Any

import torch

from regard.data.batches import IGNORE
from regard.training.callbacks import Result
from regard.training.checkpointing import RunFolder
from regard.training.loop import Publish, Test, finite
from regard.training.metrics_log import MetricsLog
from regard.training.options import TrainingOptions, known, steps_of


def count_text(
    task: Any, options: TrainingOptions, folder: RunFolder, publish: Publish, test: Test
) -> Result:
    """Count the text, publish the model, and test it.

    Where `eval_steps` is a share, the text is also counted and validated up to each of these parts.
    """
    every, batches = options.validation.eval_steps, task.train_batches()
    first, in_epoch = next(batches), batches.batches_per_epoch
    steps = known(steps_of(options, in_epoch, first.count))
    others = islice(batches, min(steps, in_epoch) - 1)
    text = torch.cat([first.targets, *(batch.targets for batch in others)], 1)
    log, parts = MetricsLog(folder.path), round(1 / every) if 0 < every < 1 else 1
    for part in range(1, parts + 1):
        began, step = time.perf_counter(), -(-steps * part // parts)
        read = text[:, : step * first.targets.size(1)]
        read = read[read != IGNORE]
        task.module = task.module.counted(read)
        seconds, scores = time.perf_counter() - began, task.validate()
        valid = {f"valid/{name}": score for name, score in scores.items()}
        log.write(step, {task.items: step * first.count, **valid})
    log.close()
    publish(task.module, folder.model)
    tested, count = test(), len(read)
    return Result(
        f"{count:,} tokens",
        f"the counts of {count:,} tokens",
        step,
        count,
        seconds,
        scores[task.goal[0]],
        step,
        finite(scores),
        finite({score.name: score.value for score in tested}),
        {score.name: score.signature for score in tested},
    )
