"""Encoders over the vectors of words, trained from random weights: BiLSTM and convolutions."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batches import ALL, Sequences, TokenSubset
from regard.layers import task_heads
from regard.layers.characters import (
    CharacterConvolution,
    CharacterLSTM,
    vectors_of_words,
    with_characters,
)
from regard.layers.dropout import Dropout
from regard.layers.recurrent import LSTM, BidirectionalStack
from regard.models.config import CONVOLUTIONAL, RECURRENT, Filters, Probability, Size, TokenId
from regard.models.protocols import Encoder, States
from regard.text.closed_vocabulary import ELMO_CHARACTERS
from regard.text.templates import Template
from regard.text.tokenizer import OpenVocabulary

# ------------------------------------------------------------------------------------------- BiLSTM
#
#     [word; its characters] -> dropout -> L x bidirectional LSTM -> dropout -> head
#
# A word has a vector of its own and, by choice, one of its characters: where an LSTM over them ends
# (Lample et al.), or the maxima of convolutions (Ma and Hovy). With characters, words outside of
# the vocabulary share one vector and differ by their characters. With the head "crf" it is their
# tagger.


CHARACTER_WIDTH = 3  # of the convolutions (Ma and Hovy, table 1)


@dataclass(frozen=True)
class BiLSTMConfig:
    """The defaults are those of Lample et al. 2016, section 5.1.

    d_words: of the vectors of words.  d_model: of both directions of the LSTM together.
    characters: what reads the characters of a word, "lstm" or "cnn"; "none": nothing does.
    d_character: of a character's vector.  d_characters: of what a word's characters give.
    word_length: characters of a word that are read, with the two that mark its ends.
    """

    vocab_size: Size
    d_words: Size = 100
    d_model: Size = 200
    layers: Size = 1
    characters: Literal["none", "lstm", "cnn"] = "lstm"
    d_character: Size = 25
    d_characters: Size = 50
    word_length: Size = 30
    dropout: Probability = 0.5
    max_length: Size | None = None  # any
    pad: TokenId | None = 0

    def __post_init__(self) -> None:
        if self.characters != "none" and self.word_length < CHARACTER_WIDTH:
            raise ValueError(
                f"`word_length` must be at least {CHARACTER_WIDTH}, a character and the marks of a "
                f"word's ends, but is {self.word_length}."
            )


class BiLSTM(nn.Module, Encoder):
    """Words read by an LSTM from both sides: the encoder of Lample et al. 2016 and Ma and Hovy
    2016.

    A bidirectional LSTM over words and their characters, an `Encoder`.
    """

    Config = BiLSTMConfig
    family = RECURRENT

    def __init__(self, config: BiLSTMConfig):
        super().__init__()
        self.config, width = config, config.d_words
        self.embedding = nn.Embedding(config.vocab_size, config.d_words)
        nn.init.normal_(self.embedding.weight, std=config.d_words**-0.5)
        self.characters = self._character_encoder()
        self.unknown: nn.Parameter | None = None
        if self.characters is not None:
            width += config.d_characters
            self.unknown = nn.Parameter(torch.zeros(config.d_words))
        self.dropout = Dropout(config.dropout)
        self.recurrent = BidirectionalStack(
            LSTM, width, config.d_model, config.layers, dropout=config.dropout
        )

    def _character_encoder(self) -> nn.Module | None:
        config = self.config
        match config.characters:
            case "lstm":
                return CharacterLSTM(config.d_character, config.d_characters)
            case "cnn":
                filters = [(CHARACTER_WIDTH, config.d_characters)]
                return CharacterConvolution(ELMO_CHARACTERS, config.d_character, filters, "tanh")
        return None

    # ---- words

    def input_tokenizer(self, tokenizer: Any) -> Any:
        """See `Encoder`: with characters, words outside of the vocabulary differ."""
        return tokenizer if self.characters is None else OpenVocabulary.of(tokenizer)

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        """The extra "characters", (B, T, C)."""
        if self.characters is None:
            return batch
        return with_characters(batch, tokenizer, self.config.word_length, CHARACTER_WIDTH)

    def static(self, batch: Sequences) -> Tensor:
        """[word; its characters], (B, T, D')."""
        if self.characters is None or self.unknown is None:
            return self.embedding(batch.ids)
        last = self.config.vocab_size - 1
        words = self.embedding(batch.ids.clamp(max=last))
        words = torch.where((batch.ids > last)[..., None], self.unknown, words)
        return torch.cat([words, vectors_of_words(batch, self.characters)], -1)

    # ---- an encoder

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """See `Encoder`: [word; its characters], then what the LSTM gives."""
        words = self.static(batch)
        yield words
        yield tokens.of(self.recurrent(self.dropout(words), batch.lengths)[0])

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Those for texts read [h_T, max, mean] of the hidden states.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        pooling, d_pooled = task_heads.ConcatPooling(), 3 * self.config.d_model
        head = task_heads.linear_head(self, kind, outputs, pooling=pooling, d_pooled=d_pooled)
        return task_heads.init_weights(head, task_heads.HEAD_INIT)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """A, and A [SEP] B."""
        return Template.around((), tokenizer.required_ids("sep"), ())


# ---------------------------------------------------------------------------------------------- CNN
#
#     words -> embed -> convolutions of several widths -> relu -> maximum over the text -> classes
#
# Each filter is centred on a word; outside of a text there are zeros. The maximum is what the head
# for classes reads, so that the features of every word can serve other tasks, too.


@dataclass(frozen=True)
class KimCNNConfig:
    """The defaults are the paper's (section 3.1).

    d_words: of the vectors of words.
    filters: (width in words, number of filters).
    vectors: "non-static": trained; "static": not; "multichannel": a trained table and one that is
        not, each filter over both.
    """

    vocab_size: Size
    d_words: Size = 300
    filters: Filters = ((3, 100), (4, 100), (5, 100))
    vectors: Literal["non-static", "static", "multichannel"] = "non-static"
    dropout: Probability = 0.5
    max_length: Size | None = None  # any
    pad: TokenId | None = 0

    @property
    def d_model(self) -> int:
        """The features of a word."""
        return sum(count for _, count in self.filters)

    @property
    def layers(self) -> int:
        """One."""
        return 1

    def __post_init__(self) -> None:
        if not self.filters:
            raise ValueError("`filters` must have at least one width, such as [[3, 100]].")


class KimCNN(nn.Module, Encoder):
    """Convolutions over words: "Convolutional Neural Networks for Sentence Classification" (Kim
    2014).

    One layer of convolutions, an `Encoder`.
    """

    Config = KimCNNConfig
    family = CONVOLUTIONAL

    def __init__(self, config: KimCNNConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_words)
        nn.init.uniform_(self.embedding.weight, -0.25, 0.25)
        self.embedding.weight.requires_grad_(config.vectors != "static")
        self.frozen = None
        if config.vectors == "multichannel":
            self.frozen = nn.Embedding.from_pretrained(self.embedding.weight.detach().clone())
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.d_words, count, width) for width, count in config.filters
        )

    @property
    def word_tables(self) -> list[nn.Embedding]:
        """Both tables of the multichannel model."""
        return [self.embedding] if self.frozen is None else [self.embedding, self.frozen]

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The vectors of words, and their features."""
        words = self.embedding(batch.ids)
        if self.frozen is not None:  # the sum of both convolutions is that of the sum
            words = words + self.frozen(batch.ids)
        yield words
        words = (words * batch.keep[..., None]).mT  # (B, T, D) -> (B, D, T)
        features = [
            F.relu(conv(F.pad(words, ((width - 1) // 2, width // 2))))  # (B, F, T)
            for conv, (width, _) in zip(self.convolutions, self.config.filters, strict=True)
        ]
        yield tokens.of(torch.cat(features, 1).mT)

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        return task_heads.init_weights(
            task_heads.linear_head(self, kind, outputs, pooling=task_heads.max_of_tokens),
            task_heads.HEAD_INIT,
        )

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """A, and A [SEP] B."""
        return Template.around((), tokenizer.required_ids("sep"), ())
