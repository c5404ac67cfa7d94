"""n-gram models in the ARPA format, which SRILM, KenLM and others read and write.

    \\data\\
    ngram 1=10000                          how many n-grams of each length
    \\1-grams:
    -2.31<tab>word<tab>-0.41               log10 p, the tokens, log10 of the backoff factor

`eos` is two tokens there: <s>, which begins a sentence and is never predicted, and </s>.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from regard.errors import CheckpointError, ConfigError, RegardError
from regard.file_writing import replacing, sync
from regard.models.kneser_ney import KneserNey, KneserNeyConfig, NGramTable
from regard.text import Tokenizer

BEGIN, END, UNKNOWN, NEVER = "<s>", "</s>", "<unk>", -99.0
LN10 = math.log(10)

Entry = tuple[list[str], float, float]  # tokens, log10 p, log10 of the backoff


def write_arpa(model: KneserNey, tokenizer: Tokenizer, path: str | Path) -> None:
    """Write a model as an ARPA file.

    Raises:
        ConfigError: a token has a space in it, or the tokenizer is another one.
        CheckpointError: the file cannot be written.
    """
    words = _words(tokenizer, model.config)
    grams = _by_tokens(model)
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        lines = [list(_lines(table, rows, words, model)) for table, rows in grams]
        file.write("\\data\\\n")
        file.writelines(f"ngram {n}={len(found)}\n" for n, found in enumerate(lines, 1))
        for n, found in enumerate(lines, 1):
            file.write(f"\n\\{n}-grams:\n")
            file.writelines(found)
        file.write("\n\\end\\\n")
        file.flush()
        sync(temporary)


def read_arpa(path: str | Path, tokenizer: Tokenizer) -> KneserNey:
    """The model of an ARPA file, its tokens numbered by a tokenizer.

    Raises:
        CheckpointError: the file is no ARPA file, or has a token that the tokenizer lacks.
    """
    pad, bos, eos = tokenizer.required_ids("pad", "bos", "eos")
    declared, levels = _entries(Path(path))
    if len(declared) < 2:
        raise CheckpointError(f"{path} has no n-grams of 2 tokens: it is no ARPA file of a model.")
    if declared != [*map(len, levels)]:
        raise CheckpointError(
            f"{path} must have {declared} n-grams of 1, 2, ... tokens, as it begins with, but has "
            f"{[*map(len, levels)]}: it is incomplete."
        )
    config = KneserNeyConfig(tokenizer.vocab_size, len(levels), pad, bos, eos)
    number = {BEGIN: eos, END: eos}
    if tokenizer.unk_id is not None:
        number[UNKNOWN] = tokenizer.unk_id
    for tokens, _, _ in levels[0]:
        if tokens[0] not in number:
            number[tokens[0]] = _id_of(tokens[0], tokenizer, path)
    tables = [_unigrams(levels[0], number, config)]
    for entries in levels[1:]:
        tables.append(_table(entries, number, tables, config, path))
    return KneserNey(config, tables)


# --------------------------------------------------------------------------------- writing


def _words(tokenizer: Tokenizer, config: KneserNeyConfig) -> list[str]:
    """The tokens by id, as they stand in the file."""
    if tokenizer.vocab_size != config.vocab_size:
        raise ConfigError(
            f"The tokenizer has {tokenizer.vocab_size:,} tokens, but the model was counted with "
            f"{config.vocab_size:,}: it is another one."
        )
    found = [tokenizer.token(i) for i in range(config.vocab_size)]
    if tokenizer.unk_id is not None:
        found[tokenizer.unk_id] = UNKNOWN
    found[config.eos] = END
    for token in found:
        if token.split() != [token]:
            raise ConfigError(
                f"The token {token!r} has a space in it, or is empty: ARPA files separate tokens "
                "by spaces."
            )
    return found


def _by_tokens(model: KneserNey) -> Iterator[tuple[NGramTable, np.ndarray]]:
    """The tables, each with the tokens of its n-grams, (M, n)."""
    rows = np.zeros((1, 0), dtype=np.int64)
    for table in model.head.tables:
        key = table.key.cpu().numpy()
        prefix, token = np.divmod(key, model.config.vocab_size)
        rows = np.concatenate([rows[prefix], token[:, None]], 1)
        yield table, rows


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


# --------------------------------------------------------------------------------- reading


def _entries(path: Path) -> tuple[list[int], list[list[Entry]]]:
    """How many n-grams of each length the file declares, and those that it has."""
    declared: list[int] = []
    levels: list[list[Entry]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if counted := re.fullmatch(r"ngram \d+=(\d+)\s*", line):
            declared.append(int(counted[1]))
        elif re.fullmatch(r"\\\d+-grams:\s*", line):
            levels.append([])
        elif levels and line.strip() not in ("", "\\end\\"):
            levels[-1].append(_entry(line, len(levels), f"{path}, line {number}"))
    return declared, levels


def _entry(line: str, length: int, location: str) -> Entry:
    fields = line.split()
    try:
        p, backoff = float(fields[0]), float(fields[length + 1] if fields[length + 1 :] else 0)
    except ValueError:
        fields = []
    if not length + 1 <= len(fields) <= length + 2:
        said = f"must have a number, {length} tokens and perhaps a number"
        raise CheckpointError(f"{location}: {said}, but is {line!r}.")
    return fields[1 : length + 1], p, backoff


def _id_of(token: str, tokenizer: Tokenizer, path: str | Path) -> int:
    try:
        return tokenizer.id(token)
    except RegardError:
        raise CheckpointError(
            f"{path} has the token {token!r}, but the tokenizer has not."
        ) from None


def _unigrams(entries: list[Entry], number: dict[str, int], config: KneserNeyConfig) -> NGramTable:
    table = NGramTable(np.arange(config.vocab_size), 1, config.vocab_size)
    for (token,), p, backoff in entries:
        if token != BEGIN:
            table.log_prob[number[token]] = p * LN10
        if token != END:
            table.log_backoff[number[token]] = backoff * LN10
    return table


def _table(
    entries: list[Entry],
    number: dict[str, int],
    tables: list[NGramTable],
    config: KneserNeyConfig,
    path: str | Path,
) -> NGramTable:
    """The n-grams of one length, sorted by the numbers of their prefixes."""
    if unknown := {one for named, _, _ in entries for one in named} - number.keys():
        raise CheckpointError(f"{path} has the token {min(unknown)!r}, but not among its 1-grams.")
    tokens = torch.tensor([[number[one] for one in named] for named, _, _ in entries])
    values = torch.tensor([(p, backoff) for _, p, backoff in entries], dtype=torch.float64) * LN10
    prefix = tokens[:, 0]
    for table, token in zip(tables[1:], tokens[:, 1:].unbind(1), strict=False):
        prefix = table.find(prefix, token)
    if (prefix < 0).any():
        named = " ".join(entries[int((prefix < 0).nonzero()[0])][0])
        raise CheckpointError(f"{path} has the n-gram {named!r}, but not its first tokens.")
    key, order = (prefix * config.vocab_size + tokens[:, -1]).sort()
    found = NGramTable(key.numpy(), len(tables[-1].key), config.vocab_size)
    found.log_prob.copy_(values[order, 0])
    found.log_backoff.copy_(values[order, 1])
    return found
