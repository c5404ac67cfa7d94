"""A closed vocabulary of words, the most frequent first; all others are <unk>.

Trained here and not by the library, whose trainer leaves a gap in the ids if a special token such
as <unk> also occurs in the texts, as it does in the Penn Treebank and in WikiText.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, models

from regard.text.bpe_fast import assemble
from regard.text.normalize import Preprocessing
from regard.text.special_tokens import TrainerInput
from regard.text.tokenizer import Tokenizer as RegardTokenizer


def train(inputs: TrainerInput, *, min_frequency: int = 1) -> Tokenizer:
    """The most frequent words; ties in alphabetical order. Decoding joins words by one space.

    min_frequency: a rarer word is unknown. A word that is written like a special token is one.
    """
    inputs.preprocessing.check_split("whitespace", "punctuation")
    unknown, counts = inputs.unknown(), Counter[str]()
    for words in inputs.words():
        counts.update(words)
    model = models.WordLevel(frequent(inputs, counts, min_frequency), unknown)
    return assemble(model, inputs.preprocessing)


def closed_vocabulary(words: Sequence[str], roles: Mapping[str, str]) -> RegardTokenizer:
    """A tokenizer of these words, by their ids; texts are split at white space.

    roles: the special tokens among them, as of `regard.text.Tokenizer`.
    """
    model = models.WordLevel({word: i for i, word in enumerate(words)}, roles["unk"])
    fast = assemble(model, Preprocessing(split="whitespace"))
    fast.add_special_tokens([AddedToken(name, normalized=False) for name in roles.values()])
    return RegardTokenizer(fast, "words", roles)


def frequent(inputs: TrainerInput, counts: Counter[str], min_frequency: int) -> dict[str, int]:
    """Special tokens, then the most frequent of what was counted: token -> id."""
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    common = [token for token in ranked if counts[token] >= min_frequency]
    tokens = list(dict.fromkeys([*inputs.special_tokens, *common]))[: inputs.vocab_size]
    return {token: i for i, token in enumerate(tokens)}
