"""Templates against post-processors of tokenizers; which tokenizers fit a model."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel as ByBytes
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import (
    BertProcessing,
    ByteLevel,
    RobertaProcessing,
    Sequence,
    TemplateProcessing,
)

from regard.text import Tokenizer
from regard.text.templates import Template

SPECIALS = ["[CLS]", "[SEP]", "<s>", "</s>", "a:b", "$A", "$", "::", "[x y]", "%0", "#"]
VOCABULARY = {piece: i for i, piece in enumerate([*SPECIALS, "one", "two", "three", "four"])}
A, B = "one two three", "four one"

XLNET = TemplateProcessing(
    single="$A:0 </s>:0 [CLS]:2",
    pair="$A:0 </s>:0 $B:1 </s>:1 [CLS]:2",
    special_tokens=[("</s>", 3), ("[CLS]", 0)],
)
PROCESSORS = {
    "bert": BertProcessing(("[SEP]", 1), ("[CLS]", 0)),
    "roberta": RobertaProcessing(("</s>", 3), ("<s>", 2)),
    "xlnet": XLNET,
    "bytes and template": Sequence([ByteLevel(trim_offsets=True), XLNET]),
    "nothing around": TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[]),
    "twice": TemplateProcessing(
        single="<s> <s> $A:1 #:2 #:0",
        pair="<s> $A:1 $B:3 #:2 #:0",
        special_tokens=[("<s>", 2), ("#", 10)],
    ),
}
TEMPLATES = {
    "bert": Template.bert(0, 1),
    "roberta": Template.around((2,), (3, 3), (3,)),
    "xlnet": Template(((), ((3, 0), (0, 2))), ((), ((3, 0),), ((3, 1), (0, 2))), (0, 0, 1)),
    "nothing around": Template(((), ()), ((), (), ()), (0, 0, 1)),
}


def words(processor=None) -> Tokenizer:
    fast = tokenizers.Tokenizer(WordLevel(VOCABULARY, unk_token="#"))
    fast.pre_tokenizer = Whitespace()
    fast.add_special_tokens(SPECIALS)
    if processor is not None:
        fast.post_processor = processor
    return Tokenizer(fast, "words", {"cls": "[CLS]", "sep": "[SEP]", "unk": "#"})


def opened(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The file as another library reads it."""
    return tokenizers.Tokenizer.from_str(tokenizer.to_str())


def check(tokenizer: Tokenizer, template: Template) -> None:
    """Rows of one text and of two are those of `tokenizers`, empty texts too."""
    fast = opened(tokenizer)
    for texts in ([A], [B], [""], [A, B], [B, ""], ["", A], ["", ""]):
        own = [tokenizer.encode(text).ids for text in texts]
        row, expected = template.apply(own), fast.encode(*texts)
        assert row.ids == expected.ids and row.segments == expected.type_ids
        assert row.counts == tuple(map(len, own))
        for start, ids in zip(row.starts, own, strict=True):
            assert row.ids[start : start + len(ids)] == ids
        assert len(row) == sum(map(len, own)) + template.special_count(len(texts))
        assert all(segment < template.segment_count for segment in row.segments)


@pytest.mark.parametrize("kind", PROCESSORS)
def test_a_template_gives_what_its_post_processor_gives(kind):
    tokenizer = words(PROCESSORS[kind])
    template = tokenizer.template
    check(tokenizer, template)
    assert template == TEMPLATES.get(kind, template)
    assert tokenizer.with_template(template) is tokenizer  # the file stays as it was published


@given(st.data())
def test_any_template_is_read_as_it_was_written(data):
    special = st.tuples(st.integers(0, len(SPECIALS) - 1), st.integers(0, 3))
    part = st.lists(special, max_size=3).map(tuple)
    template = Template(
        data.draw(st.tuples(part, part)),
        data.draw(st.tuples(part, part, part)),
        data.draw(st.tuples(*[st.integers(0, 3)] * 3)),
    )
    written = words().with_template(template)
    assert written.template == template
    check(written, template)


def gpt2() -> Tokenizer:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([*letters, "<|endoftext|>"])}
    fast = tokenizers.Tokenizer(BPE(vocabulary, []))
    fast.pre_tokenizer = ByBytes(add_prefix_space=False)
    fast.post_processor = ByteLevel(trim_offsets=True)
    fast.add_special_tokens(["<|endoftext|>"])
    return Tokenizer(fast, "byte-bpe", {"eos": "<|endoftext|>"})


def test_gpt2s_file_has_no_template_and_keeps_its_byte_level_processor():
    tokenizer = gpt2()
    assert tokenizer.template is None
    end = tokenizer.eos_id
    template = Template.around((), (end,), (end,))
    written = tokenizer.with_template(template)
    assert written.template == template
    check(written, template)
    before, after = opened(tokenizer).encode("a b").offsets, opened(written).encode("a b").offsets
    assert before == [(0, 1), (2, 2), (2, 3)] == after[:3]


def test_transformers_applies_written_templates(tmp_path):
    transformers = pytest.importorskip("transformers")
    for kind in ("bert", "roberta", "xlnet"):
        written = words().with_template(TEMPLATES[kind])
        written.save(tmp_path / kind)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / kind)
        for texts in ([A], [A, B]):
            row = TEMPLATES[kind].apply([written.encode(text).ids for text in texts])
            found = theirs(*texts)
            assert found["input_ids"] == row.ids
            assert found.get("token_type_ids", [0] * len(row)) == row.segments
