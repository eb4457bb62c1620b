# SPDX-License-Identifier: MIT
"""A Llama-shaped decoder with random weights: the workload of the KV cache's experiments, doc/kv.md."""
