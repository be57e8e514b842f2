"""A model whose documents a page shows, and its work."""

import torch
from residual_block import Block
from torch import nn


class Hostile(nn.Module):
    """Blocks whose name would be markup, if a page took it for that."""

    def __init__(self, width=32, blocks=3):
        super().__init__()
        self.stem = nn.Linear(16, width)
        self.add_module(NAME, nn.ModuleList(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.get_submodule(NAME):
            x = block(x)
        return self.head(x.mean(1))


NAME = "</script><img src=x onerror=document_was_run()>"
FORBIDDEN = ("init", "loss_impl", "offload_optimizer", "step_in_backward")
BATCH = ((16, 1024, 16), torch.float32), ((16,), torch.int64)


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output, batch[1])
