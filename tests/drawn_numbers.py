"""The random numbers of hard attention in Python's integers: SplitMix64 (Steele et al. 2014)."""

from __future__ import annotations

GOLDEN, TOP = 0x9E3779B97F4A7C15, 1 << 64


def splitmix(z: int) -> int:
    """The finalizer of SplitMix64 in Python's integers."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % TOP
    z = (z ^ z >> 27) * 0x94D049BB133111EB % TOP
    return z ^ z >> 31


def key_of(ids: list[int], seed: int | None) -> int:
    """Of a sequence with these tokens."""
    words = sum(splitmix((word << 32) + at) for at, word in enumerate(ids, 1))
    return splitmix((words + (seed or 0)) % TOP)


def number_of(key: int, number: int) -> float:
    """From 0 to below 1, the number of step `number` (from 1)."""
    return (splitmix((key + number * GOLDEN) % TOP) >> 11) * 2.0**-53
