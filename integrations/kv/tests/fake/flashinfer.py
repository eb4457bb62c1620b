# SPDX-License-Identifier: MIT
"""What decoder/flashinfer_kernels.py uses of FlashInfer, in plain PyTorch by its documented meaning: for tests on a CPU.

Parameters are in the order of FlashInfer 0.6.4; scripts/flashinfer-prepare compares the names with the real ones. What
the real wrappers would read out of bounds or refuse is refused here.
"""
import math
import os

import torch

__version__ = "fake"
MOST = int(os.environ.get("FAKE_FLASHINFER_SEQUENCES", "1000000"))  # a plan for more is refused


class _Wrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"
        self._device = float_workspace_buffer.device
        self._starts = self._plan = None

    def _keep(self, starts, indptr, indices, last_page_len, heads, kinds):
        if len(last_page_len) > MOST:
            raise ValueError(f"{len(last_page_len)} sequences are too many")
        for one in (starts, indptr, last_page_len):
            assert one.dtype == torch.int32 and one.device.type == "cpu" and one.dim() == 1
        assert indices.dtype == torch.int32 and indices.device == self._device
        assert len(indptr) == len(starts) == len(last_page_len) + 1
        assert int(indptr[0]) == int(starts[0]) == 0 and int(indptr[-1]) == len(indices)
        assert (indptr.diff() > 0).all() and (starts.diff() > 0).all()
        self._starts = starts.tolist()
        self._plan = (indptr.tolist(), indices.tolist(), last_page_len.tolist(), heads, kinds)

    def _run(self, q, paged_kv_cache, out, causal):
        indptr, indices, last_page_len, (num_qo_heads, num_kv_heads, head_dim, page_size), kinds = self._plan
        keys, values = paged_kv_cache
        for plane in (keys, values):
            assert plane.shape[1:] == (page_size, num_kv_heads, head_dim) and plane.stride(3) == 1
            assert plane.stride() == keys.stride() and plane.stride(0) < 1 << 32 and plane.data_ptr() % 16 == 0
            assert plane.dtype == kinds[1]
        assert q.shape == out.shape == (self._starts[-1], num_qo_heads, head_dim)
        assert q.dtype == out.dtype == kinds[0] and q.is_contiguous() and out.is_contiguous()
        for i, last in enumerate(last_page_len):
            assert 1 <= last <= page_size
            pages = indices[indptr[i]:indptr[i + 1]]
            tokens = (len(pages) - 1) * page_size + last
            k, v = (plane[pages].flatten(0, 1)[:tokens].repeat_interleave(num_qo_heads // num_kv_heads, 1)
                    for plane in (keys, values))
            one = q[self._starts[i]:self._starts[i + 1]]
            assert len(one) <= tokens
            score = torch.einsum("nhd,mhd->hnm", one, k) / math.sqrt(head_dim)
            if causal:  # the last query sees the last key
                seen = torch.ones(len(one), tokens, dtype=torch.bool).tril(tokens - len(one))
                score = score.masked_fill(~seen, -float("inf"))
            out[self._starts[i]:self._starts[i + 1]] = torch.einsum("hnm,mhd->nhd", score.softmax(-1), v)
        return out


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type,
             kv_data_type):
        starts = torch.arange(len(indptr), dtype=torch.int32)
        self._keep(starts, indptr, indices, last_page_len, (num_qo_heads, num_kv_heads, head_dim, page_size),
                   (q_data_type, kv_data_type))

    def run(self, q, paged_kv_cache, *, out):
        return self._run(q, paged_kv_cache, out, False)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        super().__init__(float_workspace_buffer, kv_layout)
        self._causal = False

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, *, causal, q_data_type, kv_data_type):
        self._causal = causal
        self._keep(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
                   (num_qo_heads, num_kv_heads, head_dim_qk, page_size), (q_data_type, kv_data_type))

    def run(self, q, paged_kv_cache, *, out):
        return self._run(q, paged_kv_cache, out, self._causal)
