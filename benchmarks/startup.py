"""What it costs to begin: imports, and the first answer of the command line, each a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.cache import cached
from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

LINE = "The cat sat on the mat."
IMPORTS = {
    "import regard": "import regard",
    "import torch": "import torch",
    "regard's Transformer": "from regard.models.transformer import Transformer",
    "transformers' MarianMTModel": "from transformers import MarianMTModel",
}
PIPELINE = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(tokenizer.decode(model.generate(**tokenizer(sys.argv[2], return_tensors="pt"),
                                      max_new_tokens=8, do_sample=False)[0]))
"""


def works(options: Options) -> Iterator[Work]:
    """Imports, then an answer: of a small GPT-2."""
    yield Work(
        "startup: imports",
        "seconds",
        1.0,
        [
            Condition(
                name,
                f"{__name__}:Process",
                {"command": ["-c", code]},
                ("transformers",) if "transformers" in code else (),
            )
            for name, code in IMPORTS.items()
        ],
        note="a new process of Python each time",
    )
    folder = _folder(options)
    predict = ["-m", "regard", "predict", str(folder), LINE, "--max-tokens", "8"]
    conditions = {
        "regard predict": predict,
        "regard predict --quantize int8": [*predict, "--quantize", "int8"],
        "import torch alone": ["-c", "import torch"],
        "transformers": ["-c", PIPELINE, str(folder), LINE],
    }
    yield Work(
        "startup: an answer of a small GPT-2",
        "seconds",
        1.0,
        [
            Condition(
                name,
                f"{__name__}:Process",
                {"command": command},
                ("transformers",) if name == "transformers" else (),
            )
            for name, command in conditions.items()
        ],
        judge=_beyond_torch,
        note="a new process: imports, 4 layers of 256, 8 tokens",
    )


def _beyond_torch(results: dict[str, float]) -> dict[str, str]:
    torch = results.get("import torch alone", 0.0)
    return {name: f"{seconds - torch:+.2f} s vs. import torch" for name, seconds in results.items()}


class Process:
    """A command of Python in a process of its own."""

    def __init__(self, command: list[str], threads: int):
        self.command = [sys.executable, *command]
        self.seconds: list[float] = []
        self.most = 0.0

    def turn(self) -> float:
        """From its start to its end; the median of the seconds so far."""
        began = time.perf_counter()
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(self.command, stdout=said, stderr=said)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.seconds.append(time.perf_counter() - began)
            if process.returncode:
                said.seek(0)
                raise RuntimeError(said.read()[-500:].decode(errors="replace"))
        self.most = max(self.most, used.ru_maxrss / 1024)
        return median(self.seconds)

    def peak(self) -> float:
        """The most resident memory of the commands, in MB."""
        return self.most


def _folder(options: Options) -> Path:
    """A small GPT-2 with random weights and the bench's tokenizer."""
    from benchmarks.tokenizing import tokenizer_folder

    def write(path: Path) -> None:
        import torch
        from tokenizers import Tokenizer
        from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

        made = Tokenizer.from_file(str(tokenizer_folder(options) / "tokenizer.json"))
        torch.manual_seed(1)
        config = GPT2Config(
            vocab_size=made.get_vocab_size(),
            n_embd=256,
            n_layer=4,
            n_head=4,
            bos_token_id=None,
            eos_token_id=None,
        )
        GPT2LMHeadModel(config).save_pretrained(path)
        PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)

    return cached(options.cache / "small-gpt2", write)
