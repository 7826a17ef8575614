"""Train a small convolutional network on scikit-learn's 1,797 handwritten digits, on any number of ranks.

The same file runs as `python digits.py`, under torchrun, and under `kit run`; nothing in it knows which. Its last line on rank 0 holds the
mean loss over the test images as a hexadecimal float, so that equality can be seen to the last bit.
"""

import argparse

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import Accelerator, DataLoaderConfiguration, set_seed

TEST_IMAGES = 360


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images an optimizer step, over all ranks")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Training and test images: a fixed split, whatever the number of ranks. Images (N, 1, 8, 8) float32 in 0..1."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    targets = torch.tensor(digits.target)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(1797))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], targets[train]), TensorDataset(images[test], targets[test])


def network() -> nn.Module:
    """Two convolutions and a linear layer: logits (N, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 2 * 2, 10),
    )  # fmt: skip


def main() -> None:
    """Train, test, save."""
    options = parse()
    # One batch size for the whole world: the ranks divide it, and the steps are the same on any number of them.
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    set_seed(options.seed)
    train_set, test_set = datasets()
    train_loader = DataLoader(train_set, batch_size=options.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=options.batch_size)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * len(train_loader))
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )

    for epoch in range(options.epochs):
        model.train()
        for images, targets in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
        correct, count, loss_sum = test(accelerator, model, test_loader)
        if accelerator.is_main_process:
            print(f"epoch {epoch + 1}: test accuracy {correct / count:.4f}")

    mean = loss_sum / count
    accelerator.log({"accuracy": correct / count, "loss": mean}, step=options.epochs)
    if accelerator.is_main_process:
        save_file(accelerator.unwrap_model(model).state_dict(), f"{accelerator.output_dir}/digits.safetensors")
        print(f"test accuracy: {correct / count:.4f} ({correct} of {count})  loss: {mean.hex()}")


@torch.no_grad()
def test(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[int, int, float]:
    """Images that were recognised, images in all, and the sum of their losses in the order of the data set (float64)."""
    model.eval()
    hits, losses = [], []
    for images, targets in loader:
        logits = model(images)
        each = nn.functional.cross_entropy(logits, targets, reduction="none")
        hit, loss = accelerator.gather_for_metrics((logits.argmax(-1) == targets, each))
        hits.append(hit)
        losses.append(loss)
    all_losses = torch.cat(losses).double()
    return int(torch.cat(hits).sum()), len(all_losses), float(all_losses.sum())


if __name__ == "__main__":
    main()
