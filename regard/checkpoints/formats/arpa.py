"""Writes n-gram models in the ARPA format, which KenLM, SRILM and others read.

    \\data\\
    ngram 1=10000                          how many n-grams of each length
    \\1-grams:
    -2.31<tab>word<tab>-0.41               log10 p, the tokens, log10 of the backoff factor

`eos` is two tokens there: <s>, which begins a sentence and is never predicted, and </s>.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from regard.errors import ConfigError
from regard.file_writing import replacing, sync
from regard.models.kneser_ney import KneserNey, KneserNeyConfig, NGramTable
from regard.text import Tokenizer

BEGIN, END, UNKNOWN, NEVER = "<s>", "</s>", "<unk>", -99.0
LN10 = math.log(10)


def write_arpa(model: KneserNey, tokenizer: Tokenizer, path: str | Path) -> None:
    """Write a model as an ARPA file.

    Raises:
        ConfigError: a token has a space in it, or the tokenizer is another one.
        CheckpointError: the file cannot be written.
    """
    words = _words(tokenizer, model.config)
    rows, lines = np.zeros((1, 0), dtype=np.int64), []
    for table in model.head.tables:
        prefix, token = np.divmod(table.key.cpu().numpy(), model.config.vocab_size)
        rows = np.concatenate([rows[prefix], token[:, None]], 1)  # tokens of n-grams, (M, n)
        lines.append([*_lines(table, rows, words, model)])
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        file.writelines(f"ngram {n}={len(entries)}\n" for n, entries in enumerate(lines, 1))
        for n, entries in enumerate(lines, 1):
            file.write(f"\n\\{n}-grams:\n")
            file.writelines(entries)
        file.write("\n\\end\\\n")
        file.flush()
        sync(temporary)


def _words(tokenizer: Tokenizer, config: KneserNeyConfig) -> list[str]:
    """The tokens by id, as they stand in the file."""
    if tokenizer.vocab_size != config.vocab_size:
        raise ConfigError("The tokenizer is not the one with which the model was counted.")
    tokens = [tokenizer.token(i) for i in range(config.vocab_size)]
    if tokenizer.unk_id is not None:
        tokens[tokenizer.unk_id] = UNKNOWN
    tokens[config.eos] = END
    for token in tokens:
        if token.split() != [token]:
            raise ConfigError(f"ARPA files separate tokens by spaces, but one is {token!r}.")
    return tokens


def _lines(
    table: NGramTable, rows: np.ndarray, words: list[str], model: KneserNey
) -> Iterator[str]:
    longest, eos = rows.shape[1] == model.config.order, model.config.eos
    log_prob, backoff = (x.double().div(LN10).tolist() for x in (table.log_prob, table.log_backoff))
    for row, p, b in zip(rows.tolist(), log_prob, backoff, strict=True):
        tail = "" if longest else f"\t{b:.9g}"
        if row == [eos]:
            yield f"{NEVER:g}\t{BEGIN}{tail}\n"
            yield f"{p:.9g}\t{END}\t0\n"
        elif p > -math.inf:
            named = [BEGIN if row[0] == eos else words[row[0]], *(words[i] for i in row[1:])]
            yield f"{p:.9g}\t{' '.join(named)}{tail}\n"
