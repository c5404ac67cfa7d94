"""What FSDP adds to the modules of a model, and how to take it off for a while."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn


class FSDPAdditions:
    """What FSDP adds to a module: its class, attributes and hooks.

    It is created before the module is sharded; `find` is called after that.
    """

    def __init__(self, module: nn.Module):
        self.module, self.plain = module, type(module)
        self._known = {*vars(module)}, [{*hooks} for hooks in self._hooks()]

    def _hooks(self) -> list[OrderedDict[int, Any]]:
        """The hooks of the module, of the kinds that FSDP adds."""
        module: Any = self.module
        return [
            module._forward_pre_hooks,
            module._forward_pre_hooks_with_kwargs,
            module._forward_hooks,
            module._load_state_dict_post_hooks,
        ]

    def find(self) -> None:
        """Find out what was added."""
        attributes, keys = self._known
        self.sharded = type(self.module)
        self.attributes = {
            n: value for n, value in vars(self.module).items() if n not in attributes
        }
        self.hooks = [
            (hooks, key, hook)
            for hooks, earlier_keys in zip(self._hooks(), keys, strict=True)
            for key, hook in hooks.items()
            if key not in earlier_keys
        ]

    def remove(self) -> None:
        """Make it a plain module."""
        self.module.__class__ = self.plain
        for name in self.attributes:
            delattr(self.module, name)
        for hooks, key, _ in self.hooks:
            del hooks[key]

    def restore(self) -> None:
        """Undo `remove`."""
        self.module.__class__ = self.sharded
        for name, value in self.attributes.items():
            setattr(self.module, name, value)
        for hooks, key, hook in self.hooks:
            hooks[key] = hook
            hooks.move_to_end(key, last=False)
