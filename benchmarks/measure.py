"""Works and their conditions, in turn; medians, and ratios round by round with their spread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.workers import Condition, Failed, Turn, Worker, prepare

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What is done in one turn, and who does it.

    amount: units of one turn; amounts: of those whose turn is another.
    conditions: the first is ours, which the others are compared with.
    goals: how many times faster than a condition ours shall be.
    least: for a condition the ceiling that binds it and how much of it a turn takes, for instance
        ("read GB/s", 15.9): a share of the ceiling is told.
    judge: what the last turn of every condition gave -> what to say of each.
    """

    name: str
    unit: str
    amount: float
    conditions: list[Condition]
    goals: dict[str, float] = field(default_factory=dict)
    least: dict[str, tuple[str, float]] = field(default_factory=dict)
    amounts: dict[str, float] = field(default_factory=dict)
    judge: Callable[[dict[str, Any]], dict[str, str]] = lambda results: {}
    note: str = ""

    def of(self, name: str) -> float:
        """Units of one turn of a condition."""
        return self.amounts.get(name, self.amount)


@dataclass
class Measured:
    """Seconds of each round by condition, and what else was seen.

    others: of the same rounds, the cores that other programs used.
    """

    work: Work
    seconds: dict[str, list[float]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)
    made: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float | None] = field(default_factory=dict)
    quality: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One for each condition that ran, fastest first."""
        return sorted((self._row(name) for name in self.seconds), key=lambda row: -row["rate"])

    def _row(self, name: str) -> dict[str, Any]:
        seconds, first = self.seconds[name], self.work.conditions[0].name
        ours = self.seconds.get(first)
        row: dict[str, Any] = {
            "condition": name,
            "amount": self.work.of(name),
            "rate": self.work.of(name) / median(seconds),
            "seconds": seconds,
            "others": self.others.get(name, []),
            "memory MB": self.memory.get(name),
            "quality": self.quality.get(name, ""),
            "goal": self.work.goals.get(name),
        }
        if ours and ours is not seconds:
            part = self.work.of(first) / self.work.of(name)
            ratios = [part * theirs / own for own, theirs in zip(ours, seconds, strict=True)]
            row |= {"ratios": ratios}
        if name in self.work.least:
            row["ceiling"], row["least"] = self.work.least[name]
        return row


def measure(work: Work, rounds: int, threads: int, tell: Tell) -> Measured:
    """Make all conditions, let each run once to warm up, then `rounds` times in turn.

    Who cannot take part is left out and told; the others go on.
    """
    found = Measured(work)
    with ExitStack() as stack:
        workers = _made(work, found, threads, stack, tell)
        results: dict[str, Any] = {}
        for name in list(workers):
            done = _try(found, workers, name, tell)
            if done is not None:
                results[name] = done.result
        for _ in range(rounds):
            for name in list(workers):
                done = _try(found, workers, name, tell)
                if done is not None:
                    found.seconds.setdefault(name, []).append(done.seconds)
                    found.others.setdefault(name, []).append(done.others)
                    results[name] = done.result
        for name, worker in workers.items():
            found.memory[name] = worker.peak()
    found.seconds = {name: found.seconds[name] for name in workers if name in found.seconds}
    found.quality = work.judge({name: results[name] for name in found.seconds})
    return found


def _made(
    work: Work, found: Measured, threads: int, stack: ExitStack, tell: Tell
) -> dict[str, Worker]:
    workers: dict[str, Worker] = {}
    for condition in work.conditions:
        name = condition.name
        if condition.missing:
            found.left_out[name] = f"not installed ({condition.missing})"
            tell(f"{work.name}: {name} is left out: {found.left_out[name]}")
            continue
        tell(f"{work.name}: making {name}")
        try:
            prepare(condition, threads)
            worker = stack.enter_context(Worker(condition, threads))
            found.made[name] = worker.make()
        except Failed as error:
            _leave_out(found, name, error, tell)
        else:
            workers[name] = worker
    return workers


def _try(found: Measured, workers: dict[str, Worker], name: str, tell: Tell) -> Turn | None:
    try:
        done = workers[name].call("turn")
        tell(f"{found.work.name}: {name}, {done.seconds:.3g} s, others {done.others:.2f} cores")
        return done
    except Failed as error:
        _leave_out(found, name, error, tell)
        del workers[name]
        return None


def _leave_out(found: Measured, name: str, error: Failed, tell: Tell) -> None:
    found.left_out[name] = f"failed: {error}"
    tell(f"{found.work.name}: {name} {found.left_out[name]}")
