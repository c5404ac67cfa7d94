"""Lessons that train a small model or a vocabulary, and results of other trainings."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from regard.data.bidirectional_streams import SeparateSentences
from regard.models.elmo import Elmo
from regard.serving.studio.lessons import attention, decoding, layers, texts
from regard.serving.studio.lessons.lesson import Control, Lesson, Link
from regard.tasks.bidirectional_language_modeling import BidirectionalLanguageModeling
from regard.text import train
from regard.visual import contextual_vectors, vocabulary_statistics
from regard.visual.picture import Illustration, Note, Picture
from regard.visual.table import Table

GREEN = ("the shirt is green", "the recruits are green", "green policy has wrecked the economy")
# Three meanings of one word: each sentence takes one of each tuple.
COLOURS = (
    ("the",),
    ("shirt", "car", "leaf"),
    ("is",),
    ("green", "red", "blue"),
    ("", "and bright", "and pale"),
)
BEGINNERS = (
    ("the",),
    ("recruits", "clerks", "players"),
    ("are",),
    ("green", "young", "untrained"),
    ("", "and clumsy", "and slow"),
)
POLITICS = (
    ("green", "clean", "social"),
    ("policy", "energy"),
    ("has",),
    ("wrecked", "saved"),
    ("the",),
    ("economy", "climate", "coast"),
)
# Devlin et al. 2019, table 5, and table 6: layers, width, heads, and accuracies on development sets
ABLATIONS = (
    ("BERT base", "84.4", "88.4", "86.7", "92.7", "88.5"),
    ("without next sentence", "83.9", "84.9", "86.5", "92.6", "87.9"),
    ("left to right, without next sentence", "82.1", "84.3", "77.5", "92.1", "77.8"),
    ("the same with a bi-LSTM on top", "82.1", "84.1", "75.7", "91.6", "84.9"),
)
SIZES = (
    ("3", "768", "12", "5.84", "77.9", "79.8", "88.4"),
    ("6", "768", "3", "5.24", "80.6", "82.2", "90.7"),
    ("6", "768", "12", "4.68", "81.9", "84.8", "91.3"),
    ("12", "768", "12", "3.99", "84.4", "86.7", "92.9"),
    ("12", "1024", "16", "3.54", "85.7", "86.9", "93.3"),
    ("24", "1024", "16", "3.23", "86.6", "87.8", "93.7"),
)


def contextual_words(updates: int = 60, seed: int = 0) -> Picture:
    """The word in three sentences, read by an ELMo trained with so many updates."""
    kinds = (COLOURS, BEGINNERS, POLITICS)
    sentences = [" ".join(words).strip() for kind in kinds for words in product(*kind)]
    tokenizer = train("words", sentences, 60)
    sizes: dict[str, Any] = dict(
        d_model=32, d_cell=32, filters=((1, 8), (2, 8), (3, 16)), word_length=12, dropout=0.0
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Elmo(Elmo.Config(tokenizer.vocab_size, **sizes))
        task = BidirectionalLanguageModeling(model, tokenizer)
        loss = _trained(task, sentences, updates)
    picture = contextual_vectors(task, GREEN, "green")
    said = f"{len(sentences)} sentences, {updates} updates: {loss:.2f} nats for each word."
    return Illustration((Note((said,)), *picture.parts), "“green” in three sentences")


def _trained(task: BidirectionalLanguageModeling, sentences: list[str], updates: int) -> float:
    """Train with all sentences in each update; the loss after the last of them, in nats."""
    (batch,) = SeparateSentences(task.text(sentences), max_tokens=10**6)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.01)
    for update in range(updates + 1):
        losses, _ = task.losses(batch, None)
        loss = torch.stack([total / count for total, count in losses.values()]).mean()
        if update < updates:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    task.model.eval()
    return loss.item()


def vocabulary(size: int = 400) -> Picture:
    """The statistics of a WordPiece vocabulary, trained on the texts of the other lessons."""
    lessons = (*texts.LESSONS, *layers.LESSONS, *attention.LESSONS, *decoding.LESSONS)
    read = [paragraph for lesson in lessons for paragraph in (*lesson.text, *lesson.tasks)]
    tokenizer = train("wordpiece", read, size)
    return vocabulary_statistics(
        tokenizer.vocab(), f"A vocabulary of {tokenizer.vocab_size} tokens"
    )


def ablations() -> Picture:
    """What BERT loses without its parts and with smaller sizes, as its paper prints it."""
    parts = ["", "MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD F1"]
    sizes = ["layers", "width", "heads", "perplexity of masked tokens", "MNLI-m", "MRPC", "SST-2"]
    tables = (
        Table.of(parts, [[*row] for row in ABLATIONS], "Without a part of the pre-training"),
        Table.of(sizes, [[*row] for row in SIZES], "Sizes"),
    )
    return Illustration(tables, "Ablations of BERT")


LESSONS = (
    Lesson(
        "contextual-words",
        "One word in three sentences: static and contextual vectors",
        (
            "A shirt is green, recruits are green, a policy is green: an embedding gives the word "
            "one vector for all of them. ELMo reads the sentence in both directions, and the "
            "vectors of its layers depend on the words around.",
            "A small ELMo is trained now on 90 sentences of these three kinds. The table has the "
            "cosines between the vectors of “green” in each pair of sentences, layer by layer.",
        ),
        contextual_words,
        (
            Control("updates", "updates of the training", 60, 0, 60),
            Control("seed", "seed of the first weights", 0, 0, 99),
        ),
        (
            "Why is the cosine of the static vectors 1, whatever was trained?",
            "Colours and recruits stay nearer to each other than to politics. Which words stand "
            "around “green” in each kind of sentence?",
        ),
        (Link("map", "Vectors of your texts by a model", "/embed"),),
    ),
    Lesson(
        "vocabulary",
        "What a vocabulary consists of",
        (
            "A vocabulary of subwords has whole words, beginnings of words and, marked with “##”, "
            "what continues them. This one is trained by WordPiece on the texts of the lessons. "
            "With more tokens it holds longer ones, and more whole words.",
            "BERT's multilingual vocabulary has 119,547 tokens for 104 languages; 36.5 % of them "
            "continue a word.",
        ),
        vocabulary,
        (Control("size", "tokens", 400, 200, 800, 10),),
        (
            "From which size on does the number of tokens no longer grow, and why?",
            "Which tokens have one character, and what would happen without them?",
        ),
        (Link("tokens", "How a model's tokenizer splits words", "/studio/tokens"),),
    ),
    Lesson(
        "ablations",
        "Ablations: what each part of BERT brings",
        (
            "An ablation trains the same model without one of its parts, and compares. The numbers "
            "are those of Devlin et al. (2019), tables 5 and 6, on development sets: accuracy, for "
            "SQuAD F1.",
            "Read left to right, a token sees no later one; the bi-LSTM on top repairs a part of "
            "this. Larger models are better at every task, also with few labelled examples (MRPC "
            "has 3,600).",
        ),
        ablations,
        (),
        (
            "Which task loses most when the model reads left to right, and why this one?",
            "Which tasks need the next-sentence prediction, and what do they have in common?",
        ),
        (Link("attention", "The heads of a model", "/studio/attention"),),
    ),
)
