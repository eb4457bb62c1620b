#!/usr/bin/env python3
"""Data-parallel training of a small transformer on two GPUs, on PyTorch's allocator and with MoonBright's plug-in.

    ddp.py LIBMOONBRIGHT.SO

One process per GPU and allocator. Tells step time, peak of bytes in tensors and what is held from the driver; the losses of
both runs must be the same. Exit status 77: no PyTorch, one GPU, or the plug-in is not there. NVLink multicast stays off.
"""
import json
import os
import subprocess
import sys
import time

STEPS, WARM = 30, 5


def train(rank, port, plug_in):
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    if plug_in:
        import moonbright
        moonbright.enable()
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    torch.manual_seed(7)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    free_before = torch.cuda.mem_get_info()[0]
    least_free, loss = free_before, None
    for step in range(STEPS):
        if step == WARM:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        torch.manual_seed(100 + step)  # batches of changing length, as in training on text
        batch = torch.randn(8, 256 + 64 * (step % 5), 1024, device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        least_free = min(least_free, torch.cuda.mem_get_info()[0])
    torch.cuda.synchronize()
    result = {"step_ms": (time.perf_counter() - begun) / (STEPS - WARM) * 1e3, "loss": float(loss.detach()),
              "taken_while_training_bytes": free_before - least_free}
    try:
        import moonbright
        result["stats"] = {key: value for key, value in moonbright.memory_stats().items() if key.endswith("all.peak")} \
            if plug_in else {key: value for key, value in torch.cuda.memory_stats().items() if key.endswith("all.peak")}
    except Exception as why:  # figures only
        result["stats"] = str(why)
    if rank == 0:
        print("RESULT " + json.dumps(result), flush=True)
    dist.destroy_process_group()


def pair(port, plug_in):
    ranks = [subprocess.Popen([sys.executable, __file__, "rank", str(rank), port, "1" if plug_in else "0"],
                              stdout=subprocess.PIPE, text=True) for rank in range(2)]
    text = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"FAIL: ddp: a rank ended with {[rank.returncode for rank in ranks]}\n" + "".join(text))
    return json.loads(next(line for line in text[0].splitlines() if line.startswith("RESULT "))[7:])


def main():
    if sys.argv[1] == "rank":
        train(int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1")
        return 0
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [os.path.join(here, "..", "..", "integrations", "torch"), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("MOONBRIGHT_LIBRARY_PATH", os.path.dirname(os.path.abspath(sys.argv[1])))
    try:
        import torch
    except ImportError:
        print("SKIP: ddp: PyTorch is not installed")
        return 77
    if torch.cuda.device_count() < 2:
        print(f"SKIP: ddp: {torch.cuda.device_count()} GPU(s)")
        return 77
    if not os.path.isdir(os.path.join(here, "..", "..", "integrations", "torch", "moonbright")):
        print("SKIP: ddp: this tree has no PyTorch plug-in")
        return 77
    default, ours = pair("29521", False), pair("29522", True)
    print(json.dumps({"default": default, "moonbright": ours}, indent=1))
    same = abs(default["loss"] - ours["loss"]) <= 1e-3 * abs(default["loss"])
    print(f"step {ours['step_ms']:.2f} ms with MoonBright, {default['step_ms']:.2f} ms on PyTorch's allocator (measured); "
          f"losses {'agree' if same else 'DIFFER'}")
    print(f"{'PASS' if same else 'FAIL'}: ddp")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
