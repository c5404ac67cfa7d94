"""Published sizes have the parameters of the released weights, or those that their papers print."""

from __future__ import annotations

import pytest
import torch

from regard.models import model_class
from regard.models.encoder_with_heads import EncoderWithHeads

POOLED, PRETRAINED = ("pooler",), ("pooler", "masked_lm")
# model, size, vocabulary, heads, and the parameters of the released model in `transformers`, or of
# the matrices that the paper describes; the rounded number that the paper prints
SIZES = [
    ("albert", "base", 30_000, POOLED, 11_683_584, 12e6),
    ("albert", "large", 30_000, POOLED, 17_683_968, 18e6),
    ("albert", "xlarge", 30_000, POOLED, 58_724_864, 60e6),
    ("albert", "xxlarge", 30_000, POOLED, 222_595_584, 235e6),
    ("bert", "base", 30_522, POOLED, 109_482_240, 110e6),
    ("bert", "large", 30_522, POOLED, 335_141_888, 340e6),
    ("bert", "base", 119_547, POOLED, 177_853_440, None),  # multilingual cased
    ("bert", "tiny", 30_522, PRETRAINED, 4_433_210, 4.4e6),
    ("bert", "mini", 30_522, PRETRAINED, 11_267_386, 11.3e6),
    ("bert", "small", 30_522, PRETRAINED, 29_057_850, 29.1e6),
    ("bert", "medium", 30_522, PRETRAINED, 41_667_386, 41.7e6),
    ("deberta", "xsmall", 128_100, (), 70_682_112, 70e6),
    ("deberta", "small", 128_100, (), 141_304_320, 142e6),
    ("deberta", "base", 128_100, (), 183_831_552, 184e6),
    ("deberta", "large", 128_100, (), 434_012_160, 435e6),
    ("deberta", "xlarge", 128_100, (), 884_593_152, 900e6),
    ("deberta", "xxlarge", 128_100, (), 1_564_549_632, 1.5e9),
    ("distilbert", "base", 30_522, (), 66_362_880, 66e6),
    ("electra", "small", 30_522, (), 13_483_008, 14e6),
    ("electra", "base", 30_522, (), 108_891_648, 110e6),
    ("electra", "large", 30_522, (), 334_092_288, 335e6),
    ("gpt", "base", 40_478, (), 116_534_784, 117e6),
    ("gpt2", "124M", 50_257, (), 124_439_808, 117e6),
    ("gpt2", "355M", 50_257, (), 354_823_168, 345e6),
    ("gpt2", "774M", 50_257, (), 774_030_080, 762e6),
    ("gpt2", "1558M", 50_257, (), 1_557_611_200, 1542e6),
    ("gpt-neo", "125M", 50_257, (), 125_198_592, 125e6),
    ("gpt-neo", "1.3B", 50_257, (), 1_315_575_808, 1.3e9),
    ("gpt-neo", "2.7B", 50_257, (), 2_651_307_520, 2.7e9),
    ("gpt3", "125M", 50_257, (), 125_226_240, 125e6),
    ("gpt3", "350M", 50_257, (), 355_871_744, 350e6),
    ("gpt3", "760M", 50_257, (), 760_300_032, 760e6),
    ("gpt3", "1.3B", 50_257, (), 1_315_723_264, 1.3e9),
    ("gpt3", "2.7B", 50_257, (), 2_651_553_280, 2.7e9),
    ("gpt3", "6.7B", 50_257, (), 6_658_404_352, 6.7e9),
    ("gpt3", "13B", 50_257, (), 12_853_386_240, 13e9),
    ("gpt3", "175B", 50_257, (), 174_604_259_328, 175e9),
    ("lstm-lm", "small", 10_000, (), 4_651_600, None),
    ("lstm-lm", "medium", 10_000, (), 19_775_200, 20e6),
    ("lstm-lm", "large", 10_000, (), 66_022_000, 66e6),
    ("mpnet", "base", 30_527, POOLED, 109_486_464, None),
    ("roberta", "base", 50_265, POOLED, 124_645_632, 125e6),
    ("roberta", "large", 50_265, POOLED, 355_359_744, 355e6),
    ("xlm-roberta", "base", 250_002, POOLED, 278_043_648, 270e6),
    ("xlm-roberta", "large", 250_002, POOLED, 559_890_432, 550e6),
    ("t5", "small", 32_128, (), 60_506_624, 60e6),
    ("t5", "base", 32_128, (), 222_903_552, 220e6),
    ("t5", "large", 32_128, (), 737_668_096, 770e6),
    ("t5", "3b", 32_128, (), 2_851_598_336, 2.8e9),
    ("t5", "11b", 32_128, (), 11_307_321_344, 11e9),
    ("xlnet", "base", 32_000, (), 116_750_336, None),
    ("xlnet", "large", 32_000, (), 360_300_800, None),
    ("transformer", "base", 37_000, (), 63_082_496, 65e6),
    ("transformer", "big", 37_000, (), 214_245_376, 213e6),
    ("awd-lstm", "ptb", 10_000, (), 24_221_600, 24e6),
    ("awd-lstm", "wikitext-2", 33_278, (), 33_556_078, 33e6),
    ("lstm-seq2seq", "luong", 50_000, (), 115_084_000, None),
]


@pytest.mark.parametrize(("name", "size", "vocabulary", "heads", "exact", "printed"), SIZES)
def test_a_size_has_its_parameters(name, size, vocabulary, heads, exact, printed):
    kind = model_class(name)
    with torch.device("meta"):
        model = kind(kind.Config(vocabulary, **kind.SIZES[size]))
        if heads:
            model = EncoderWithHeads(model, {head: model.new_head(head) for head in heads})
    assert sum(parameter.numel() for parameter in model.parameters()) == exact
    assert printed is None or abs(printed / exact - 1) < 0.065
