"""Loads tensors into a model strictly: missing, unused and misshapen ones are errors.

Quantized matrices are stored row by row, not in panels, whose layout may change with the processor
or the release: int8 under its own name with the scales of its rows beside it (`NAME.scale`), or
bfloat16. All else is float32. Packing the matrices into panels takes 20 milliseconds for 124
million weights. Such a file opens with and without compiled kernels.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import CheckpointError
from regard.file_pages import is_releasing, release
from regard.layers.quantized import StoredMatrix, WeightType, quantize_matrix
from regard.models.conversions import prepare, quantize_layers
from regard.schema import check_same

Weights = Mapping[str, Tensor]  # by name
SLICE = 1 << 22  # numbers that are checked before their file pages are dropped
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Problems:
    """Collects every problem, so that the user sees them at once and not one per attempt.

    title: the first line of the message.
    """

    LISTED = 8  # names of each kind

    def __init__(self, title: str):
        self.title = title
        self.kinds: dict[str, list[str]] = {}

    def add(self, kind: str, *names: str) -> None:
        """Names with one kind of problem."""
        if names:
            self.kinds.setdefault(kind, []).extend(names)

    def add_shape(self, name: str, tensor: Tensor, expected: Tensor, origin: str = "") -> None:
        """A wrong shape, if it is one. `origin`: the published names that it was made from."""
        if tensor.shape != expected.shape:
            must, got = tuple(expected.shape), tuple(tensor.shape)
            of = f" (from {origin})" if origin else ""
            self.add("wrong shape", f"{name} must be {must}, but is {got}{of}")

    def add_type(self, name: str, tensor: Tensor, expected: Tensor) -> None:
        """A wrong type, if it is one: parameters may be any of `FLOATS`, others have one type."""
        floating = expected.is_floating_point()
        if tensor.dtype not in FLOATS if floating else tensor.dtype != expected.dtype:
            must = "floating point" if floating else f"of type {expected.dtype}"
            self.add(f"not {must}", f"{name} is {tensor.dtype}")

    def raise_any(self) -> None:
        """Raise a CheckpointError that lists all problems, if there are any."""
        if not self.kinds:
            return
        lines = [self.title + ":"]
        for kind, names in self.kinds.items():
            more = f", and {len(names) - self.LISTED} more" if len(names) > self.LISTED else ""
            lines.append(f"  {kind}: {', '.join(names[: self.LISTED])}{more}")
        raise CheckpointError("\n".join(lines))


# ----------------------------------------------------------------------------------- checks


def check_finite(tensors: Weights) -> None:
    """Look for NaN and infinity, at about 0.1 seconds a gigabyte.

    Raises:
        CheckpointError: there are some, or numbers that float32 cannot hold; the message names the
            tensors and the first index of each.
    """
    problems = Problems("weights must be finite numbers in float32, but some are not")
    largest = torch.finfo(torch.float32).max
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
            continue
        if not all(_is_within(part, largest) for part in _slices(tensor.detach())):
            wrong = ~(tensor.detach().double().abs() <= largest)
            index = wrong.nonzero()[0].tolist()
            problems.add(
                "not finite",
                f"{name}{index} is {float(tensor[tuple(index)])} ({int(wrong.sum()):,} such)",
            )
    problems.raise_any()


def _is_within(tensor: Tensor, largest: float) -> bool:
    """Whether all magnitudes are; minimum and maximum are NaN where a number is, and no copy."""
    low, high = (float(value) for value in torch.aminmax(tensor))
    return -largest <= low and high <= largest


def _slices(tensor: Tensor) -> Iterator[Tensor]:
    """The whole tensor, or slices whose file pages are dropped after they were read."""
    if not is_releasing() or not tensor.is_contiguous():
        yield tensor
        return
    for part in tensor.view(-1).split(SLICE):
        yield part
        release(part)


def check_fit(model: nn.Module, tensors: Weights) -> None:
    """Compare names, shapes and types with a model's; tied names may be left out.

    Raises:
        CheckpointError: tensors are missing, left over, or of a wrong shape or type; all are named.
    """
    expected = model.state_dict()
    problems = Problems("weights do not fit the model that config.json describes")
    problems.add("missing", *(name for name in unique_tensors(expected) if name not in tensors))
    problems.add("extra", *(name for name in tensors if name not in expected))
    for name in [name for name in expected if name in tensors]:
        problems.add_shape(name, tensors[name], expected[name])
        problems.add_type(name, tensors[name], expected[name])
    problems.raise_any()


def unique_tensors(tensors: Weights) -> dict[str, Tensor]:
    """Each tensor once, under its first name: tied parameters are stored a single time."""
    seen: set[tuple] = set()
    result = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or tensor.is_meta or key not in seen:
            seen.add(key)
            result[name] = tensor
    return result


# ----------------------------------------------------------------------------------- filling


def load_weights(model: nn.Module, tensors: Weights) -> None:
    """Copy tensors into a model, named as in its state dict; tied names may be left out.

    Raises:
        CheckpointError: see `check_fit`.
    """
    check_fit(model, tensors)
    model.load_state_dict(dict(tensors), strict=False)


def load_strict(model: nn.Module, tensors: Weights) -> None:
    """Fill a new model with tensors that may become its parameters: see `assign`.

    Raises:
        CheckpointError: see `check_fit` and `check_finite`.
    """
    check_fit(model, tensors)
    check_finite(tensors)
    assign(model, tensors)


def assign(model: nn.Module, tensors: Weights) -> None:
    """Make tensors the parameters of a new model, without copying them; shapes must be right.

    Of a mapped file only what is computed with is then ever read. A tensor is copied if its type
    differs, if it is not contiguous, or if it is a parameter already. Tied parameters stay tied.
    """
    parameters = model.state_dict(keep_vars=True)
    owners: dict[int, Tensor] = {}
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameter = parameters[name]
            unused = owners.setdefault(tensor.data_ptr(), parameter) is parameter
            # What is quantized next may stay as it lies: slices of it are copied then.
            contiguous = tensor.is_contiguous() or is_releasing()
            if unused and contiguous and tensor.dtype == parameter.dtype:
                parameter.data = tensor.detach()
            else:
                parameter.copy_(tensor)


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, models are built on the meta device: their parameters have shapes, but no numbers.

    None are drawn, since torch computes their shapes in Python, parameter by parameter.
    """
    with torch.device("meta"), SkipInit():
        yield


class SkipInit(TorchFunctionMode):
    """Inside, parameters are not initialized, which would take longer than reading them.

    weights: those that the model is for. A model with far more parameters than they have raises a
        CheckpointError before its memory is allocated.
    described_by: the file that has the sizes of the model, for this error.
    """

    HEADROOM = 2**20  # numbers: 4 MB
    PRUNED = 4  # a model is built with all its heads, and its weights may have a few of them

    def __init__(self, weights: Weights | None = None, described_by: str = "config.json"):
        super().__init__()
        self.described_by = described_by
        self.limit = math.inf
        if weights is not None:
            self.numbers = sum(tensor.numel() for tensor in weights.values())
            self.limit = self.PRUNED * self.numbers + self.HEADROOM
        self.allocated = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Skip functions that draw numbers; count what `torch.empty` allocates."""
        if getattr(func, "__name__", "").endswith(("normal_", "uniform_")):
            return args[0] if args else (kwargs or {})["tensor"]
        if func is torch.empty:
            self._count(args[0] if args and not isinstance(args[0], int) else args)
        return func(*args, **(kwargs or {}))

    def _count(self, shape: Sequence[int]) -> None:
        self.allocated += math.prod(shape)
        if self.allocated > self.limit:
            raise CheckpointError(
                f"{self.described_by} asks for a tensor of shape {tuple(shape)} and with it for "
                f"{self.allocated:,} parameters, but the weights have only {self.numbers:,}. "
                "Correct its sizes, or use the file that was saved with these weights."
            )


# ----------------------------------------------------------------------------------- quantized

SCALE = ".scale"
QUANTIZED = (torch.int8, torch.bfloat16)


def quantized_tensors(model: nn.Module, dtype: WeightType) -> dict[str, Tensor]:
    """What a file holds of a model whose weights are quantized to `dtype`, by name.

    The model is quantized afterwards. The file has those matrices quantized that quantizing the
    model replaces.
    """
    tensors = unique_tensors(model.state_dict())
    remaining = quantize_layers(model, dtype).state_dict()
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        unchanged = name in remaining and remaining[name].shape == tensor.shape
        if unchanged or tensor.dim() != 2:
            result[name] = tensor.float() if tensor.is_floating_point() else tensor
            continue
        result[name], scale = quantize_matrix(tensor, dtype)
        if scale is not None:
            result[name + SCALE] = scale
    return result


def read_quantized(
    build: Callable[[], nn.Module], tensors: Weights, dtype: WeightType
) -> nn.Module:
    """The quantized model that a file holds.

    build: gives the model, with any weights.

    Raises:
        CheckpointError: the tensors are not those of this model.
    """
    model, matrices = _filled(build, tensors)
    for matrix in matrices.values():
        stored = "int8" if matrix.scale is not None else "bfloat16"
        check_same("config.json", "regard.weights", dtype, "the type of the tensors", stored)
    model = prepare(model, dtype)
    if all(matrix.used for matrix in matrices.values()):
        _dequantize(model, matrices)
        return model
    # A layer computed its matrix from several: it needs them as float32, before it is quantized.
    return prepare(read_dequantized(build, tensors), dtype)


def read_dequantized(build: Callable[[], nn.Module], tensors: Weights) -> nn.Module:
    """The model that a file holds, its quantized weights as float32.

    build: gives the model, with any weights.

    Raises:
        CheckpointError: the tensors are not those of this model.
    """
    model, matrices = _filled(build, tensors)
    _dequantize(model, matrices)
    return model


def _filled(
    build: Callable[[], nn.Module], tensors: Weights
) -> tuple[nn.Module, dict[str, StoredMatrix]]:
    """The model, whose parameters only refer to their quantized matrices, and these by name."""
    weights, scales = _without_scales(tensors)
    with SkipInit():
        model = build()
    floats = {
        name: torch.empty(tensor.shape, device="meta") if tensor.dtype in QUANTIZED else tensor
        for name, tensor in weights.items()
    }
    check_fit(model, floats)
    check_finite(tensors)
    matrices = {
        name: StoredMatrix(tensor, scales.get(name))
        for name, tensor in weights.items()
        if tensor.dtype in QUANTIZED
    }
    assign(model, {name: tensor for name, tensor in weights.items() if name not in matrices})
    parameters = model.state_dict(keep_vars=True)
    for name, matrix in matrices.items():
        parameters[name].stored = matrix
    return model, matrices


def _without_scales(tensors: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of a file, and the scales of those that are 8-bit, by their names.

    Raises:
        CheckpointError: an 8-bit matrix has no scales, or they are not one for each of its rows; a
            quantized tensor is no matrix.
    """
    scales: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype in QUANTIZED and tensor.dim() != 2:
            raise CheckpointError(f"{name} is {tensor.dtype}, but only matrices are.")
        if tensor.dtype != torch.int8:
            continue
        scale = tensors.get(name + SCALE)
        if scale is None or scale.dtype != torch.float32 or scale.shape != tensor.shape[:1]:
            must = f"float32 of shape {tuple(tensor.shape[:1])}, a number for each row of {name}"
            raise CheckpointError(f"{name}{SCALE} must be {must}.")
        scales[name] = scale
    of_scales = {name + SCALE for name in scales}
    return {name: tensor for name, tensor in tensors.items() if name not in of_scales}, scales


def _dequantize(model: nn.Module, matrices: Mapping[str, StoredMatrix]) -> None:
    """Quantized matrices become float32 where they are still parameters of the model."""
    parameters = model.state_dict(keep_vars=True)
    for name, matrix in matrices.items():
        if name in parameters:
            parameters[name].data = matrix.dequantized()
            del parameters[name].stored
