"""One script for every strategy: prints its losses. Arguments: a checkpoint to load (or -), and one to save."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import Accelerator, DataLoaderConfiguration
from tests.support.strategies import PLAN, build

accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
model = build().float()
model.tp_plan = PLAN
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
inputs = torch.linspace(-1, 1, 128 * 6).reshape(128, 6)
loader = DataLoader(TensorDataset(inputs, inputs.sin() * 2), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if sys.argv[1] != "-":
    accelerator.load_state(sys.argv[1])
losses = []
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(float(accelerator.reduce(loss.detach(), "mean")))
accelerator.save_state(sys.argv[2])
accelerator.print(json.dumps({"strategy": accelerator.strategy, "losses": losses}))
