"""Lessons that train a small model or a vocabulary, and results of other trainings."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from regard.data.bidirectional_streams import SeparateSentences
from regard.models.elmo import Elmo
from regard.serving.ui.lessons import attention, decoding, layers, texts
from regard.serving.ui.lessons.lesson import Control, Lesson, Link
from regard.tasks.bidirectional_language_modeling import BidirectionalLanguageModel
from regard.text import Tokenizer
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
    ("without NSP", "83.9", "84.9", "86.5", "92.6", "87.9"),
    ("left to right, without NSP", "82.1", "84.3", "77.5", "92.1", "77.8"),
    ("the same with an LSTM on top", "82.1", "84.1", "75.7", "91.6", "84.9"),
)
SIZES = (
    ("3", "768", "12", "5.84", "77.9", "79.8", "88.4"),
    ("6", "768", "3", "5.24", "80.6", "82.2", "90.7"),
    ("6", "768", "12", "4.68", "81.9", "84.8", "91.3"),
    ("12", "768", "12", "3.99", "84.4", "86.7", "92.9"),
    ("12", "1024", "16", "3.54", "85.7", "86.9", "93.3"),
    ("24", "1024", "16", "3.23", "86.6", "87.8", "93.7"),
)


def contextual_words(steps: int = 60, seed: int = 0) -> Picture:
    """The word in three sentences, read by an ELMo trained with so many steps."""
    kinds = (COLOURS, BEGINNERS, POLITICS)
    sentences = [" ".join(words).strip() for kind in kinds for words in product(*kind)]
    tokenizer = Tokenizer.train(sentences, "words", 60)
    sizes: dict[str, Any] = dict(
        d_model=32, d_cell=32, filters=((1, 8), (2, 8), (3, 16)), word_length=12, dropout=0.0
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Elmo(Elmo.Config(tokenizer.vocab_size, **sizes))
        task = BidirectionalLanguageModel(model, tokenizer)
        loss = _trained(task, sentences, steps)
    picture = contextual_vectors(task, GREEN, "green")
    said = f"Training: {len(sentences)} sentences, {steps} steps, loss {loss:.2f} nats per word."
    return Illustration((Note((said,)), *picture.parts), "“green” in three sentences")


def _trained(task: BidirectionalLanguageModel, sentences: list[str], steps: int) -> float:
    """Train with all sentences in each step; the loss after the last of them, in nats."""
    (batch,) = SeparateSentences(task.text(sentences), max_tokens=10**6)
    optimizer = torch.optim.Adam(task.module.parameters(), lr=0.01)
    for step in range(steps + 1):
        losses, _ = task.losses(batch, None)
        loss = torch.stack([total / count for total, count in losses.values()]).mean()
        if step < steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    task.module.eval()
    return loss.item()


def vocabulary(size: int = 400) -> Picture:
    """The statistics of a WordPiece vocabulary, trained on the texts of the other lessons."""
    lessons = (*texts.LESSONS, *layers.LESSONS, *attention.LESSONS, *decoding.LESSONS)
    read = [paragraph for lesson in lessons for paragraph in (*lesson.text, *lesson.tasks)]
    tokenizer = Tokenizer.train(read, "wordpiece", size)
    return vocabulary_statistics(
        tokenizer.vocab(), f"A vocabulary of {tokenizer.vocab_size} tokens"
    )


def ablations() -> Picture:
    """What BERT loses without its parts and with smaller sizes, as its paper prints it."""
    parts = ["", "MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD F1"]
    sizes = ["layers", "width", "heads", "perplexity", "MNLI-m", "MRPC", "SST-2"]
    tables = (
        Table.of(parts, [[*row] for row in ABLATIONS], "Without a part of the pre-training"),
        Table.of(sizes, [[*row] for row in SIZES], "Sizes (perplexity: of masked words)"),
    )
    return Illustration(tables, "Ablations of BERT")


LESSONS = (
    Lesson(
        "contextual-words",
        "One word in three sentences: static and contextual vectors",
        (
            "“Green” is the colour of a shirt, says that recruits have no experience, and that a "
            "policy is for the environment. An embedding table has one vector for all three. ELMo "
            "reads a sentence in both directions, and the vectors of its layers depend on the "
            "words around.",
            "The server has trained a small ELMo on 90 sentences of these three kinds. The "
            "table lists the cosine similarity of the vectors of “green” in each pair of the "
            "sentences below: “static” is the vector of the word alone, “input” what the first "
            "layer reads (in ELMo the same; BERT adds position and segment).",
        ),
        contextual_words,
        (
            Control("steps", "training steps", 60, 0, 60),
            Control("seed", "random seed of the weights", 0, 0, 99),
        ),
        (
            "Why is the similarity of the static vectors always 1?",
            "Sentences 1 and 2 stay more similar to each other than to sentence 3. Compare the "
            "words before and after “green” in the three.",
        ),
        (Link("map", "Vectors of your texts by a model", "/embed"),),
    ),
    Lesson(
        "vocabulary",
        "What a vocabulary consists of",
        (
            "A vocabulary of subwords has tokens that begin a word or are one (“beginnings” in the "
            "table) and, marked with “##”, those that continue a word. Reserved tokens, such as "
            "[UNK], stand for no text. This vocabulary is trained by WordPiece on the texts of "
            "these lessons. A larger one has longer tokens, and more whole words.",
            "BERT's multilingual vocabulary has 119,547 tokens for 104 languages; 36.5 % of them "
            "continue a word (Ács 2019).",
        ),
        vocabulary,
        (Control("size", "tokens of the vocabulary", 400, 200, 1200, 10),),
        (
            "Increase the number until the vocabulary stops growing. At which size, and why?",
            "Why does a vocabulary need tokens of one character?",
        ),
        (Link("tokens", "How a model's tokenizer splits words", "/ui/tokens"),),
    ),
    Lesson(
        "ablations",
        "Ablations: what each part of BERT brings",
        (
            "An ablation trains the same model without one of its parts, and compares. The "
            "numbers are those of Devlin et al. (2019), tables 5 and 6, on development sets: "
            "accuracy in %, and F1 for SQuAD.",
            "MNLI: does one sentence follow from another (“-m”: texts of the kinds trained on)? "
            "QNLI: does a sentence answer a question? MRPC: do two sentences mean the same? "
            "SST-2: is a review positive? SQuAD: where in a text is the answer?",
            "BERT learns to predict masked words and whether one sentence follows another (NSP, "
            "next-sentence prediction). A model that reads left to right sees no later token; a "
            "bidirectional LSTM on top of it repairs a part of this for SQuAD, but not for the "
            "other tasks. Larger models are better at these tasks, also with few labelled "
            "examples: MRPC has 3,600.",
        ),
        ablations,
        (),
        (
            "Which task loses most when the model reads left to right, and why this one?",
            "Which tasks lose most without NSP, and what do they have in common?",
        ),
        (Link("attention", "The heads of a model", "/ui/attention"),),
    ),
)
