"""One training by several processes of a Ray cluster.

    run = train_on_ray("recipe.toml", workers=4, out="/shared/runs/large")

The processes are tasks with the environment that torchrun gives its own, and call `regard.train` or
`regard.resume`: the model is divided, and checkpoints are written, as under torchrun. Where a
process is lost, all end and are started again from the last checkpoint.

Ray Train is not used: it calls a training in a thread, where no signal could let it save, connects
the processes by itself, and needs the packages of Ray Tune.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from regard.errors import RegardError, check_at_least
from regard.executors import Job, Json
from regard.executors.ray import ClusterResources, connected
from regard.executors.ray_gang import RayGang
from regard.experiments import runs
from regard.experiments.compare.worker import WorkerProgress
from regard.experiments.compare.workers import Display, display, run_jobs
from regard.experiments.recipe_options import open_recipe
from regard.experiments.run_folder import Run
from regard.recipe import read
from regard.training import Interrupted
from regard.training.callbacks import read_result
from regard.training.distributed.processes import OtherProcessFailed

FUNCTION = "regard.experiments.ray_training:trained_by_rank"
RESTARTS = 20  # of a training that has lost a process


def train_on_ray(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    ray_address: str = "",
    workers: int = 1,
    device: str | None = None,
    progress: bool = True,
) -> Run:
    """`regard.train` by `workers` processes of a cluster.

    Args:
        ray_address: of the cluster, see `regard.executors.ray.connected`.
        device: "cpu" or "cuda"; None: a GPU for each process where the cluster has some.

    Raises:
        ConfigError: as `regard.train`; or the cluster has no room for all processes.
        RegardError: the training has failed, or its processes were lost too often.
        Interrupted: after Ctrl-C, when the training is saved.
    """
    raw, checked = open_recipe(recipe, overrides)
    folder = runs.new_folder(raw, checked.name, out)
    return _run(folder, [str(recipe), list(overrides)], ray_address, workers, device, progress)


def resume_on_ray(
    folder: str | Path,
    *,
    ray_address: str = "",
    workers: int = 1,
    device: str | None = None,
    progress: bool = True,
) -> Run:
    """`regard.resume` by `workers` processes of a cluster, as many as were there before or others.

    Raises:
        CheckpointError: the folder is not a run.
        Others as `train_on_ray`.
    """
    runs.check_run(Path(folder))
    return _run(Path(folder), None, ray_address, workers, device, progress)


def _run(
    folder: Path, begin: Json, address: str, workers: int, device: str | None, progress: bool
) -> Run:
    """Start all processes, and again where some were lost.

    begin: a recipe and its overrides; None: the folder holds a run.
    """
    check_at_least(1, workers=workers)
    resources = ClusterResources.of(connected(address), workers)
    gpus = 1 if device != "cpu" and resources.gpus else 0
    given: dict[str, Json] = {"folder": str(folder.absolute()), "device": device, "size": workers}
    with closing(display(progress)) as shown:
        for attempt in range(RESTARTS + 1):
            of_attempt = {
                "begin": None if (folder / "recipe.toml").exists() else begin,
                "attempt": attempt,
                "every": shown.every,
            }
            jobs = [
                Job(FUNCTION, {**given, **of_attempt, "rank": rank}, f"process {rank}", gpus=gpus)
                for rank in range(workers)
            ]
            lost = _run_processes(RayGang(address), jobs, shown)
            if not lost:
                return Run(folder, read_result(folder))
            shown.say(f"{lost}; all processes start again from the last checkpoint")
    raise RegardError(
        f"processes of the training in {folder} died {RESTARTS + 1} times, at last {lost}. "
        "Continue from the last checkpoint with `regard resume`."
    )


def _run_processes(gang: RayGang, jobs: Sequence[Job], shown: Display) -> str:
    """Run all processes; how one of them was lost, "" if the training has ended.

    Raises:
        RegardError: the training has failed.
    """
    lost = ""
    with closing(run_jobs(gang, jobs, shown)) as results:
        for result in results:
            if result.error and not result.lost:
                raise RegardError(result.error)
            if result.lost:
                lost = f"{result.job.name}: {result.error}"
            elif result.value:
                lost = lost or f"{result.job.name}: {result.value}"
    return lost


def trained_by_rank(
    folder: str,
    begin: Sequence[Any] | None,
    attempt: int,
    device: str | None,
    every: float,
    rank: int,
    size: int,
    store: Sequence[Any],
) -> str:
    """The job of one process: the training, begun by a recipe and overrides, or resumed.

    store: host and port.

    Returns why the training has ended early if another process was lost; else "".
    """
    environment = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": 0,  # each sees its own GPU alone, as if it were on a machine of its own
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": store[0],
        "MASTER_PORT": store[1],
        "TORCHELASTIC_RUN_ID": "regard",
        "TORCHELASTIC_RESTART_COUNT": attempt,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    os.environ.update({name: str(value) for name, value in environment.items()})
    shown = WorkerProgress(every)
    try:
        if begin is None:
            runs.resume(folder, device=device, progress=shown)
        else:
            runs.train_recipe(read(begin[0], begin[1]), folder, device, shown)
    except OtherProcessFailed as ended:
        return str(ended)
    except SystemExit as stop:  # of a process that is not the first, after a signal
        raise Interrupted("stopped", int(stop.code or 0)) from None
    return ""
