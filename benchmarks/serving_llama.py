"""python -m benchmarks.serving_llama VOCABULARY [--rounds 3] [--cache FOLDER]

`regard serve` beside the server of llama-cpp-python, on the same cores in turn: a GPT-2 of 124M
with random weights, 8 bits on both sides, and 16 clients who ask for 64 tokens behind 32.
Printed are tokens a second, and the seconds to the first token of a prompt of 512, alone and while
15 others are continued. VOCABULARY is a folder with GPT-2's vocab.json (or encoder.json) and
merges.txt (or vocab.bpe). The server needs `pip install 'llama-cpp-python[server]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cache import cached
from benchmarks.decoding.shape import Shape
from benchmarks.serving import CLIENTS, LONG, PROMPT, WRITTEN, asked, first_token, waiting_clients

FILES = {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}
PORT = 8753


def model_folder(cache: Path, vocabulary: Path) -> Path:
    """The weights of `Shape` with GPT-2's tokenizer."""

    def write(made: Path) -> None:
        made.mkdir(parents=True)
        weights = Shape().folder(cache)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(weights / name, made / name)
        for name, older in FILES.items():
            file = vocabulary / name
            shutil.copy(file if file.exists() else vocabulary / older, made / name)

    return cached(cache / "gpt2-with-its-tokenizer", write)


def exported(folder: Path) -> Path:
    """The same as GGUF, in blocks of 8 bits."""

    def write(made: Path) -> None:
        command = ["export", folder, "--to", "gguf", "--out", made, "--quantize", "int8"]
        subprocess.run([sys.executable, "-m", "regard", *map(str, command)], check=True)

    return cached(folder.with_name("gpt2-q8_0.gguf"), write)


@contextmanager
def serving(command: Sequence[str], health: str) -> Iterator[None]:
    """A server, while it answers."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL) as process:
        try:
            while not _answers(health):
                if process.poll() is not None:
                    sys.exit(f"{command[0]} has ended, with {process.returncode}")
                time.sleep(0.2)
            yield
        finally:
            process.kill()


def _answers(path: str) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}").read()
    except OSError:
        return False
    return True


def measured(words: Sequence[str], rounds: int) -> dict[str, float]:
    """Medians of rounds, after one that is not counted."""
    draw = random.Random(1)

    def prompt(length: int) -> str:
        return "".join(draw.choices(words, k=length))

    def body(length: int, written: int) -> dict[str, object]:
        return {"prompt": prompt(length), "max_tokens": written, "temperature": 0}

    rates, alone, beside = [], [], []
    for _ in range(rounds + 1):
        work = [[("/v1/completions", body(PROMPT, WRITTEN))] for _ in range(CLIENTS)]
        seconds, _ = asked(PORT, work)
        rates.append(CLIENTS * WRITTEN / seconds)
        alone.append(first_token(PORT, body(LONG, 2)))
        others = [("/v1/completions", body(PROMPT, 2 * WRITTEN)) for _ in range(CLIENTS - 1)]
        with waiting_clients(PORT, others):
            time.sleep(0.5)
            beside.append(first_token(PORT, body(LONG, 2)))
    found = {"tokens/s": rates, "first token alone, s": alone, "beside others, s": beside}
    return {name: statistics.median(each[1:]) for name, each in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    folder = model_folder(given.cache, given.vocabulary)
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    common = sorted(vocabulary, key=vocabulary.get)[:5000]
    # Words that are one token wherever they stand.
    words = [" " + w[1:] for w in common if w[0] == "Ġ" and w[1:].isascii() and w[1:].isalpha()]
    ours = ["regard", "serve", folder, "--quantize", "int8", "--port", PORT]
    theirs = ["llama_cpp.server", "--model", exported(folder), "--port", PORT, "--n_ctx", 1024]
    theirs += ["--n_threads", os.cpu_count(), "--n_threads_batch", os.cpu_count()]
    theirs += ["--interrupt_requests", "false"]
    for command, health in ((ours, "/health"), (theirs, "/v1/models")):
        with serving([*map(str, command)], health):
            print(command[0], measured(words, given.rounds))


if __name__ == "__main__":
    main()
