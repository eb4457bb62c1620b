#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The experiments' program on a CPU: every experiment tells something of every cache, and what it tells is possible.

    bench_check.py LIBRARY-DIRECTORY

Times are not looked at. Exit status 77: no PyTorch here.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

if os.environ.get("MB_SANITIZE"):
    print("SKIP: bench_check: a plain python3 cannot load a library with sanitizers; test_kv_* have checked its source")
    sys.exit(77)
HERE = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = str(pathlib.Path(sys.argv[1]).resolve())
PLAIN = {"moonbright", "cuda-vmm"}
RANGES = PLAIN | {"moonbright-flashinfer", "cuda-vmm-flashinfer"}
KINDS = RANGES | {"paged", "paged-flashinfer", "concat"}
WANTED = {"check": KINDS, "layout": KINDS - {"concat"}, "attach": PLAIN, "prefix": KINDS, "beam": KINDS, "long": KINDS,
          "serve": KINDS}


def run(*arguments, flashinfer=HERE / "tests/fake", status=0, **variables):
    """The lines of one run, without the one that says what was run; of a refused one (`status`) what it wrote.
    FlashInfer is one that a CPU can run."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "lines.jsonl"
        command = [sys.executable, "-m", "decoder.bench", "--device", "cpu", "--model", "tiny", "--out", out]
        path = os.pathsep.join((str(flashinfer), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep)
        env = {**os.environ, "MOONBRIGHT_LIB": LIBRARY, "PYTHONPATH": path, "MB_FLASHINFER": "", **variables}
        done = subprocess.run([*command, *arguments], cwd=HERE, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 77:
            print(done.stdout.strip().splitlines()[-1])
            sys.exit(77)
        assert done.returncode == status, done.stdout + done.stderr
        if status:
            return done.stderr
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["what"] != "run"]


def check_all():
    lines = run("--seconds", "2")
    for what, kinds in WANTED.items():
        told = [line for line in lines if line["what"] == what]
        assert {line["cache"] for line in told} == kinds, f"{what}: {told}"
        assert not any("failed" in line for line in told), told
    for line in lines:
        if line["what"] == "check" and line["cache"].endswith("-flashinfer"):
            assert line["close"] and line["logits_differ"] < 1e-3, line
        elif line["what"] == "check":
            assert line["greedy_equal"] and line["beam_equal"], line
        if line["what"] == "prefix" and "left_out" not in line:
            shared = line["share"] > 0 and line["cache"] != "concat"
            assert (line["hit"] > 0) == shared and line["hit"] + line["computed"] == line["tokens"], line
            # All pages of the prompt are mapped while the clock runs, those of the prefix too.
            assert (line["mapped_pages"] > 0) == (line["cache"] in RANGES), line
            assert 0 <= line["inside_cache_ms"] <= line["ttft_ms"] and len(line["all_ms"]) == 3, line
        if line["what"] == "long":
            assert len(line["all_ms"]) == 3 and (line["mapped_pages"] > 0) == (line["cache"] in RANGES), line
        if line["what"] == "layout" and "left_out" not in line:
            assert line["step_ms"] > 0 and ("group_layers" in line) == (line["cache"] in RANGES), line
        if line["what"] == "serve":
            assert line["admit_seconds"] > 0 and line["step_p50_ms"] <= line["step_p99_ms"], line
            assert line["admitted"] == line["finished"] > 0 and line["decode_steps"] > 0, line
            full = line["memory_efficiency"]
            assert full == 1 if line["cache"] == "concat" else 0.5 < full < 1, line
    pages = {(line["tokens"], line["mapped_pages"]) for line in lines
             if line["what"] == "prefix" and line["cache"] == "moonbright" and "left_out" not in line}
    assert len(pages) == len({tokens for tokens, _ in pages}), f"mapped pages depend on the share: {pages}"
    print(f"ok   {len(lines)} lines, every experiment of every cache")


def check_no_time():
    """Without time, what is left out is told, and the program ends."""
    for limit in (("--seconds", "0", "--experiments", "prefix,beam,long:0"),
                  ("--total", "1e-6", "--experiments", "prefix,beam:9,long")):
        lines = run(*limit, "--caches", "moonbright,concat")
        lines = [line for line in lines if line["what"] != "recordings"]
        assert {line["what"] for line in lines} == {"prefix", "beam", "long"}, lines
        assert all(line.get("left_out") in ("time", "long has it") for line in lines), lines
    lines = run("--seconds", "0", "--experiments", "serve", "--caches", "paged")
    assert lines[0]["what"] == "serve" and lines[0]["admitted"] == lines[0]["finished"], lines
    print("ok   no time: all left out, and told")


def check_no_flashinfer():
    """Where FlashInfer is not there, its cache is left out with the reason, and the others run."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "flashinfer.py").write_text("raise ImportError('no kernels here')", encoding="utf-8")
        lines = run("--experiments", "check", "--caches", "paged,paged-flashinfer,moonbright-flashinfer,concat",
                    flashinfer=folder)
    for line, kind in zip(lines, ("paged-flashinfer", "moonbright-flashinfer")):
        assert line["what"] == "flashinfer" and line["cache"] == kind and "no kernels here" in line["left_out"], line
    assert {line["cache"] for line in lines if line["what"] == "check"} == {"paged", "concat"}, lines
    print("ok   no FlashInfer: left out, and told")
    lines = run("--experiments", "beam", "--caches", "paged-flashinfer,concat", FAKE_FLASHINFER_SEQUENCES="3")
    told = {kind: [line for line in lines if line["cache"] == kind] for kind in ("paged-flashinfer", "concat")}
    assert len(told["paged-flashinfer"]) == len(told["concat"]) == 2, lines
    assert all("4 sequences are too many" in line["failed"] or "8 sequences" in line["failed"]
               for line in told["paged-flashinfer"]), lines
    assert not any("failed" in line for line in told["concat"]), lines
    print("ok   FlashInfer refuses a step: told, and the others run")


def check_group_layers():
    """A layout that is asked for is what prefix and beam run on, and their lines say it; another number is refused."""
    for layers in (1, 3):
        lines = run("--seconds", "2", "--experiments", "prefix,beam", "--group-layers", str(layers), "--caches",
                    "moonbright,moonbright-flashinfer,paged")
        for what in ("prefix", "beam"):
            told = {line["cache"]: line.get("group_layers") for line in lines
                    if line["what"] == what and "left_out" not in line and "failed" not in line}
            assert told == {"moonbright": layers, "moonbright-flashinfer": layers, "paged": None}, lines
    refused = run("--group-layers", "2", status=2)
    assert "2 does not divide the 3 layers of tiny" in refused, refused
    print("ok   --group-layers: ranges are laid out so, and told")


check_all()
check_no_time()
check_group_layers()
check_no_flashinfer()
print("PASS: bench_check")
