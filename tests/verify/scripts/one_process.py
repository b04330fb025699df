"""A small training script for one process; shared_out.py is what it becomes on ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    total, right = 0.0, 0.0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            total += nn.functional.cross_entropy(out, y, reduction="sum").item()
            right += (out.argmax(1) == y).sum().item()
    return total, right


def main() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(46, 6), torch.randint(0, 3, (46,)))
    train_set, val_set = random_split(data, [31, 15])
    loader = DataLoader(train_set, batch_size=4, shuffle=True, num_workers=1)
    val_loader = DataLoader(val_set, batch_size=4)
    model: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = 2 * len(loader)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    for epoch in range(2):
        model.train()
        total = 0.0
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(x)
            if i == 0:
                print(f"step {i}: {loss.item():.4f}")
        print(f"epoch {epoch}: loss {total / len(train_set):.4f}")
        val_loss, right = evaluate(model, val_loader)
        print(f"held out: loss {val_loss / len(val_set):.5f}, {right:g} of {len(val_set)} right")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
