"""Published sizes have the parameters of the released weights, or those that their papers print."""

from __future__ import annotations

import pytest
import torch

from regard.models import model_class
from regard.models.encoder_with_heads import EncoderWithHeads

POOLED, PRETRAINED = ("pooler",), ("pooler", "masked_lm")
# model, size, vocabulary, heads, and the parameters of the released model in `transformers`, or of
# the matrices that the paper describes
SIZES = [
    ("albert", "base", 30_000, POOLED, 11_683_584),
    ("albert", "large", 30_000, POOLED, 17_683_968),
    ("albert", "xlarge", 30_000, POOLED, 58_724_864),
    ("albert", "xxlarge", 30_000, POOLED, 222_595_584),
    ("bert", "base", 30_522, POOLED, 109_482_240),
    ("bert", "large", 30_522, POOLED, 335_141_888),
    ("bert", "base", 119_547, POOLED, 177_853_440),  # multilingual cased
    ("bert", "tiny", 30_522, PRETRAINED, 4_433_210),
    ("bert", "mini", 30_522, PRETRAINED, 11_267_386),
    ("bert", "small", 30_522, PRETRAINED, 29_057_850),
    ("bert", "medium", 30_522, PRETRAINED, 41_667_386),
    ("deberta", "xsmall", 128_100, (), 70_682_112),
    ("deberta", "small", 128_100, (), 141_304_320),
    ("deberta", "base", 128_100, (), 183_831_552),
    ("deberta", "large", 128_100, (), 434_012_160),
    ("deberta", "xlarge", 128_100, (), 884_593_152),
    ("deberta", "xxlarge", 128_100, (), 1_564_549_632),
    ("distilbert", "base", 30_522, (), 66_362_880),
    ("electra", "small", 30_522, (), 13_483_008),
    ("electra", "base", 30_522, (), 108_891_648),
    ("electra", "large", 30_522, (), 334_092_288),
    ("gpt", "base", 40_478, (), 116_534_784),
    ("gpt2", "124M", 50_257, (), 124_439_808),
    ("gpt2", "355M", 50_257, (), 354_823_168),
    ("gpt2", "774M", 50_257, (), 774_030_080),
    ("gpt2", "1558M", 50_257, (), 1_557_611_200),
    ("gpt-neo", "125M", 50_257, (), 125_198_592),
    ("gpt-neo", "1.3B", 50_257, (), 1_315_575_808),
    ("gpt-neo", "2.7B", 50_257, (), 2_651_307_520),
    ("gpt3", "125M", 50_257, (), 125_226_240),
    ("gpt3", "350M", 50_257, (), 355_871_744),
    ("gpt3", "760M", 50_257, (), 760_300_032),
    ("gpt3", "1.3B", 50_257, (), 1_315_723_264),
    ("gpt3", "2.7B", 50_257, (), 2_651_553_280),
    ("gpt3", "6.7B", 50_257, (), 6_658_404_352),
    ("gpt3", "13B", 50_257, (), 12_853_386_240),
    ("gpt3", "175B", 50_257, (), 174_604_259_328),
    ("lstm-lm", "small", 10_000, (), 4_651_600),
    ("lstm-lm", "medium", 10_000, (), 19_775_200),
    ("lstm-lm", "large", 10_000, (), 66_022_000),
    ("mpnet", "base", 30_527, POOLED, 109_486_464),
    ("roberta", "base", 50_265, POOLED, 124_645_632),
    ("roberta", "large", 50_265, POOLED, 355_359_744),
    ("xlm-roberta", "base", 250_002, POOLED, 278_043_648),
    ("xlm-roberta", "large", 250_002, POOLED, 559_890_432),
    ("t5", "small", 32_128, (), 60_506_624),
    ("t5", "base", 32_128, (), 222_903_552),
    ("t5", "large", 32_128, (), 737_668_096),
    ("t5", "3b", 32_128, (), 2_851_598_336),
    ("t5", "11b", 32_128, (), 11_307_321_344),
    ("xlnet", "base", 32_000, (), 116_750_336),
    ("xlnet", "large", 32_000, (), 360_300_800),
    ("transformer", "base", 37_000, (), 63_082_496),
    ("transformer", "big", 37_000, (), 214_245_376),
    ("awd-lstm", "ptb", 10_000, (), 24_221_600),
    ("awd-lstm", "wikitext-2", 33_278, (), 33_556_078),
    ("lstm-seq2seq", "luong", 50_000, (), 115_084_000),
]
SAID_EXACTLY = {*"albert deberta distilbert electra gpt gpt2 gpt3 gpt-neo roberta t5".split()}


@pytest.mark.parametrize(("name", "size", "vocabulary", "heads", "exact"), SIZES)
def test_a_size_has_its_parameters_and_the_table_says_so(name, size, vocabulary, heads, exact):
    kind = model_class(name)
    with torch.device("meta"):
        model = kind(kind.Config(vocabulary, **kind.SIZES[size]))
        if heads:
            model = EncoderWithHeads(model, {head: model.new_head(head) for head in heads})
    assert sum(parameter.numel() for parameter in model.parameters()) == exact
    published = kind.PUBLISHED.get(size, {}).get("parameters")
    if published is not None and vocabulary != 119_547:
        assert abs(published[0] / exact - 1) < 0.065
        assert name not in SAID_EXACTLY or f"{exact:,}" in published[1]
