"""python -m benchmarks.versus COMMIT [NAMES] [--rounds 5] [--threads 2] [--load 0] [--least 0.95]

Another commit of this repository beside the working tree, in turn in one run: the speed and the
peak memory of decoding, encoding, training and start-up. Both are used through `regard.load`,
`regard train` and the command line only, so their insides may differ. A ratio above 1 says that the
working tree is faster. Exit code 1: the ratio of a work is below `--least`.

NAMES: works whose name contains one of these (generate, translate, embed, train, start-up).
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
from benchmarks.kept import kept
from benchmarks.measure import Measured, Work, measure
from benchmarks.versus_data import Folders
from benchmarks.workers import ROOT, Condition, prepare

HERE, THERE = "working tree", "the commit"
SIDES = "benchmarks.versus_sides:"


def main() -> None:
    """Measure both, print a table, and end with 1 where the working tree is too slow."""
    asked = _arguments()
    before = checkout(asked.commit, asked.cache)
    folders = Folders(asked.cache / "versus", quick=asked.quick)
    slow = []
    print(f"| work | {HERE} | {THERE} | faster by | memory | memory before |", flush=True)
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as place, machine.load(asked.load):
        root = _without_regard(Path(place))
        prepare(_writer(folders, root, before), asked.threads)
        for work in works(folders, root, before):
            if asked.names and not any(name in work.name for name in asked.names):
                continue
            found = measure(work, asked.rounds, asked.threads, _tell)
            print(_row(found), flush=True)
            if failed(found, asked.least):
                slow.append(work.name)
    if slow:
        raise SystemExit(f"slower than {asked.least:g} of {asked.commit}: {', '.join(slow)}")


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
    parser.add_argument("--load", type=int, default=0, help="other programs that run meanwhile")
    parser.add_argument("--least", type=float, default=0.95, help="the least ratio that passes")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does everything run?")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "regard" / "benchmarks"
    )
    return parser.parse_args()


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def checkout(commit: str, cache: Path) -> Path:
    """The files of a commit, in a folder of the cache."""
    named = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if named.returncode:
        raise SystemExit(f"{commit} is no commit of this repository: {named.stderr.strip()}")
    full = named.stdout.strip()

    def write(place: Path) -> None:
        archive = subprocess.run(
            ["git", "archive", full], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(place, filter="data")

    return kept(cache / "commits" / full, write)


def _without_regard(place: Path) -> Path:
    """A folder with the benchmarks and without the package: PYTHONPATH says which one is used."""
    (place / "benchmarks").symlink_to(ROOT / "benchmarks")
    return place


def works(folders: Folders, root: Path, before: Path) -> list[Work]:
    """What is measured, on folders of weights that both sides open."""
    return [
        Work(name, unit, amount, _both(_condition(side, settings, folders), root, before))
        for name, unit, amount, side, settings in folders.works()
    ]


def _condition(side: str, settings: dict[str, Any], folders: Folders) -> Condition:
    return Condition(side, SIDES + side, {**settings, "folders": folders.settings()})


def _both(condition: Condition, root: Path, before: Path) -> list[Condition]:
    """The same work by both checkouts."""
    return [
        replace(condition, name=name, root=root, environment={"PYTHONPATH": str(source)})
        for name, source in ((HERE, ROOT), (THERE, before))
    ]


def _writer(folders: Folders, root: Path, before: Path) -> Condition:
    """What writes the folders of weights that both sides open: the commit's own code."""
    environment = {"PYTHONPATH": str(before)}
    settings = {"folders": folders.settings()}
    return Condition("files", "", settings, (), environment, SIDES + "prepare", root)


def ratios(found: Measured) -> list[float]:
    """How much faster the working tree is, round by round."""
    here, there = found.seconds.get(HERE, []), found.seconds.get(THERE, [])
    return [theirs / ours for ours, theirs in zip(here, there, strict=False)]


def failed(found: Measured, least: float) -> bool:
    """Whether a side did not run, or the working tree is slower than `least` of the commit."""
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
