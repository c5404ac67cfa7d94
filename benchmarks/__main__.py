"""python -m benchmarks [NAMES] [--rounds N] [--quick] [--full] [--threads 2] [--out FOLDER]

Works by name; all of them without one:
    decoding     a GPT-2, one sequence and several, beside four engines
    translation  beam search with a Transformer base
    marian       beam search and greedy search with an OPUS-MT of the base shape
    t5           the same with a T5 of the small shape
    training     masked words with a BERT base; fine-tuning MiniLM
    sentence_pairs  sentence vectors from pairs, beside sentence-transformers' trainer
    encoding     sentences to vectors with MiniLM
    recurrent    an LSTM language model: training and decoding
    awd_lstm     AWD-LSTM: training, beside fastai's
    convolution  ConvS2S's layer beside nn.Conv1d; ConvS2S and ByteNet step by step
    captioning   captions of images, beside torch's LSTMCell
    crf          a conditional random field: loss, gradient, best tags, beside pytorch-crf
    evaluation   the perplexity of a text, by an LSTM and by a GPT-2
    segments     a Transformer-XL's memory beside recomputing the context of every token
    tokenizing   100 MB of text
    startup      imports, and the first answer of the command line

In turn, each condition in a process of its own which sleeps between its turns; medians, and ratios
round by round. Peers that are not installed are left out by name. With --load N, N other programs
compute and read memory all the while. The ceilings are measured before and after each work, and
again when a condition exceeds one. Into FOLDER go report.md, report.json and report.svg.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, tables
from benchmarks.measure import Work, measure
from benchmarks.options import Options
from benchmarks.workers import Condition, Worker

NAMES = (
    "decoding",
    "translation",
    "marian",
    "t5",
    "training",
    "sentence_pairs",
    "encoding",
    "recurrent",
    "awd_lstm",
    "convolution",
    "captioning",
    "crf",
    "evaluation",
    "segments",
    "tokenizing",
    "startup",
)
CEILING_TRIES = 5
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure, print the tables as they come, and write the report."""
    given = _arguments()
    options = Options(given.cache, given.data, given.threads, given.quick, given.full, given.model)
    options.cache.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "machine": machine.described(options.threads),
        "rounds": given.rounds,
        "load": given.load,
        "ceilings": _ceilings(options),
        "works": [],
    }
    with machine.load(given.load):
        _measure(given, options, found)
    tables.write(found, given.out)
    print(f"written: {given.out / 'report.md'}")


def _measure(given: argparse.Namespace, options: Options, found: dict[str, Any]) -> None:
    """Measure the chosen works, and write the report after each."""
    for name in given.names or NAMES:
        for work in importlib.import_module(f"benchmarks.{name}").works(options):
            if given.only and given.only not in work.name:
                continue
            if given.beside:
                ours, *others = work.conditions
                beside = [one for one in others if any(part in one.name for part in given.beside)]
                work = replace(work, conditions=[ours, *beside])
            found["works"].append(_measured(work, options, given.rounds))
            _raise_ceilings(found, options)
            print(tables.table(found["works"][-1], found["ceilings"]), flush=True)
            tables.write(found, given.out)


def _raise_ceilings(found: dict[str, Any], options: Options) -> None:
    """Measure the ceilings again, and further when one is exceeded: the best of all counts."""
    for _ in range(CEILING_TRIES):
        later = _ceilings(options)
        found["ceilings"] = {k: max(v, later[k]) for k, v in found["ceilings"].items()}
        if not tables.exceeded(found["works"][-1], found["ceilings"]):
            return


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "regard", "benchmarks")
    data = ROOT.parent / "shared" / "data"
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", type=int, default=0, help="other programs that run meanwhile")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does everything run?")
    parser.add_argument("--full", action="store_true", help="further shapes too")
    parser.add_argument("--only", help="works whose name contains this")
    parser.add_argument(
        "--beside", nargs="+", help="only conditions whose name contains one of these"
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=Path("runs") / "benchmarks")
    parser.add_argument("--cache", type=Path, default=cache, help="where weights are stored")
    parser.add_argument("--data", type=Path, default=data if data.exists() else None)
    parser.add_argument("--model", type=Path, help="a trained translator, for real quality")
    return parser.parse_args()


def _ceilings(options: Options) -> dict[str, float]:
    sizes = {"megabytes": 8, "size": 128} if options.quick else {}
    with Worker(
        Condition("ceilings", "benchmarks.machine:Ceilings", sizes), options.threads
    ) as one:
        one.make()
        found: dict[str, float] = one.call("turn").result
        return found


def _measured(work: Work, options: Options, rounds: int) -> dict[str, Any]:
    measured = measure(work, rounds, options.threads, lambda line: print(line, file=sys.stderr))
    return {
        "name": work.name,
        "unit": work.unit,
        "note": work.note,
        "amount": work.amount,
        "rows": measured.rows(),
        "left out": measured.left_out,
    }


if __name__ == "__main__":
    main()
