"""`transformers`: float32 or bfloat16, as it comes, or its static cache in a compiled step."""

from __future__ import annotations

import torch
import transformers

from benchmarks.decoding.quality import told
from benchmarks.decoding.shape import Shape


class Transformers:
    """dtype: "float32" or "bfloat16"; compiled: torch.compile over a static cache."""

    def __init__(
        self,
        folder: str,
        shape: dict[str, int],
        threads: int,
        dtype: str = "float32",
        compiled: bool = False,
    ):
        torch.set_num_threads(threads)
        self.shape = Shape(**shape)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        ).eval()
        self.ids = torch.tensor(self.shape.prompts())
        self.compiled = compiled
        if compiled:
            self.model.forward = torch.compile(self.model.forward, dynamic=False)

    def turn(self) -> list[list[int]]:
        """The new tokens of each sequence."""
        given = {"cache_implementation": "static", "disable_compile": True} if self.compiled else {}
        with torch.inference_mode():
            found = self.model.generate(
                self.ids,
                attention_mask=torch.ones_like(self.ids),
                max_new_tokens=self.shape.new,
                min_new_tokens=self.shape.new,
                do_sample=False,
                pad_token_id=0,
                **given,
            )
        return found[:, self.ids.size(1) :].tolist()

    def scores(self, ids: list[list[int]]) -> list[tuple[float, list[int]]]:
        """See `quality.told`."""
        with torch.inference_mode():
            return [told(self.model(torch.tensor([row])).logits[0].float(), row) for row in ids]
