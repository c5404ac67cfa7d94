"""100 MB of text to numbers: ours, and the `tokenizers` library with the same vocabulary."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cache import cached
from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "regard": ("Ours", {}),
    "tokenizers": ("Tokenizers", {}),
}


def works(options: Options) -> Iterator[Work]:
    """Lines of English, again and again until it is enough."""
    size = 100_000 if options.quick else 100_000_000
    text = _text(options, size)
    folder = tokenizer_folder(options)
    given = {"folder": str(folder), "text": str(text)}
    conditions = [
        Condition(name, f"{__name__}:{kind}", given | settings)
        for name, (kind, settings) in SIDES.items()
    ]

    def judge(results: dict[str, Any]) -> dict[str, str]:
        return {name: f"{count:,} tokens" for name, count in results.items()}

    name, note = (
        f"tokenizing {size / 1e6:g} MB",
        "byte-level BPE, from lines in memory to ids in one array",
    )
    yield Work(name, "MB/s", size / 1e6, conditions, {"tokenizers": 1.0}, judge=judge, note=note)


def _text(options: Options, size: int) -> Path:
    """A file of that many bytes, or one line more."""

    def write(path: Path) -> None:
        source = options.file("wikitext2", "wiki.test.raw") or options.file(
            "tiny_shakespeare", "input.txt"
        )
        if source is not None:
            lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
        else:
            draw = random.Random(1)
            words = [
                "".join(draw.choices("aeiourstlnmd", k=draw.randint(1, 9))) for _ in range(9999)
            ]
            lines = [" ".join(draw.choices(words, k=20)) + "\n" for _ in range(20_000)]
        whole = "".join(lines)
        parts = size // len(whole.encode()) + 1
        path.write_bytes((whole * parts).encode()[:size].rpartition(b"\n")[0] + b"\n")

    return cached(options.cache / f"text-{size}.txt", write)


def tokenizer_folder(options: Options) -> Path:
    """GPT-2's vocabulary where it is, else one learned from the text."""

    def write(path: Path) -> None:
        from tokenizers.implementations import ByteLevelBPETokenizer

        path.mkdir()
        vocabulary = options.file("vocab", "gpt2", "encoder.json")
        if vocabulary is not None:
            made = ByteLevelBPETokenizer(
                str(vocabulary), str(vocabulary.with_name("vocab.bpe")), add_prefix_space=False
            )
        else:
            made = ByteLevelBPETokenizer()
            made.train([str(_text(options, 100_000))], vocab_size=1000)
        made.save(str(path / "tokenizer.json"))

    return cached(options.cache / "tokenizer", write)


class Ours:
    """`regard.data.encode`, as a training reads its text."""

    def __init__(self, folder: str, text: str, threads: int):
        from regard.text import Tokenizer

        self.tokenizer = Tokenizer.load(folder)
        self.lines = Path(text).read_text(encoding="utf-8").splitlines()

    def turn(self) -> int:
        """The number of tokens."""
        from regard.data import FieldEncoder, encode

        rows = ((line,) for line in self.lines)
        return len(
            encode(rows, [FieldEncoder("text", self.tokenizer)], empty="keep").columns[0].ids
        )


class Tokenizers:
    """`encode_batch_fast` over the same lines in portions, which keeps memory flat."""

    def __init__(self, folder: str, text: str, threads: int):
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        self.lines = Path(text).read_text(encoding="utf-8").splitlines()

    def turn(self) -> int:
        """The number of tokens."""
        flat = array("i")
        for start in range(0, len(self.lines), 10_000):
            part = self.lines[start : start + 10_000]
            found = self.tokenizer.encode_batch_fast(part, add_special_tokens=False)
            for each in found:
                flat.extend(each.ids)
        return len(flat)
