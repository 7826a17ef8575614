"""A script as users write them: trains a little, and logs what it found."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import Accelerator

accelerator = Accelerator()
if "--fail-on" in sys.argv and accelerator.process_index == int(sys.argv[sys.argv.index("--fail-on") + 1]):
    raise ValueError("the script's own mistake")
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.rand(50, 8)
targets = inputs.sum(1).long() % 3
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.log({"loss": accelerator.reduce(loss.detach(), "mean")}, step=epoch * len(loader) + step)
with torch.no_grad():
    found = [accelerator.gather_for_metrics(model.eval()(x).argmax(-1) == y) for x, y in loader]
accelerator.log({"accuracy": torch.cat(found).float().mean(), "seen": len(torch.cat(found))})
