#!/usr/bin/env python3
"""Proof that the op tests can fail: plants one fault at a time in the C++ sources and runs them.

    python tests/planted_faults.py [build folder] [-k word]
    python tests/planted_faults.py --pack FILE [build folder]                # modules that hold a decoder's fault each
    python tests/planted_faults.py --packed FILE --device cuda [--receipt]   # their tests, on a machine without compilers

The folder is a CMake build with VV_PYTHON=ON and Ninja (default: the newest below build/). The tree itself
is never touched: the changed file is compiled from a copy and linked in front of the library.
A fault that no test notices makes the exit status 1.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.planted_gpu import noticed  # noqa: E402
from tools.receipt import Receipt  # noqa: E402

POLICY = "tests/test_policy.py"
STEPS = "tests/test_model_steps.py -k 'not many'"
OPS, BAD, ARRAYS, DRAWS = "tests/test_ops.py", "tests/test_ops_bad.py", "tests/test_arrays.py", "tests/test_sampling_stats.py"

# (what is wrong, file, right, wrong, tests[, the .cc to compile where the file is a header])
FAULTS = [
    ("the last row is forgotten", "vivace/cpu/rows.h", "std::min(T, (chunk + 1) * together)", "std::min(T - 1, (chunk + 1) * together)", f"{OPS} -k norm", "vivace/cpu/norm/norm.cc"),
    ("the device-side row count is ignored", "vivace/cpu/norm/norm.cc", "valid_rows(a.rows, a.T)", "static_cast<int64_t>(a.T)", f"{OPS} -k norm"),
    ("mean over one element too few", "vivace/cpu/norm/norm.cc", "static_cast<float>(a.H) + a.eps", "static_cast<float>(a.H - 1) + a.eps", f"{OPS} -k norm"),
    ("eps is left out", "vivace/cpu/norm/norm.cc", "static_cast<float>(a.H) + a.eps", "static_cast<float>(a.H)", f"{OPS} -k norm"),
    ("weight_plus_one does nothing", "vivace/cpu/norm/norm.cc", "a.weight_plus_one ? 1.0f : 0.0f", "a.weight_plus_one ? 0.0f : 0.0f", f"{OPS} -k norm"),
    ("scale and shift swapped", "vivace/cpu/norm/norm.cc", "load_f32(a.shift, a.x_dtype, ada * a.shift_stride", "load_f32(a.scale, a.x_dtype, ada * a.shift_stride", f"{OPS} -k norm"),
    ("the output stride is the input's", "vivace/cpu/norm/norm.cc", "t * a.out_stride + first", "t * a.x_stride + first", f"{OPS} -k norm"),
    ("the rounded residual is normalised", "vivace/cpu/norm/norm.cc", "row.apply(first, n, mean, inv, h);\n    store_scaled", "if (a.residual) load_f32(a.residual, a.x_dtype, t * a.residual_stride + first, n, h);\n    row.apply(first, n, mean, inv, h);\n    store_scaled", f"{OPS} -k norm"),
    ("the scale is not applied", "vivace/cpu/norm/norm.cc", "n, h, scale)", "n, h, 1.0f)", f"{OPS} -k norm"),
    ("the largest value skips the first of each chunk", "vivace/cpu/rows.h", "for (int64_t i = 0; i < n; ++i) amax", "for (int64_t i = 1; i < n; ++i) amax", f"{OPS} -k norm", "vivace/cpu/norm/norm.cc"),
    ("fp8 of 448 or more wraps", "vivace/cpu/convert.cc", "return code < kTop ? code : kTop;", "return code;", f"{OPS} -k cast"),
    ("bf16 truncates", "vivace/cpu/convert.cc", "rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16", "rounded = u >> 16", f"{OPS} -k cast"),
    ("bf16 rounds ties up", "vivace/cpu/convert.cc", "rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16", "rounded = (u + 0x8000u) >> 16", f"{OPS} -k cast"),
    ("fp8 subnormals lose their shift", "vivace/cpu/convert.cc", "select(mag < bits(pow2(1 - kBias)), small, normal)", "normal", f"{OPS} -k cast"),
    ("the sum is not activated", "vivace/cpu/gate/gate_residual.cc", "a.act != kernels::Activation::none", "a.act == kernels::Activation::none", f"{OPS} -k gate_residual"),
    ("a patch begins in the frame, not in its padding", "vivace/cpu/copy/im2col.cc", "a.stride_w - a.pad_w", "a.stride_w", f"{OPS} -k im2col"),
    ("a patch's lines and columns change places", "vivace/cpu/copy/im2col.cc", "(hwc ? outer : q), pixel", "(hwc ? q : q), pixel", f"{OPS} -k im2col"),
    ("the filter is not widened", "vivace/kernels/copy/resize_pad.h", "a.scale > 1.0 ? a.scale : 1.0", "1.0", "tests/test_frames.py", "vivace/cpu/copy/resize_pad.cc"),
    ("pictures are not centred", "vivace/cpu/copy/resize_pad.cc", "line - a.y.before", "line", f"{OPS} -k resize_pad"),
    ("a pixel's neighbour is itself", "vivace/kernels/copy/resize_pad.h", "first + 1 < a.from ? first + 1 : first", "first", f"{OPS} -k resize_pad", "vivace/cpu/copy/resize_pad.cc"),
    ("heads alternate", "vivace/cpu/copy/repeat_heads.cc", "h / a.repeats * head", "h % a.Hkv * head", f"{OPS} -k repeat_heads"),
    ("an id one past the table is read", "vivace/cpu/embedding/embedding.cc", "id < a.V", "id <= a.V", f"{OPS} -k embedding"),
    ("a table row starts one stride late", "vivace/cpu/embedding/embedding.cc", "id * a.table_stride", "(id + 1) * a.table_stride", f"{OPS} -k embedding"),
    ("nibbles swapped", "vivace/cpu/quant/blocks.h", "I lo = low(bytes), hi = high(bytes)", "I lo = high(bytes), hi = low(bytes)", f"{OPS} -k embedding", "vivace/cpu/quant/level_avx512.cc"),
    ("the minimum of q4_1 has the wrong sign", "vivace/cpu/quant/blocks.h", "second = B::add(second, B::set(m))", "second = B::add(second, B::set(-m))", f"{OPS} -k embedding", "vivace/cpu/quant/level_avx512.cc"),
    ("q6_k takes the wrong sub-scale", "vivace/cpu/quant/blocks.h", "b[192 + i]", "b[192 + i / 2]", f"{OPS} -k embedding", "vivace/cpu/quant/level_avx512.cc"),
    ("gate and up swapped", "vivace/cpu/gate/act_mul.cc", "load_f32(a.up, a.dtype, t * a.up_stride", "load_f32(a.gate, a.dtype, t * a.up_stride", f"{OPS} -k act_mul"),
    ("inv_scale restarts at every chunk", "vivace/cpu/gate/act_mul.cc", "a.inv_scale[first + i]", "a.inv_scale[i]", f"{OPS} -k act_mul"),
    ("a stale position: the row number", "vivace/cpu/rope/rope.cc", "a.pos[t]", "static_cast<int32_t>(t)", f"{OPS} -k rope"),
    ("the rotation turns the other way", "vivace/cpu/rope/rotate.h", "a0 * cos_[i] - b0 * sin_[i]", "a0 * cos_[i] + b0 * sin_[i]", f"{OPS} -k rope", "vivace/cpu/rope/rope.cc"),
    ("the half style pairs neighbours", "vivace/cpu/rope/rotate.h", "half_(style == kernels::RopeStyle::half)", "half_(style != kernels::RopeStyle::half)", f"{OPS} -k rope", "vivace/cpu/rope/rope.cc"),
    ("keys go into the values' cache", "vivace/cpu/rope/qkv_rope.cc", "a.cache.k, a.cache.k_stride", "a.cache.v, a.cache.k_stride", f"{OPS} -k qkv_rope"),
    ("values are rotated too", "vivace/cpu/rope/qkv_rope.cc", "heads(a.Hkv, nullptr, a.dtype, false,", "heads(a.Hkv, nullptr, a.dtype, true,", f"{OPS} -k qkv_rope"),
    ("rows that the cache lacks are written", "vivace/cpu/rope/kv_append.cc", "const kernels::KvCache::Place place = a.cache.place(a.cache.slot ? a.cache.slot[t] : 0, a.pos[t]);\n    if (place.block < 0) return;", "kernels::KvCache::Place place = a.cache.place(a.cache.slot ? a.cache.slot[t] : 0, a.pos[t]);\n    if (place.block < 0) place = {0, 0};", f"{OPS} -k kv_append"),
    ("the slot is ignored", "vivace/cpu/rope/kv_append.cc", "a.cache.slot ? a.cache.slot[t] : 0", "0", f"{OPS} -k kv_append"),
    ("kv_append: heads come first and are written as places", "vivace/kernels/rope/kv_append.h", "* (heads_first ? 1 : Hkv)", "* Hkv", f"{OPS} -k kv_append", "vivace/cpu/rope/kv_append.cc"),
    ("qkv_rope: heads of a block lie side by side", "vivace/kernels/rope/kv_append.h", "heads_first ? int64_t{L} * D : D", "D", f"{OPS} -k qkv_rope", "vivace/cpu/rope/qkv_rope.cc"),
    ("softmax does not subtract the largest", "vivace/cpu/softmax/softmax.cc", "part += std::exp(z[i] - max)", "part += std::exp(z[i])", f"{OPS} -k softmax"),
    ("the sum keeps the first chunk only", "vivace/cpu/softmax/softmax.cc", "sum += part", "sum = sum > 0 ? sum : part", f"{OPS} -k softmax"),
    ("attention: codes are of values that q's type never held", "vivace/cpu/attention/heads.h", "rounded(a.dtype, y) / *a.out_scale", "y / *a.out_scale", "tests/test_attention_grid.py -k codes", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: causal sees one key too many", "vivace/kernels/attention/attention.h", "int64_t seen = pos + 1;", "int64_t seen = pos + 2;", f"{OPS} -k attention", "vivace/cpu/attention/attention.cc"),
    ("attention: the length is stale", "vivace/kernels/attention/attention.h", "if (valid < end) end = valid;", "", f"{OPS} -k attention", "vivace/cpu/attention/attention.cc"),
    ("attention: the state sees the actions", "vivace/kernels/attention/attention.h", "pos == a.prefix[slot] ? seen : end", "end", f"{OPS} -k attention", "vivace/cpu/attention/attention.cc"),
    ("attention: the sum is not rescaled", "vivace/cpu/attention/heads.h", "if (shrink != 1.0f)", "if (shrink > 2.0f)", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: every head has the first one's scale", "vivace/cpu/attention/heads.h", "a.scale * a.head_scale[tile.h0 + h]", "a.scale * a.head_scale[0]", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: ALiBi counts from place 0", "vivace/cpu/attention/heads.h", "j0 + j - q->pos", "j0 + j", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: bits hide nothing", "vivace/cpu/attention/heads.h", "if (!a.bit(q->t, slot, j0 + j)) p[j]", "if (!a.bit(q->t, slot, j0 + j) && a.T < 0) p[j]", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: a group's heads are swapped", "vivace/cpu/attention/heads.h", "(tile.t + i) * a.q_stride + int64_t{tile.h0 + h} * a.D", "(tile.t + i) * a.q_stride + int64_t{tile.h0 + tile.heads - 1 - h} * a.D", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: a place's page is its neighbour's", "vivace/kernels/attention/attention.h", "page_table[s * table_stride + static_cast<uint32_t>(j)", "page_table[s * table_stride + static_cast<uint32_t>(j + 1)", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: a page past the cache is its last", "vivace/kernels/attention/attention.h", "return b >= 0 && b < B ? b : -1;", "return b >= 0 && b < B ? b : B - 1;", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: ragged keys begin at row 0", "vivace/kernels/attention/attention.h", "return j + k_offsets[s];", "return j;", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: a ragged slot has its neighbour's keys too", "vivace/kernels/attention/attention.h", "if (held < end) end = held < 0 ? 0 : held;", "", f"{OPS} -k attention", "vivace/cpu/attention/attention.cc"),
    ("attention: heads come first and are read as places", "vivace/kernels/attention/attention.h", "return heads_first ? 1 : Hkv;", "return Hkv;", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("latent_attention: the sums are not rescaled", "vivace/cpu/attention/latent_attention.cc", "if (shrink != 1.0f)", "if (shrink > 2.0f)", f"{OPS} -k latent_attention"),
    ("latent_attention: values are the row's end", "vivace/cpu/attention/latent_attention.cc", "sum[i] += w * row[i];", "sum[i] += w * row[E - C + i];", f"{OPS} -k latent_attention"),
    ("attention_micro: a head has its neighbour's scales", "vivace/cpu/attention/attention_micro.cc", "scales_at + head * (d / 16)", "scales_at + (head + 1) * (d / 16)", f"{OPS} -k attention_micro"),
    ("attention_micro: the sums are not rescaled", "vivace/cpu/attention/attention_micro.cc", "sum[i] = sum[i] * shrink + w * row[i]", "sum[i] = sum[i] + w * row[i]", f"{OPS} -k attention_micro"),
    ("scaled_attention: values have their keys' scale", "vivace/cpu/attention/scaled_attention.cc", "m.v_scale[kv] : 1.0f) / mass", "m.k_scale[kv] : 1.0f) / mass", f"{OPS} -k scaled_attention"),
    ("spread_offsets: a slot's first token is its predecessor's", "vivace/kernels/attention/spread_offsets.h", "offsets[middle] <= t", "offsets[middle] < t", f"{OPS} -k spread_offsets", "vivace/cpu/attention/spread_offsets.cc"),
    ("spread_offsets: tokens are the first of their keys", "vivace/kernels/attention/spread_offsets.h", "t - first + ahead", "t - first", f"{OPS} -k spread_offsets", "vivace/cpu/attention/spread_offsets.cc"),
    ("merge_states: the last state is left out", "vivace/cpu/attention/merge_states.cc", "for (int64_t n = 0; n <= a.N; ++n) mass", "for (int64_t n = 0; n < a.N; ++n) mass", f"{OPS} -k merge_states"),
    ("gated_delta: beta is forgotten", "vivace/cpu/linear/gated_delta.cc", "held[c] = beta *", "held[c] = 1.0f *", f"{OPS} -k gated_delta"),
    ("causal_conv: the state is one token old", "vivace/cpu/linear/causal_conv.cc", "std::copy_n(window[k + 1], count, state", "std::copy_n(window[k], count, state", f"{OPS} -k causal_conv"),
    ("gemm: rows swap their fifth bits where one token meets them", "vivace/cpu/gemm/rows_avx512.h", "fifths(r) | fifths(r + 4) << 32", "fifths(r + 4) | fifths(r) << 32", f"{OPS} -k gemm", "vivace/cpu/gemm/level_avx512.cc"),
    ("gemm: q6_k's second and third run of one token are swapped", "vivace/cpu/gemm/rows_avx512.h", "_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(e, f, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd)", "_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd), _mm512_shuffle_i32x4(e, f, 0x88)", f"{OPS} -k gemm", "vivace/cpu/gemm/level_avx512.cc"),
    ("gemm: a k-quant's upper scales lose their high bits", "vivace/cpu/gemm/unpack.h", "B::shl(B::band(B::shr(head[1], 8 * j - 26), 3), 4)", "B::shl(B::band(B::shr(head[1], 8 * j - 26), 1), 4)", f"{OPS} -k gemm", "vivace/cpu/gemm/level_avx512.cc"),
    ("ties go to the highest id", "vivace/cpu/sampling/sample.cc", "for (argmax_ = first; z[argmax_ - first] != max_;) ++argmax_;", "for (argmax_ = first + n - 1; z[argmax_ - first] != max_;) --argmax_;", f"{OPS} -k sample"),
    ("top_k keeps one more", "vivace/cpu/sampling/sample.cc", "static_cast<uint64_t>(k), []", "static_cast<uint64_t>(k + 1), []", DRAWS),
    ("the mask is read one bit off", "vivace/cpu/sampling/sample.cc", ">> (v % 32) & 1", ">> ((v + 1) % 32) & 1", f"{OPS} -k sample"),
    ("the step does not reach the noise", "vivace/cpu/sampling/sample.cc", "a_.step ? static_cast<uint32_t>(a_.step[t_]) : 0", "0", f"{OPS} -k sample"),
    ("repetition of a negative logit divides", "vivace/cpu/sampling/sample.cc", ": l[i] * repetition", ": l[i] / repetition", f"{OPS} -k sample"),
    ("a token at the end of the vocabulary is not counted", "vivace/cpu/sampling/count_tokens.cc", "id < a.V", "id < a.V - 1", f"{OPS} -k count_tokens"),
    ("a capture runs its launches as well", "vivace/exec/cpu_stream.cc", "if (capture_) capture_->add(launch);\n  else launch", "if (capture_) capture_->add(launch);\n  launch", f"{OPS} -k norm"),
    ("a replay skips the last launch", "vivace/exec/cpu_stream.cc", "for (const Step& s : steps_) {", "for (const Step& s : steps_) {\n      if (&s == &steps_.back()) break;", f"{OPS} -k norm"),
    ("aliasing is not checked", "vivace/ops/call.cc", "return check_aliasing();", "return {};", f"{BAD} -k overlap"),
    ("alignment is not checked", "vivace/ops/call.cc", "% align != 0", "% 1 != 0", f"{BAD} -k misaligned"),
    ("strided vectors are taken for dense", "vivace/ops/call.cc", "i >= (rank > 1 ? 1 : 0)", "i >= 1", f"{BAD} -k not_dense"),
    ("a dtype that follows a port is not checked", "vivace/ops/call.cc", "!ports_[i].present() || ports_[i].dtype == t.dtype", "!ports_[i].present() || true", f"{BAD} -k wrong_dtype"),
    ("null data is not checked", "vivace/ops/call.cc", "t.data == nullptr && elements != 0", "false", f"{BAD} -k null"),
    ("read-only arrays are written", "python/src/tensor.cc", "write && !(a.flags & kNumpyWritable)", "write && a.flags == 0", f"{BAD} -k read_only"),
    ("swapped bytes are read as they are", "python/src/tensor.cc", "d.byteorder == '>'", "d.byteorder == '#'", f"{BAD} -k not_an_array"),
    ("captured arguments are not kept alive", "python/src/ops.cc", "if (nb::list* list = capture_keep())", "if (nb::list* list = nullptr)", ARRAYS),
    ("policy: a place behind the prefix is seen", "vivace/models/vla/base.cc", "(context_.length)[b] = static_cast<int32_t>(prefix)", "(context_.length)[b] = static_cast<int32_t>(prefix + 1)", f"{POLICY} -k stage"),
    ("policy: the words of the call before", "vivace/models/vla/base.cc", "place(t, at++, b)", "place(ids[row] != 0 ? ids[row] : t, at++, b)", f"{POLICY} -k prompt_state"),
    ("policy: pictures read each other", "vivace/models/vla/base.cc", "static_cast<int64_t>(i) / config_.view_tokens())", "static_cast<int64_t>(i) / config_.view_tokens() ^ 1)", f"{POLICY} -k stage"),
    ("policy: the next step's table", "vivace/models/vla/pipeline.cc", "ada(slice(table, s, 1), {})", "ada(slice(table, s + 1, 1), {})", f"{POLICY} -k stage"),
    ("policy: the next step's time beside given actions", "vivace/models/vla/flow.cc", "std::fill(row + fixed, row + A, s)", "std::fill(row + fixed, row + A, s + 1)", f"{POLICY} -k hard_prefix"),
    ("policy: a gate of the wrong action", "vivace/models/vla/pipeline.cc", '{"table", ada.gate}, {"ids", ada.rows}', '{"table", ada.shift}, {"ids", ada.rows}', f"{POLICY} -k hard_prefix"),
    ("policy: cameras change places", "vivace/models/vla/base.cc", "for (const engine::Frame& f : observations[b].views) {", "for (const engine::Frame& f : std::vector<engine::Frame>(observations[b].views.rbegin(), observations[b].views.rend())) {", f"{POLICY} -k stage"),
    ("policy: actions that are given have the step's time", "vivace/models/vla/flow.cc", "std::fill_n(row, fixed, limits_.steps)", "std::fill_n(row, fixed, s)", f"{POLICY} -k hard_prefix"),
    ("policy: the state sees the actions", "vivace/models/vla/pipeline.cc", 'state ? "state" : "full"', 'state ? "causal" : "full"', f"{POLICY} -k stage"),
    ("policy: words are not scaled", "vivace/models/vla/pipeline.cc", '{{"table", w_.embed}, {"ids", in.ids}, {"out", b_.text.hidden}, {"rows", in.rows}}, {{"scale", std::sqrt(static_cast<double>(c_.text.width))}}', '{{"table", w_.embed}, {"ids", in.ids}, {"out", b_.text.hidden}, {"rows", in.rows}}', f"{POLICY} -k stage"),
    ("policy: a calibrated scale of the place before", "vivace/models/vla/pipeline.cc", "slice(b_.act_scales, place, 1)", "slice(b_.act_scales, place > 0 ? place - 1 : 0, 1)", f"{POLICY} -k calibrated"),
    ("policy: dimensions before frequencies", "vivace/models/vla/codec.cc", "static_cast<size_t>(k * dims + d)", "static_cast<size_t>(d * horizon + k)", f"{POLICY} -k codec"),
    ("text: the head takes the first rows, not the sampled ones", "vivace/models/decoder/pipeline.cc", '{{"table", hidden_}, {"ids", in_.sample_rows}, {"out", last}', '{{"table", hidden_}, {"ids", in_.slot}, {"out", last}', STEPS),
    ("text: local layers see as far as the others", "vivace/models/decoder/pipeline.cc", "local ? local_ : global_", "global_", STEPS),
    ("text: local layers turn as the others do", "vivace/models/decoder/pipeline.cc", "local ? b_.local_inv_freq : b_.inv_freq", "b_.inv_freq", STEPS),
    ("text: a layer's values are another's", "vivace/models/attention_sites.cc", '{"v_cache", v_[static_cast<size_t>(layer)]}', '{"v_cache", v_[0]}', STEPS),
    ("text: what waits is added twice", "vivace/models/decoder/pipeline.cc", "    waiting_ = false;\n    return s;", "    return s;", STEPS),
    ("text: rows of experts are not normalised", "vivace/models/decoder/pipeline.cc", "      VV_TRY(settle());\n      VV_TRY(experts(", "      VV_TRY(experts(", STEPS),
    ("text: a draw is counted from the row's place", "vivace/models/decoder/step_io.cc", "put(in_.sample_step, n, r.pos + 1)", "put(in_.sample_step, n, static_cast<int32_t>(i))", STEPS),
    ("text: sampling of the first slot serves all", "vivace/models/decoder/step_io.cc", "of_slot[static_cast<size_t>(r.slot)]", "of_slot[0]", STEPS),
    ("text: the row before of the rings is read", "vivace/models/decoder/step_io.cc", "static_cast<size_t>(f.row) * static_cast<size_t>(ring_.shape[1])", "static_cast<size_t>((f.row + 1) % static_cast<int>(flights_.size())) * static_cast<size_t>(ring_.shape[1])", STEPS),
    ("text: counts of the sequence before", "vivace/models/decoder/steps.cc", "buffers_.no_counts.data, static_cast<size_t>(counts.span_bytes())", "counts.data, static_cast<size_t>(counts.span_bytes())", STEPS),
    ("text: a page is given to two", "vivace/models/decoder/pages.cc", "free_.resize(free_.size() - static_cast<size_t>(wanted));", "if (free_.size() > 8) free_.resize(free_.size() - static_cast<size_t>(wanted));", "tests/test_pages.py"),
    ("text: whoever ended still draws", "vivace/serve/batcher.cc", "slots_[static_cast<size_t>(sampled_[i].slot)].id == q.requests[i]", "true", STEPS),
    ("text: prompts wait for nobody's answer", "vivace/serve/batcher.cc", "pos == size - 1}", "true}", STEPS),
    ("text: an expert's ups lie on its gates", "vivace/engine/placement.cc", "t.data = static_cast<char*>(t.data) + from[k].shape[1] * row_bytes(t.dtype, t.shape[2]);", "static_cast<void>(k);", STEPS),
    ("text: each expert's up is the one before's", "vivace/engine/placement.cc", "pieces.push_back({expert(from[i], e), expert(part, e)})", "pieces.push_back({expert(from[i], i > 0 && e > 0 ? e - 1 : e), expert(part, e)})", STEPS),
    ("text: int4 codes are cut, not rounded", "vivace/engine/blocks.cc", "x[i] * scale + 8.5", "x[i] * scale + 8.0", "tests/test_int4.py"),
    ("text: FP4 parts lie on each other", "vivace/engine/placement.cc", "slice(g.to, row, 1).data", "slice(g.to, 0, 1).data", "tests/test_fp4.py"),
    ("text: FP4 scales of parts lie on each other", "vivace/engine/placement.cc", "slice(g.to_scale[0], row, 1).data", "slice(g.to_scale[0], 0, 1).data", "tests/test_fp4.py"),
    ("text: FP4 parts take the first one's scale", "vivace/models/decoder/weights.cc", "whole(w.q) != whole(w.k) || ", "", "tests/test_fp4.py"),
    ("text: FP4 codes are read high nibble first", "vivace/engine/weights.cc", "(i % 2 * 4) & 15", "((i + 1) % 2 * 4) & 15", "tests/test_fp4.py"),
    ("text: int8 codes are cut, not rounded", "vivace/engine/blocks.cc", "y + std::copysign(0.5f, y)", "y", "tests/test_int4.py"),
    ("prompt: a state below the bins is the first of them", "vivace/models/vla/prompt.cc", "+ 128.0, -1.0, 255.0", "+ 128.0, 0.0, 255.0", "tests/test_prompt.py"),
    ("text: of equal unions the rightmost goes first", "vivace/engine/text/pieces.cc", "worth < o.worth : at > o.at", "worth < o.worth : at < o.at", "tests/test_pieces.py"),
    ("text: a user's piece is worth no more than another", "vivace/engine/text/pieces.cc", "* most_) - 0.1)", "* most_) - 9.1)", "tests/test_pieces.py"),
    ("text: spaces at the end stay", "vivace/engine/text/normalize.cc", "  if (collapse)\n    while (out->size()", "  if (!collapse)\n    while (out->size()", "tests/test_pieces.py"),
    ("control: an answer's deadline is the watchdog's", "vivace/serve/chunks.cc", "now - asked_ > o_.deadline", "now - asked_ > o_.watchdog", "tests/test_control.py -k deadline"),
    ("control: twice the bound", "vivace/serve/chunks.cc", "if (std::fabs(step) > bound)", "if (std::fabs(step) > 2 * bound)", "tests/test_control.py -k jump"),
    ("control: an answer counts from its arrival", "vivace/serve/chunks.cc", "const int64_t place = tick - chunk.request.tick;\n  return", "const int64_t place = tick - joined_;\n  return", "tests/test_control.py -k counts"),
]

# Only a device shows these: it runs behind the host, and has norms behind products.
BEHIND = [
    ("text: draws are read before their step ends", "vivace/models/decoder/step_io.cc", "VV_TRY(f.done->synchronize());", "", STEPS),
    ("text: steps that are queued share their inputs", "vivace/models/decoder/step_io.cc", "static_cast<size_t>(flight) * bytes_", "static_cast<size_t>(flight * 0) * bytes_", STEPS),
    ("text: rows leave with the weight of a norm that is done", "vivace/models/decoder/pipeline.cc", "w_.layers[next].attn_norm", "w_.layers[next - 1].attn_norm", STEPS),
]
SHORT = "tests/test_model_steps.py -k 'f32_text or errs_no or join or each_row or running_ahead'"  # device time is dear
DECODER = [(*f[:4], SHORT if f[4] == STEPS else f[4], *f[5:]) for f in [*FAULTS, *BEHIND] if f[4] in (STEPS, "tests/test_pages.py")]


class Module:
    """Builds variants of vivace._core beside a finished build."""

    def __init__(self, build):
        self.build = build
        self.compile = {c["file"]: c for c in json.loads((build / "compile_commands.json").read_text())}
        lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "_core"], capture_output=True, text=True, check=True).stdout.splitlines()
        link = [line for line in lines if "-shared" in line and "_core." in line][-1]
        self.link = shlex.split(link.replace(": &&", "").replace("&& :", ""))
        self.library = next(i for i, a in enumerate(self.link) if a.endswith("libvivace_core.a"))
        self.output = self.link.index("-o") + 1

    def variant(self, folder, changed, text, source):
        """An importable package below `folder` in which `changed` has the given text."""
        copy = folder / changed
        copy.parent.mkdir(parents=True)
        copy.write_text(text)
        if source != changed:  # quotes look beside the including file first, then along -I
            (folder / source).parent.mkdir(parents=True, exist_ok=True)
            (folder / source).write_text((ROOT / source).read_text())
        command = self.compile[str(ROOT / source)]
        words, target = shlex.split(command["command"]), str(folder / "changed.o")
        usual = words[words.index("-o") + 1]
        words[words.index("-o") + 1], words[words.index("-c") + 1] = target, str(folder / source)
        beside = ["-I", str((ROOT / source).parent)] if source.startswith("python/") else []
        subprocess.run([words[0], "-I", str(folder), *beside, *words[1:], "-Wno-error"], cwd=command["directory"], check=True, capture_output=True, text=True)
        link = list(self.link)
        package = folder / "package" / "vivace"
        package.mkdir(parents=True)
        link[self.output] = str(package / Path(link[self.output]).name)
        if usual in link:
            link[link.index(usual)] = target
        else:
            link.insert(self.library, target)
        subprocess.run(link, cwd=self.build, check=True, capture_output=True, text=True)
        for f in (ROOT / "python/vivace").iterdir():
            (package / f.name).symlink_to(f)
        return package.parent


def plant(module, fault, folder):
    """The folder of a package that has this fault."""
    what, changed, right, wrong, tests, *source = fault
    text = (ROOT / changed).read_text()
    if text.count(right) < 1:
        raise SystemExit(f"{changed} no longer contains {right!r}: bring this fault up to date")
    return module.variant(Path(folder), changed, text.replace(right, wrong), source[0] if source else changed)


def notices(path, fault, *more):
    """Whether the tests fail on the package with this fault below `path`; what they said."""
    search = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *more, *shlex.split(fault[4])], cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=300)
    return noticed(done.stdout + done.stderr, done.returncode, True)


def caught(module, fault):
    with tempfile.TemporaryDirectory() as folder:
        return notices(plant(module, fault, folder), fault)


def key(fault):
    return re.sub(r"[^a-z0-9]+", "_", fault[0].lower()).strip("_")


def pack(module, faults, file):
    """The modules alone, stripped, in an archive: they are alike, so it is little larger than one."""
    with tarfile.open(file, "w:xz", preset=9) as tar, tempfile.TemporaryDirectory() as folder:
        for fault in faults:
            path = plant(module, fault, f"{folder}/{key(fault)}") / "vivace" / Path(module.link[module.output]).name
            subprocess.run(["strip", path], check=True)
            tar.add(path, f"{key(fault)}/{path.name}")


def packed(faults, file, device, jobs, receipt):
    """What tests say to the faults of an archive that pack() made; the package's Python is the installed one."""
    import vivace
    from vivace import device as gpu

    info, state = (gpu.info(), gpu.state()) if receipt else ({}, {})
    r = Receipt("host_faults", chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]}, versions={"vivace": vivace.__version__},
                commit=os.environ.get("VIVACE_COMMIT", "dirty"), command=f"python tests/planted_faults.py --packed FILE --device {device} --receipt",
                sources=["vivace/models/decoder/*.cc", "vivace/models/decoder/*.h", "vivace/serve/*.cc", "vivace/engine/placement.cc", "tests/planted_faults.py", "tests/test_model_steps.py", "tests/test_pages.py"]) if receipt else None

    installed = Path(vivace.__file__).parent
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        with tarfile.open(file) as tar:
            tar.extractall(folder, filter="data")

        def run(fault):
            of, package = Path(folder) / key(fault), Path(folder) / key(fault) / "package" / "vivace"
            package.mkdir(parents=True)
            for f in [*of.glob("_core*"), *(f for f in installed.iterdir() if not f.name.startswith("_core"))]:
                (package / f.name).symlink_to(f)
            return notices(package.parent, fault, "--device", device)

        begun = {pool.submit(run, f): f for f in faults}
        for done in concurrent.futures.as_completed(begun):
            fault, (ok, said) = begun[done], done.result()
            yield fault, ok, said
            if r:
                r.row(op=Path(fault[1]).stem, case=f"fault={key(fault)}", tool="pytest", note=said, **{"pass": ok})
                r.write("tests")  # a run that is cut short keeps what it has


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", nargs="?", type=Path, help="default: the newest folder below build/ that has the module")
    p.add_argument("-k", default="", metavar="word", help="only faults whose text contains it")
    p.add_argument("--pack", metavar="FILE", help="build modules with the decoder's faults, run nothing")
    p.add_argument("--packed", metavar="FILE", help="run those of such a file")
    p.add_argument("--device", default="cuda", help="of --packed")
    p.add_argument("--jobs", type=int, default=4, help="of --packed, side by side")
    p.add_argument("--receipt", action="store_true", help="of --packed: write tests/results/<chip>/host_faults.json")
    args = p.parse_args()
    chosen = [f for f in (DECODER if args.pack or args.packed else FAULTS) if args.k in " ".join(f)]
    if args.packed:
        answers = packed(chosen, args.packed, args.device, args.jobs, args.receipt)
    else:
        found = sorted((f.parent.parent for f in (ROOT / "build").glob("*/python/CMakeFiles")), key=lambda f: (f / "build.ninja").stat().st_mtime)
        if not args.build and not found:
            p.error("no build below build/; configure one with -DVV_PYTHON=ON")
        module = Module((args.build or found[-1]).resolve())
        if args.pack:
            return pack(module, chosen, args.pack)
        answers = ((fault, *caught(module, fault)) for fault in chosen)
    missed = []
    for fault, ok, said in answers:
        missed += [] if ok else [fault]
        print(f"{'caught' if ok else 'MISSED'}  {fault[0]}  ({fault[1]}): {said}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} planted faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
