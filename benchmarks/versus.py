"""python -m benchmarks.versus COMMIT [NAMES] [--rounds 5] [--threads 2] [--load 0] [--least 0.95]

Compares the working tree with another commit of this repository: speed and peak memory of decoding,
encoding, training and start-up. Both run in turn. They are used only through `regard.load` and the
command line, so their internals may differ. A ratio above 1 means that the working tree is faster.
Exit code 1: a ratio is below `--least`, or a benchmark failed.

NAMES: run only benchmarks whose name contains one of these (generate, translate, embed, train,
start-up).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.cache import cached
from benchmarks.measure import Measured, Work, measure
from benchmarks.versus_data import Folders
from benchmarks.workers import ROOT, Condition, prepare

HERE, THERE = "working tree", "the commit"
SIDES = "benchmarks.versus_sides:"


def main() -> None:
    """Measure both, print a table, and exit with 1 if the working tree is too slow."""
    options = _arguments()
    before = checkout(options.commit, options.cache)
    folders = Folders(options.cache / "versus", quick=options.quick)
    slow = []
    print(f"| work | {HERE} | {THERE} | faster by | memory | memory before |", flush=True)
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder, machine.load(options.load):
        root = _without_regard(Path(folder))
        prepare(_writer(folders, root, before), options.threads)
        for work in works(folders, root, before):
            if options.names and not any(name in work.name for name in options.names):
                continue
            found = measure(work, options.rounds, options.threads, _log)
            print(_row(found), flush=True)
            if failed(found, options.least):
                slow.append(work.name)
    if slow:
        raise SystemExit(
            f"failed, or below {options.least:g} times the speed of {options.commit}: "
            f"{', '.join(slow)}"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commit", help="a commit, a tag or a branch")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--load", type=int, default=0, help="busy background processes")
    parser.add_argument("--least", type=float, default=0.95, help="the smallest ratio that passes")
    parser.add_argument(
        "--quick", action="store_true", help="tiny models, to check that everything runs"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "regard" / "benchmarks"
    )
    return parser.parse_args()


def _log(line: str) -> None:
    print(line, file=sys.stderr)


def checkout(commit: str, cache: Path) -> Path:
    """Write the files of a commit into a folder of the cache, and return the folder."""
    named = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if named.returncode:
        raise SystemExit(f"{commit} is not a commit of this repository: {named.stderr.strip()}")
    full = named.stdout.strip()

    def write(path: Path) -> None:
        archive = subprocess.run(
            ["git", "archive", full], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(path, filter="data")

    return cached(cache / "commits" / full, write)


def _without_regard(path: Path) -> Path:
    """A folder with `benchmarks` but without `regard`, which is imported from PYTHONPATH."""
    (path / "benchmarks").symlink_to(ROOT / "benchmarks")
    return path


def works(folders: Folders, root: Path, before: Path) -> list[Work]:
    """The benchmarks; both checkouts open the same model folders."""
    return [
        Work(name, unit, amount, _both(_condition(side, settings, folders), root, before))
        for name, unit, amount, side, settings in folders.works()
    ]


def _condition(side: str, settings: dict[str, Any], folders: Folders) -> Condition:
    return Condition(side, SIDES + side, {**settings, "folders": folders.settings()})


def _both(condition: Condition, root: Path, before: Path) -> list[Condition]:
    """The same condition for both checkouts."""
    return [
        replace(condition, name=name, root=root, environment={"PYTHONPATH": str(source)})
        for name, source in ((HERE, ROOT), (THERE, before))
    ]


def _writer(folders: Folders, root: Path, before: Path) -> Condition:
    """The condition that writes the model folders for both, with the code of the older commit."""
    environment = {"PYTHONPATH": str(before)}
    settings = {"folders": folders.settings()}
    return Condition("files", "", settings, (), environment, SIDES + "prepare", root)


def ratios(found: Measured) -> list[float]:
    """The speed of the working tree divided by that of the commit, for each round."""
    here, there = found.seconds.get(HERE, []), found.seconds.get(THERE, [])
    return [theirs / ours for ours, theirs in zip(here, there, strict=False)]


def failed(found: Measured, least: float) -> bool:
    """Whether a checkout failed, or the median ratio is below `least`."""
    return bool(found.left_out) or median(ratios(found)) < least


def _row(found: Measured) -> str:
    if found.left_out:
        said = "; ".join(f"{name} {why}" for name, why in found.left_out.items())
        return f"| {found.work.name} | {said} | | | | |"
    rates = [found.work.amount / median(found.seconds[name]) for name in (HERE, THERE)]
    each = ratios(found)
    cells = [
        f"{found.work.name}, {found.work.unit}",
        *(f"{rate:,.4g}" for rate in rates),
        f"{median(each):.3f} ({min(each):.3f}-{max(each):.3f})",
        *(f"{found.memory[name] or 0:,.0f} MB" for name in (HERE, THERE)),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
