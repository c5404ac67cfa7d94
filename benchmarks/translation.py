"""A Transformer of MarianMT's shape: training and beam search, ours and `transformers`'.

Both sides hold the same weights: ours are converted by the library itself. The work is float32.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers

from benchmarks.measure import Duel, duel
from regard import decoding
from regard.data import IGNORE, PairBatch, Sequences, Tokens, sorted_batches
from regard.models.published import to_published
from regard.models.transformer import Transformer, TransformerConfig

PAD, BOS, EOS = 0, 1, 2


def pair(vocab_size: int, **sizes: Any) -> tuple[Transformer, Any]:
    """Our model and `transformers`' with the same random weights."""
    torch.manual_seed(1)
    ours = Transformer(TransformerConfig(vocab_size=vocab_size, dropout=0.0, **sizes))
    config, weights = to_published(ours) or ({}, {})
    transformers.logging.set_verbosity_error()
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**config))
    theirs.load_state_dict(weights, strict=False)
    return ours, theirs


def sentences(count: int, vocab_size: int, seed: int = 1) -> list[list[int]]:
    """Random words, of the lengths that Multi30k has: 13 on average, from 4 to about 30."""
    draw = random.Random(seed)
    lengths = [max(4, round(draw.lognormvariate(2.5, 0.35))) for _ in range(count)]
    return [[draw.randrange(3, vocab_size) for _ in range(n)] for n in lengths]


def training(rounds: int, vocab_size: int = 58101, count: int = 64) -> list[Duel]:
    """One update on the same sentences: in the same batches, and each side in its usual way."""
    ours, theirs = pair(vocab_size)
    texts = sentences(count, vocab_size)
    tokens = sum(map(len, texts)) + count
    sources = Tokens.of([[*text, EOS] for text in texts])
    targets = Tokens.of([[BOS, *text, EOS] for text in texts])
    sorted_ = list(sorted_batches((sources, targets), (PAD, PAD), budget=1024))
    usual = [_batch(texts[i : i + 32]) for i in range(0, count, 32)]
    step, peer = _our_step(ours), _their_step(theirs)
    name = "training, Transformer base"
    return [
        duel(
            name,
            "target tokens/s",
            tokens,
            lambda: [step(batch) for batch in usual],
            lambda: [peer(batch) for batch in usual],
            rounds=rounds,
            note="the same batches of 32 sentences",
        ),
        duel(
            name,
            "target tokens/s",
            tokens,
            lambda: [step(batch) for batch in sorted_],
            lambda: [peer(batch) for batch in usual],
            rounds=rounds,
            note="ours by length within 1,024 tokens, theirs 32 sentences as they come",
        ),
    ]


def _batch(texts: list[list[int]]) -> PairBatch:
    sources = Sequences.of([[*text, EOS] for text in texts], PAD)
    return PairBatch(sources, Sequences.of([[BOS, *text, EOS] for text in texts], PAD))


def _labels(batch: PairBatch) -> torch.Tensor:
    return batch.target.ids[:, 1:].masked_fill(~batch.target.keep[:, 1:], IGNORE)


def _our_step(model: Transformer) -> Any:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(batch: PairBatch) -> None:
        hidden = model(batch.source, batch.target.ids[:, :-1]).hidden
        loss, count = model.head.loss(hidden.flatten(0, 1), _labels(batch).flatten())
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _their_step(model: Any) -> Any:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(batch: PairBatch) -> None:
        model(
            input_ids=batch.source.ids,
            attention_mask=batch.source.keep.long(),
            decoder_input_ids=batch.target.ids[:, :-1],
            labels=_labels(batch),
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def searching(
    name: str, ours: Any, theirs: Any, texts: list[list[int]], limit: int, rounds: int
) -> Duel:
    """Beam search of 4 over the same sentences, with the same length penalty and outputs."""
    ours.eval(), theirs.eval()
    rows = [[*text, EOS] for text in texts]
    batches = [Sequences.of(rows[i : i + 32], PAD) for i in range(0, len(rows), 32)]
    method = decoding.Beam(size=4, max_tokens=limit)

    special = (PAD, BOS, EOS)  # an untrained model says these like any other word

    def our_search() -> list[list[int]]:
        found: list[list[int]] = [[] for _ in rows]
        tokens = Tokens.of(rows)
        parts = sorted_batches((tokens,), (PAD,), budget=1024, make=lambda sources: sources)
        with torch.no_grad():
            for numbers, source in zip(parts.rows, parts, strict=True):
                answers = decoding.generate(ours, source, method)
                for number, best in zip(numbers, answers, strict=True):
                    found[number] = best[0].tokens
        return found

    def their_search() -> list[list[int]]:
        found: list[list[int]] = []
        for source in batches:
            ids = theirs.generate(
                input_ids=source.ids,
                attention_mask=source.keep.long(),
                num_beams=4,
                max_new_tokens=limit,
                do_sample=False,
                early_stopping=False,
                length_penalty=1.0,
            )
            found += [[t for t in row if t not in special] for row in ids.tolist()]
        return found

    a, b = our_search(), their_search()
    words = [[t for t in row if t not in special] for row in a]
    same = sum(x == y for x, y in zip(words, b, strict=True))
    return duel(
        name,
        "sentences/s",
        len(rows),
        our_search,
        their_search,
        rounds=rounds,
        note=f"{same} of {len(rows)} outputs are the same, token by token",
    )
