"""What an encoder reads, and all segmentations of a word, as tables."""

from collections.abc import Sequence

from regard.errors import ConfigError
from regard.text import Tokenizer
from regard.text.explain import SegmentedWord
from regard.text.templates import Template
from regard.visual.picture import Illustration, Table


def encoder_inputs(
    texts: str | Sequence[str],
    tokenizer: Tokenizer,
    template: Template,
    *,
    length: int | None = None,
    title: str = "",
) -> Illustration:
    """The input of an encoder for a text, or for a pair of texts (a, b), padded to `length`.

    Args:
        texts: one text or two.
        tokenizer, template: those of the model; see `regard.text.templates`.
        length: tokens, padding included; by default as many as the texts need.

    Returns:
        A table with a row for each token; `numbers` has its columns by name. "mask" is 0 where
        there is padding.

    Raises:
        ConfigError: the texts need more than `length` tokens, or padding has no id.
    """
    pair = (texts,) if isinstance(texts, str) else tuple(texts)
    if len(pair) not in (1, 2):
        raise ConfigError(f"`texts` must be one text or two, but is {len(pair)}.")
    row = template.apply([tokenizer.encode(text).ids for text in pair])
    missing = 0 if length is None else length - len(row)
    if missing < 0 or (missing and tokenizer.pad_id is None):
        raise ConfigError(
            f"`length` must be at least {len(row)}, what these texts need, and that for a "
            f"tokenizer without a padding token, but is {length}."
        )
    ids = [*row.ids, *[tokenizer.pad_id or 0] * missing]
    columns = {
        "tokens": list(map(tokenizer.token, ids)),
        "ids": ids,
        "segments": [*row.segments, *[0] * missing],
        "mask": [1] * len(row) + [0] * missing,
        "positions": list(range(len(ids))),
    }
    table = Table.of(list(columns), list(zip(*columns.values(), strict=True)), title)
    return Illustration((table,), title or "what the encoder reads", numbers=columns)


def lattice(word: SegmentedWord, title: str = "") -> Table:
    """All subwords of a word by the unigram language model (Kudo 2018, figure 1).

    A segmentation is a path of subwords, each of which begins where the one before ends; those of
    the most probable one are marked.
    """
    rows = [
        (
            edge.subword if edge.known else f"{edge.subword} (unknown)",
            f"{edge.start}-{edge.end}",
            f"{edge.score:.3f}",
            "*" * (edge in word.best),
        )
        for edge in word.edges
    ]
    return Table.of(("subword", "characters", "log-probability", "best"), rows, title)
