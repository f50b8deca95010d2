#!/usr/bin/env python3
"""Plants faults in the CUDA kernels, one at a time, and shows that the tests notice each. Needs a GPU.

    python tests/planted_gpu.py [-k WORD ...] [--share I/N] [--jobs N] [--rows FILE]

A fault is a change to one header, which the JIT reads from a folder in place of its own (VIVACE_KERNEL_DIR):
nothing is built, and kernels without that header come from the usual cache. A fault that does not compile counts as missed.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.planting import places, replaced  # noqa: E402

K = "vivace/kernels/"


def table(op, more=""):
    """`more`: words of cases, which a table that takes minutes is cut to."""
    return f"tests/test_ops.py -k '[{op}-{f' and {more}' if more else ''}'"


def waits(op, kind=""):
    """`kind`: "and constant" of ops that read ahead, whose calls are ordered by their launch otherwise."""
    return f"tests/gpu -k 'waits and [{op}- {kind}'"


def tactics(op):
    return f"tests/gpu -k 'tactic and ([{op}] or [{op}-)'"


WGMMA_BITS = "tests/gpu/test_weight_only_wgmma.py"
WAIT = "ptx::dependency_wait();\n"
ROWS = "if (static_cast<int>(blockIdx.x) >= valid_rows(a.rows, a.T)) return;\n"

# what, file, right, wrong, how it is noticed: pytest arguments, or "TOOL OP" for compute-sanitizer.
FAULTS = [
    ("norm does not wait for its predecessor", K + "norm/norm.cuh", WAIT, "", waits("norm")),
    ("act_mul does not wait", K + "gate/act_mul.cuh", WAIT, "", waits("act_mul")),
    ("rope does not wait", K + "rope/rope.cuh", WAIT, "", waits("rope")),
    ("kv_append does not wait", K + "rope/kv_append.cuh", WAIT, "", waits("kv_append")),
    ("sample does not wait", K + "sampling/sample.cuh", WAIT, "", waits("sample")),
    ("the wait is an empty function", K + "ptx/pdl.cuh", 'asm volatile("griddepcontrol.wait;" ::: "memory");', "", waits("cast")),
    ("softmax reads the row count before it waits", K + "softmax/softmax.cuh", f"{WAIT}  ptx::launch_dependents();\n  {ROWS}",
     f"{ROWS}  {WAIT}  ptx::launch_dependents();\n", waits("softmax")),
    ("norm: one access too many a row", K + "norm/norm.cuh", "col < H) f(k, col);", "col <= H) f(k, col);", table("norm")),
    ("norm: the last access of a row is left out", K + "norm/norm.cuh", "col < H) f(k, col);", "col + kNormGroup < H) f(k, col);", table("norm")),
    ("norm: long rows step too far", K + "norm/norm.cuh", "col += P.threads * kNormGroup) f(0, col)", "col += (P.threads + 1) * kNormGroup) f(0, col)", tactics("norm")),
    ("norm: eps is left out", K + "norm/norm.cuh", "__fmaf_rn(squares, per_count, a.eps)", "__fmul_rn(squares, per_count)", table("norm")),
    ("norm: out has x's row pitch", K + "norm/norm.cuh", "a.out, t * a.out_stride", "a.out, t * a.x_stride", table("norm")),
    ("norm: the scale multiplies", K + "norm/norm.cuh", "RoughDivider(scale).divide(y)", "RoughDivider(1.0f / scale).divide(y)", table("norm")),
    ("norm: every row's scale goes to row 0", K + "norm/norm.cuh", "a.row_scale[t] = scale", "a.row_scale[0] = scale", table("norm")),
    ("norm: a row's scale is of rows that no inverse has met", K + "norm/norm.cuh", "norm_row_scale(a, t, __fmul_rn(amax, inv))", "norm_row_scale(a, t, __fmul_rn(amax, 1.0f))", table("norm")),
    ("norm: inverse / scale may be infinite", K + "tile/divide.cuh", " && (!kTimes || each <= 3.402823466e38f)", "", table("norm")),
    ("reduce: the last group of a short row counts again", K + "reduce/reduce.cuh", "f = base + k * kStep < H ? f : identity;", "f = base < H ? f : identity;", table("reduce")),
    ("norm: the residual is not written back", K + "norm/norm.cuh", "if (row.has_residual()) store_group", "if (row.has_residual() && a.x == nullptr) store_group", table("norm")),
    ("sums leave half a warp out", K + "tile/reduce.cuh", "int lane = 16; lane > 0", "int lane = 8; lane > 0", table("norm")),
    ("partial sums are read before they are written", K + "tile/reduce.cuh", "__syncthreads();\n  // Every warp", "// Every warp", "racecheck norm"),
    ("scratch is reused while it is read", K + "tile/reduce.cuh", "  if constexpr (kFree) __syncthreads();\n  return v;", "  return v;", "racecheck --share 0/4 sample"),
    ("the device-side row count is ignored", K + "tile/elem.cuh", "const int n = *rows;", "const int n = T;", table("act_mul")),
    ("the device-side row count is one too many", K + "tile/elem.cuh", "const int n = *rows;", "const int n = *rows + 1;", table("cast")),
    ("bf16 is cut, not rounded", K + "tile/elem.cuh", "cvt.rn.bf16.f32", "cvt.rz.bf16.f32", table("cast")),
    ("f16 is cut, not rounded", K + "tile/elem.cuh", "cvt.rn.f16.f32", "cvt.rz.f16.f32", table("cast")),
    ("an e4m3 pair's halves change places", K + "tile/elem.cuh", '"=h"(pair) : "f"(0.0f), "f"(f));  // first', '"=h"(pair) : "f"(f), "f"(0.0f));  // first', table("cast")),
    ("block_scaled: a block's halves do not meet", K + "quantize/block_scaled.cuh", "fmaxf(amax, __shfl_xor_sync(pair, amax, 1))", "amax", table("norm_block_scaled")),
    ("block_scaled: scales behind the valid rows stay", K + "quantize/block_scaled.cuh", "(valid ? blocks : 0) + thread", "blocks + thread", table("act_mul_block_scaled")),
    ("block_scaled: both halves write the first four codes", K + "quantize/block_scaled.cuh", "a.packed_stride + col / 2", "a.packed_stride + col / 16 * 8", table("act_mul_block_scaled")),
    ("sample: a block's candidates lie in its neighbour's place", K + "sampling/sample.cuh", "&all.count[rank], tid", "&all.count[rank ^ (P.cluster > 1)], tid", table("sample")),
    ("act_mul: the columns' factors start again", K + "gate/act_mul.cuh", "a.inv_scale[col + i]", "a.inv_scale[i]", table("act_mul")),
    ("act_mul: a row's scale is its neighbour's", K + "gate/act_mul.cuh", "a.row_scale[t] = scale", "a.row_scale[t ^ 1] = scale", table("act_mul")),
    ("act_mul: up has the gate's row pitch", K + "gate/act_mul.cuh", "t * a.up_stride", "t * (a.gate_stride + 0 * a.up_stride)", table("act_mul")),
    ("gate_residual: a row that the table lacks is read", K + "gate/gate_residual.cuh", "const bool lost = ada < 0 || ada >= a.R;", "const bool lost = ada < 0;", table("gate_residual")),
    ("cast: offsets have 32 bits", K + "copy/cast.cuh", "(a.x) + t * a.x_stride", "(a.x) + static_cast<int>(t * a.x_stride)", "tests/gpu -k large"),
    ("cast: rows are taken for dense", K + "copy/cast.cuh", "(a.x) + t * a.x_stride", "(a.x) + t * a.H", table("cast")),
    ("stft_mel: the middle sample counts twice", K + "audio/stft_mel.cuh", "n == 0 || n == half ? 0.0", "n == 0 ? 0.0", table("stft_mel")),
    ("stft_mel: signals have one pitch for all", K + "audio/stft_mel.cuh", "b * a.x_stride", "b * int64_t{a.N}", table("stft_mel")),
    ("stft_mel: powers are read before they are made", K + "audio/stft_mel.cuh", "  __syncthreads();\n  // A warp", "  // A warp", "racecheck stft_mel"),
    ("mel_clamp: frames count from the first signal's", K + "audio/mel_clamp.cuh", "f >= a.length[b]", "t >= a.length[b]", table("mel_clamp")),
    ("lstm_cell: rows remember the first one's", K + "audio/lstm_cell.cuh", "t * a.cell_stride", "0 * t", table("lstm_cell")),
    ("resample: the last taps see what follows the signal", K + "audio/resample.cuh", "from + a.K > a.N", "from + a.K > a.N + 1", table("resample")),
    ("im2col: frames have one pitch for all", K + "copy/im2col.cuh", "n * a.x_stride", "n * int64_t{a.H * a.W * a.C}", table("im2col")),
    ("im2col: the padding above is forgotten", K + "copy/im2col.cuh", "oy * a.stride_h - a.pad_h", "oy * a.stride_h", table("im2col")),
    ("im2col: a channel's factor is the first's", K + "copy/im2col.cuh", "a.scale[at.channel]", "a.scale[0]", table("im2col")),
    ("im2col: columns beyond the patch hold what follows it", K + "copy/im2col.cuh", "const bool within = col + i < a.columns();", "const bool within = true;", table("im2col")),
    ("im2col: a pair's second pixel is its first", K + "copy/im2col.cuh", "byte(C * i + c)", "byte(0 * i + c)", table("im2col")),
    ("im2col: whole groups of the padding are read", K + "copy/im2col.cuh", "const bool real = part && within(a, y, x);", "const bool real = part;", table("im2col")),
    ("resize_pad: frames have one pitch for all", K + "copy/resize_pad.cuh", "a.x + t * a.x_stride", "a.x + int64_t{t} * a.y.from * a.x_axis.from * a.C", table("resize_pad")),
    ("resize_pad: a tile's last lines are written where none are", K + "copy/resize_pad.cuh", "line + a.y.before >= a.OH || ", "", table("resize_pad")),
    ("resize_pad: weights are read before they are made", K + "copy/resize_pad.cuh", "    __syncthreads();\n", "", "racecheck resize_pad"),
    ("resize_pad: a line's share is the column's", K + "copy/resize_pad.cuh", "y.share, x.share", "x.share, x.share", table("resize_pad")),
    ("repeat_heads: copies lie a round apart", K + "copy/repeat_heads.cuh", "from = a.copies.quotient(head)", "from = head % a.Hkv", table("repeat_heads")),
    ("softmax: the largest is not subtracted", K + "softmax/softmax.cuh", "expf(__fsub_rn(z[k][i], own.max))", "expf(z[k][i])", table("softmax")),
    ("softmax: a row of -inf divides by zero", K + "softmax/softmax.cuh", "row.sum == 0.0f ? 0.0f : expf(own.max - row.max) / row.sum", "expf(own.max - row.max) / row.sum", table("softmax")),
    ("rope turns the other way", K + "rope/rotate.cuh", "x = fmaf(x0, c, -__fmul_rn(y0, s));", "x = fmaf(x0, c, __fmul_rn(y0, s));", table("rope")),
    ("rope: every token has the first one's position", K + "rope/rope.cuh", "a.pos[t]", "a.pos[0]", table("rope")),
    ("kv_append: tokens of pages that do not exist go to block 0", K + "rope/kv_append.h", "block < B ? block : -1", "block < B ? block : 0", table("kv_append")),
    ("kv_append: heads of a block lie side by side", K + "rope/kv_append.cuh", "i / a.D * gap", "0", table("kv_append")),
    ("qkv_rope: heads come first and are written as places", K + "rope/kv_append.h", "* (heads_first ? 1 : Hkv)", "* Hkv", table("qkv_rope")),
    ("qkv_rope: tokens of a block have the first one's angles", K + "rope/qkv_ahead.cuh", "head.go(raw, angles[n],", "head.go(raw, angles[0],", table("qkv_rope")),
    ("qkv_rope: tokens have the first one's angles, which are made", K + "rope/qkv_rope.cuh", "a.angles + t * a.angles_stride", "a.angles + 0 * t * a.angles_stride", table("qkv_rope")),
    ("qkv_rope: keys and values change places", K + "rope/qkv_rope.cuh", "kind == 1 ? a.k_out : a.v_out", "kind == 2 ? a.k_out : a.v_out", table("qkv_rope")),
    ("embedding: the scale is forgotten", K + "embedding/embedding.cuh", "y[k][i] *= a.scale", "y[k][i] *= 1.0f", table("embedding")),
    ("renorm_probs: a tiny largest value is not lifted", K + "sampling/row.cuh", "d < 0x1p-100f ? 0x1p+100f : 1.0f", "1.0f", table("renorm_probs")),
    ("advance: the turn does not wrap", K + "sampling/advance.cuh", "place + 1 == a.N ? 0 : place + 1", "place + 1", table("advance")),
    ("top_logprobs: a thread offers its best again", K + "sampling/top_logprobs.cuh", "if (r < top) mine", "if (r <= top) mine", table("top_logprobs")),
    ("top_logprobs: the sum counts what must not come", K + "sampling/top_logprobs.cuh", "if (!second_only) parts[1].join", "parts[1].join", table("top_logprobs")),
    ("count_tokens: not atomic", K + "sampling/count_tokens.cuh", "atomicAdd(a.counts + slot * a.counts_stride + id, 1)", "a.counts[slot * a.counts_stride + id] += 1", table("count_tokens")),
    ("attention: codes are not divided by their scale", K + "attention/epilogue.cuh", "by(kCodes ? *a.out_scale : 1.0f)", "by(1.0f)", table("attention")),
    ("attention: codes are of values that q's type never held", K + "attention/epilogue.cuh", "v = to_float(from_float<Q>(v));", "v = v;", "tests/test_attention_grid.py -k codes"),
    ("attention: causal sees one key too many", K + "attention/attention.h", "int64_t seen = pos + 1;", "int64_t seen = pos + 2;", table("attention")),
    ("attention: the length is stale", K + "attention/attention.h", "if (valid < end) end = valid;", "", table("attention")),
    ("attention: the window is one too wide", K + "attention/attention.h", "first = pos - a.window + 1;", "first = pos - a.window;", table("attention")),
    ("attention: the state sees the actions", K + "attention/attention.h", "pos == a.prefix[slot] ? seen : end", "end", table("attention")),
    ("attention: bits are read one off", K + "attention/attention.h", ">> (j % 32) & 1u", ">> ((j + 1) % 32) & 1u", table("attention")),
    ("attention: bits begin at place 0", K + "attention/attention.h", "j -= bits_from[slot_of_t]", "j -= 0 * bits_from[slot_of_t]", table("attention")),
    ("attention: a place's page is its neighbour's", K + "attention/attention.h", "page_table[s * table_stride + static_cast<uint32_t>(j)", "page_table[s * table_stride + static_cast<uint32_t>(j + 1)", table("attention")),
    ("attention: a group's heads are swapped", K + "attention/tile.cuh", "(kv * group + row % group) * int64_t{P.dv}", "(kv * group + (group - 1 - row % group)) * int64_t{P.dv}", table("attention")),
    ("attention: the mass is not rescaled", K + "attention/tile.cuh", "row_sum[i] = row_sum[i] * shrink + sum;", "row_sum[i] = row_sum[i] + sum;", table("attention")),
    ("attention: split's mass is not rescaled", K + "attention/split_kv_blocks.cuh", "        row_sum[i] *= by[i];\n", "", table("attention")),
    ("attention: split forgets a block of the cluster", K + "attention/split_kv.cuh", "for (int c = 0; c < kParts; ++c) {\n        const float w", "for (int c = 0; c < kParts - 1; ++c) {\n        const float w", table("attention")),
    ("attention: turned forgets a block of the cluster", K + "attention/swap_ab.cuh", "const bool here = (has >> c & 1) != 0;", "const bool here = c + 1 < kSplit && (has >> c & 1) != 0;", table("attention")),
    ("attention: a box that fills a tile is taken for one axis of heads and tokens", K + "attention/swap_ab.cuh", "const int y = q.joined ? row0 : 0, w = q.joined ? 0 : (row0 + row) / group;",
     "const int y = q.box == kRows ? row0 : 0, w = q.box == kRows ? 0 : (row0 + row) / group;", "tests/test_ops.py -k 'test_result and [attention-'"),
    ("attention: the first of the clusters merges", K + "attention/merge_clusters.cuh", "!= static_cast<uint32_t>(used - 1)) return false;", "!= 0u) return false;", "tests/gpu/test_far_attention.py -k counts_once"),
    ("attention: the count of clusters stays", K + "attention/merge_clusters.cuh", "atomicInc(count, static_cast<uint32_t>(used - 1))", "atomicAdd(count, 1u)", "tests/gpu/test_far_attention.py -k fifty"),
    ("attention: a cluster's place is the first one's", K + "attention/merge_clusters.cuh", "(tile * kClusters + static_cast<uint32_t>(of))", "(tile * kClusters)", "tests/gpu/test_far_attention.py -k counts_once"),
    ("attention: the last cluster is forgotten", K + "attention/merge_clusters.cuh", "c < kClusters; ++c) {\n    const float w0", "c < kClusters - 1; ++c) {\n    const float w0", "tests/gpu/test_far_attention.py -k counts_once"),
    ("attention: clusters' masses are not rescaled", K + "attention/merge_clusters.cuh", "total[0] += state[c].y * w0", "total[0] += state[c].y", "tests/gpu/test_far_attention.py -k values"),
    ("attention: clusters begin with the first one's keys", K + "attention/attention.h", "return cluster * turns() * split + of;", "return cluster * 0 * split + of;", "tests/gpu/test_far_attention.py -k counts_once"),
    ("rope_attention does not wait", K + "attention/swap_ab.cuh", "  ptx::dependency_wait();\n", "", waits("rope_attention", "and constant")),
    ("rope_attention: what is stable comes behind the wait", K + "attention/rope_attention.cuh", "stable() { return P.stable; }", "stable() { return false; }", "tests/gpu/test_stable.py -k notices"),
    ("rope_attention: a call that reads ahead takes its rows ahead too", K + "attention/swap_ab.cuh", "ptx::dependency_wait(); ptx::launch_dependents(); prologue.prefetch_head(row0 / a.group());",
     "prologue.prefetch_head(row0 / a.group()); ptx::dependency_wait(); ptx::launch_dependents();", "tests/gpu/test_stable.py -k its_rows"),
    ("rope_attention: what lies in the row that is appended stays", K + "attention/rope_attention.cuh", "if (here == 0) return false;", "return false;", table("rope_attention")),
    ("rope_attention: the first block of a cluster owns every key", K + "attention/rope_attention.cuh", "% P.swap_ab.split == k.split_index", "% P.swap_ab.split * 0 == k.split_index", table("rope_attention")),
    ("rope_attention: keys are laid without their swizzle", K + "attention/rope_attention.cuh", "(k.lane % 8 ^ at % 8) * 16", "(k.lane % 8 ^ at % 8 * 0) * 16", table("rope_attention")),
    ("rope_attention: drafts of a sequence have the first one's angles", K + "attention/rope_attention.cuh", "static_cast<float>(of_pos)", "static_cast<float>(__shfl_sync(0xffffffffu, pos, token))", "tests/gpu/test_rope_attention.py -k share"),
    ("attention: turned's mass is not rescaled", K + "attention/swap_ab.cuh", "row_sum[k + r] * by[k + r] + (x + y)", "row_sum[k + r] + (x + y)", table("attention")),
    ("attention: turned multiplies what lies beyond the length", K + "attention/swap_ab.cuh", "if ((b + 1) * kKeys > hi) patch", "if ((b + 1) * kKeys > hi + kKeys) patch", table("attention")),
    ("attention: split multiplies what lies beyond the length", K + "attention/split_kv.cuh", "if ((b + 1) * kKeys > hi) patch", "if ((b + 1) * kKeys > hi + kKeys) patch", table("attention")),
    ("attention: windows that leave a gap make one run", K + "attention/runs.cuh", "return a.window > 0 ? touching_end", "return a.window < 0 ? touching_end", table("attention")),
    ("attention: of windows of one sequence turned makes one run", K + "attention/swap_ab.cuh", "(a.S > 1 || a.window > 0) &&", "a.S > 1 &&", table("attention")),
    ("scaled_attention: windows that leave a gap make one run", K + "attention/runs.cuh", "return a.window > 0 ? touching_end", "return a.window < 0 ? touching_end", table("scaled_attention")),
    ("attention: the per-head scale is forgotten", K + "attention/variant.cuh", "r.scale *= a.head_scale[h];", "r.scale *= 1.0f;", table("attention")),
    ("attention: ALiBi counts from place 0", K + "attention/variant.cuh", "static_cast<float>(j - pos)", "static_cast<float>(j)", table("attention")),
    ("attention: a variant's mask is not asked", K + "attention/variant.cuh", "if constexpr (Hooks<V>::kVisible) each", "if constexpr (Hooks<V>::kVisible && sizeof(V) == 0) each", "tests/gpu/test_attention_variant.py -k 'bias and decode'"),
    ("attention: ragged keys begin at row 0", K + "attention/attention.h", "k_offsets ? k_offsets[s] * pitch : s * stride", "k_offsets ? 0 * pitch : s * stride", table("attention")),
    ("attention: a ragged slot has its neighbour's keys too", K + "attention/attention.h", "if (held < end) end = held < 0 ? 0 : held;", "", table("attention")),
    ("attention: heads come first and are read as places", K + "attention/attention.h", "return heads_first ? L : 1;", "return 1;", table("attention")),
    ("attention: places that lie apart are taken for dense", K + "attention/tile.cuh", "heads + a.slot_at(slot, stride, pitch) + int64_t{j} * pitch", "heads + a.slot_at(slot, stride, pitch) + int64_t{j} * a.position_rows() * kD", "tests/test_ops.py -k 'test_same_bits and [attention-'"),
    ("attention: values that lie apart have their keys' pitch", K + "attention/plain.cuh", "head_of(a.v, a.v_stride, a.v_pitch, ", "head_of(a.v, a.v_stride, a.k_pitch, ", table("attention")),
    ("attention: a page past the cache is its last", K + "attention/attention.h", "return b >= 0 && b < B ? b : -1;", "return b >= 0 && b < B ? b : B - 1;", table("attention")),
    ("attention: fed keys do not rescale the mass", K + "attention/online_softmax.cuh", "row_sum[i] = row_sum[i] * by[i] + (", "row_sum[i] = row_sum[i] + (", table("attention")),
    ("attention: of a full mask a run takes a token of the next", K + "attention/runs.cuh", "end = t + 32 * i + __ffs(", "end = t + 1 + 32 * i + __ffs(", "tests/gpu/test_attention_full.py -k 'runs and SigLIP'"),
    ("attention: of a full mask the last block is not masked", K + "attention/prefill_tma.cuh", "seen.row(lo, hi);", "seen.row(lo, hi + kKeys);", "tests/gpu/test_attention_full.py -k 'blocks and SigLIP'"),
    ("attention: tall multiplies what lies beyond the length", K + "attention/prefill_tall.cuh", "if (hi - b * kKeys < kKeys) this->patch", "if (hi - b * kKeys < 0) this->patch", "tests/gpu/test_attention_full.py -k 'blocks and query'"),
    ("attention: tall's runs all have the first slot's keys", K + "attention/prefill_tall.cuh", "kept()[1] = static_cast<int>(a.block(see.slot, 0));", "kept()[1] = 0;", "tests/gpu/test_attention_full.py -k 'runs and three'"),
    ("attention: tall's sums are not rescaled", K + "attention/prefill_tall.cuh", "    this->shrink(by);\n", "", "tests/gpu/test_attention_full.py -k 'test_bits and encoder'"),
    ("attention: tall takes keys that have not come", K + "attention/prefill_tall.cuh", "      keys_ring().consumer_wait(i);\n", "", "tests/gpu/test_attention_full.py -k 'test_bits and encoder'"),
    ("latent_attention: the sums are not rescaled", K + "attention/latent_attention.cuh", "out[m][n][0] *= by[0], out[m][n][1] *= by[0]", "out[m][n][0] *= 1.0f, out[m][n][1] *= 1.0f", table("latent_attention")),
    ("latent_attention: the mass is not rescaled", K + "attention/latent_attention.cuh", "total = row_sum[row] * shrink[row];", "total = row_sum[row];", table("latent_attention")),
    ("latent_attention: a run sees its neighbour's first place", K + "attention/latent_attention.h", "to = from + width();", "to = from + width() + 1;", table("latent_attention")),
    ("latent_attention: does not wait", K + "attention/latent_attention.cuh", WAIT, "", waits("latent_attention")),
    ("attention_block_scaled: values have their keys' scales", K + "attention/attention_block_scaled.cuh", "static_cast<const e4m3*>(m.v_scales)", "static_cast<const e4m3*>(m.k_scales)", table("attention_block_scaled")),
    ("attention_block_scaled: the sums are not rescaled", K + "attention/attention_block_scaled.cuh", "by[0] != 1 || by[1] != 1)", "by[0] > 1 || by[1] > 1)", table("attention_block_scaled")),
    ("attention_block_scaled: two values change places", K + "attention/attention_block_scaled.cuh", "half % 2 ? 0x7632 : 0x5410", "half % 2 ? 0x5410 : 0x7632", table("attention_block_scaled")),
    ("attention_block_scaled: does not wait", K + "attention/attention_block_scaled.cuh", WAIT, "", waits("attention_block_scaled")),
    ("scaled_attention: the mass is not rescaled", K + "attention/scaled_attention.cuh", "row_sum[i] *= by[i];", "", table("scaled_attention")),
    ("scaled_attention: even and odd columns change places", K + "attention/scaled_attention.cuh", "multiply_e4m3(out[2 * i], p", "multiply_e4m3(out[2 * i + 1], p", table("scaled_attention")),
    ("scaled_attention: a prefill's mass is not rescaled", K + "attention/online_softmax.cuh", "row_sum[i] = row_sum[i] * by[i] + (", "row_sum[i] = row_sum[i] + (", table("scaled_attention")),
    ("scaled_attention: a prefill's values keep what lies beyond the length", K + "attention/scaled_prefill.cuh", "if (from <= 0 && to >= kKeys) {", "if (to >= -kKeys) {", table("scaled_attention")),
    ("scaled_attention: a prefill's values are turned by other keys", K + "attention/scaled_prefill.cuh", "odd ? 0x7531 : 0x6420", "odd ? 0x6420 : 0x7531", table("scaled_attention")),
    ("scaled_attention: keys of a step are in another order", K + "attention/scaled_attention.cuh", "four(x[0], x[1], y[0], y[1])", "four(x[0], y[0], x[1], y[1])", table("scaled_attention")),
    ("spread_offsets: a slot's first token is its predecessor's", K + "attention/spread_offsets.h", "offsets[middle] <= t", "offsets[middle] < t", table("spread_offsets")),
    ("merge_states: the last state has no mass", K + "attention/merge_states.cuh", "const int states = a.N + (a.v2 != nullptr ? 1 : 0);", "const int states = a.N;", table("merge_states")),
    ("merge_states: weights are not against the largest", K + "attention/merge_states.cuh", "exp2f((w[u] - base) * unit)", "exp2f(w[u] * unit)", table("merge_states")),
    ("gated_delta: the state does not decay", K + "linear/gated_delta.cuh", "expf(a.decay[t * a.decay_stride + hv])", "1.0f", table("gated_delta")),
    ("gated_delta: what the state holds is not taken off", K + "linear/gated_delta.cuh", "(values[u] - held)", "(values[u] - 0 * held)", table("gated_delta")),
    ("gated_delta: the state is not left behind", K + "linear/gated_delta.cuh", "if (slot < 0 || a.frozen || !mine) return;", "return;", table("gated_delta")),
    ("gated_delta: chunks forget what they began with", K + "linear/gated_delta_chunks.cuh", "const float keep = __expf(sums[kTokens - 1]);", "const float keep = 0.0f;", table("gated_delta")),
    ("gated_delta: a chunk's tokens do not correct one another", K + "linear/gated_delta_chunks.cuh", "j < r ? by * k_factor[j]", "j < r - 64 ? by * k_factor[j]", table("gated_delta")),
    ("gated_delta: a query does not read its own token", K + "linear/gated_delta_chunks.cuh", "w[e] = j <= r[i] ?", "w[e] = j < r[i] ?", table("gated_delta")),
    ("gated_delta: a token's sum has lost bits to the one behind it", K + "linear/gated_delta_chunks.cuh", "lane > 0 ? before + gates[0] : gates[0]", "sum - gates[1]", table("gated_delta")),
    ("gated_delta: the state enters as one bf16", K + "linear/gated_delta_chunks.cuh", "ptx::load_matrix4_transposed(ptx::shared_address(low + at), l);", "l[0] = l[1] = l[2] = l[3] = 0;", table("gated_delta")),
    ("sequences begin with what another left", K + "linear/sequences.h", "row(n) < 0 || (fresh != nullptr && fresh[n] != 0)", "row(n) < 0", table("gated_delta")),
    ("gated_delta: correction is made of a", K + "linear/gated_delta.cuh", "betas[u] = delta_beta<In>(a.gates, t, hv)", "betas[u] = delta_decay<In>(a.gates, t, hv)", table("gated_delta")),
    ("delta_gates: the bias is forgotten", K + "linear/delta_gates.cuh", "load_as_float(in.bias, in.bias_dtype, h)", "0.0f", table("delta_gates")),
    ("gate_heads: the mean is over the lanes", K + "gate/gate_heads.cuh", "static_cast<float>(a.D) + a.eps", "32.0f + a.eps", table("gate_heads")),
    ("gate_heads: one gate a head is that of each element", K + "gate/gate_heads.cuh", "one ? of_all : g[i]", "one ? to_float(gate[i]) : g[i]", table("gate_heads")),
    ("causal_conv: a token after the state's is skipped", K + "linear/causal_conv.cuh", "first + P.taps - 1), end", "first + P.taps), end", table("causal_conv")),
    ("causal_conv: the state is one token old", K + "linear/causal_conv.cuh", "store<V>(stored(row, k), window[k + 1])", "store<V>(stored(row, k), window[k])", table("causal_conv")),
    ("gemm: x is read before the wait", K + "gemm/wgmma_load.cuh", "ptx::touch_parameters(args);\n  ptx::dependency_wait();\n", "", waits("gemm", "and constant")),
    ("gemm: outputs leave before the wait", K + "gemm/wgmma.cuh", "ptx::touch_parameters(a);\n  ptx::dependency_wait();\n", "", waits("gemm", "and constant")),
    ("gemm: a block leaves before its cluster's arrivals are in", K + "gemm/wgmma_load.cuh", "i < P.stages; ++i, advance()) ring.producer_acquire", "i < 0; ++i, advance()) ring.producer_acquire", "tests/gpu/test_chains.py -k 'x2 and not cut'"),
    ("gemm: a block without a valid tile takes another's turn", K + "gemm/wgmma_load.cuh", "*i = in ? mine : all + *i - mine;", "*i = in ? mine : all;", "tests/gpu/test_chains.py -k rows"),
    ("gated_gemm: few tokens' up is the gate", K + "gemm/wgmma_epilogue.cuh", "sum(1, i, e), out.scale", "sum(0, i, e), out.scale", table("gated_gemm")),
    ("gemm: a part of K is not added", K + "gemm/wgmma_merge.cuh", "for (int p = 0; p < P.parts(); p += kPair)", "for (int p = 0; p < P.parts() - kPair * (P.parts() > kPair); p += kPair)", table("gemm")),
    ("gemm: by column each warpgroup has the first one's rows", K + "gemm/wgmma_load.cuh", "args.w_map, ring.full(stage), n0 + g * 64, k, policy_w", "args.w_map, ring.full(stage), n0 + 0 * g, k, policy_w", "tests/gpu/test_gemm_columns.py -k bits"),
    ("gemm: by column blocks that share W bring the first part of K", K + "gemm/wgmma_load.cuh", "n0 + g * 64, k + coord.of_w * kDeep, policy_w", "n0 + g * 64, k + 0 * coord.of_w * kDeep, policy_w", "tests/gpu/test_gemm_columns.py -k bits"),
    ("gemm: by column words of a row are not swizzled", K + "gemm/tile.cuh", "(column ^ (deep % 8))", "(column ^ (0 * deep))", "tests/gpu/test_gemm_columns.py -k odd"),
    ("gemm: by column f32 meets K's neighbour", K + "gemm/simple.cuh", "(k0 + of) * a.w_stride + n0 + n", "(k0 + (of ^ 1)) * a.w_stride + n0 + n", "tests/gpu/test_gemm_columns.py -k odd"),
    ("gemm: the last step of K is left out", K + "gemm/wgmma_load.cuh", "steps = cut((part + 1) * P.splits_per_block) - first_step;", "steps = cut((part + 1) * P.splits_per_block) - first_step - 1;", table("gemm")),
    ("gemm: a stage's sum takes the place of those before", K + "gemm/wgmma.cuh", "acc[j] += part[j];", "acc[j] = part[j];", table("gemm")),
    ("gemm: a token's scale is its neighbour's", K + "gemm/wgmma_epilogue.cuh", "a.x_row_scale[t + e] : 0.0f", "a.x_row_scale[t + 1 - e] : 0.0f", table("gemm")),
    ("gemm: the bias is that of another row", K + "gemm/wgmma_epilogue.cuh", "lane / 4 * 2 + h : lane / 4 + 8 * h", "lane / 4 * 2 + h : lane / 4 + 4 * h", table("gemm")),
    ("gemm: the residual is forgotten", K + "gemm/wgmma_epilogue.cuh", "y = __fadd_rn(residual, y);", "y = __fadd_rn(0 * residual, y);", table("gemm")),
    ("gemm: the last 16 tokens of a tile of 144 stay", K + "gemm/wgmma_merge.cuh", "kRuns = (P.tokens + kTokens - 1) / kTokens", "kRuns = P.tokens / kTokens", "tests/gpu/test_gemm_epilogues.py"),
    ("gemm: rows that are not valid leave with their tile", K + "gemm/wgmma_store.cuh", "return M == a.T || t0 + P.tokens <= M;", "return true;", "tests/gpu/test_chains.py -k 'posted and rows'"),
    ("gemm: a tile's second half is its first", K + "gemm/wgmma_store.cuh", "+ offset_of(h, group, slot);", "+ offset_of(0, group, slot);", "tests/gpu/test_chains.py -k posted"),
    ("gemm: the gate is not multiplied", K + "gemm/wgmma_epilogue.cuh", "y = __fmul_rn(y, to_float(Out{row.gate}));", "y = __fmul_rn(y, 1.0f);", table("gemm")),
    ("gemm: rows that are not valid are written", K + "gemm/wgmma_epilogue.cuh", "t0 + kFrom + at < M && within", "t0 + kFrom + at < a.T && within", table("gemm")),
    ("gemm: e4m3 columns change places", K + "gemm/wgmma_epilogue.cuh", "ptx::pack_e4m3(z[0][0], z[1][0])", "ptx::pack_e4m3(z[1][0], z[0][0])", table("gemm")),
    ("gemm: a scale near zero is divided by as it is", K + "gemm/wgmma_epilogue.cuh", "size < 1.0f ? 0x1p64f", "size < 1.0f ? 1.0f", "tests/test_ops.py -k '[gemm- and 320'"),
    ("gated_gemm: up is taken from the gate", K + "gemm/wgmma_epilogue.cuh", "z[0][e] = __fmul_rn(z[0][e], z[1][e]);", "z[0][e] = __fmul_rn(z[0][e], z[0][e]);", table("gated_gemm")),
    ("gated_gemm: a quantized weight's up is the gate", K + "gemm/epilogue.cuh", "y[r][kEach * i + kEach - 1]", "y[r][kEach * i]", table("gated_gemm")),
    ("gated_gemm: prefill with scales of rows in another order", K + "gemm/mixed_input.cuh", "o / 2 * 16 + octet_row * 2 + o % 2", "8 * o + octet_row", table("gated_gemm")),
    ("gated_gemm: e4m3 neighbours change places", K + "gemm/wgmma_epilogue.cuh", "const bool odd = lane / 4 % 2 != 0;", "const bool odd = lane / 4 % 2 == 0;", table("gated_gemm")),
    ("sample: who is drawn stays whatever lies above", K + "sampling/sample.cuh", "if (over_blocks<P>(&scratch.above, SumMass()) < target) return token;", "if (over_blocks<P>(&scratch.above, SumMass()) <= ~uint64_t{0}) return token;", table("sample")),
    ("sample: one token too many stays", K + "sampling/sample.cuh", "min(static_cast<int>(k), n)", "min(static_cast<int>(k) + 1, n)", table("sample")),
    ("gemm_weight_only: the zero point stays", K + "gemm/upcast.cuh", "0x4300u + kZero, kBoth", "0x4300u, kBoth", table("gemm")),
    ("gemm_weight_only: a group has its neighbour's scale", K + "gemm/weights.cuh", "block_f16(p + j * kBytes); }", "block_f16(p + (j ^ 1) * kBytes); }", table("gemm")),
    ("gemm_weight_only: a negative byte is 128 too much", K + "gemm/upcast.cuh", "masked<0x00800080u, 0xc300c300u>", "masked<0u, 0xc300c300u>", table("gemm")),
    ("gemm_weight_only: a step is multiplied before it has come", K + "gemm/weight_only.cuh", "if constexpr (kTma) w_ring.consumer_wait(ring_at);", "", "tests/gpu/test_long_rows.py"),
    ("gemm_weight_only: a block's parts of K miss the last", K + "gemm/weight_only.cuh", "part < P.parts(); ++part", "part < P.parts() - 1; ++part", table("gemm")),
    ("gemm_weight_only: minima are left out", K + "gemm/weight_only.cuh", "acc[e] = fmaf(minimum[e / 2], e % 2 ? sum.y : sum.x, acc[e])", "acc[e] += 0.0f * minimum[e / 2] * sum.x", table("gemm")),
    ("gemm_weight_only: x's scales miss what zero points take off", K + "gemm/weight_only.cuh", "if constexpr (P.x_scaled) sum.x *= d.x, sum.y *= d.y;", "", table("gemm")),
    ("gemm_weight_only: 16 elements have their neighbours' scale", K + "gemm/weight_only.cuh", "scales[2 * j + lane % 4])", "scales[2 * j + (lane % 4 ^ 1)])", table("gemm")),
    ("gemm_weight_only: of a lane's codes the second half comes first", K + "gemm/weight_only.cuh", "half == 0 ? codes[r][h].x : codes[r][h].y", "half == 1 ? codes[r][h].x : codes[r][h].y", table("gemm")),
    ("gemm_weight_only: sums keep the size of what was dequantized", K + "gemm/weight_only.cuh", "acc[r][m][e] * kLift", "acc[r][m][e]", table("gemm")),
    ("gemm_weight_only: zero points are lifted twice", K + "gemm/weight_only.cuh", "minimum[r][h] *= 1.0f / kLift", "minimum[r][h] *= 1.0f", table("gemm")),
    ("gemm_weight_only: a pair of x is in another's place", K + "gemm/panel.cuh", "__byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410)", "__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.x, v.z, 0x7632)", table("gemm")),
    ("gemm_weight_only: rows behind the first tile are read again", K + "gemm/weight_only.cuh", "map_row + row0", "map_row + row0 % P.rows()", table("gemm")),
    ("gemm_weight_only: x is multiplied before it has come", K + "gemm/x_ring.cuh", "ring.consumer_wait(ring_at);\n    if", "if", table("gemm")),
    ("gemm_weight_only: a place of x has the columns of another step", K + "gemm/x_ring.cuh", "next / kRuns * P.warps_k) * kRuns", "next / kRuns) * kRuns", table("gemm")),
    ("gemm_weight_only: of x's places the first ones alone are prepared", K + "gemm/x_ring.cuh", "ready = seen, seen = true", "ready = true, seen = true", table("gemm")),
    ("gemm_weight_only: a tile's tokens do not follow the ones before", K + "gemm/weight_only.cuh", "{block % tiles_t} * tile_tokens", "{block % tiles_t} * P.tokens()", table("gemm")),
    ("gemm_weight_only: x is asked for before the predecessor is done", K + "gemm/weight_only.cuh", "ptx::dependency_wait();\n  ptx::launch_dependents();\n  tile.prefetch_x(t0);", "tile.prefetch_x(t0);\n  ptx::dependency_wait();\n  ptx::launch_dependents();", waits("gemm", "and constant")),
    ("gemm_weight_only: wgmma adds to the sums of the group before", K + "gemm/weight_only.cuh", "Product::begin(to, low[here], b)", "Product::run(to, low[here], b)", WGMMA_BITS),
    ("gemm_weight_only: wgmma's second half of a group is its first", K + "gemm/weight_only.cuh", "ptx::wgmma_further(b, 32)", "ptx::wgmma_further(b, 0)", WGMMA_BITS),
    ("gemm_weight_only: pairs of x are not turned for wgmma", K + "gemm/x_ring.cuh", "make_uint4(v[0].y, v[1].y, v[2].y, v[3].y)", "make_uint4(v[0].y, v[2].y, v[1].y, v[3].y)", WGMMA_BITS),
    ("gemm_weight_only: the last token of x is not turned for wgmma", K + "gemm/x_ring.cuh", "if (t >= rows) continue;", "if (t >= rows - 1) continue;", WGMMA_BITS),
    ("block scales: rows of W share the first one's", K + "gemm/weight_only.cuh", "row / a.block_rows * pitch_bytes", "row / a.block_rows * 0 * pitch_bytes", table("gemm")),
    ("block scales: an entry of x serves eight groups", K + "gemm/panel.cuh", "(first + i % kGroups) / 4]", "(first + i % kGroups) / 8]", table("gemm")),
    ("grouped_gemm: counts are not read", K + "moe/grouped_gemm.h", "if (counts != nullptr)", "if (counts != nullptr && A < 0)", table("grouped_gemm")),
    ("grouped_gemm: a group's second tile starts a row late", K + "moe/group_tile.cuh", "begin + at * kTokens, source", "begin + at * kTokens + (at > 0), source", table("grouped_gemm")),
    ("grouped_gemm: a lane's later groups are not reached", K + "moe/group_tile.cuh", "e < last; ++e) tiles += tiles_of(e);", "e < min(last, group + 1); ++e) tiles += tiles_of(e);", table("grouped_gemm")),
    ("grouped_gemm: a lane's later groups begin at its first tile", K + "moe/group_tile.cuh", "    at -= before;\n", "", table("grouped_gemm")),
    ("grouped_gemm: all e4m3 experts have the first one's scales", K + "moe/grouped_wgmma.cuh", "a.w_row_scale + tile.group * a.scale_stride", "a.w_row_scale + 0 * tile.group * a.scale_stride", table("grouped_gemm")),
    ("grouped_gemm: e4m3 weights meet the first half of x twice", K + "moe/grouped_wgmma.cuh", "k * kStep + r * kRun", "k * kStep + 0 * r * kRun", table("grouped_gemm")),
    ("grouped_gemm: e4m3 weights of a row lie in the row before's order", K + "gemm/held_weights.cuh", "row % 8 * 16;", "(row + 7) % 8 * 16;", table("grouped_gemm")),
    ("grouped_gemm: q4_0 weights have a neighbour's scale", K + "gemm/held_weights.cuh", "SplitScale scale(ptx::load_half_word(of_row(block, 0)))", "SplitScale scale(ptx::load_half_word(of_row(block, b == 0 ? 18 : -18)))", table("grouped_gemm")),
    ("grouped_gemm: q4_0 codes of a word change halves", K + "gemm/held_weights.cuh", "ptx::load_half_word(block + 10), 0x5140", "ptx::load_half_word(block + 10), 0x1504", table("grouped_gemm")),
    ("grouped_gemm: half of a stage of q4_0 stands for all of it", K + "moe/grouped_wgmma.cuh", "Rows::dequantize(stage + own, pair, half", "Rows::dequantize(stage + own, 0 * pair, half", table("grouped_gemm")),
    ("grouped_gemm: q4_0 scales lack their last bits", K + "gemm/held_weights.cuh", '"r"(high), "r"(rest)', '"r"(high), "r"(0 * rest)', "tests/gpu/test_grouped_gated_gemm.py -k rounded_once"),
    ("grouped_gated_gemm: ups of q4_0 experts stay a 64th", K + "moe/grouped_wgmma.cuh", "up[i] = P.four ? SplitScale::lift()", "up[i] = P.four ? 1.0f", table("grouped_gated_gemm")),
    ("grouped_gemm: e4m3 experts off 16 bytes have the first one's scales", K + "moe/grouped_gemm.cuh", "a.w_row_scale + group.group * a.scale_stride", "a.w_row_scale", table("grouped_gemm")),
    ("grouped_gated_gemm: ups of e4m3 experts have the gates' scales", K + "moe/grouped_wgmma.cuh", "from[N + i]", "from[i]", table("grouped_gated_gemm")),
    ("gemm: quantized weights of prefill have a neighbour's scale", K + "gemm/mixed_input.cuh", "first = second = row.scale(j, 0);", "first = second = row.scale(j ^ 1, 0);", table("gemm")),
    ("gemm: prefill with NVFP4 has the other half's scale", K + "gemm/mixed_input.cuh", "kFolds ? lane % 4 / 2 * 16 : 0", "kFolds ? 16 - lane % 4 / 2 * 16 : 0", table("gemm")),
    ("gemm: prefill forgets a format's minimum", K + "gemm/mixed_input.cuh", "static_cast<float>(Row::kZero), first, row.min(j)", "static_cast<float>(Row::kZero), first, 0.0f", table("gemm")),
    ("gemm: prefill takes no zero point off", K + "gemm/mixed_input.cuh", "low -= zero, high -= zero;", "low -= 0 * zero, high -= 0 * zero;", table("gemm")),
    ("gemm: of two groups that dequantize the second begins with the first one's scales", K + "gemm/mixed_input.cuh", "prefetch_scales((group ^ turn) * kSteps, side)", "prefetch_scales(0 * (group ^ turn) * kSteps, side)", table("gemm")),
    ("gemm: of two groups that dequantize both copy a tile's first elements", K + "gemm/mixed_input.cuh", "next_tile = i, next_copy = group, wrap()", "next_tile = i, next_copy = 0, wrap()", table("gemm")),
    ("gemm: the second half of a copy of weights in registers is its first", K + "gemm/mixed_held.cuh", "rows.dequantize(first, pair, half", "rows.dequantize(first, 0 * pair, half", table("gemm", "q4_k")),
    ("gemm: q4_k in registers has its neighbour's minimum", K + "gemm/held_weights.cuh", "mins >> shift & 255u", "mins >> (shift ^ 8) & 255u", table("gemm", "q4_k")),
    ("gemm: q8_0 in registers has the scale of the block before", K + "gemm/held_weights.cuh", "static_cast<uint16_t>(ptx::load_half_word(of_row(block, 0)))});\n#pragma unroll\n        for", "static_cast<uint16_t>(ptx::load_half_word(of_row(block, b == 0 ? 0 : -34)))});\n#pragma unroll\n        for", table("gemm", "q8_0")),
    ("gemm: q6_k in registers has the scales of 64 elements further on", K + "gemm/held_weights.cuh", "192 + part * 8 + half * 4", "192 + part * 8 + (1 - half) * 4", table("gemm", "q6_k")),
    ("gemm: a copy of q6_k in registers is its first block twice", K + "gemm/held_weights.cuh", "pair / 2 * 210", "0 * pair", table("gemm", "q6_k")),
    ("gemm: q6_k's steps begin at 16 bytes", K + "gemm/weight_only.cuh", "p += (first + i) * kBytes & 15;", "p += 0;", table("gemm", "q6_k")),
    ("gemm: q6_k's copies in registers begin at 16 bytes", K + "gemm/mixed_held.cuh", "first += shift, shift =", "shift =", table("gemm", "q6_k")),
    ("gemm: k-quants have x's sums in bf16", K + "gemm/panel.cuh", "x[p] = eight[4 * p];", "x[p] = p == 0 ? eight[0] : 0u;", table("gemm", "q4_k")),
    ("gemm: k-quants have their neighbours' minima", K + "gemm/weights.cuh", "c % 2 == 0 ? 0x4140u : 0x4342u", "c % 2 != 0 ? 0x4140u : 0x4342u", table("gemm", "q4_k")),
    ("gemm: k-quants have the minima of the block before", K + "gemm/panel.cuh", "(group / 8 * kTokens + m * 8 + lane / 4) * 12", "(group / 16 * 2 * kTokens + m * 8 + lane / 4) * 12", table("gemm", "q5_k")),
    ("gated_gemm: NVFP4 in registers has scales of rows in another order", K + "gemm/mixed_held.cuh", "lane / 4 * 2 + i : lane / 4 + 8 * i", "lane / 4 + 8 * i : lane / 4 + 8 * i", table("gated_gemm", "e2m1")),
    ("gemm: copies of weights of a tile without tokens stay in the way", K + "gemm/mixed_held.cuh", "i > 0; --i) copies.consumer_wait(copy), release_copy();", "i > 0; --i) {}", table("gemm", "i8")),
    ("gemm: prefill with quantized weights does not wait", K + "gemm/mixed_input.cuh", "ptx::touch_parameters(args);\n    ptx::dependency_wait();\n", "", waits("gemm", "and constant")),
    ("norm_gemm does not wait", K + "gemm/norm_gemm.cuh", "ptx::touch_parameters(args.norm);\n    ptx::dependency_wait();\n", "", waits("norm_gemm", "and constant")),
    ("norm_gemm: no bias of the norm", K + "gemm/norm_gemm.cuh", "return __fadd_rn(v, b); }", "return v; }", table("norm_gemm")),
    ("norm_gemm: the mean stays", K + "gemm/norm_gemm.cuh", "kLayer ? __fsub_rn(v, mean) : v", "v", table("norm_gemm")),
    ("norm_gemm: the end of a row is not in its sum", K + "gemm/norm_gemm.cuh", "if (column(g) < a.H) x[g]", "if (column(g) + kNormGroup < a.H) x[g]", table("norm_gemm")),
    ("norm_gemm: tokens lie in the first one's order", K + "gemm/norm_gemm.cuh", "((byte / 16) ^ (line % 8)) * 16", "((byte / 16) ^ (line % 8 / 8)) * 16", table("norm_gemm")),
    ("norm_gemm: no scale of the adaptive norm", K + "gemm/norm_gemm.cuh", "if (a.scale != nullptr) each(", "if (a.scale == a.x) each(", table("norm_gemm")),
    ("rms_gemm: every second four of a row's sums is left out", K + "norm/rms.cuh", "for (int h = 0; h < 2; ++h) lane[g + i]", "for (int h = 0; h < 1; ++h) lane[g + i]", table("rms_gemm")),
    ("rms_gemm: sums of lanes that are four apart do not meet", K + "norm/rms.cuh", "__shfl_xor_sync(0xffffffffu, lane[0], d)", "__shfl_xor_sync(0xffffffffu, lane[0], d & 11)", table("rms_gemm")),
    ("rms_gemm: factors of rows that the product before has not written yet", K + "gemm/wgmma.cuh", "ptx::touch_parameters(args.squares);\n      ptx::dependency_wait();", "ptx::touch_parameters(args.squares);",
     waits("rms_gemm", "and constant")),
    ("rms_gemm: tokens have the first one's factor", K + "gemm/wgmma_epilogue.cuh", "s[0] = token_norms<P>()[t], s[1] = token_norms<P>()[t + 1];", "s[0] = s[1] = token_norms<P>()[0 * t];", table("rms_gemm")),
    ("rms_gemm_rope: partners turn alike", K + "gemm/wgmma_heads.cuh", "z[1][e] = fmaf(upper, c, __fmul_rn(lower, s));", "z[1][e] = fmaf(upper, c, -__fmul_rn(lower, s));", table("rms_gemm_rope")),
    ("rms_gemm_rope: all tiles of a head have its first rows", K + "gemm/wgmma_load.cuh", "block = (n0 - head * args.heads.D) / 16", "block = 0 * n0", table("rms_gemm_rope")),
    ("rms_gemm_rope: values go where keys go", K + "gemm/wgmma_heads.cuh", "query ? r.q : key ? r.k : r.v", "query ? r.q : r.k", table("rms_gemm_rope")),
    ("rms_gemm_rope: tokens have the first one's angles", K + "gemm/wgmma_heads.cuh", "r.angles + token * r.angles_stride", "r.angles + 0 * token * r.angles_stride", table("rms_gemm_rope")),
    ("gemm_rms_rows: sums are of four columns", K + "gemm/wgmma_epilogue.cuh", "for (int d = 1; d < 4; d *= 2)", "for (int d = 1; d < 2; d *= 2)", table("gemm_rms_rows")),
    ("gemm_rms_rows: a weight is taken for 1 + scale", K + "gemm/wgmma_epilogue.cuh", "factor[e] = half_of<Out>(pair, e);", "factor[e] = __fadd_rn(1.0f, half_of<Out>(pair, e));", table("gemm_rms_rows")),
    ("gemm_rms_rows: e4m3 rows are not divided by their scale", K + "gemm/wgmma_epilogue.cuh", "RoughDivider(scaled_scale).divide_flat(v);", "RoughDivider(1.0f).divide_flat(v);", table("gemm_rms_rows")),
    ("gemm_rms_rows: e4m3 rows change the columns of a pair", K + "gemm/wgmma_epilogue.cuh", "ptx::pack_e4m3(v[0], v[1]))", "ptx::pack_e4m3(v[1], v[0]))", table("gemm_rms_rows")),
    ("rms_rows: e4m3 rows are not divided by their scale", K + "norm/rms_rows.cuh", "RoughDivider(by).divide_flat(v);", "RoughDivider(1.0f).divide_flat(v);", table("rms_rows")),
    ("gemm_rms_rows: rows leave without their factors", K + "gemm/wgmma_epilogue.cuh", "ptx::pack<Out>(__fmul_rn(first, piece[p].factor[0]), __fmul_rn(second, piece[p].factor[1]))", "ptx::pack<Out>(first, second)", table("gemm_rms_rows")),
    ("grouped_gemm: all groups have the first one's weights", K + "moe/grouped_wgmma.cuh", "tile.group * args.g.N + n0", "0 * tile.group * args.g.N + n0", table("grouped_gemm")),
    ("grouped_gemm: a width too narrow", K + "moe/grouped_wgmma.cuh", "if (tile.count > kWidth)", "if (tile.count > 2 * kWidth)", table("grouped_gemm")),
    ("grouped_gemm does not wait", K + "moe/grouped_wgmma.cuh", WAIT, "", waits("grouped_gemm")),
    ("moe_route: of equal logits the higher expert", K + "moe/moe_route.cuh", "if (key[i] > best)", "if (key[i] && key[i] >= best)", table("moe_route")),
    ("moe_route: one token's equal logits share a place", K + "moe/moe_route.cuh", "precedes(m.reach[j], j, mine, c)", "m.reach[j] > mine", table("moe_route")),
    ("grouped_gated_gemm: ups of other columns", K + "moe/grouped_wgmma.cuh", "at(kColumns + column())", "at(column())", table("grouped_gated_gemm")),
    ("grouped_gemm: one row for all is taken for one of many", K + "moe/grouped_wgmma.cuh", "one ? 0 : tile.first + b * P.box()", "tile.first + b * P.box()", table("grouped_gemm")),
    ("moe_route: weights are not divided", K + "moe/moe_route.cuh", "mine_p / mass : mine_p", "mine_p : mine_p", table("moe_route")),
    ("moe_route: one token's rows lack the shared expert's", K + "moe/moe_route.cuh", "a.offsets[E + lane] = K + lane", "a.offsets[E + lane] = K", table("moe_route")),
    ("moe_route: many tokens' shared expert is taken by half", K + "moe/moe_route.cuh", "route_shared(to_float(logits_of(t)[E]))", "0.5f", table("moe_route")),
    ("moe_route: a block's places start at nought", K + "moe/moe_route.cuh", "if (r < rank) before += n;", "", tactics("moe_route")),
    ("moe_combine: the residual is left out", K + "moe/moe_combine.cuh", "sum[i][e] = plus[i][e] + sum[i][e]", "sum[i][e] = 0.0f * plus[i][e] + sum[i][e]", table("moe_combine")),
    # What a fuzzer from outside found once, found by the one of the house.
    ("decode_layers: words are taken before they have come", K + "decode/exchange.cuh", "if ((wanted >> j & 1) && has_tag(v[j], tag))", "if (wanted >> j & 1)", "tests/gpu/test_decode_layers.py -k 'bits or delays'"),
    ("decode_layers: stages are read before they have come", K + "decode/product.cuh", "if (s < count) ring.wait(s);", "if (s < 0) ring.wait(s);", "tests/gpu/test_decode_layers.py -k 'bits or delays'"),
    ("decode_layers: every turn has the same tag", K + "decode/exchange.cuh", "return ((turn >> 1) + 1) & 0xff;", "return 1 + (turn & 0);", "tests/gpu/test_decode_layers.py -k 'bits or delays'"),
    ("decode_layers: all splits weigh the same", K + "decode/split_attention.cuh", "float share = ptx::exp2_fast(mass - top), sum", "float share = 1.0f, sum", "tests/gpu/test_decode_layers.py -k values"),
    ("decode_layers: keys and values go to the page of another number", K + "decode/decode_layers.cuh", "a.element({now.block, now.at}, kv)", "a.element({now.slot, now.at}, kv)", "tests/gpu/test_decode_layers.py -k place"),
    ("decode_layers_cross: words are taken before they have come", K + "decode/exchange.cuh", "if ((wanted >> j & 1) && has_tag(v[j], tag))", "if (wanted >> j & 1)", "tests/gpu/test_decode_layers_cross.py -k 'bits or delays'"),
    ("decode_layers_cross: of a row's variance what lies between warps is left out", K + "decode/decode_layers_cross.cuh", "all += n * away * away;", "all += 0.0f * n * away * away;", "tests/gpu/test_decode_layers_cross.py -k values"),
    ("decode_layers_cross: every step hears the first window", K + "decode/decode_layers_cross.cuh", "now.window * f.a.F + first", "0 * now.window * f.a.F + first", "tests/gpu/test_decode_layers_cross.py -k values"),
    ("decode_layers_cross: a table of pages is not read", K + "decode/decode_layers_cross.cuh", "at < now.pos ? a.row_of(now.slot, at) : -1", "at < now.pos ? at : -1", "tests/gpu/test_decode_layers_cross.py -k place"),
    ("fuzz: a box that fills a tile is taken for one axis of heads and tokens", K + "attention/swap_ab.cuh", "const int y = q.joined ? row0 : 0, w = q.joined ? 0 : (row0 + row) / group;",
     "const int y = q.box == kRows ? row0 : 0, w = q.box == kRows ? 0 : (row0 + row) / group;", "tests/gpu/test_fuzz.py -k attention"),
    ("fuzz: the last 16 tokens of a tile of 144 stay", K + "gemm/wgmma_merge.cuh", "kRuns = (P.tokens + kTokens - 1) / kTokens", "kRuns = P.tokens / kTokens", "tests/gpu/test_fuzz.py -k gemm"),
]


def command(how, folder):
    tool, *op = how.split()
    if tool not in ("racecheck", "memcheck", "synccheck", "initcheck"):
        return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--device", "cuda", *shlex.split(how)], {}
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return [sanitizer, "--tool", tool, "--error-exitcode", "1", "--print-limit", "2", sys.executable, "tests/gpu/sanitized.py", f"{folder}/rows", tool, *op], {}


def caught(fault):
    """Whether the fault was noticed, and what was said."""
    what, file, right, wrong, how = fault
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernels" / file
        target.parent.mkdir(parents=True)
        target.write_text(replaced((ROOT / file).read_text(), right, wrong))
        words, extra = command(how, folder)
        env = os.environ | extra | {"VIVACE_KERNEL_DIR": f"{folder}/kernels", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
        except subprocess.TimeoutExpired:
            return False, "no result in 200 s"
    return noticed(done.stdout + done.stderr, done.returncode, words[0] == sys.executable)


MACHINE = ("IoError", "cublasCreate")  # what a crowded machine does by itself: a cache that went, memory that others have


def noticed(text, status, by_test):
    """Whether a run's output shows that the fault was noticed, and the line that says so."""
    if "CompileError" in text:
        return False, "it does not compile: " + text[text.find("CompileError"):][:300]
    # A test failed, the sanitizer reported, or a signal: the fault crashed the process. A test that could not begin noticed nothing.
    lines = [line for line in text.splitlines() if line.startswith(("FAILED", "E  ")) or "hazard" in line]
    said = [line for line in lines if not any(word in line for word in MACHINE)]
    failed = status == 1 and re.search(r"^FAILED " if by_test else r"SUMMARY: [1-9]", text, re.M) is not None
    if failed and by_test and not any(line.startswith("E  ") for line in said):
        return False, re.sub(r"\s+", " ", "the machine, not the fault: " + lines[0])[:160]
    return failed or status < 0, re.sub(r"\s+", " ", (said or [text[-200:]])[0])[:160]


def stale():
    """Faults whose text is no longer in the sources."""
    return [f for f in FAULTS if not (ROOT / f[1]).exists() or not places((ROOT / f[1]).read_text(), f[2])]


def row(fault, ok, said):
    """A receipt's row."""
    tool, words = fault[4].split()[0], re.sub(r"[^\w]+", "_", fault[0]).strip("_")
    return {"op": Path(fault[1]).stem, "case": f"fault={words}", "tool": tool if "check" in tool else "pytest", "pass": ok, "note": said}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("-k", default=[], nargs="+", metavar="WORD", help="only faults whose text contains one of these")
    p.add_argument("--share", default="0/1", metavar="I/N", help="every N-th of them from the I-th on")
    p.add_argument("--jobs", type=int, default=4)
    p.add_argument("--rows", metavar="FILE", help="append a receipt row a fault to FILE")
    args = p.parse_args()
    first, step = map(int, args.share.split("/"))
    chosen = [f for f in FAULTS if not args.k or any(k in " ".join(f) for k in args.k)][first::step]
    if old := [f for f in stale() if f in chosen]:
        p.error("bring these up to date: " + "; ".join(f[0] for f in old))
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        begun = {pool.submit(caught, f): f for f in chosen}
        for done in concurrent.futures.as_completed(begun):
            fault, (ok, said) = begun[done], done.result()
            missed += not ok
            print(f"{'caught' if ok else 'MISSED'}  {fault[0]}: {said}", flush=True)
            if args.rows:
                with open(args.rows, "a") as f:
                    f.write(json.dumps(row(fault, ok, said)) + "\n")
    print(f"{len(chosen) - missed} of {len(chosen)} planted faults caught")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
