"""Beam search of 4 with a Transformer base over Multi30k's sentences, the same ids for everybody.

With random weights no hypothesis ends early: all go on to the same length, that of an average
translation. With `--model`, a run of a translator or its folder, hypotheses end where the model
ends them, and the outputs have a BLEU.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cache import cached
from benchmarks.decoding.shape import write_numbers
from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

PAD, BOS, EOS, UNKNOWN = 0, 1, 2, 3
BEAMS = 4
SLOW = 8  # `transformers` translates one sentence in eight, and is as fast per sentence as that
SIDES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "regard int8": ("Ours", {"weights": "int8"}, ()),
    "regard bfloat16": ("Ours", {"weights": "bfloat16"}, ()),
    "regard float32": ("Ours", {"weights": "float32"}, ()),
    "CTranslate2 int8": (
        "CTranslate2",
        {"weights": "int8_float32", "parallel": True},
        ("ctranslate2", "transformers"),
    ),
    "CTranslate2 int8, one worker": (
        "CTranslate2",
        {"weights": "int8_float32", "parallel": False},
        ("ctranslate2", "transformers"),
    ),
    "CTranslate2 float32": (
        "CTranslate2",
        {"weights": "float32", "parallel": True},
        ("ctranslate2", "transformers"),
    ),
    "transformers bfloat16": ("Transformers", {"dtype": "bfloat16"}, ("transformers",)),
    "transformers float32": ("Transformers", {"dtype": "float32"}, ("transformers",)),
}
WRITERS = {"Ours": "write_ours", "CTranslate2": "write_ct2"}
GOALS = {"CTranslate2 int8": 1.3, "transformers float32": 8.0, "transformers bfloat16": 8.0}
BASE = {"vocab_size": 32000, "d_model": 512, "d_ff": 2048, "heads": 8, "layers": 6}
TINY = {"vocab_size": 60, "d_model": 32, "d_ff": 64, "heads": 2, "layers": 2}


def works(options: Options) -> Iterator[Work]:
    """Random weights of the base shape; and a trained model where one is given."""
    sizes = TINY if options.quick else BASE
    rows = sentences(options, sizes["vocab_size"])
    folder = _folder(options.cache, sizes)
    limit = 6 if options.quick else 14
    name = "translation, tiny" if options.quick else "translation, Transformer base, random weights"
    note = f"{len(rows):,} sentences, beams of {BEAMS}, {limit} tokens each"
    yield work(name, note, folder, rows, limit, options)
    if options.model:
        yield _trained(options)


def work(
    name: str,
    note: str,
    folder: Path,
    rows: list[list[int]],
    limit: int,
    options: Options,
    module: str = __name__,
    goals: dict[str, float] = GOALS,
    beams: int = BEAMS,
) -> Work:
    """All sides on these rows; `module` has their classes for the kind of model in the folder.

    beams: 1 is greedy search.
    """
    given = options.cache / f"translation-{len(rows)}-{sum(map(len, rows))}.json"
    given.write_text(json.dumps(rows))
    common = {"folder": str(folder), "rows": str(given), "limit": limit, "beams": beams}
    conditions = [
        Condition(
            name,
            f"{module}:{kind}",
            common | settings,
            needs,
            prepare=f"{module}:{WRITERS[kind]}" if kind in WRITERS else "",
        )
        for name, (kind, settings, needs) in SIDES.items()
    ]
    amounts = {name: len(rows[::SLOW]) for name, side in SIDES.items() if side[0] == "Transformers"}
    return Work(
        name, "sentences/s", len(rows), conditions, goals, amounts=amounts, judge=_same, note=note
    )


def searches(
    name: str,
    folder: Path,
    rows: list[list[int]],
    limit: int,
    options: Options,
    module: str,
    goals: dict[str, float],
) -> Iterator[Work]:
    """Beam search, and greedy search under a name of its own; see `work`."""
    for beams, kind in ((BEAMS, ""), (1, ", greedy")):
        how = f"beams of {beams}" if beams > 1 else "greedy"
        note = f"{len(rows):,} sentences, {how}, {limit} tokens each"
        yield work(f"{name}{kind}", note, folder, rows, limit, options, module, goals, beams)


def _same(results: dict[str, Any]) -> dict[str, str]:
    """How many outputs are those of `transformers` in float32, token by token."""
    wanted = results.get("transformers float32") or []
    told = {}
    for name, rows in results.items():
        found = rows if len(rows) == len(wanted) else rows[::SLOW]
        if wanted and name != "transformers float32":
            equal = sum(a == b for a, b in zip(found, wanted, strict=True))
            told[name] = f"{equal} of {len(wanted)} outputs as transformers float32"
        said = f"{sum(map(len, rows)) / len(rows):.1f} tokens each"
        told[name] = f"{told[name]}, {said}" if name in told else said
    return told


# ------------------------------------------------------------------------------ the sentences


def sentences(options: Options, vocab_size: int) -> list[list[int]]:
    """The ids of 1,000 sentences, `</s>` at the end: words by how frequent they are."""
    parts = ("multi30k", "data", "task1", "tok", "test_2016_flickr.lc.norm.tok.en")
    file = options.file(*parts)
    if file is None:
        draw = random.Random(1)
        lengths = [max(4, round(draw.lognormvariate(2.5, 0.35))) for _ in range(1000)]
        lines = [[str(draw.randrange(vocab_size)) for _ in range(n)] for n in lengths]
    else:
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    lines = lines[:16] if options.quick else lines
    counts = Counter(word for line in lines for word in line)
    ids = {word: 4 + i % (vocab_size - 4) for i, (word, _) in enumerate(counts.most_common())}
    return [[*(ids[word] for word in line), EOS] for line in lines]


def _folder(cache: Path, sizes: dict[str, int]) -> Path:
    """Random weights in the published format, written once by the library itself."""

    def write(path: Path) -> None:
        import torch

        from regard.models.transformer import Transformer, TransformerConfig

        torch.manual_seed(1)
        given = {k: v for k, v in sizes.items() if k != "layers"}
        layers = {"encoder_layers": sizes["layers"], "decoder_layers": sizes["layers"]}
        write_published(path, Transformer(TransformerConfig(**given, **layers, dropout=0.0)))

    name = f"marian-{sizes['d_model']}x{sizes['layers']}-{sizes['vocab_size']}-numbers"
    return cached(cache / name, write)


def write_published(path: Path, model: Any) -> None:
    """The folder of a model in the published format, whose tokens are numbers."""
    from regard.checkpoints.formats import to_published
    from regard.checkpoints.store import write_tensors

    published = to_published(model)
    assert published is not None
    path.mkdir()
    write_tensors(path / "model.safetensors", published[1])
    (path / "config.json").write_text(json.dumps(published[0], indent=1))
    write_numbers(path, model.config.vocab_size)


# ------------------------------------------------------------------------------------- sides


def write_ours(folder: str, weights: str, **search: object) -> None:
    """The quantized folder, as `regard quantize` writes it."""
    import regard

    if weights != "float32":
        cached(_ours(folder, weights), lambda made: regard.quantize(folder, made, weights))


def _ours(folder: str, weights: str) -> Path:
    return Path(folder) / f"regard-{weights}"


class Ours:
    """weights: "float32", or "bfloat16" and "int8" from a folder that holds them."""

    def __init__(self, folder: str, rows: str, limit: int, beams: int, weights: str, threads: int):
        import torch

        import regard
        from regard.data import TokenArray
        from regard.decoding import Beam, Greedy

        torch.set_num_threads(threads)
        path = folder if weights == "float32" else _ours(folder, weights)
        self.model = regard.load(path, device="cpu").module
        self.rows = TokenArray.of(json.loads(Path(rows).read_text()))
        greedy = Greedy(max_tokens=limit)
        self.method = greedy if beams == 1 else Beam(size=beams, max_tokens=limit)

    def turn(self) -> list[list[int]]:
        """The best hypothesis of each sentence."""
        from regard.tasks.batching import decode_in_order

        return [best[0].tokens for best in decode_in_order(self.model, self.rows, self.method)]


class Transformers:
    """dtype: "float32" or "bfloat16"; one sentence in eight, in batches of 32 as they come.

    kind: the class of the model.  pad, eos: its tokens that are no words.
    """

    kind, pad, eos = "MarianMTModel", PAD, EOS

    def __init__(self, folder: str, rows: str, limit: int, beams: int, dtype: str, threads: int):
        import torch
        import transformers

        torch.set_num_threads(threads)
        kind = getattr(transformers, self.kind)
        self.model = kind.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.rows = json.loads(Path(rows).read_text())[::SLOW]
        self.limit, self.beams = limit, beams

    def turn(self) -> list[list[int]]:
        """The best hypothesis of each sentence."""
        import torch

        found: list[list[int]] = []
        for start in range(0, len(self.rows), 32):
            rows = [torch.tensor(row) for row in self.rows[start : start + 32]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad)
            with torch.inference_mode():
                best = self.model.generate(
                    ids,
                    attention_mask=(ids != self.pad).long(),
                    num_beams=self.beams,
                    max_new_tokens=self.limit,
                    do_sample=False,
                    early_stopping=False,
                    length_penalty=1.0,
                )
            found += [
                [i for i in row[1:] if i not in (self.pad, self.eos)] for row in best.tolist()
            ]
        return found


def write_ct2(folder: str, weights: str, **search: object) -> None:
    """The folder in its format."""
    cached(ct2_folder(folder, weights), lambda made: _convert(folder, made, weights))


def ct2_folder(folder: str, weights: str) -> Path:
    """Where the converted weights are."""
    return Path(folder) / f"ctranslate2-{weights}"


class CTranslate2:
    """weights: one of its compute types. parallel: a batch for each core, else cores share one.

    pad, eos: the tokens that are no words.
    """

    pad, eos = PAD, EOS

    def __init__(
        self,
        folder: str,
        rows: str,
        limit: int,
        beams: int,
        weights: str,
        parallel: bool,
        threads: int,
    ):
        import ctranslate2

        self.model = ctranslate2.Translator(
            str(ct2_folder(folder, weights)),
            device="cpu",
            compute_type=weights,
            inter_threads=threads if parallel else 1,
            intra_threads=1 if parallel else threads,
        )
        self.rows = [[str(i) for i in row] for row in json.loads(Path(rows).read_text())]
        self.limit, self.beams = limit, beams

    def turn(self) -> list[list[int]]:
        """The best hypothesis of each sentence."""
        found = self.model.translate_batch(
            self.rows,
            beam_size=self.beams,
            max_decoding_length=self.limit,
            max_batch_size=2048,
            batch_type="tokens",
            length_penalty=1.0,
        )
        tokens = ([int(token) for token in each.hypotheses[0]] for each in found)
        return [[i for i in row if i not in (self.pad, self.eos)] for row in tokens]


def _convert(folder: str, path: Path, weights: str) -> None:
    """Write the folder in CTranslate2's format; its words are the numbers of the tokens."""
    import transformers
    from ctranslate2.converters.transformers import BartLoader

    class Marian(BartLoader):
        """As its loader of Marian's models, which wants the padding to be the last word."""

        def get_model_spec(self, model: Any) -> Any:
            model.config.normalize_before = model.config.normalize_embedding = False
            return super().get_model_spec(model)

    model = transformers.MarianMTModel.from_pretrained(folder)
    words = [str(i) for i in range(model.config.vocab_size)]
    save_ct2(Marian().get_model_spec(model), words, words[PAD], words[EOS], path, weights)


def save_ct2(spec: Any, words: list[str], start: str, eos: str, path: Path, weights: str) -> None:
    """Write a converted model in its format.

    words: its vocabulary.  start, eos: with which of them the decoder starts and ends.
    """
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token, spec.config.unk_token = eos, words[UNKNOWN]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=weights)
    path.mkdir()
    spec.save(str(path))


# ------------------------------------------------------------------------- a trained translator


def _trained(options: Options) -> Work:
    """The given model on the sentences of its own language, and BLEU."""
    import regard
    from regard.metrics import BLEU

    assert options.model is not None
    task = regard.load(options.model)
    sources, references = _pairs(options)
    rows = [[*row, EOS] for row in task.tokenizer.encode_many(sources)]

    def judge(results: dict[str, Any]) -> dict[str, str]:
        told = {}
        for name, found in results.items():
            wanted = references if len(found) == len(references) else references[::SLOW]
            bleu = BLEU()
            bleu.add(task.tokenizer.decode_many(found), wanted)
            part = "" if wanted is references else f" of every {SLOW}th"
            told[name] = f"BLEU {bleu.result().value:.2f}{part}"
        return told

    folder = options.model / "model" if (options.model / "model").exists() else options.model
    name, note = f"translation, {options.model.name}", f"{len(rows):,} sentences, beams of {BEAMS}"
    return replace(work(name, note, folder, rows, 60, options), judge=judge)


def _pairs(options: Options) -> tuple[list[str], list[str]]:
    """Sources and references: Multi30k's test of 2016, German to English."""
    files = [
        options.file("multi30k", "data", "task1", "raw", f"test_2016_flickr.{x}.gz")
        for x in ("de", "en")
    ]
    if not all(files):
        raise SystemExit("--model is measured on Multi30k's test of 2016: give --data FOLDER.")
    sides = [gzip.open(file, "rt", encoding="utf-8").read().splitlines() for file in files]
    return sides[0], sides[1]
