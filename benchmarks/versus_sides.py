"""The benchmarks that each of two checkouts runs, through `regard.load` and the command line."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from benchmarks.cache import cached
from benchmarks.decoding.shape import write_numbers
from benchmarks.versus_data import RECIPES, Folders

BEAMS = 4


def prepare(folders: dict[str, Any]) -> None:
    """Write random weights with `transformers`, and quantized folders with the library."""
    import regard

    given = _folders(folders)
    # Older commits call `quantize` `convert`.
    quantize = getattr(regard, "quantize", None) or regard.convert
    for name, write in (("gpt2", _gpt2), ("marian", _marian), ("bert", _bert)):
        source = cached(given.folder / name, lambda path, write=write: write(given, path))
        for weights in ("int8", "bfloat16"):
            path = given.folder / f"{name}-{weights}"
            cached(path, lambda made, source=source, kind=weights: quantize(source, made, kind))


def _folders(settings: dict[str, Any]) -> Folders:
    return Folders(Path(settings["folder"]), settings["quick"])


def _gpt2(given: Folders, path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    width, layers, heads = given.sizes.gpt2
    torch.manual_seed(1)
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 512}
    ends = {"bos_token_id": None, "eos_token_id": None}  # so that no sequence ends early
    config = GPT2Config(vocab_size=given.sizes.words, **sizes, **ends)
    GPT2LMHeadModel(config).save_pretrained(path)
    write_numbers(path, given.sizes.words)


def _marian(given: Folders, path: Path) -> None:
    import torch
    from transformers import MarianConfig, MarianMTModel

    width, layers, heads = given.sizes.translator
    torch.manual_seed(1)
    sides = ("encoder", "decoder")
    config = MarianConfig(
        vocab_size=given.sizes.words,
        d_model=width,
        **{f"{side}_layers": layers for side in sides},
        **{f"{side}_attention_heads": heads for side in sides},
        **{f"{side}_ffn_dim": 4 * width for side in sides},
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        decoder_start_token_id=1,
        eos_token_id=2,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="relu",
    )
    model = MarianMTModel(config)
    model.generation_config.bad_words_ids = None
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    write_numbers(path, given.sizes.words, ["<pad>", "<s>", "</s>"])


def _bert(given: Folders, path: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    width, layers, heads = given.sizes.encoder
    torch.manual_seed(1)
    words = [str(i) for i in range(given.sizes.words - 5)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")


class _Loaded:
    """A task, opened by `regard.load`."""

    def __init__(self, name: str, folders: dict[str, Any], weights: str, threads: int):
        import torch

        import regard

        torch.set_num_threads(threads)
        self.given = _folders(folders)
        end = "" if weights == "float32" else f"-{weights}"
        self.task: Any = regard.load(self.given.folder / f"{name}{end}", device="cpu")


class Generate(_Loaded):
    """Greedy decoding of `new` tokens after prompts of 16 tokens."""

    def __init__(self, folders: dict[str, Any], weights: str, rows: int, new: int, threads: int):
        super().__init__("gpt2", folders, weights, threads)
        words = self.given.sizes.words
        self.prompts = [
            " ".join(str((31 * row + 7 * i) % words) for i in range(16)) for row in range(rows)
        ]
        self.new = new

    def turn(self) -> list[str]:
        """The texts."""
        found: list[str] = self.task.generate(self.prompts, max_tokens=self.new)
        return found


class Translate(_Loaded):
    """Beam search with beams of 4 and at most 14 tokens."""

    def __init__(self, folders: dict[str, Any], weights: str, threads: int):
        super().__init__("marian", folders, weights, threads)
        self.texts = self.given.texts(self.given.sizes.sentences)

    def turn(self) -> list[str]:
        """The translations."""
        found: list[str] = self.task.translate(self.texts, beams=BEAMS, max_tokens=14)
        return found


class Embed(_Loaded):
    """Vectors of texts."""

    def __init__(self, folders: dict[str, Any], weights: str, threads: int):
        super().__init__("bert", folders, weights, threads)
        self.texts = self.given.texts(self.given.sizes.texts)

    def turn(self) -> int:
        """The number of vectors."""
        return len(self.task.embed(self.texts))


class _Command(ABC):
    """The command line: each call runs in a new process, whose peak memory is measured."""

    def __init__(self, folders: dict[str, Any], threads: int):
        from benchmarks.startup import Process

        self.given, self.threads = _folders(folders), threads
        self.process = Process(["-m", "regard", *self.arguments()], threads)

    @abstractmethod
    def arguments(self) -> list[str]:
        """The arguments of the command."""

    def turn(self) -> float:
        """The seconds of one run."""
        return self.process.turn()

    def peak(self) -> float:
        """The peak memory in MB."""
        return self.process.peak()


class Predict(_Command):
    """`regard embed` for one text, in a new process."""

    def arguments(self) -> list[str]:
        """The arguments of the command."""
        return ["embed", str(self.given.folder / "bert"), "1 2 3"]


class Train(_Command):
    """`regard train` on random texts; start-up and saving are part of the time."""

    def __init__(self, folders: dict[str, Any], recipe: str, threads: int):
        self.recipe = recipe
        self.folder = Path(tempfile.mkdtemp())
        super().__init__(folders, threads)

    def arguments(self) -> list[str]:
        """The arguments of the command; also writes the recipe and the data."""
        given, path = self.given, self.folder
        texts, other = given.texts(20 * given.sizes.texts), given.texts(20 * given.sizes.texts, 2)
        rows = [f"{text}\t{len(text) % 2}" for text in texts]
        for name, lines in {"texts": texts, "other": other, "table": rows}.items():
            (path / name).write_text("\n".join(lines) + "\n")
            (path / f"{name}-valid").write_text("\n".join(lines[:8]) + "\n")
        (path / "recipe.toml").write_text(
            RECIPES[self.recipe].format(
                texts=path / "texts",
                other=path / "other",
                table=path / "table",
                encoder=given.folder / "bert",
                max_steps=given.sizes.updates,
                precision="bfloat16",
            )
        )
        return ["train", str(path / "recipe.toml"), "--out", str(path / "run"), "--quiet"]

    def ready(self) -> None:
        """Remove the run of the previous call."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
