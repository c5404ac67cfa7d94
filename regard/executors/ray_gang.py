"""Jobs of a Ray cluster that need each other: all start together, or none does (a gang)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from regard.errors import ConfigError
from regard.executors.protocol import Job, JobListener, JobResult, Json, PrintedLog
from regard.executors.ray import ClusterResources, Tasks, connected
from regard.executors.restarting import results_of

PLACEMENT_TIMEOUT = 120.0  # seconds to wait for free resources for all jobs


class StoreActor:
    """An actor with the `TCPStore` through which the processes of torch.distributed connect."""

    def __init__(self) -> None:
        import ray
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.host = ray.util.get_node_ip_address()
        wait = timedelta(days=7)
        self.store = TCPStore(self.host, 0, is_master=True, wait_for_workers=False, timeout=wait)

    def address(self) -> tuple[str, int]:
        """The host and the port."""
        return self.host, self.store.port


class RayGang:
    """Runs jobs that need each other as tasks of a Ray cluster: an `Executor`.

    They start when the cluster has free resources for all of them. Each gets one more argument,
    `store`: the host and the port of a `torch.distributed.TCPStore`. A job whose process dies is
    not started again.
    """

    def __init__(self, address: str = ""):
        self.address = address

    def run(
        self, jobs: Sequence[Job], listener: JobListener | None = None
    ) -> Generator[JobResult, None, None]:
        """The results as jobs end; see `Executor.run`.

        Raises:
            ConfigError: the cluster has no room for them.
        """
        ray = connected(self.address)
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = ClusterResources.of(ray, len(jobs))
        bundles = [_bundle(resources, job) for job in jobs]
        group = ray.util.placement_group(bundles, strategy="PACK")
        try:
            if not group.wait(PLACEMENT_TIMEOUT):
                free = ray.available_resources()
                raise ConfigError(
                    f"the Ray cluster has not enough free resources for {len(jobs)} processes with "
                    f"{bundles[0]} each: {free.get('CPU', 0):g} CPUs and "
                    f"{free.get('GPU', 0):g} GPUs are free. Use fewer --workers."
                )
            placed = {"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}
            store = ray.remote(StoreActor).options(num_cpus=0, **placed).remote()
            address: Json = list(ray.get(store.address.remote()))
            with_store = [
                replace(job, arguments={**job.arguments, "store": address}) for job in jobs
            ]
            tasks = Tasks(ray, listener or PrintedLog(), resources, placed)
            yield from results_of(tasks, with_store, len(jobs), max_restarts=0)
        finally:
            ray.util.remove_placement_group(group)


def _bundle(resources: ClusterResources, job: Job) -> dict[str, float]:
    """The resources that a job needs on a machine."""
    options: dict[str, Any] = resources.options(job)
    found = {"CPU": options["num_cpus"], "GPU": float(options["num_gpus"])}
    return {name: count for name, count in found.items() if count}
