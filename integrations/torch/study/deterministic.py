# SPDX-License-Identifier: MIT
"""Losses that are the same bit by bit in every run, so that a difference is the allocator's doing.

PyTorch's switch has two positions. `strict` (warn_only=False): operations take deterministic forms,
and one that has none refuses with a RuntimeError. `warn` (warn_only=True): those run all the same,
but flash and memory-efficient attention then keep their non-deterministic backward pass too, though
they have another (PyTorch 2.11, attention_backward.cu; an H200 showed it: losses of two runs of one
allocator differed). So `strict` comes first, `warn` where it is refused.
"""
import os
import sys

MODES = ("strict", "warn")


def ask(torch, mode):
    """Before the first operation; one of MODES."""
    torch.use_deterministic_algorithms(True, warn_only=mode == "warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # not what is measured, and work in every allocation
    torch.backends.cudnn.benchmark = False
    # cuDNN's attention prepares each length anew, for longer than a step takes, and is not deterministic backwards.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if mode == "strict":
        _allow_counting(torch)


def _allow_counting(torch):
    """Refused on a GPU for the order of its additions; but it adds ones, and their sum is exact in any order.

    A mixture of experts counts the tokens of each expert with it. PyTorch's switch is one for all
    threads, and here only one of them runs operations at a time.
    """
    refusing = torch.histc

    def histc(*arguments, **more):
        torch.use_deterministic_algorithms(False)
        try:
            return refusing(*arguments, **more)
        finally:
            torch.use_deterministic_algorithms(True)

    torch.histc = histc


def refused(error):
    """Is this RuntimeError of an operation that has no deterministic form?"""
    text = str(error)
    return "does not have a deterministic implementation" in text or "makes the algorithm non-deterministic" in text


def begin_anew(arguments):
    """The same program from its start, as if this process had been killed: nothing of the device is kept."""
    sys.stdout.flush()
    sys.stderr.flush()
    for name in os.listdir("/proc/self/fd"):  # libraries of others may have left the device open for it
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                pass  # the directory's own
    os.execv(sys.executable, [sys.executable, *arguments])
