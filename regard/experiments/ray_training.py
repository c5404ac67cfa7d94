"""One training by several processes of a Ray cluster: Ray Train's TorchTrainer.

    run = train_on_ray("recipe.toml", workers=4, out="/shared/runs/large")

Ray Train starts the processes, and all of them again where one is lost; they then resume from the
last checkpoint. The model is divided, and checkpoints are written, as under torchrun.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.errors import MissingExtra, RegardError, check_at_least
from regard.executors.clusters import connected
from regard.executors.local import job_variables
from regard.experiments import runs
from regard.experiments.recipe_options import open_recipe
from regard.experiments.runs import Run
from regard.recipe import read
from regard.training.callbacks import RESULT, read_result

RESTARTS = 20  # of a training that has lost a process
STATE = "ray-train"  # in the folder of the run, while it is trained
ERROR = "error.txt"  # there: the message of a training that has failed


def train_on_ray(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    ray_address: str = "",
    workers: int = 1,
    device: str | None = None,
    progress: bool = True,
) -> Run:
    """`regard.train` or `regard.resume` by `workers` processes of a cluster.

    Args:
        recipe: None: the run in `out` is resumed, by as many processes as were there or others.
        ray_address: of the cluster, see `regard.executors.clusters.connected`.
        device: "cpu" or "cuda"; None: a GPU for each process where the cluster has some.

    Raises:
        ConfigError: as `regard.train`.
        CheckpointError: the folder to be resumed is not a run.
        RegardError: the training has failed, or its processes were lost too often.
    """
    if recipe is None:
        folder, begin = Path(out or ""), None
    else:
        raw, checked = open_recipe(recipe, overrides)
        folder, begin = runs.new_folder(raw, checked.name, out), [str(recipe), list(overrides)]
    config = {
        "folder": str(folder.absolute()),
        "current": os.getcwd(),
        "begin": begin,
        "device": device,
        "progress": progress,
    }
    _fit(config, connected(ray_address), workers)
    return Run(folder, read_result(folder))


def _fit(config: dict[str, Any], ray: ModuleType, workers: int) -> None:
    """Call `train_rank` with the configuration in as many processes."""
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError as error:
        raise MissingExtra("ray[train]", "ray", "Training on a Ray cluster") from error
    check_at_least(1, workers=workers)
    resources, folder = ray.cluster_resources(), Path(config["folder"])
    on_gpus = config["device"] != "cpu" and bool(resources.get("GPU"))
    # Integers, but where there are more processes than CPUs.
    share = resources.get("CPU", 1.0) / workers
    cpus = {"CPU": float(int(share)) if share >= 1 else share}
    state = folder / STATE
    failures = FailureConfig(max_failures=RESTARTS)
    trainer = TorchTrainer(
        train_rank,
        train_loop_config={**config, "threads": max(1, int(share))},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=on_gpus, resources_per_worker=cpus
        ),
        run_config=RunConfig(storage_path=str(state), failure_config=failures),
    )
    try:
        trainer.fit()
        if not (folder / RESULT).exists():
            raise RegardError((state / ERROR).read_text(encoding="utf-8"))
    except RegardError:
        raise
    except Exception as error:
        raise RegardError(f"{error} Continue with `regard resume {folder}`.") from error
    finally:
        shutil.rmtree(state, ignore_errors=True)


def train_rank(config: Mapping[str, Any]) -> None:
    """What each process does: the training, begun by a recipe, or resumed."""
    folder, rank = Path(config["folder"]), int(os.environ["RANK"])
    os.environ.update(job_variables(config["threads"]))
    os.chdir(config["current"])
    store = _connect_as_torchrun(rank)
    try:
        if config["begin"] is None or (folder / "recipe.toml").exists():
            runs.resume(folder, device=config["device"], progress=config["progress"])
        else:
            raw = read(*config["begin"])
            runs.train_recipe(raw, folder, config["device"], config["progress"])
    except RegardError as error:  # Ray Train starts all again after any other one
        (folder / STATE / ERROR).write_text(str(error), encoding="utf-8")
    del store


def _connect_as_torchrun(rank: int) -> Any:
    """Set the environment that torchrun gives its processes, in place of the group of Ray Train;
    returns what must be kept until the end."""
    import ray
    import torch
    from torch import distributed
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    address = [ray.util.get_node_ip_address(), 0]
    store = None
    if rank == 0:
        store = TCPStore(address[0], 0, is_master=True, wait_for_workers=False)
        address[1] = store.port
    if distributed.is_initialized():
        distributed.broadcast_object_list(address)
        distributed.destroy_process_group()
    environment = {
        "MASTER_ADDR": address[0],
        "MASTER_PORT": address[1],
        "TORCHELASTIC_RUN_ID": "regard",
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    os.environ.update({name: str(value) for name, value in environment.items()})
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return store
