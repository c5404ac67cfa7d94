"""A recording of what a function does on the CPU, under the rules of a CUDA graph.

Every operation is kept with the very tensors that it read and wrote. To replay is to do the same
again on the same memory: numbers of Python, shapes and decisions are those of the recording. What
waits for a number of a tensor cannot be recorded.
"""

from __future__ import annotations

import torch
from nested import tensors_in, with_tensors
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        booleans = [t for t in tensors_in(args[1:]) if t.dtype == torch.bool]
        if name.startswith(WAITING) or (name.startswith("index") and booleans):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        # Some operations change how a tensor looks at its memory: keep how it was.
        kept = with_tensors(torch.Tensor.detach, (args, kwargs))
        out = func(*args, **kwargs)
        read = {t.untyped_storage().data_ptr() for t in tensors_in((args, kwargs))}
        made = [t.untyped_storage().data_ptr() not in read for t in tensors_in(out)]
        # What only looks at memory in another way is done once.
        if (func._schema.is_mutable and torch.Tag.inplace_view not in func.tags) or any(made):
            self.calls.append((func, *kept, with_tensors(torch.Tensor.detach, out)))
        return out

    def replay(self):
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for before, now in zip(tensors_in(out), tensors_in(again), strict=True):
                    before.copy_(now)


def recorded(run):
    """Replaces `regard.decoding.cuda_graphs.recorded`."""
    run()
    with Recorder() as recorder:
        scores, left = run()
    scores.fill_(torch.nan)  # so that nobody reads what was not computed again
    return recorder.replay, scores, left
