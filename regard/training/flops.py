"""FLOPs, and bytes that are stored for a backward pass, counted on the meta device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.checkpoints.filling import on_meta
from regard.layers.linear import Linear
from regard.layers.task_heads import MaskedLMHead
from regard.models.composed import Features
from regard.models.conversions import adapted_layers, insert_updates_like
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Generator, Head
from regard.training.callbacks import Trainable
from regard.training.compiling import activation_checkpointing, blocks_of

if TYPE_CHECKING:
    from regard.tasks.encoding import EncoderTask


def twin(model: nn.Module, device: str) -> Any:
    """A new model of the same configuration on a device; on "meta" its tensors have no data.

    It has adapters where the model has some.
    """
    with on_meta() if device == "meta" else torch.device(device):
        new: Any
        if not isinstance(model, EncoderWithHeads):
            new = type(model)(model.config)
        else:
            new = model.new_like()
    insert_updates_like(new, model)
    return new


class BatchCost(NamedTuple):
    """What a step by a batch costs.

    items: of the first loss of the task: tokens, examples.
    flops: of the forward and the backward pass.
    stored: bytes that the forward pass stores for the backward pass.
    attention_flops: those of the FLOPs that are products of queries with keys and of weights with
        values.
    """

    items: int
    flops: int
    stored: int
    attention_flops: int


def count(task: Trainable, batch: Any, *, checkpointing: bool = False) -> BatchCost:
    """What a batch of a task costs, whose model is on the meta device.

    checkpointing: whether its blocks use activation checkpointing.
    """
    blocks = blocks_of(task.module) if checkpointing else []
    counts, heads = task.counts(batch), _vocabulary_heads(task)
    task.module.train()
    with ExitStack() as stack:
        for head in heads:
            stack.enter_context(_without_targets(head, list(counts.values())[-1]))
        products = stack.enter_context(_frozen_products(task.module))
        with FlopCounterMode(display=False) as counter:
            stored = stored_by(task.module, lambda: task.losses(batch, None), blocks)
    # A backward pass costs two forward passes, but one where a matrix is frozen under adapters, and
    # does not go through a frozen encoder.
    frozen = _frozen_flops(task, batch)
    flops = 3 * counter.get_total_flops() - sum(products) - 2 * frozen.get_total_flops()
    attention = 3 * _attention_flops(counter) - 2 * _attention_flops(frozen)
    stored += sum(map(bytes_of, heads))
    return BatchCost(next(iter(counts.values())), flops, stored, attention)


def _attention_flops(counter: FlopCounterMode) -> int:
    """The FLOPs of batched products of two activations; products with a weight are other
    operations of torch.
    """
    by_operation = counter.get_flop_counts().get("Global", {})
    return sum(
        flops
        for operation, flops in by_operation.items()
        if any(name in str(operation) for name in ("bmm", "attention"))
    )


def _vocabulary_heads(task: Trainable) -> list[Any]:
    """The heads over the vocabulary that are trained."""
    if task.aux_lm is not None:
        return [task.aux_lm.head]
    if isinstance(task.module, Generator):
        return [task.module.head]
    return [part for part in task.module.modules() if isinstance(part, MaskedLMHead)]


@contextmanager
def _without_targets(head: Head, tokens: int) -> Iterator[None]:
    """Inside, the loss of a head does not read the targets, which have no data on the meta device.

    A head computes the same product slice by slice, and stores its gradients instead of its input.
    tokens: how many positions have a target, where the task does not say it.
    """

    def loss(
        hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        targets_count = tokens if count is None else count
        return head.logits(hidden[:targets_count]).sum(), targets_count

    head.loss = loss  # type: ignore[method-assign]
    try:
        yield
    finally:
        del head.loss


@contextmanager
def _frozen_products(model: nn.Module) -> Iterator[list[int]]:
    """The FLOPs of each product with a frozen matrix of a model with adapters, inside."""
    flops: list[int] = []
    layers = model.modules() if adapted_layers(model) else ()
    hooks = [
        layer.register_forward_hook(
            lambda linear, inputs, _: flops.append(2 * inputs[0].numel() * linear.out_features)
        )
        for layer in layers
        if isinstance(layer, Linear) and not layer.weight.requires_grad
    ]
    try:
        yield flops
    finally:
        for hook in hooks:
            hook.remove()


def _frozen_flops(task: Trainable, batch: Any) -> FlopCounterMode:
    """FLOPs of the forward pass through a frozen encoder."""
    features = task.module.encoder if isinstance(task.module, EncoderWithHeads) else None
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        if isinstance(features, Features):
            batch = cast("EncoderTask", task).completed(batch)  # with characters, if it reads them
            features.choice(features.encoder.states(batch.texts))
    return counter


def stored_by(
    model: nn.Module, forward: Callable[[], Any], checkpointed: Sequence[nn.Module] = ()
) -> int:
    """Bytes that a forward pass stores for the backward pass, beside the parameters.

    checkpointed: blocks with activation checkpointing.
    """
    stored: dict[int, Tensor] = {}

    def store(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def store_input(block: nn.Module, inputs: tuple[Any, ...]) -> None:
        store(inputs[0])

    hooks = [block.register_forward_pre_hook(store_input) for block in checkpointed]
    try:
        with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
            with activation_checkpointing(checkpointed):
                forward()
    finally:
        for hook in hooks:
            hook.remove()
    for parameter in model.parameters():
        stored.pop(parameter.untyped_storage()._cdata, None)
    return sum(tensor.untyped_storage().nbytes() for tensor in stored.values())


def bytes_of(module: nn.Module, *, trained: bool = False) -> int:
    """Bytes of its parameters; with `trained` of those alone that are trained."""
    parameters = (p for p in module.parameters() if p.requires_grad or not trained)
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def grids_of(batch: Any) -> list[Tensor]:
    """The tensors of a batch that have a token at each position."""
    if isinstance(batch, Tensor):
        return [batch] if batch.dim() > 1 else []
    parts = [getattr(batch, f.name) for f in fields(batch)] if is_dataclass(batch) else []
    return [grid for part in parts for grid in grids_of(part)]


def positions_in(batch: Any) -> int:
    """The positions of a batch, padding included."""
    return sum(grid.numel() for grid in grids_of(batch))
