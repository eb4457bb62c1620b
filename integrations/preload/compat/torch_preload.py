# SPDX-License-Identifier: MIT
"""PyTorch's own allocators behind the preload: nothing of PyTorch is told. The argument is PyTorch's backend, native or
cudaMallocAsync; workers of a DataLoader are forks."""
import os
import sys

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"backend:{sys.argv[1]}"
try:
    import torch
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)
if not torch.cuda.is_available():
    print("SKIP: PyTorch sees no GPU")
    sys.exit(77)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((256,), float(i))


torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 256)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-5)
losses = []
for _ in range(4):
    for batch in torch.utils.data.DataLoader(Numbers(), 16, num_workers=2, pin_memory=True):
        batch = batch.cuda(non_blocking=True)
        loss = torch.nn.functional.mse_loss(net(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    a = torch.arange(1 << 24, device="cuda")
    b = torch.sort(a.flip(0)).values
side.synchronize()
assert torch.equal(a.cpu(), b.cpu()), "sort"
assert all(loss == loss for loss in losses), losses
print(f"RESULT torch {torch.__version__}, {sys.argv[1]}: last loss {losses[-1]!r}")
