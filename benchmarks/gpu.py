"""Speed on a GPU beside transformers: python -m benchmarks.gpu [NAMES] [--rounds N] [--quick]

    ceilings   bandwidth of a copy, rate of a bfloat16 matrix product
    decoding   GPT-2 124M, greedy, 1, 8 and 64 sequences
    beams      a Marian model of the base shape with random weights, beams of 4
    encoding   2,048 texts of different lengths with a BERT base
    training   updates with AdamW: GPT-2 124M, 16 x 1,024 tokens; recipes/gpt-12-layers.toml

Both sides compute in bfloat16, in one process and in turn; medians, ratios round by round. With
`--quick` tiny shapes, also on a CPU, to see that everything runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import translation
from benchmarks.decoding import TINY as TINY_SHAPE
from benchmarks.decoding.shape import Shape, write_numbers
from benchmarks.marian import BASE, EOS, NEVER
from benchmarks.marian import TINY as TINY_MARIAN
from regard.training.flops import rate_of

Turn = Callable[[], Any]
WARM = 3  # turns of each side before the first that counts


@dataclass
class Work:
    """sides: the first is ours; each is built, measured in turn, and given up together."""

    name: str
    unit: str
    amount: float
    sides: dict[str, Callable[[], Turn]]
    flops: float | None = None  # of one turn
    seconds: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)


def measure(work: Work, rounds: int, device: torch.device) -> None:
    """Build all sides, let each run to warm up, then `rounds` times in turn."""
    turns: dict[str, Turn] = {}
    for name, build in work.sides.items():
        began = time.perf_counter()
        try:
            turns[name] = build()
            for _ in range(WARM):
                _timed(turns[name], device)
        except Exception as error:  # one side that cannot run does not end the others
            turns.pop(name, None)
            print(f"{work.name}: {name} cannot run: {type(error).__name__}: {error!s:.300}")
            continue
        print(f"  {name}: ready after {time.perf_counter() - began:.1f} s", flush=True)
    for _ in range(rounds):
        for name, turn in turns.items():
            seconds, peak = _timed(turn, device)
            work.seconds.setdefault(name, []).append(seconds)
            work.memory[name] = max(peak, work.memory.get(name, 0.0))
    turns.clear()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _timed(turn: Turn, device: torch.device) -> tuple[float, float]:
    """Seconds, and the most MB that were allocated beyond what was there before."""
    before = 0
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    turn()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() - before if device.type == "cuda" else 0
    return seconds, peak / 1e6


def table(work: Work, rate: float) -> str:
    """Rates, ratios of ours with their spread, memory, and the share of the device's FLOP/s."""
    lines = [f"{work.name} ({work.unit})"]
    ours = work.seconds.get(next(iter(work.sides)), [])
    for name, seconds in work.seconds.items():
        line = f"  {name:32}{work.amount / median(seconds):14,.1f}{work.memory[name]:10,.0f} MB"
        if ours and seconds is not ours:
            ratios = sorted(theirs / own for own, theirs in zip(ours, seconds, strict=True))
            line += f"   x {median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        if work.flops is not None:
            share = 100 * work.flops / median(seconds) / rate
            line += f"   {share:.1f} % of {rate / 1e12:,.1f} TFLOP/s"
        lines.append(line)
    return "\n".join(lines)


# ------------------------------------------------------------------------------------- ceilings


def ceilings(device: torch.device, quick: bool) -> None:
    """What the device reaches at a copy, and at a product of random bfloat16 matrices."""
    size = 512 if quick else 8192
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    big = torch.randn(1 << (20 if quick else 30), device=device)
    other = torch.empty_like(big)
    product = min(_timed(lambda: a @ b, device)[0] for _ in range(10))
    copy = min(_timed(lambda: other.copy_(big), device)[0] for _ in range(10))
    print(f"copy {8 * big.numel() / copy / 1e9:,.0f} GB/s read and written")
    print(f"product {2 * size**3 / product / 1e12:,.0f} TFLOP/s in bfloat16")


# ------------------------------------------------------------------------------------- decoding


def decoding(device: torch.device, quick: bool, folder: Path) -> Iterator[Work]:
    """Greedy search, prompts of 16 tokens, 128 new ones."""
    for rows in (1, 8, 64):
        shape = replace(TINY_SHAPE if quick else Shape(), rows=rows)
        weights = shape.folder(folder)
        sides = {
            "regard": lambda s=shape, w=weights: _our_greedy(s, w, device),
            "transformers": lambda s=shape, w=weights: _their_greedy(s, w, device),
        }
        if rows != 8:
            sides["transformers static, compiled"] = lambda s=shape, w=weights: _their_greedy(
                s, w, device, cache_implementation="static"
            )
        yield Work(f"GPT-2, {rows} sequences", "tokens/s", shape.tokens, sides)


def _our_greedy(shape: Shape, folder: Path, device: torch.device) -> Turn:
    import regard
    from regard import decoding
    from regard.data import Sequences

    model = regard.load(folder, device=str(device), quantize="bfloat16").module
    prompts = Sequences.of(shape.prompts(), 0).to(device)
    method = decoding.Greedy(max_tokens=shape.new)

    def turn() -> None:
        with torch.no_grad():
            found = decoding.generate(model, prompts, method)
        assert sum(len(best[0].tokens) for best in found) == shape.tokens

    return turn


def _their_greedy(shape: Shape, folder: Path, device: torch.device, **given: Any) -> Turn:
    import transformers

    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    ids = torch.tensor(shape.prompts(), device=device)
    mask, new = torch.ones_like(ids), shape.new

    def turn() -> None:
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False,
                pad_token_id=0, **given,
            )  # fmt: skip

    return turn


# ---------------------------------------------------------------------------------------- beams


def beams(device: torch.device, quick: bool, folder: Path) -> Iterator[Work]:
    """256 sentences at once, beams of 4, 32 tokens."""
    from regard.models.transformer import Transformer, TransformerConfig

    sizes, layers, limit = (TINY_MARIAN, 2, 6) if quick else (BASE, 6, 32)
    pad = sizes["vocab_size"] - 1
    torch.manual_seed(1)
    config = TransformerConfig(
        **sizes, encoder_layers=layers, decoder_layers=layers, pad=pad, bos=pad, eos=EOS,
        output_bias=True, max_length=512, activation="swish", dropout=0.0,
    )  # fmt: skip
    model = Transformer(config)
    with torch.no_grad():
        model.embedding.weight[pad] = 0.0
        model.head.bias[pad] = NEVER
    translation.write_published(folder / "marian", model)
    draw = random.Random(1)
    rows = [
        [draw.randrange(4, pad) for _ in range(draw.randint(6, 30))] + [EOS] for _ in range(256)
    ]
    rows = rows[:4] if quick else rows
    sides = {
        "regard": lambda: _our_beams(folder / "marian", rows, limit, pad, device),
        "transformers": lambda: _their_beams(folder / "marian", rows, limit, pad, device),
    }
    yield Work("Marian base, beams of 4, 256 sentences", "sentences/s", len(rows), sides)


def _our_beams(
    folder: Path, rows: list[list[int]], limit: int, pad: int, device: torch.device
) -> Turn:
    import regard
    from regard.data import Sequences
    from regard.decoding import Beam, generate

    model = regard.load(folder, device=str(device), quantize="bfloat16").module
    texts = Sequences.of(rows, pad).to(device)

    def turn() -> None:
        with torch.no_grad():
            generate(model, texts, Beam(size=4, max_tokens=limit))

    return turn


def _their_beams(
    folder: Path, rows: list[list[int]], limit: int, pad: int, device: torch.device
) -> Turn:
    import transformers
    from torch.nn.utils.rnn import pad_sequence

    kind = transformers.MarianMTModel
    model = kind.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    ids = pad_sequence([torch.tensor(row) for row in rows], True, pad).to(device)
    mask = (ids != pad).long()

    def turn() -> None:
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=mask, num_beams=4, max_new_tokens=limit, do_sample=False
            )

    return turn


# ------------------------------------------------------------------------------------- encoding


def encoding(device: torch.device, quick: bool, folder: Path) -> Iterator[Work]:
    """Texts to the means of their hidden states, tokenization included, in batches of 128."""
    import transformers

    count, vocab_size = (16, 200) if quick else (2048, 30522)
    sizes: dict[str, int] = (
        dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
        if quick
        else {}
    )
    torch.manual_seed(1)
    where = folder / "bert"
    config = transformers.BertConfig(vocab_size=vocab_size, **sizes)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(where)
    write_numbers(where, vocab_size, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    draw = random.Random(2)
    texts = [
        " ".join(str(draw.randrange(5, vocab_size)) for _ in range(draw.randint(4, 120)))
        for _ in range(count)
    ]
    sides = {
        "regard": lambda: _our_encoding(where, texts, device),
        "transformers, sorted": lambda: _their_encoding(where, texts, device),
    }
    yield Work(f"BERT base, {count:,} texts of 4 to 120 tokens", "texts/s", count, sides)


def _our_encoding(folder: Path, texts: list[str], device: torch.device) -> Turn:
    import regard

    task = regard.load(folder, device=str(device), quantize="bfloat16")
    return lambda: task.embed(texts)


def _their_encoding(folder: Path, texts: list[str], device: torch.device) -> Turn:
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]"
    )
    kind = transformers.BertModel
    model = kind.from_pretrained(folder, dtype=torch.bfloat16, add_pooling_layer=False)
    model = model.eval().to(device)

    def turn() -> list[torch.Tensor]:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found = []
        for start in range(0, len(order), 128):
            chosen = [texts[at] for at in order[start : start + 128]]
            batch = tokenizer(chosen, padding=True, return_tensors="pt").to(device)
            mask = batch["attention_mask"]
            with torch.inference_mode():
                hidden = model(batch["input_ids"], attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            found.append(mean.float().cpu())
        return found

    return turn


# ------------------------------------------------------------------------------------- training


RECIPE = Shape(width=1024, heads=16, layers=12, vocab_size=8003, length=128)


def training(device: torch.device, quick: bool, folder: Path) -> Iterator[Work]:
    """Four updates in a turn: forward, backward, clipping, AdamW."""
    if quick:
        yield _training("tiny", TINY_SHAPE, 2, 0.1, device)
        return
    yield _training("GPT-2 124M", Shape(), 16, 0.0, device)
    yield _training("recipes/gpt-12-layers.toml", RECIPE, 128, 0.1, device)


def _training(name: str, shape: Shape, rows: int, dropout: float, device: torch.device) -> Work:
    tokens = 4 * rows * shape.length
    scores = shape.layers * shape.width * shape.length  # of queries with keys, weights with values
    ours, theirs = (
        partial(build, shape, rows, dropout, device) for build in (_our_updates, _their_updates)
    )
    sides: dict[str, Callable[[], Turn]] = {
        "regard": partial(ours, compile=False),
        "regard, compiled": partial(ours, compile=True),
        "transformers": partial(theirs, compile=False),
        "transformers, compiled": partial(theirs, compile=True),
    }
    if device.type == "cpu":
        del sides["regard, compiled"], sides["transformers, compiled"]
    flops = 6.0 * tokens * (shape.matrices + scores)  # half of the scores are masked
    return Work(f"{name}, {rows} x {shape.length:,}", "tokens/s", tokens, sides, flops)


def _our_updates(
    shape: Shape, rows: int, dropout: float, device: torch.device, *, compile: bool
) -> Turn:
    from benchmarks.updates import Updates
    from regard.data.batches import StreamBatch
    from regard.models.gpt2 import GPT2, GPT2Config
    from regard.training.options import OptimizerOptions, TrainingOptions

    class Task(Updates):
        def loss(self, batch: StreamBatch, carry: Any) -> Any:
            count, batch = batch.count, batch.to(device)
            hidden = self.module(batch.tokens, None).hidden
            targets = batch.targets.flatten()
            return self.module.head.loss(hidden.flatten(0, 1), targets, 0.0, count), None

    config = GPT2Config(
        shape.vocab_size, d_model=shape.width, heads=shape.heads, layers=shape.layers,
        max_length=shape.length, dropout=dropout, attention_dropout=dropout,
        embedding_dropout=dropout,
    )  # fmt: skip
    rule = OptimizerOptions("adamw", 1e-4, (0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0)
    options = TrainingOptions(
        max_steps=10**9, precision="bfloat16", optimizer=rule, compile=compile
    )
    batches = [StreamBatch(*_stream(shape, rows, at), fresh=True) for at in range(8)]
    task = Task(GPT2(config).to(device), batches, options)
    return lambda: task.run(4)


def _stream(shape: Shape, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, T), and the next ones."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(shape.vocab_size, (rows, shape.length + 1), generator=draw)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _their_updates(
    shape: Shape, rows: int, dropout: float, device: torch.device, *, compile: bool
) -> Turn:
    import transformers

    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=shape.vocab_size, n_positions=shape.length, n_embd=shape.width,
        n_layer=shape.layers, n_head=shape.heads, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, use_cache=False,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).to(device).train()
    step: Any = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(
        model.parameters(), 1e-4, (0.9, 0.95), weight_decay=0.1, fused=True
    )
    batches = [_stream(shape, rows, at)[0] for at in range(8)]
    batches = [one.pin_memory() for one in batches] if device.type == "cuda" else batches
    at = 0

    def turn() -> float:
        nonlocal at
        loss = torch.zeros(())
        for _ in range(4):
            ids = batches[at % 8].to(device, non_blocking=True)
            at += 1
            with torch.autocast(device.type, torch.bfloat16):
                loss = step(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return turn


# ----------------------------------------------------------------------------------------- main

WORKS = {"decoding": decoding, "beams": beams, "encoding": encoding, "training": training}


def main() -> None:
    """Measure the named works; see above."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAMES")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device, names = torch.device(given.device), given.names or ["ceilings", *WORKS]
    if device.type == "cuda":
        print(torch.cuda.get_device_name(device), "torch", torch.__version__)
    if "ceilings" in names:
        ceilings(device, given.quick)
    done, rate = [], rate_of(device, "bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in names if name != "ceilings"):
            for work in WORKS[name](device, given.quick, Path(folder)):
                measure(work, given.rounds, device)
                print(table(work, rate), flush=True)
                done.append({"work": work.name, "seconds": work.seconds, "MB": work.memory})
    if given.json:
        given.json.write_text(json.dumps(done, indent=1))


if __name__ == "__main__":
    main()
