"""Images of all kinds become the same array; what is none is an error that says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.images import SIDE, open_image, read_image
from regard.errors import DataError

COLOURS = np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def saved(path, mode="RGB", array=COLOURS, **options):
    Image.fromarray(array).convert(mode).save(path, **options)
    return path


def test_values_are_those_of_the_pixels(tmp_path):
    square = COLOURS[:40, :40]
    found = read_image(saved(tmp_path / "a.png", array=square), side=40)
    wanted = (torch.from_numpy(square).permute(2, 0, 1).double() - 127) / 128
    torch.testing.assert_close(found.double(), wanted)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "RGBA", "LA", "I;16"])
@pytest.mark.parametrize("size", [(40, 60), (1, 1), (1, 300), (700, 3)])
def test_every_mode_and_size_is_read(tmp_path, mode, size):
    array = np.resize(COLOURS, (*size, 3))
    name = "a.tiff" if mode in ("CMYK", "I;16") else "a.png"
    image = Image.fromarray(array)
    image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
    image.save(tmp_path / name)
    found = read_image(tmp_path / name)
    assert found.shape == (3, SIDE, SIDE) and found.dtype == torch.float32
    assert found.min() >= -127 / 128 and found.max() <= 1
    if mode == "L":
        assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
def test_grey_of_16_bits_is_as_bright_as_grey_of_8(tmp_path, name):
    grey = COLOURS[:, :, 0]
    Image.fromarray(grey).save(tmp_path / "eight.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / name)
    assert torch.equal(read_image(tmp_path / name), read_image(tmp_path / "eight.png"))


def test_an_image_is_turned_as_its_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    saved(tmp_path / "turned.jpg", exif=exif)
    assert open_image(tmp_path / "turned.jpg").size == (40, 60)  # the array is 60 wide


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "cannot identify"),
        (b"a text", "cannot identify"),
        ("half", "is truncated"),
        (None, "No such file"),
        ("folder", "Is a directory"),
    ],
)
def test_a_file_without_a_readable_image_raises_an_error_that_names_it(tmp_path, content, told):
    path = tmp_path / "photo.jpg"
    if content == "half":
        whole = saved(tmp_path / "whole.jpg", array=np.resize(COLOURS, (300, 300, 3))).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"photo.jpg.*{told}"):
        read_image(path)


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match="exceeds limit"):
        read_image(saved(tmp_path / "large.png"))
