"""A 5-gram model of a text: python examples/ngrams.py TRAIN TEST [ORDER]

TRAIN and TEST are files of sentences, a line each, such as ptb.train.txt and ptb.test.txt. Words
are the tokens, as in the recipes of LSTMs. The perplexity of TEST is printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from regard.data import encode_texts
from regard.models.kneser_ney import KneserNey, KneserNeyConfig
from regard.tasks.language_modeling import TextGenerator
from regard.text import Tokenizer


def main(train: str, test: str, order: str = "5") -> None:
    """Count and evaluate."""
    lines = Path(train).read_text(encoding="utf-8").splitlines()
    tokenizer = Tokenizer.train(lines, "words", 1 << 20)
    pad, bos, eos = tokenizer.required_ids("pad", "bos", "eos")
    ids = encode_texts(lines, tokenizer, after=[eos]).ids
    model = KneserNey.fit(ids, KneserNeyConfig(tokenizer.vocab_size, int(order), pad, bos, eos))
    task = TextGenerator(model, tokenizer, format="lines", unit="word")
    print(task.evaluate(Path(test).read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    main(*sys.argv[1:])
