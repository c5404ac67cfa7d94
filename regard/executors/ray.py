"""Jobs as tasks of a Ray cluster: one that exists, or one that is started on this machine.

    --executor ray      the cluster of RAY_ADDRESS, else one that is started on this machine
    --ray-address HOST:10001    the cluster whose Ray Client server listens there
    --ray-address auto          the cluster that was started on this machine (`ray start`)

Every job is a task with a process of its own, on any machine of the cluster that has the CPUs and
GPUs for it. The machines must have the same version of Python, Ray and Regard, and must see the
files under the same paths.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import TextIOBase
from types import MappingProxyType, ModuleType
from typing import Any

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors.local import available_cpus, job_variables
from regard.executors.protocol import (
    ExecutorOptions,
    Job,
    JobListener,
    JobResult,
    Json,
    PrintedLog,
    sending_to,
)
from regard.executors.restarting import RESTARTS, Ended, results_of
from regard.executors.worker import call

MIN_VERSION = (2, 40)  # of Ray, for which this was written
CONNECT_TIMEOUT = 10.0  # seconds to wait for a connection
POLL_INTERVAL = 0.2  # seconds between two checks of the tasks
CHECK_INTERVAL = 2.0  # seconds between two checks whether a machine is alive
STOP_TIMEOUT = 60.0  # seconds for tasks to save and end
OBJECT_STORE_BYTES = 2**28  # of a cluster that is started here; jobs need few
CLIENT = "ray://"  # before the address of a Ray Client server
AUTO, LOCAL = "auto", "local"
# Of a cluster that is started here: no reports of its use, and ports of the loopback address alone.
PRIVATE_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}  # of `ray.init`


# ------------------------------------------------------------------------------------ connecting


def connected(address: str = "") -> ModuleType:
    """The module `ray`, connected to a cluster; a connection that exists already is used.

    Args:
        address: HOST:PORT of a cluster's Ray Client server, or "auto"; "": RAY_ADDRESS, which may
            be whatever Ray itself takes (ray://HOST:10001, auto, HOST:6379 of a cluster to which
            this machine belongs), else a cluster that is started on this machine.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: it is too old, or no cluster answers; or `ray` was imported before and a
            cluster should be started.
    """
    ray = _connected_to_existing(address)
    if not ray.is_initialized():
        _start(ray)
    return ray


def _start(ray: ModuleType) -> None:
    """Start a cluster on this machine, on the loopback address, and connect to it.

    Where one of its processes dies meanwhile, it is started once more.

    Raises:
        RegardError: it could not be started.
    """
    for last in (False, True):
        try:
            ray.init(
                "local",
                num_cpus=available_cpus(),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                **QUIET,
            )
        except Exception as error:  # of several types: a process of it has died, a full disk
            ray.shutdown()  # what has been started
            if last:
                raise RegardError(
                    f"a Ray cluster could not be started on this machine, twice: {error} Look for "
                    "what ended its processes (memory: `free -h`, the disk of /tmp: `df -h /tmp`); "
                    "then run the same command again, which continues, or use --executor local."
                ) from None
        else:
            return


def _connected_to_existing(address: str) -> ModuleType:
    """The module `ray`, connected to the cluster of an address; without one, not connected."""
    given = address
    if address not in ("", AUTO):
        given = CLIENT + address.removeprefix(CLIENT)
    given = given or os.environ.get("RAY_ADDRESS", "")
    if given == LOCAL:
        given = ""
    if not given and "ray" not in sys.modules:
        os.environ.update(PRIVATE_SETTINGS)
    ray = _imported()
    if ray.is_initialized():
        return ray
    if not given:
        if not PRIVATE_SETTINGS.items() <= os.environ.items():
            # Ray reads its settings when it is imported: it would now listen on all addresses.
            raise ConfigError(
                "`ray` was imported before, but is not connected to a cluster. Call ray.init() "
                "first, or do not import ray: Regard then starts a cluster on this machine."
            )
        return ray
    if given != AUTO:
        _check_answers(given)
    if given.startswith(CLIENT):
        _check_client()
    try:
        ray.init(given, **QUIET)
    except Exception as error:  # of several types: no cluster, another version of Python or Ray
        said = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"cannot connect to a Ray cluster at {given}: {said.rstrip('.')}. {_token_hint()}All "
            "machines need the same versions of Python and Ray; this one has Ray "
            f"{ray.__version__}."
        ) from None
    return ray


def _token_hint() -> str:
    """What to do where a cluster may require a token that was not sent; "" where it was.

    In that case Ray Client reports a timeout. Ray sends a token only if RAY_AUTH_MODE says so: who
    has the token can run programs on its cluster.
    """
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        return ""
    return (
        "If the cluster requires a token, which newer versions of Ray do by default, set "
        "RAY_AUTH_MODE=token, and copy the cluster's token to ~/.ray/auth_token of this machine. "
    )


def _imported() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "The executor ray") from None
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < MIN_VERSION:
        raise ConfigError(
            f"Ray {ray.__version__} is too old: it must be at least "
            f"{'.'.join(map(str, MIN_VERSION))}. "
            "Install a newer one, on all machines of the cluster: pip install -U 'regard[ray]'"
        )
    return ray


def _check_client() -> None:
    """Raises MissingExtra where Ray Client cannot be used."""
    if find_spec("grpc") is None:
        raise MissingExtra("grpcio", "ray", "A Ray cluster at an address")


def _check_answers(address: str) -> None:
    """Raises ConfigError where nothing listens at ray://HOST:PORT, or at HOST:PORT."""
    host, colon, port = address.removeprefix(CLIENT).rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(
            f"the address of a Ray cluster must be like HOST:10001, but is "
            f"{address.removeprefix(CLIENT)}."
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConfigError(
            f"nothing answers at {address} ({error}). Give the address of the Ray Client "
            "server: the machine where `ray start --head` was run, and port 10001 unless "
            "--ray-client-server-port changed it."
        ) from None


# --------------------------------------------------------------------------------------- running


class RayExecutor:
    """Runs jobs as tasks of a Ray cluster: an `Executor`.

    workers: the number of jobs at once.  options: with the address, see `connected`.
    restarts: how often a job is started again if its process dies.

    A cluster at an address is connected to at once; one on this machine is started for the first
    jobs.

    Raises:
        Errors of `connected`.
    """

    def __init__(
        self,
        workers: int,
        options: ExecutorOptions | None = None,
        *,
        restarts: int = RESTARTS,
    ):
        self.workers, self.restarts = workers, restarts
        self.address = "" if options is None else options.ray_address
        _connected_to_existing(self.address)

    def run(
        self, jobs: Sequence[Job], listener: JobListener | None = None
    ) -> Generator[JobResult, None, None]:
        """The results as jobs end; see `Executor.run`.

        A cluster of this machine whose processes die is started again, like a job.

        Raises:
            ClusterLost: it died too often, or all machines of another cluster are lost.
        """
        left, listener, restarts = list(jobs), listener or PrintedLog(), 0
        while left:
            ray = connected(self.address)
            try:
                tasks = Tasks(ray, listener, ClusterResources.of(ray, self.workers))
                for result in results_of(tasks, left, self.workers, self.restarts):
                    left.remove(result.job)
                    yield result
            except ClusterLost as lost:
                if restarts == self.restarts or self.address or os.environ.get("RAY_ADDRESS"):
                    raise
                restarts += 1
                listener.log(left[0], f"{lost.problem}; it is started again")
                ray.shutdown()


class ClusterLost(RegardError):
    """No machine of a cluster is alive."""

    problem = "no machine of the Ray cluster is alive"

    def __init__(self) -> None:
        super().__init__(f"{self.problem}. Run the same command again: it continues.")


@dataclass(frozen=True)
class ClusterResources:
    """The resources of a cluster.

    cpus, gpus: those of its largest machine.  share: the CPUs of a job that does not set their
    number.
    """

    cpus: float
    gpus: float
    share: float

    @classmethod
    def of(cls, ray: ModuleType, workers: int) -> ClusterResources:
        """The resources of the cluster that `ray` is connected to, shared by so many workers.

        Raises:
            ClusterLost: no machine is alive.
        """
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not machines:
            raise ClusterLost
        cpus = [machine.get("CPU", 0.0) for machine in machines]
        share = sum(cpus) / workers
        largest = max(cpus)
        gpus = max(machine.get("GPU", 0.0) for machine in machines)
        return cls(largest, gpus, min(largest, float(int(share)) if share >= 1 else share))

    def options(self, job: Job) -> dict[str, Any]:
        """The options of a task.

        Raises:
            ConfigError: no machine has the GPUs.
        """
        if job.gpus > self.gpus:
            raise ConfigError(
                f"{job.name} needs {job.gpus} GPUs on one machine, but no machine of the Ray "
                f"cluster has more than {self.gpus:g}."
            )
        cpus = min(float(job.cpus), self.cpus) if job.cpus else self.share
        return {"num_cpus": cpus, "num_gpus": job.gpus, "name": job.name}

    def threads(self, job: Job) -> int:
        """The number of threads of a job."""
        return job.cpus or max(1, int(self.share))


class Mailbox:
    """An actor that keeps the messages and lines of tasks until they are fetched."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str, Json]] = []

    def put(self, task: int, kind: str, content: Json) -> None:
        """kind: "message" or "log"."""
        self.entries.append((task, kind, content))

    def flush(self) -> None:
        """Do nothing: a call that has returned shows that those before it have arrived."""

    def take(self) -> list[tuple[int, str, Json]]:
        """The entries since the last call."""
        found, self.entries = self.entries, []
        return found


class Tasks:
    """The running tasks, which are `RunningJobs`; a listener gets their messages and lines.

    options: of all tasks, as in `ray.remote`.
    """

    def __init__(
        self,
        ray: ModuleType,
        listener: JobListener,
        resources: ClusterResources,
        options: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.ray, self.listener, self.resources, self.options = ray, listener, resources, options
        self.running: dict[Any, tuple[Job, int, int]] = {}  # reference -> job, restarts, number
        self.started: list[Job] = []
        self._checked = time.monotonic()
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1).remote()
        # A process for each task, which ends with it: memory and threads are those of one job.
        self.remote = ray.remote(max_calls=1, max_retries=0)(run_task)

    def __len__(self) -> int:
        return len(self.running)

    def start(self, job: Job, restarts: int) -> None:
        number = len(self.started)
        environment = job_variables(self.resources.threads(job))
        given = job.function, dict(job.arguments), environment, os.getcwd(), self.mailbox, number
        options = {**self.resources.options(job), **self.options}
        reference = self.remote.options(**options).remote(*given)
        self.started.append(job)
        self.running[reference] = job, restarts, number

    def wait(self) -> None:
        """See `ended`, which waits: a signal must not interrupt Ray."""

    def ended(self) -> Iterator[Ended]:
        """Wait a moment for tasks that end: job, restarts, and the answer or how it died.

        Raises:
            ClusterLost: no machine is alive.
        """
        self._check_cluster()
        ready, _ = self.ray.wait([*self.running], timeout=POLL_INTERVAL)
        answers = [(reference, self._answer(reference)) for reference in ready]
        self.forward_messages()
        for reference, answer in answers:
            job, restarts, _ = self.running.pop(reference)
            yield job, restarts, answer

    def _check_cluster(self) -> None:
        """Raises ClusterLost where no machine is alive: no task would ever end or start."""
        if time.monotonic() - self._checked < CHECK_INTERVAL:
            return
        self._checked = time.monotonic()
        if not any(node["Alive"] for node in self.ray.nodes()):
            self.running = {}
            raise ClusterLost

    def _answer(self, reference: Any) -> dict[str, Any] | str:
        """The answer of a task, or how its process died."""
        errors = self.ray.exceptions
        try:
            answer: dict[str, Any] = self.ray.get(reference)
        except errors.OutOfMemoryError:
            return "its machine had no memory left, and Ray ended its process"
        except errors.RayActorError:  # its mailbox
            return "the machine with its messages died"
        except (errors.RayTaskError, errors.RaySystemError) as error:  # it has not begun
            return {"error": str(error).strip().split("\n")[-1]}
        except errors.RayError as error:
            return f"its process or machine died ({type(error).__name__})"
        return "its process was stopped" if "stopped" in answer else answer

    def forward_messages(self) -> None:
        """Pass new messages and lines of tasks to the listener."""
        try:
            entries = self.ray.get(self.mailbox.take.remote(), timeout=CONNECT_TIMEOUT)
        except self.ray.exceptions.RayError:  # its machine is lost; it is started elsewhere
            return
        for number, kind, content in entries:
            if kind == "log":
                self.listener.log(self.started[number], content)
            else:
                self.listener.message(self.started[number], content)

    def stop(self) -> None:
        """Cancel all tasks, which then save, and wait for them; Ctrl-C ends them at once."""
        if not self.running:
            return
        try:
            for reference in self.running:
                self.ray.cancel(reference)
            end = time.monotonic() + STOP_TIMEOUT
            while self.running and time.monotonic() < end:
                for _ in self.ended():
                    pass
        except ClusterLost:  # nothing runs any more
            pass
        finally:
            for reference in self.running:
                self.ray.cancel(reference, force=True)
            self.running = {}


class _MailboxStream(TextIOBase):
    """A stream whose lines go to the mailbox."""

    def __init__(self, mailbox: Any, number: int):
        self.mailbox, self.number, self.rest = mailbox, number, ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.mailbox.put.remote(self.number, "log", line)
        return len(text)

    def end(self) -> None:
        """Send a last line without an end."""
        if self.rest:
            self.write("\n")


def run_task(
    function: str,
    arguments: Mapping[str, Json],
    environment: Mapping[str, str],
    folder: str,
    mailbox: Any,
    number: int,
) -> dict[str, Json]:
    """The task of a job in a process of the cluster; returns what `call` returns."""
    import ray

    os.environ.update(environment)
    if not os.path.isdir(folder):
        machine = platform.node()
        return {
            "error": f"the folder {folder} does not exist on {machine}: all machines of a cluster "
            "must see the files under the same paths, on a network disk"
        }
    os.chdir(folder)
    printed = _MailboxStream(mailbox, number)
    with (
        redirect_stdout(printed),  # type: ignore[type-var]
        redirect_stderr(printed),
        sending_to(lambda message: mailbox.put.remote(number, "message", message)),
    ):
        answer = call(function, arguments)
    printed.end()
    ray.get(mailbox.flush.remote())  # what was put before has arrived
    return answer
