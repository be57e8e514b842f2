"""An ordinary PyTorch training script that knows nothing of snugfit, to try the profile on.

    snugfit profile examples/plain_training.py
    snugfit profile --json --steps 2 examples/plain_training.py --batch-size 64

It teaches a small transformer to copy random sequences.
"""

import argparse

import torch
from torch import nn


class Copier(nn.Module):
    """A transformer that gives scores `[B, L, V]` for tokens `[B, L]`."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Gives a score for every token of the vocabulary at every place."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main() -> None:
    """Trains for a few steps."""
    parser = argparse.ArgumentParser(description="Train a small transformer to copy random sequences.")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Copier(vocabulary=256, width=128, layers=args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        tokens = torch.randint(0, 256, (args.batch_size, args.seq_len)).to(device)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
