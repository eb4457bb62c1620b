#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The shortest way in for PyTorch: one line before the GPU is touched. Needs an NVIDIA GPU.

    python3 train.py
"""
import sys

import moonbright

try:
    moonbright.enable()
except moonbright.MoonbrightError as error:
    print(f"SKIP: train.py: {error}")
    sys.exit(77)

import torch  # noqa: E402

model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(100):
    x = torch.randn(torch.randint(64, 8192, ()).item(), 512, device="cuda")  # shapes that change
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
print(f"loss {float(loss):.5f}")
print(moonbright.memory_summary())
