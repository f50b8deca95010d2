#!/usr/bin/env python3
"""Proof that the op tests can fail: plants one fault at a time in the C++ sources and runs them.

    python tests/planted_faults.py [build folder] [-k word]
    python tests/planted_faults.py --pack FILE [build folder]                # modules that hold a decoder's fault each
    python tests/planted_faults.py --packed FILE --device cuda [--receipt]   # their tests, on a machine without compilers

The folder is a CMake build with VV_PYTHON=ON and Ninja (default: the newest below build/). The tree itself
is never touched: the changed file is compiled from a copy and linked in front of the library, or stands in a copy of the package.
A fault that no test notices makes the exit status 1.
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
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.planted_gpu import noticed  # noqa: E402
from tests.planting import places, replaced  # noqa: E402
from tools.receipt import Receipt  # noqa: E402

POLICY = "tests/test_policy.py"
GROOT, GROOT16 = "tests/test_groot.py", "tests/test_groot_n16.py"
FRAMES = "tests/test_groot_frames.py -k against"
REPLY = "tests/test_reply.py"
STRUCTURED = "tests/test_structured.py -k 'lengths or beside or regex'"
SESSIONS = "tests/test_sessions.py -k 'longer or random or n_answers'"
HYBRID = "tests/test_hybrid_reuse.py --timeout 120 -k 'not server'"
MTP = "tests/test_mtp.py"
GGUF = "tests/test_hybrid_gguf.py -k logits"
NEXT = "tests/test_qwen3_next.py -k transformers"
LOOP = "tests/test_engine_loop.py --timeout 60 --timeout-method thread"
STEPS = "tests/test_model_steps.py -k 'not many'"
RANDOM = "tests/test_random_models.py -k 'test_models and {}'"
HOST = "tests/test_policy_host.py"
SCHEDULE = "tests/test_schedule.py --timeout 60 --timeout-method thread"
OPS, BAD, ARRAYS, DRAWS = "tests/test_ops.py", "tests/test_ops_bad.py", "tests/test_arrays.py", "tests/test_sampling_stats.py"

FFI, XLAS = "tests/test_jax_ffi.py", "tests/test_fake_driver.py -k xlas"
STREAM, NAMES, EXPERTS = "tests/test_speech_stream.py", "tests/test_compat_flashinfer_names.py", "tests/test_compat_flashinfer_experts.py"
BOX, SERVER, BOUNDS, REUSE, CAPSULES = (f"tests/test_{name}.py --timeout 60" for name in ("outbox", "server", "server_bounds", "server_reuse", "capsules"))

# (what is wrong, file, right, wrong, tests[, the .cc to compile where the file is a header])
FAULTS = [
    ("a stop string's token keeps its logprob", "vivace/serve/outbox.cc", "c.drawn.front().at < c.parser->given()", "c.drawn.front().at <= c.parser->given()", f"{BOX} -k tokens_go"),
    ("what the ring has no room for is lost", "vivace/serve/outbox.cc", "s.pending.erase(0, count);", "s.pending.clear();", f"{BOX} -k slow"),
    ("reasoning and text are joined", "vivace/serve/outbox.cc", "from.kind == to.kind && from.index", "from.index", f"{BOX} -k every_cut"),
    ("quotes in an answer are not escaped", "vivace/serve/reply_wire.cc", "for (const char c : s) append_json_escaped(c, out);", "*out += s;", f"{BOX} -k every_cut"),
    ("who leaves is answered all the same", "python/vivace/server/web.py", "            left()\n", "            pass\n", f"{BOUNDS} -k who_leaves"),
    ("a closed connection is written to", "python/vivace/server/protocol.py", "if self._transport.is_closing():\n            return False", "pass", f"{BOUNDS} -k is_closed"),
    ("a byte more of headers is taken", "python/vivace/server/protocol.py", "self._head > limits.header_bytes:", "self._head > limits.header_bytes + 1:", f"{BOUNDS} -k bytes_of_headers"),
    ("keys share what was computed", "python/vivace/server/auth.py", 'self._hash(b"salt" + digest).hex()', '""', f"{REUSE} -k keys"),
    ("every class is for everybody", "python/vivace/server/sampling.py", "if PRIORITIES.index(wanted) < PRIORITIES.index(identity.priority):", "if False:", f"{REUSE} -k keys"),
    ("choices compute a prompt each", "python/vivace/server/engine.py", "self._submitted(request, 0 if first else leader)", "self._submitted(request, 0)", f"{REUSE} -k choices"),
    ("likeliest tokens are of the row before", "vivace/serve/batcher.cc", "logits.subspan(i * ", "logits.subspan(0 * ", f"{REUSE} -k logits"),
    ("capsules: an answer goes on a token late", "vivace/serve/seats.cc", "job->last_ = r.prompt.back();", "job->last_ = r.prompt.front();", CAPSULES),
    ("capsules: blocks that lie apart are taken for neighbours", "vivace/models/decoder/state.cc", "blocks[end] == blocks[end - 1] + 1;) ++end;", "blocks[end] >= 0;) ++end;", f"{CAPSULES} -k apart"),
    ("capsules: what is held is forgotten", "vivace/serve/snapshot.cc", "model.read_blocks(blocks_, all.first(split))", "model.read_blocks(std::span(blocks_).first(0), {})", CAPSULES),
    ("capsules: the seal is not looked at", "python/vivace/capsule_file.py", "if not hmac.compare_digest(", "if False and hmac.compare_digest(", CAPSULES),
    ("capsules: grammars begin anew", "python/vivace/model.py", "matcher.replay(list(replayed))", "pass", CAPSULES),
    ("capsules: anybody's are everybody's", "python/vivace/server/kept.py", "if found is None or found.owner != owner:\n            raise missing(ident, \"capsule\", param)", "if found is None:\n            raise missing(ident, \"capsule\", param)", "tests/test_server_capsules.py --timeout 60"),
    ("openapi: methods of a route hide each other", "python/vivace/server/openapi.py", "paths.setdefault(path, {})[method.lower()]", "paths.setdefault(path, {})['get']", "tests/test_server_openapi.py -k document"),
    ("any key opens", "python/vivace/server/auth.py", "if hmac.compare_digest(known, digest):", "if known:", f"{BOUNDS} -k test_keys"),
    ("the queue has no end", "python/vivace/server/engine.py", "if self.choices + choices > self.most:", "if self.choices < 0:", f"{BOUNDS} -k test_the_queue"),
    ("usage comes unasked", "python/vivace/server/chat.py", "bool(asked.stream_options and asked.stream_options.include_usage)", "bool(asked.stream_options)", f"{SERVER} -k no_usage"),
    ("SIGTERM ends answers at once", "python/vivace/server/run.py", "call_later(self._drain_s,", "call_later(0,", f"{BOUNDS} -k lets_answers_end"),
    ("a file's last byte is cut", "python/vivace/server/multipart.py", "memoryview(body)[begin:max(begin, end)]", "memoryview(body)[begin:max(begin, end - 1)]", "tests/test_server_speech.py -k forms"),
    ("odd words at a window's end stay", "python/vivace/speech/guards.py", "or end - p[\"end\"] < _NEAR", "", "tests/test_speech_guards.py -k after_silence"),
    ("times that leave no room are believed", "python/vivace/speech/guards.py", "len(text) > FAST * seconds", "len(text) < 0", "tests/test_speech_guards.py -k room"),
    ("all lanes are told of the first one's window", "python/vivace/speech/engine.py", '{"window": index[id(lane)]}', '{"window": 0}', "tests/test_speech_engine.py -k many_threads"),
    ("what an interrupted driver had taken is lost", "python/vivace/speech/engine.py", "self._waiting.extendleft((job, lane)", "list((job, lane)", "tests/test_speech_engine.py -k interrupted"),
    ("an update hears what comes after it", "python/vivace/speech/stream.py", "self._start - self._base:end - self._base]", "self._start - self._base:]", f"{STREAM} -k any_pieces"),
    ("half a sample is lost", "python/vivace/audio.py", "self._raw = raw[whole:]", 'self._raw = b""', f"{STREAM} -k any_pieces"),
    ("a token that hears the end is said", "vivace/models/whisper/text.cc", "f.content - place <= f.margin", "f.content - place < 0", f"{STREAM} -k places"),
    ("sched: a gate without a wait", "vivace/exec/cpu_gate.cc", "if (open(mask)) return;", "if (open(mask) || words() > 0) return;", f"{SCHEDULE} -k models_share"),
    ("sched: a launch begins before the gate in front of it is open", "vivace/exec/cuda_stream.cc", ".pdl = launch.pdl && !behind_gate,", ".pdl = launch.pdl,", "tests/test_fake_driver.py -k before_the_gate"),
    ("sched: nobody opens the gate", "vivace/engine/urgent.h", "Status s = stream_.set(*urgent_->gate, urgent_->word, false);\n    shut_ = !s.ok();", "Status s;\n    shut_ = false;", f"{SCHEDULE} -k stand_back", "vivace/models/vla/flow.cc"),
    ("sched: a step passes another tenant's word", "vivace/sched/scheduler.cc", "1u << (kFirstHold + tenant->hold_word_)", "1u << (kFirstHold + (tenant->hold_word_ ^ 1))", f"{SCHEDULE} -k models_share"),
    ("sched: the bound is half of the stretch", "vivace/engine/gate_plan.cc", "std::max(plan.stretch_us, work(from, times.us.size()) + head)", "std::max(plan.stretch_us, (work(from, times.us.size()) + head) / 2)", f"{SCHEDULE} -k longest_stretch"),
    ("sched: page-locked memory goes back while others stand", "vivace/device/host_blocks.cc", "const bool keeps = gates_alive();", "const bool keeps = false;", "tests/test_fake_driver.py -k waits"),
    ("sched: waits at gates are charged", "vivace/sched/scheduler.cc", "us - stood_back, stood_back", "us, 0.0 * stood_back", f"{SCHEDULE} -k stand_back"),
    ("names: a row's noise is every row's", "python/vivace/compat/flashinfer/sampling.py", "(rows + stream * (1 << 40)) * _ROW", "(rows * 0 + stream) * _ROW", f"{NAMES} -k probability"),
    ("names: heads of a part are those before it", "python/vivace/compat/arrays.py", "x[..., place, :] for x in arrays", "x[..., max(place - 1, 0), :] for x in arrays", f"{NAMES} -k norms"),
    ("names: the gate's rows come first", "python/vivace/compat/flashinfer/fused_moe.py", "gate=both[:, M:] if gated else both, **({\"up\": both[:, :M]}", "gate=both[:, :M] if gated else both, **({\"up\": both[:, M:]}", "tests/test_compat_flashinfer_moe.py -k experts"),
    ("names: absent experts' weights are read", "python/vivace/compat/flashinfer/fused_moe.py", "where(absent, 0.0, weights)", "weights", "tests/test_compat_flashinfer_moe.py -k absent"),
    ("names: hidden rows are not rounded to e4m3", "python/vivace/compat/flashinfer/experts.py", 'cast(cast(x.clip(-_E4M3_MAX, _E4M3_MAX), dtype_like("float8_e4m3fn", x)), back)', "cast(x.clip(-_E4M3_MAX, _E4M3_MAX), back)", f"{EXPERTS} -k tensors"),
    ("names: blocks of rows end at the last", "python/vivace/compat/flashinfer/experts.py", "repeat(s[which], 128, 1)[:, :N]", "repeat(s[which], 128, 1)[:, -N:]", f"{EXPERTS} -k blocks"),
    ("names: int4's upper half has no sign", "python/vivace/compat/flashinfer/experts.py", "(bytes_ >> 4 ^ 8)", "(bytes_ >> 4)", f"{EXPERTS} -k groups"),
    ("names: folded scales are not unfolded", "python/vivace/compat/flashinfer/experts.py", "swapped(seen_as(s, \"bfloat16\"), 0, 1, 4, 3, 2)", "swapped(seen_as(s, \"bfloat16\"), 0, 1, 3, 4, 2)", f"{EXPERTS} -k kernels"),
    ("names: a tile's scales lie in rows", "python/vivace/compat/flashinfer/experts.py", "swapped(tiles, 0, 1, 4, 3, 2, 5)", "swapped(tiles, 0, 1, 3, 4, 2, 5)", f"{EXPERTS} -k nvfp4"),
    ("names: the first expert's scale is all's", "python/vivace/compat/flashinfer/experts.py", "wide * of_rows(self.scale, expert)", "wide * self.scale[:1]", f"{EXPERTS} -k 'tensors or nvfp4'"),
    ("names: rows widen the first expert", "python/vivace/compat/flashinfer/experts.py", "expert = expert.clip(0, E - 1)", "expert = expert.clip(0, 0)", f"{EXPERTS} -k 'blocks or few'"),
    ("names: the gate has no limit", "python/vivace/compat/flashinfer/fused_moe.py", "    gate = _below(gate, limit)\n", "", f"{EXPERTS} -k limits"),
    ("names: an item sees its delimiter", "python/vivace/compat/flashinfer/call.py", "(at < key + position)", "(at <= key + position)", "tests/test_compat_flashinfer_forms.py -k items"),
    ("names: padded states count", "python/vivace/compat/flashinfer/cascade.py", "            sums[beside(~inside, v)] = -math.inf\n", "", "tests/test_compat_flashinfer_forms.py -k varying"),
    ("names: latents of e4m3 have one scale", "python/vivace/compat/flashinfer/mla.py", "repeat(taken(ckv_scale_arr, pages), 128, -1)", "taken(ckv_scale_arr, pages)[..., :1]", "tests/test_compat_flashinfer_mla.py -k e4m3"),
    ("names: copied latents keep the old pages", "python/vivace/compat/flashinfer/mla.py", 'self._separate["page_table"]\n', 'self._buffers["page_table"]\n', "tests/test_compat_flashinfer_mla.py -k requests"),
    ("functions: a name's types are not held", "python/vivace/functions.py", "type_of(inputs[port]) != wanted", "type_of(inputs[port]) == 0", "tests/test_functions.py -k types_are_held"),
    ("functions: fp8 is the result of a product", "python/vivace/functions.py", 'inputs if product else ("out",)', '("out",)', "tests/test_functions.py -k words_say"),
    ("profiles: regions of threads are one", "vivace/engine/launch_profile.cc", "thread_local std::vector<std::string> regions;", "std::vector<std::string> regions;", "tests/test_profiler.py -k regions"),
    ("profiles: a total is the last call's", "vivace/engine/launch_profile.cc", "r.us += us;", "r.us = us;", "tests/test_profiler.py -k costs"),
    ("profiles: replayed steps are not seen", "vivace/exec/cpu_stream.cc", "if (device::observer() != nullptr) [[unlikely]] return run_observed(pool);", "", "tests/test_profiler.py -k capture"),
    ("streams: replays do not count", "vivace/exec/cpu_stream.cc", "device::count(device::stream_counts(kCpu, nullptr).replays);", "", "tests/test_profiler.py -k streams"),
    ("arrays: a broadcast operand's bytes count for each element", "vivace/array/work.cc", "s.in_stride[k][i] == 0 ? 1 : s.dim[i]", "s.dim[i]", "tests/test_profiler.py -k named"),
    ("arrays: memory that came back still counts", "vivace/array/storage.cc", "if (data != nullptr) host_used -= room_of(bytes);", "", "tests/test_array_pool.py"),
    ("arrays: a limit is none", "vivace/array/storage.cc", "limit == 0 || used <= limit", "limit == 0 || used > 0", "tests/test_array_pool.py -k limit"),
    ("names: offsets begin with the batch", "python/vivace/compat/flashinfer/rope.py", "as_i32(offsets) - begins[:-1]", "as_i32(offsets)", f"{NAMES} -k rope"),
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
    ("a row that the table of gates lacks is read", "vivace/cpu/gate/gate_residual.cc", "(ada < 0 || ada >= a.R)", "(ada < 0)", f"{OPS} -k gate_residual"),
    ("the signal's end is not reflected", "vivace/kernels/audio/stft_mel.h", "2 * (N - 1) - at", "N - 1", f"{OPS} -k stft_mel", "vivace/cpu/audio/stft_mel.cc"),
    ("odd samples' spectrum is not turned", "vivace/cpu/audio/stft_mel.cc", "const Turn w = circle[f];", "const Turn w = circle[0 * f];", f"{OPS} -k stft_mel"),
    ("a radix of 4 turns the other way", "vivace/cpu/audio/stft_mel.cc", "fr + hi, x[m].im[l] = fi - hr", "fr - hi, x[m].im[l] = fi + hr", f"{OPS} -k stft_mel"),
    ("bands begin too late", "vivace/cpu/audio/stft_mel.cc", "stretches[m] = {first, end}", "stretches[m] = {first + 1, end}", f"{OPS} -k stft_mel"),
    ("a peak is the batch's", "vivace/cpu/audio/mel_clamp.cc", "a.peak[b]", "a.peak[0 * b]", f"{OPS} -k mel_clamp"),
    ("an output takes its neighbour's phase", "vivace/cpu/audio/resample.cc", "(at - whole * a.up) * a.filter_stride", "(a.up - 1 - at + whole * a.up) * a.filter_stride", f"{OPS} -k resample"),
    ("a cell forgets what it should take in", "vivace/cpu/audio/lstm_cell.cc", "sigmoid(g[a.H + h]) * cell[h] + sigmoid(g[h])", "sigmoid(g[h]) * cell[h] + sigmoid(g[a.H + h])", f"{OPS} -k lstm_cell"),
    ("samples of 24 bits have no sign", "vivace/engine/audio/wav.cc", "<< 24) >> 8)", "<< 24) >> 8 & 0xffffff)", "tests/test_audio.py"),
    ("a header is believed", "vivace/engine/audio/wav.cc", "if (said > left && !unknown(said))", "if (said > 2 * left + 4096 && !unknown(said))", "tests/test_audio.py"),
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
    ("all tokens turn by the first one's angles", "vivace/cpu/rope/qkv_rope.cc", "a.angles + t * a.angles_stride", "a.angles + 0 * t * a.angles_stride", f"{OPS} -k qkv_rope"),
    ("all pairs turn by the first axis", "vivace/kernels/rope/qkv_rope.h", "axis != nullptr ? axis[i] : 0", "0 * i", f"{OPS} -k qkv_rope", "vivace/cpu/rope/qkv_rope.cc"),
    ("an axis that is not there is read", "vivace/kernels/rope/qkv_rope.h", "row >= 0 && row < A ?", "row >= 0 && row <= A ?", f"{OPS} -k qkv_rope", "vivace/cpu/rope/qkv_rope.cc"),
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
    ("attention: heads come first and are read as places", "vivace/kernels/attention/attention.h", "return heads_first ? L : 1;", "return 1;", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: places that lie apart are taken for dense", "vivace/cpu/attention/heads.h", "a.row_in_block(slot, j0 + j) * pitch", "a.row_in_block(slot, j0 + j) * (a.heads_first ? dim : a.Hkv * dim)", f"{OPS} -k attention", "vivace/cpu/attention/level_avx512.cc"),
    ("attention: values lie as far apart as keys", "vivace/ops/attention.h", 'hnd ? Dv : c.pitch("v")', 'hnd ? Dv : c.pitch("k")', f"{OPS} -k attention"),
    ("latent_attention: the sums are not rescaled", "vivace/cpu/attention/latent_attention.cc", "if (shrink != 1.0f)", "if (shrink > 2.0f)", f"{OPS} -k latent_attention"),
    ("latent_attention: values are the row's end", "vivace/cpu/attention/latent_attention.cc", "sum[i] += w * row[i];", "sum[i] += w * row[E - C + i];", f"{OPS} -k latent_attention"),
    ("attention_block_scaled: a head has its neighbour's scales", "vivace/cpu/attention/attention_block_scaled.cc", "scales_at + head * (d / 16)", "scales_at + (head + 1) * (d / 16)", f"{OPS} -k attention_block_scaled"),
    ("attention_block_scaled: the sums are not rescaled", "vivace/cpu/attention/attention_block_scaled.cc", "sum[i] = sum[i] * shrink + w * row[i]", "sum[i] = sum[i] + w * row[i]", f"{OPS} -k attention_block_scaled"),
    ("scaled_attention: values have their keys' scale", "vivace/cpu/attention/scaled_attention.cc", "m.v_scale[kv] : 1.0f) / row_sum", "m.k_scale[kv] : 1.0f) / row_sum", f"{OPS} -k scaled_attention"),
    ("spread_offsets: a slot's first token is its predecessor's", "vivace/kernels/attention/spread_offsets.h", "offsets[middle] <= t", "offsets[middle] < t", f"{OPS} -k spread_offsets", "vivace/cpu/attention/spread_offsets.cc"),
    ("spread_offsets: tokens are the first of their keys", "vivace/kernels/attention/spread_offsets.h", "t - first + ahead", "t - first", f"{OPS} -k spread_offsets", "vivace/cpu/attention/spread_offsets.cc"),
    ("merge_states: the last state is left out", "vivace/cpu/attention/merge_states.cc", "for (int64_t n = 0; n <= a.N; ++n) row_sum", "for (int64_t n = 0; n < a.N; ++n) row_sum", f"{OPS} -k merge_states"),
    ("gated_delta: correction is made of a", "vivace/cpu/linear/gated_delta.cc", "delta_beta(one(in.b, in.dtype, t * in.b_stride + h))", "delta_beta(one(in.a, in.dtype, t * in.a_stride + h))", f"{OPS} -k gated_delta"),
    ("gated_delta: beta is forgotten", "vivace/cpu/linear/gated_delta.cc", "held[c] = gates.beta *", "held[c] = 1.0f *", f"{OPS} -k gated_delta"),
    ("causal_conv: the state is one token old", "vivace/cpu/linear/causal_conv.cc", "std::copy_n(window[k + 1], count, state", "std::copy_n(window[k], count, state", f"{OPS} -k causal_conv"),
    ("causal_conv: rows behind the last reach the state", "vivace/cpu/linear/causal_conv.cc", "static_cast<int32_t>(valid_rows(a.rows, a.T))", "a.T", "tests/test_hybrid.py -k pad"),
    ("a sequence begins with its predecessor's state", "vivace/models/decoder/step_io.cc", "rows[i].pos == 0 ? 1 : 0", "0", "tests/test_hybrid.py -k 'side or forward'"),
    ("hybrids: scales of heads as they are before their gate", "vivace/models/decoder/introspection.cc", "(carries || config_.has(kGatedAttention))", "carries", "tests/test_hybrid_fp8.py -k magnitudes"),
    ("scales of a cache: values are divided by that of keys", "vivace/models/layer/attention_sites.cc", "columns(scaled.codes, width, width), scaled.v_scale", "columns(scaled.codes, width, width), scaled.k_scale", "tests/test_kv_scales.py -k codes"),
    ("scales of a cache: scores are those of codes", "vivace/models/layer/attention_sites.cc", "return attend(rec, site, layer, seen, from.scaled.k_factor);", "return attend(rec, site, layer, seen, 1);", "tests/test_kv_scales.py -k codes"),
    ("scales of a cache: the product behind leaves that of values out", "vivace/models/decoder/pipeline.cc", "{w.o, w.o_bias, w.o_scale, w.v_scale}", "{w.o, w.o_bias, w.o_scale}", "tests/test_kv_scales.py -k behind"),
    ("scales of a cache: calibrated places are as without", "vivace/models/decoder/model.cc", "size_t{kAttended}] /= w.v_scale;", "size_t{kAttended}] /= 1;", "tests/test_kv_scales.py -k calibrated"),
    ("a position that a state has behind it is taken", "vivace/models/decoder/steps.cc", "r.pos != next && (goes_on", "r.pos > next && (goes_on", "tests/test_hybrid.py -k forward"),
    ("a state goes over guesses", "vivace/cpu/linear/gated_delta.cc", "slot < 0 || a.frozen", "slot < 0", f"{MTP} -k leaves_the_state"),
    ("a convolution goes over guesses", "vivace/cpu/linear/causal_conv.cc", "row >= 0 && !a.frozen", "row >= 0", f"{MTP} -k leaves_the_state"),
    ("moe_route: a shared expert is taken whole", "vivace/cpu/moe/moe_route.cc", "w[K] = 1.0f / (1.0f + std::exp(-x[E]))", "w[K] = 1.0f", f"{OPS} -k moe_route"),
    ("grouped_gemm: all e4m3 experts have the first one's scales", "vivace/cpu/moe/grouped_gemm.cc", "a.w_row_scale + e * a.scale_stride", "a.w_row_scale", f"{OPS} -k grouped_gemm"),
    ("moe_mlp: ups of e4m3 experts have the gates' scales", "vivace/ops/moe_mlp.h", 'experts(rows, "w_up", of(M),', 'experts(rows, "w_up", of(0),', f"{OPS} -k moe_mlp", "vivace/ops/registry.cc"),
    ("fp8: all experts have the first one's scales", "vivace/engine/weight_uploader.cc", "slice(scales, row, to.shape[0])", "slice(scales, 0 * row, to.shape[0])", "tests/test_hybrid_fp8.py -k same_roundings"),
    ("the shared expert's up is its gate", "vivace/engine/weight_uploader.cc", "pieces.push_back({behind[i],", "pieces.push_back({behind[0],", "tests/test_hybrid.py -k shared_expert"),
    ("a guess that was right never enters the state", "vivace/serve/batcher.cc", "static_cast<int>(job->checked_) - 1", "0", f"{MTP} -k change_no_token"),
    ("draws behind wrong guesses count", "vivace/serve/batcher.cc", "job->guesses_[job->checked_ - 1] != job->last_) return {};", "false) return {};", f"{MTP} -k change_no_token"),
    ("draws of rows that come once more count", "vivace/serve/batcher.cc", "job->dropped_ = again;", "job->dropped_ = 0;", f"{MTP} -k change_no_token"),
    ("who comes back has a state with guesses in it", "vivace/serve/seats.cc", "job->fed_ - job->behind_", "job->fed_", f"{MTP} -k give_way"),
    ("the draft layer goes on from the row behind", "vivace/models/decoder/draft.cc", "h.at + r.pos - h.first", "h.at + r.pos - h.first + (r.pos + 1 < h.past ? 1 : 0)", f"{MTP} -k references"),
    ("guesses behind the first go on from their tokens alone", "vivace/models/decoder/pipeline.cc", "in_.source.present() ? hidden_ : heard", "hidden_", f"{MTP} -k references"),
    ("the draft layer takes the hidden state at the other side of the norm", "vivace/models/decoder/pipeline.cc", "if (c_.drafts_from_normed) return op_.norm", "if (!c_.drafts_from_normed) return op_.norm", f"{MTP} -k references"),
    ("guesses are drawn with the noise of the token before", "vivace/models/decoder/step_io.cc", "kind_ == Kind::drafts_on ? 2 : 1", "kind_ == Kind::drafts_on ? 1 : 1", f"{MTP} -k noise"),
    ("delta_gates: the bias is forgotten", "vivace/cpu/linear/delta_gate.h", "a + bias", "a", f"{OPS} -k delta_gates", "vivace/cpu/linear/delta_gates.cc"),
    ("gate_heads: one gate a head is that of its first element", "vivace/cpu/gate/gate_heads.cc", "t * a.gate_stride + n * a.G", "t * a.gate_stride + n * a.D", f"{OPS} -k gate_heads"),
    ("gemm: columns are taken from one further on", "vivace/cpu/gemm/gemm.cc", "(k + i) * a.w_stride", "(k + i + (i > 0 ? -1 : 0)) * a.w_stride", "tests/test_gemm_columns.py"),
    ("gemm: fp8 may lie column after column", "vivace/ops/gemm.h", "(w.dtype != DType::f32 && info(w.dtype).bytes != 2)", "info(w.dtype).bytes > 4", "tests/test_gemm_columns.py -k refused"),
    ("gemm: columns may overlap", "vivace/ops/call.cc", "|| t.stride[1] < t.shape[0])", ")", "tests/test_gemm_columns.py -k strides"),
    ("gemm: rows swap their fifth bits where one token meets them", "vivace/cpu/gemm/rows_avx512.h", "fifths(r) | fifths(r + 4) << 32", "fifths(r + 4) | fifths(r) << 32", f"{OPS} -k gemm", "vivace/cpu/gemm/level_avx512.cc"),
    ("gemm: q6_k's second and third run of one token are swapped", "vivace/cpu/gemm/rows_avx512.h", "_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(e, f, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd)", "_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd), _mm512_shuffle_i32x4(e, f, 0x88)", f"{OPS} -k gemm", "vivace/cpu/gemm/level_avx512.cc"),
    ("gemm: a k-quant's upper scales lose their high bits", "vivace/cpu/gemm/unpack.h", "B::shl(B::band(B::shr(head[1], 8 * j - 26), 3), 4)", "B::shl(B::band(B::shr(head[1], 8 * j - 26), 1), 4)", f"{OPS} -k gemm", "vivace/cpu/gemm/level_avx512.cc"),
    ("ties go to the highest id", "vivace/cpu/sampling/sample.cc", "for (argmax_ = first; z[argmax_ - first] != max_;) ++argmax_;", "for (argmax_ = first + n - 1; z[argmax_ - first] != max_;) --argmax_;", f"{OPS} -k sample"),
    ("top_k keeps one more", "vivace/cpu/sampling/sample.cc", "static_cast<uint64_t>(k), []", "static_cast<uint64_t>(k + 1), []", DRAWS),
    ("the mask is read one bit off", "vivace/cpu/sampling/sample.cc", ">> (v % 32) & 1", ">> ((v + 1) % 32) & 1", f"{OPS} -k sample"),
    ("the step does not reach the noise", "vivace/cpu/sampling/sample.cc", "a_.step ? static_cast<uint32_t>(a_.step[t_]) : 0", "0", f"{OPS} -k sample"),
    ("repetition of a negative logit divides", "vivace/cpu/sampling/sample.cc", ": l[i] * repetition", ": l[i] / repetition", f"{OPS} -k sample"),
    ("top_logprobs: the joint rule is forgotten", "vivace/cpu/sampling/top_logprobs.cc", "spans_.together && log_sum(1)", "false && log_sum(1)", f"{OPS} -k top_logprobs"),
    ("top_logprobs: of equal tokens the last comes first", "vivace/cpu/sampling/top_logprobs.cc", "z[i] > logprob[at - 1]; --at", "z[i] >= logprob[at - 1]; --at", f"{OPS} -k top_logprobs"),
    ("a step has no room for two wanted things of one row", "vivace/models/whisper/text.cc", "std::max(rows.size(), wanted.size())", "rows.size()", "tests/test_speech_batch.py -k alone"),
    ("a token at the end of the vocabulary is not counted", "vivace/cpu/sampling/count_tokens.cc", "id < a.V", "id < a.V - 1", f"{OPS} -k count_tokens"),
    ("a capture runs its launches as well", "vivace/exec/cpu_stream.cc", "capture_->add(launch);\n    return {};", "capture_->add(launch);", f"{OPS} -k norm"),
    ("a replay skips the last launch", "vivace/exec/cpu_stream.cc", "for (const Step& s : steps_) run(s, pool);", "for (const Step& s : steps_)\n      if (&s != &steps_.back()) run(s, pool);", f"{OPS} -k norm"),
    ("aliasing is not checked", "vivace/ops/call.cc", "return check_aliasing();", "return {};", f"{BAD} -k overlap"),
    ("alignment is not checked", "vivace/ops/call.cc", "% align != 0", "% 1 != 0", f"{BAD} -k misaligned"),
    ("places of keys may overlap", "vivace/ops/call.cc", "apart ? t.stride[i] < want || t.stride[i] > INT32_MAX", "apart ? t.stride[i] > INT32_MAX", f"{BAD} -k overlap"),
    ("strided vectors are taken for dense", "vivace/ops/call.cc", "i >= (rank > 1 ? 1 : 0)", "i >= 1", f"{BAD} -k not_dense"),
    ("a dtype that follows a port is not checked", "vivace/ops/call.cc", "!ports_[i].present() || ports_[i].dtype == t.dtype", "!ports_[i].present() || true", f"{BAD} -k wrong_dtype"),
    ("null data is not checked", "vivace/ops/call.cc", "t.data == nullptr && elements != 0", "false", f"{BAD} -k null"),
    ("read-only arrays are written", "python/src/tensor.cc", "write && !(a.flags & kNumpyWritable)", "write && a.flags == 0", f"{BAD} -k read_only"),
    ("swapped bytes are read as they are", "python/src/tensor.cc", "d.byteorder == '>'", "d.byteorder == '#'", f"{BAD} -k not_an_array"),
    ("jax: an update in two buffers passes", "python/src/jax_ffi.cc", "given[p] != t.data)", "given[p] == nullptr)", f"{FFI} -k updated"),
    ("jax: XLA's flushing of subnormals stays on", "python/src/jax_ffi.cc", "std::fesetenv(FE_DFL_ENV);", "", f"{FFI} -k subnormals"),
    ("jax: every stage runs the op", "python/src/jax_ffi.cc", "(place == Place::host || frame.stage != ffi::Stage::initialize)) return {};", "false) return {};", f"{FFI} -k stages"),
    ("jax: a graph may not hold the call", "python/src/jax_ffi.cc", "answered(*frame, ffi::kCommandBufferCompatible)", "answered(*frame, 0)", f"{FFI} -k says_what"),
    ("jax: blocks have one element", "python/src/jax_ffi.cc", "info(packed).bytes * info(packed).block;", "info(packed).bytes;", f"{FFI} -k another_dtype"),
    ("jax: XLA's operands are read ahead", "python/src/jax_ffi.cc", "ops::Weights::ordered)", "ops::Weights::constant)", "tests/test_fake_driver.py -k not_read_ahead"),
    ("jax: the initialise stage loads nothing", "python/src/jax_ffi.cc", "Unlaunched stream(device);\n    return ops::Recorder(stream).issue(row, call);", "return call.check();", "tests/test_fake_driver.py -k initialise"),
    ("jax: the initialise stage launches", "python/src/jax_ffi.cc", "if (frame.stage == ffi::Stage::initialize) {", "if (false) {", "tests/test_fake_driver.py -k initialise"),
    ("a pointer is asked for before there is a driver", "vivace/device/device.cc", "VV_TRY(driver().status());", "", XLAS),
    ("functional: 2*N says N twice", "python/vivace/functional.py", "dims[name] = size // (", "dims[name] = size * (", "tests/test_functional.py"),
    ("captured arguments are not kept alive", "python/src/ops.cc", "if (nb::list* list = capture_keep())", "if (nb::list* list = nullptr)", ARRAYS),
    ("policy: a place behind the prefix is seen", "vivace/models/vla/base.cc", "(context_.length)[b] = static_cast<int32_t>(prefix)", "(context_.length)[b] = static_cast<int32_t>(prefix + 1)", f"{POLICY} -k stage"),
    ("groot: columns turn by the line", "vivace/models/vision/pipeline.cc", "turn(b, in.column, b_.column_freq)", "turn(b, in.line, b_.column_freq)", f"{GROOT} -k stage"),
    ("groot: lines and columns of M-RoPE change places", "vivace/models/groot/predict.cc", "image, k / columns, k % columns)", "image, k % columns, k / columns)", f"{GROOT} -k stage"),
    ("groot: images see each other before they are tokens", "vivace/models/groot/predict.cc", "first, g.patches(), static_cast<int32_t>(at->views));", "first, g.patches(), static_cast<int32_t>(at->views / 2));", f"{GROOT} -k stage"),
    ("groot: text blocks see as many rows as there are of images", "vivace/models/groot/pipeline.cc", "c_.sees_text(block) ? seen.text_offsets : seen.image_offsets", "seen.image_offsets", f"{GROOT} -k stage"),
    ("groot: deepstack stays away from the last layer but one", "vivace/models/groot/pipeline.cc", "i + 1 < w_.text.size()", "i + 2 < w_.text.size()", f"{GROOT} -k stage"),
    ("groot: scale and shift of the last norm as in blocks", "vivace/models/groot/pipeline.cc", "table(w_.out_ada, b_.out_shift, b_.out_scale)", "table(w_.out_ada, b_.out_scale, b_.out_shift)", f"{GROOT} -k stage"),
    ("groot frames: the crop lies in the corner", "vivace/models/groot/frames.cc", "at.data += w.top * at.stride + w.left * 3;", "at.data += w.left * 3;", FRAMES),
    ("groot frames: levels between columns and lines of lerobot's cubic", "vivace/models/groot/frames.cc", "? vision::Filter::smooth_bicubic", "? vision::Filter::bicubic", FRAMES),
    ("groot frames: what grows goes between middles of pixels", "vivace/models/vision/resize.cc", "static_cast<double>(i + 1) - static_cast<double>(first + 1) * ratio", "static_cast<double>(i) * scale - static_cast<double>(first)", FRAMES),
    ("groot frames: the letterbox is above and on the left", "vivace/models/groot/frames.cc", "square_.data() + (w.square.height - from.height) / 2 * at.stride", "square_.data() + (w.square.height - from.height) * at.stride", FRAMES),
    ("groot frames: the language model's least pixels do not count", "vivace/models/groot/frames.cc", "w.last.height * w.last.width < r.least", "false", FRAMES),
    ("groot: a prefix lets go like an older chunk", "vivace/models/groot/predict.cc", "frozen = hard ? overlap : o.frozen;", "frozen = hard ? overlap / 2 : o.frozen;", f"{GROOT} -k prefix"),
    ("groot n1.6: learned positions lie on their corners", "vivace/models/vision/image_rows.cc", "step * (static_cast<float>(i) + 0.5f)", "step * static_cast<float>(i)", f"{GROOT16} -k stage"),
    ("groot n1.6: a shrunken table is not smoothed", "vivace/models/vision/image_rows.cc", "wide = std::max(step, 1.0f)", "wide = 1.0f", f"{GROOT16} -k stage"),
    ("groot n1.6: channels of a token's patches change places", "vivace/models/vision/weights.cc", "to->up.parts[0] = by_patch(to->up.parts[0], c.out, c);", "", f"{GROOT16} -k stage"),
    ("groot n1.6: patches are merged before their norm", "vivace/models/vision/pipeline.cc", "merging = by_token(normed);", "merging = by_token(b.hidden);", f"{GROOT16} -k stage"),
    ("groot n1.6: features leave before the last norm", "vivace/models/groot/pipeline.cc", "return c_.n16 ? b_.branch : b_.text.hidden;", "return b_.text.hidden;", f"{GROOT16} -k stage"),
    ("groot n1.6: an image's tokens stand in one place", "vivace/models/groot/predict.cc", "add(0, image, image, 0, 0), ++now;", "add(0, image, image, 0, 0);", f"{GROOT16} -k stage"),
    ("groot n1.6: images are counted from 0", "vivace/models/groot/prompt.cc", 'strf("<image %d>", i)', 'strf("<image %d>", i - 1)', f"{GROOT16} -k text"),
    ("groot n1.6: the merger's second product takes the scale of its first", "vivace/models/vision/pipeline.cc", "in_.enter(codes, inner, place + 1, m.down, &entering)", "in_.enter(codes, inner, place, m.down, &entering)", f"{GROOT16} -k each_place"),
    ("groot: the embodiment of the call before", "vivace/models/groot/predict.cc", "if (taken == slot) return {};", "if (taken == slot || taken > 0) return {};", f"{GROOT} -k batches"),
    ("smolvla: words see the state", "vivace/models/vla/base.cc", "? static_cast<int32_t>(at) : 0;", "? static_cast<int32_t>(at) + 1 : 0;", "tests/test_smolvla.py -k stage"),
    ("smolvla: layers that cross count on", "vivace/models/vla/flow.cc", "[b * A + t] = static_cast<int32_t>(t);", "[b * A + t] = static_cast<int32_t>(prefix + t);", "tests/test_smolvla.py -k stage"),
    ("smolvla: a square's patches stand column by column", "vivace/models/vla/base.cc", "* s + k / s, column = token % (side / s) * s + k % s", "* s + k % s, column = token % (side / s) * s + k / s", "tests/test_smolvla.py -k stage"),
    ("groot: image features take the scale of text's", "vivace/models/groot/pipeline.h", "(text_ + adapter_) + (text ? 0 : 1)", "(text_ + adapter_)", f"{GROOT} -k each_place", "vivace/models/groot/pipeline.cc"),
    ("groot: positions of the images before", "vivace/models/groot/predict.cc", "if (grids_ == placed_) return {};", "if (!placed_.empty()) return {};", f"{GROOT} -k stage"),
    ("groot: percentiles are the ends", "vivace/models/groot/statistics.cc", 'percentiles ? "q01" : "min"', '"min"', "tests/test_groot_robot.py -k units"),
    ("groot: cosines are sines", "vivace/models/groot/statistics.cc", "std::cos(own[d])", "std::sin(own[d])", "tests/test_groot_robot.py -k sines"),
    ("groot: deviations are cut as ranges are", "vivace/models/groot/statistics.cc", "if (actions.deviation[d])", "if (false)", "tests/test_groot_robot.py -k sines"),
    ("groot: values that left the range stay out", "vivace/models/groot/statistics.cc", "return clip ? std::clamp(y, -1.0f, 1.0f) : y;", "return y;", "tests/test_groot_robot.py -k units"),
    ("groot: relative actions are absolute", "vivace/models/groot/statistics.cc", "if (reference[d] >= 0) out[d]", "if (false) out[d]", "tests/test_groot_robot.py -k relative"),
    ("groot: a motion in the world's frame", "vivace/models/groot/statistics.cc", "place[i] += at[3 * i + k] * ", "place[i] += (i == k) * ", "tests/test_groot_robot.py -k poses"),
    ("groot: a task may hold images", "vivace/models/groot/prompt.cc", "tokenizer_.encode(words, false, &ids)", "tokenizer_.encode(task, true, &ids)", "tests/test_groot_robot.py -k text"),
    ("groot: the hold fades an action early", "vivace/models/groot/predict.cc", "(r - frozen + 1)", "(r - frozen + 2)", f"{GROOT} -k stage"),
    ("groot: the chunk before is taken from its front", "vivace/models/groot/predict.cc", "std::copy(begun.end() - overlap * D, begun.end(), x);", "std::copy(begun.begin(), begun.begin() + overlap * D, x);", f"{GROOT} -k stage"),
    ("policy: the words of the call before", "vivace/models/vla/base.cc", "place(t, at++, b)", "place(ids[row] != 0 ? ids[row] : t, at++, b)", f"{POLICY} -k prompt_state"),
    ("policy: pictures read each other", "vivace/models/vla/base.cc", "static_cast<int64_t>(i) / config_.view_patches())", "static_cast<int64_t>(i) / config_.view_patches() ^ 1)", f"{POLICY} -k stage"),
    ("policy: the next step's table", "vivace/models/vla/pipeline.cc", "ada(slice(table, s, 1), {})", "ada(slice(table, s + 1, 1), {})", f"{POLICY} -k stage"),
    ("policy: the next step's time beside given actions", "vivace/models/vla/flow.cc", "std::fill(row + fixed, row + A, s)", "std::fill(row + fixed, row + A, s + 1)", f"{POLICY} -k hard_prefix"),
    ("policy: a gate of the wrong action", "vivace/models/vla/pipeline.cc", 'op_.gather(ada.gate, ada.rows', 'op_.gather(ada.shift, ada.rows', f"{POLICY} -k hard_prefix"),
    ("policy: cameras change places", "vivace/models/vla/base.cc", "for (const engine::Frame& f : observations[b].views) {", "for (const engine::Frame& f : std::vector<engine::Frame>(observations[b].views.rbegin(), observations[b].views.rend())) {", f"{POLICY} -k stage"),
    ("policy: actions that are given have the step's time", "vivace/models/vla/flow.cc", "std::fill_n(row, fixed, limits_.steps)", "std::fill_n(row, fixed, s)", f"{POLICY} -k hard_prefix"),
    ("policy: the state sees the actions", "vivace/models/vla/pipeline.cc", 'state ? state_ : full_', 'state ? causal_ : full_', f"{POLICY} -k stage"),
    ("policy: words are not scaled", "vivace/models/vla/pipeline.cc", "op_.gather(w_.embed, in.ids, b_.text.hidden, word_scale())", "op_.gather(w_.embed, in.ids, b_.text.hidden)", f"{POLICY} -k stage"),
    ("layer: weights of norms are taken as they are stored", "vivace/models/layer/layer_ops.cc", "plus_one(by)}", "0.0}", f"{POLICY} -k stage"),
    ("layer: a product forgets its gate", "vivace/models/layer/layer_ops.cc", '{"gate", e.gate},\n               {"residual", e.residual},', '{"residual", e.residual},', f"{POLICY} -k stage"),
    ("policy: calibrated scales leave an eighth of the range", "vivace/models/layer/calibration.cc", "value > 0 ? value / 448.0f", "value > 0 ? value / 3584.0f", f"{POLICY} -k calibrated"),
    ("policy: dimensions before frequencies", "vivace/models/vla/codec.cc", "static_cast<size_t>(k * dims + d)", "static_cast<size_t>(d * horizon + k)", f"{POLICY} -k codec"),
    ("text: the head takes the first rows, not the sampled ones", "vivace/models/decoder/pipeline.cc", 'op_.gather(hidden_, in_.sample_rows, last)', 'op_.gather(hidden_, in_.slot, last)', STEPS),
    ("images: levels of the tower join words too", "vivace/models/decoder/step_io.cc", "put(in_.level, i, r.image >= 0 ? r.image : static_cast<int32_t>(images_))", "put(in_.level, i, r.image >= 0 ? r.image : 0)", "tests/test_qwen3_vl.py"),
    ("images: pages of any picture are taken", "vivace/serve/seats.cc", "numbers_.of(job->request.images[i].content)", "-1", "tests/test_images.py -k pages_of"),
    ("images: what follows an image begins behind all its tokens", "vivace/serve/prompt_images.cc", "std::max(lines, columns) - s.tokens", "0", "tests/test_images.py -k greedy"),
    ("images: lines and columns change places", "vivace/models/decoder/model.cc", "? static_cast<int32_t>(i % 3) : 0;", "? static_cast<int32_t>(3 - i % 3) : 0;", "tests/test_qwen3_vl.py"),
    ("images: a patch's learned position is its neighbour's", "vivace/models/vision/image_rows.cc", "learned(y.low, x.low) *", "learned(y.low, x.high) *", "tests/test_qwen3_vl.py"),
    ("text: local layers see as far as the others", "vivace/models/decoder/pipeline.cc", "local ? local_ : global_", "global_", STEPS),
    ("text: local layers turn as the others do", "vivace/models/decoder/pipeline.cc", "local ? b_.local_inv_freq : b_.inv_freq", "b_.inv_freq", STEPS),
    ("text: a layer's values are another's", "vivace/models/layer/attention_sites.cc", '{"v_cache", v_[static_cast<size_t>(layer)]}', '{"v_cache", v_[0]}', STEPS),
    ("text: what waits is added twice", "vivace/models/decoder/pipeline.cc", "    waiting_ = false;\n    return s;", "    return s;", STEPS),
    ("text: rows of experts are not normalised", "vivace/models/decoder/pipeline.cc", "      VV_TRY(settle());\n      VV_TRY(experts(", "      VV_TRY(experts(", STEPS),
    ("text: a draw is counted from the row's place", "vivace/models/decoder/step_io.cc", "put(in_.sample_step, n, r.pos + (kind_", "put(in_.sample_step, n, static_cast<int32_t>(i) + (kind_", STEPS),
    ("text: sampling of the first slot serves all", "vivace/models/decoder/step_io.cc", "of_slot[static_cast<size_t>(r.slot)]", "of_slot[0]", STEPS),
    ("text: the row before of the rings is read", "vivace/models/decoder/step_io.cc", "static_cast<size_t>(f.row) * static_cast<size_t>(ring_.shape[1])", "static_cast<size_t>((f.row + 1) % static_cast<int>(in_flight_.size())) * static_cast<size_t>(ring_.shape[1])", STEPS),
    ("text: counts of the sequence before", "vivace/models/decoder/steps.cc", "buffers_.no_counts.data, bytes", "counts.data, bytes", STEPS),
    ("text: a page is given to two", "vivace/engine/kv_blocks.cc", "  free_.pop_back();\n", "  if (free_.size() > 1) free_.pop_back();\n", "tests/test_pages.py"),
    ("text: prompts wait for nobody's answer", "vivace/serve/batcher.cc", "rows_.push_back(row(*job, pos, pos == size - 1, true));", "rows_.push_back(row(*job, pos, true, true));", STEPS),
    ("loop: pages of who is over stay taken", "vivace/serve/seats.cc", "blocks_->drop(&held(*job));\n  slots_", "held(*job).clear();\n  slots_", LOOP),
    ("loop: a batcher keeps its slots' pages", "vivace/serve/batcher.cc", "if (job != nullptr) unseat(job);", "static_cast<void>(job);", LOOP),
    ("loop: who comes back from host memory finds nothing", "vivace/serve/seats.cc", "VV_TRY(model_.write_blocks(", "if (job->parked_blocks_ > 99) VV_TRY(model_.write_blocks(", "tests/test_pages.py"),
    ("loop: blocks of the last positions stay behind", "vivace/serve/seats.cc", "job->parked_blocks_ = blocks_->needed(job->fed_);", "job->parked_blocks_ = blocks_->needed(job->fed_) - (job->fed_ > 64);", "tests/test_pages.py"),
    ("loop: who comes back feeds the token before its last", "vivace/serve/seats.cc", "  ++parks_;\n", "  ++parks_;\n  if (job->last_ >= 0) --job->fed_;\n", "tests/test_pages.py"),
    ("states: a kept one is a block old", "vivace/serve/states.cc", "position - block * size, kept[done].state);", "position - block * size, kept[done].state);\n    if (done > 0 || job->passing_ >= 0) static_cast<void>(model_.copy_state(limits_.max_batch + (done > 0 ? kept[done - 1].state : job->passing_), limits_.max_batch + state));", HYBRID),
    ("states: the slot's is not that which was found", "vivace/serve/seats.cc", "VV_TRY(model_.copy_state(limits_.max_batch + job->found_state_, slot));", "VV_TRY(model_.copy_state(limits_.max_batch + (job->found_state_ > 0 ? 0 : 1), slot));", HYBRID),
    ("states: one behind tokens that differ is taken", "vivace/engine/kv_states.cc", "latest_state(b, same);", "latest_state(b, std::min(n.fill, usable));", HYBRID),
    ("states: who comes back from host memory has none", "vivace/serve/seats.cc", "if (limits_.recurrent) VV_TRY(model_.write_state(slot, job->fed_ - job->behind_, parked.subspan(bytes)));", "if (limits_.recurrent) VV_TRY(model_.write_state(slot, job->fed_ - job->behind_, parked.first(parked.size() - bytes)));", "tests/test_hybrid_reuse.py --timeout 120 -k gives_way"),
    ("states: a capsule has another's", "vivace/serve/snapshot.cc", "model.read_state(model.limits().max_batch + state_, ", "model.read_state(0, ", "tests/test_hybrid_reuse.py --timeout 120 -k capsules"),
    ("states: bytes of a place are of the next", "vivace/models/decoder/state.cc", "slice(buffers_.kept_state, state - limits_.max_batch, 1)", "slice(buffers_.kept_state, std::max(state - limits_.max_batch - 1, 0), 1)", HYBRID),
    ("states: no prompt is cut where its own is kept", "vivace/serve/states.cc", "for (const int mark : {job.branch_, last_kept(job)})", "for (const int mark : {job.branch_})", HYBRID),
    ("reuse: tokens are not compared on a hit, and keys are of few bits", "vivace/engine/kv_prefix.cc", "n.key == key && n.root == root && n.parent == parent && std::equal(tokens, tokens + positions_, tokens_of(block))", "n.root == root && n.parent == parent", SESSIONS),
    ("reuse: who finds a block holds no reference", "vivace/engine/kv_prefix.cc", "    hold(block);\n    blocks->push_back(block);", "    blocks->push_back(block);", SESSIONS),
    ("reuse: the salt is left out", "vivace/serve/seats.cc", "blocks_->root(std::as_bytes(std::span(r.salt)))", "blocks_->root({})", SESSIONS),
    ("reuse: what queued steps write ahead is kept", "vivace/serve/batcher.cc", "job->committed_ = static_cast<int>(job->context_.size());", "job->committed_ = static_cast<int>(job->context_.size()) + (e.token >= 0);", SESSIONS),
    ("reuse: a part of a block is taken as its owner goes on to write it", "vivace/serve/seats.cc", "mine.push_back(blocks_->take());\n      VV_TRY(model_.copy_block(found.partial, mine.back()));", "blocks_->hold(found.partial);\n      mine.push_back(found.partial);", SESSIONS),
    ("reuse: penalties forget what was found", "vivace/models/decoder/steps.cc", "if (fed.empty() || !counted)", "if (fed.empty() || counted)", SESSIONS),
    ("reuse: forks do not wait for their prompt", "vivace/serve/seats.cc", "return leader != nullptr && leader->produced_ == 0;", "return leader != nullptr && leader->produced_ < 0;", SESSIONS),
    ("loop: nobody hears that a handle is gone", "vivace/serve/engine_loop.cc", "  cancel();\n  if (record_->drop())", "  if (record_->drop())", LOOP),
    ("loop: events go to who came last", "vivace/serve/engine_loop.cc", "static_cast<Record*>(std::exchange(e.job, nullptr))", "live_.back()", LOOP),
    ("loop: readers are not told", "vivace/serve/engine_loop.cc", "    r->notifier->ring();\n", "", LOOP),
    ("loop: the engine is not told of biases", "vivace/serve/engine_loop.cc", "bias_given.store(true, std::memory_order_release);\n  r.channel->bell.ring();", "bias_given.store(true, std::memory_order_release);", LOOP),
    ("loop: event loops are not told", "vivace/serve/notifier.cc", "if (descriptor_ >= 0 && ", "if (descriptor_ < 0 && ", LOOP),
    ("loop: who waits never rises", "vivace/serve/seats.cc", "job->queued_ < ageing_.after) continue;", "job->queued_ < 1000 * ageing_.after) continue;", f"{LOOP} -k ever"),
    ("loop: the queue has no end", "vivace/serve/engine_loop.cc", "pending + n > most_)", "pending < 0)", LOOP),
    ("loop: masks may wait for each other", "vivace/serve/engine_loop.cc", "if (refuse_a_callback()) continue;", "", LOOP),
    ("host: the answer is another robot's", "vivace/serve/policy_queue.cc", "take(r, static_cast<int64_t>(i))", "take(r, 0)", f"{HOST} -k share"),
    ("host: who is wrong takes others along", "vivace/serve/policy_queue.cc", "if (!s.ok() && n > 1)", "if (!s.ok() && n > 99)", f"{HOST} -k shared"),
    ("host: what is late is begun", "vivace/serve/policy_queue.cc", "if (r->strict && now", "if (false && now", f"{HOST} -k deadline"),
    ("host: the next message overwrites the one at hand", "vivace/serve/wire/websocket.cc", "if (whole_) return Event::none;", "whole_ = false;", f"{HOST} -k 'pieces or whatever'"),
    ("host: masks begin anew with every packet", "vivace/serve/wire/websocket.cc", "key_, offset_);\n  have_ += bytes", "key_, 0);\n  have_ += bytes", f"{HOST} -k own"),
    ("host: any key opens", "vivace/serve/policy_connection.cc", "given->substr(space + 1), key) && known", "given->substr(space + 1), key) || known", f"{HOST} -k key"),
    ("host: pages of browsers are served", "vivace/serve/policy_connection.cc", 'head.find("Origin") != nullptr', 'head.find("Origins") != nullptr', f"{HOST} -k http"),
    ("host: a robot that left keeps its place", "vivace/serve/policy_connection.cc", "door_.taken[static_cast<size_t>(place_)] = false;", "", f"{HOST} -k 'leave or many'"),
    ("host: the silent stay", "vivace/serve/policy_connection.cc", "if (silent > 2 * door_.idle_s)", "if (silent > 1e9)", f"{HOST} -k nothing"),
    ("host: half a message may take for ever", "vivace/serve/policy_connection.cc", "heard_ = Clock::now(), pinged_ = false;", "pinged_ = false;", f"{HOST} -k 'before or nothing'"),
    ("host: actions before the state is known", "vivace/models/vla/robots.cc", "if (parts != state_.size() && ", "if (false && ", "tests/test_robots.py -k aloha"),
    ("host: floats of pictures are cut", "vivace/models/vla/robots.cc", "v * 255 + 0.5", "v * 255", "tests/test_robots.py -k lerobots"),
    ("host: planes are taken for rows", "vivace/models/vla/image.cc", "frame.data + y * frame.stride;\n    const uint8_t *const green = red + frame.plane", "frame.data + y * frame.stride;\n    const uint8_t *const green = red + 1", f"{HOST} -k form"),
    ("host: not a number is a picture", "vivace/models/vla/robots.cc", "if (!(v >= 0 && v <= 1))", "if (v < 0 || v > 1)", f"{HOST} -k wrong"),
    ("client: questions share their noise", "vivace/serve/robot_client.cc", "static_cast<uint64_t>(++in_episode_)) & INT64_MAX", "static_cast<uint64_t>(++in_episode_)) >> 1", "tests/test_robot_client.py -k same"),
    ("client: the old prompt's answer is used", "vivace/serve/robot_client.cc", "if (q.generation != generation_.load()) return false;", "", "tests/test_robot_client.py -k 'prompt or arm'"),
    ("client: a broken link is not made anew", "vivace/serve/robot_client.cc", "    link_.reset();", "", "tests/test_robot_client.py -k breaks"),
    ("client: who refuses is asked for ever", "vivace/serve/robot_client.cc", "if (link.status().code() != Code::kIoError || ", "if (", "tests/test_robot_client.py -k refuses"),
    ("robots: grippers of ALOHA stay as they are", "vivace/models/vla/robots.cc", "to->state[i] = gripper_of_aloha(to->state[i]);", "to->state[i] += 0;", "tests/test_robots.py -k aloha"),
    ("robots: LIBERO's prompt has a state", "vivace/models/vla/base.cc", 'robot_ == "libero" && ', 'robot_ == "libera" && ', "tests/test_robots.py -k libero"),
    ("robots: padding is a dimension", "vivace/models/vla/statistics.cc", "s.size() == padded || cut", "s.size() == padded + 1 || cut", "tests/test_robots.py -k 'droid and 32'"),
    ("msgpack: depth has no end", "vivace/serve/wire/msgpack.cc", "if (depth > kMostDepth)", "if (depth > 1000)", f"{HOST} -k bombs"),
    ("msgpack: counts are believed", "vivace/serve/wire/msgpack.cc", "if (n > kMostEntries)", "if (n > UINT32_MAX)", f"{HOST} -k bombs"),
    ("msgpack: an array's bytes are not counted", "vivace/serve/wire/msgpack.cc", "if (bytes != data->text.size())", "if (bytes > data->text.size() + 9)", f"{HOST} -k 'bombs or broken'"),
    ("msgpack: numbers below -32 lose their sign", "vivace/serve/wire/msgpack.cc", "static_cast<int64_t>(n << spare) >> spare", "static_cast<int64_t>(n)", f"{HOST} -k library"),
    ("loop: a drawn token waits for no mask", "vivace/serve/batcher.cc", "job->paused_ = r.stepwise;", "", LOOP),
    ("loop: direct steps run beside answers", "vivace/serve/engine_loop.cc", "wanted > 0)", "wanted < 0)", LOOP),
    ("loop: a guess is right whatever was drawn", "vivace/serve/batcher.cc", "job->guesses_[job->checked_ - 1] != job->last_) return {};", "false) return {};", "tests/test_drafts.py"),
    ("loop: a child of fork() waits for its parent's thread", "vivace/base/forks.cc", "count.fetch_add(1, std::memory_order_relaxed)", "count.load()", LOOP),
    ("masks: a row takes its own number for its mask's", "vivace/kernels/sampling/sample.h", "a.mask_slot != nullptr ? a.mask_slot[t] : t", "t", f"{OPS} -k sample", "vivace/cpu/sampling/sample.cc"),
    ("masks: a slot keeps the one of before", "vivace/models/decoder/masks.h", "void clear(int slot) { masked_[static_cast<size_t>(slot)] = false; }", "void clear(int) {}", STRUCTURED, "vivace/models/decoder/steps.cc"),
    ("masks: forced tokens are told and not fed", "vivace/serve/batcher.cc", "    job->run_ = true;\n", "    ++job->fed_;\n", STRUCTURED),
    ("masks: stop ids come before min_tokens", "vivace/serve/batcher.cc", "early_[static_cast<size_t>(t) / 32] &= ~(1u << (t % 32));", "static_cast<void>(t);", STRUCTURED),
    ("masks: what is drawn is told to nobody", "vivace/serve/engine_loop.cc", "if (r->masks != nullptr) r->masks->ring();", "", f"{STRUCTURED} --timeout 60 --timeout-method thread"),
    ("reply: a character that is not whole is given out", "vivace/serve/reply_parser.cc", "engine::text::whole_utf8(bytes_)", "bytes_.size()", REPLY),
    ("reply: what may begin a stop string is given out", "vivace/serve/text_search.cc", "known = held_.size() - search_.held();", "known = held_.size();", REPLY),
    ("reply: after a false start a search begins anew", "vivace/serve/text_search.cc", "while (p.at > 0 && p.text[p.at] != c) p.at = p.shorter[p.at - 1];", "if (p.text[p.at] != c) p.at = 0;", REPLY),
    ("reply: a call that was cut off counts", "vivace/serve/reply_parser.cc", "whole_ == calls_ && ", "", REPLY),
    ("reply: a reply that was cut off ends with calls", "vivace/serve/reply_parser.cc", 'why != "stop") return', 'why != "stop" && calls_ == 0) return', REPLY),
    ("reply: any name makes a bare call", "vivace/serve/call_json.cc", "if (bare_ && std::none_of", "if (bare_ && false && std::none_of", REPLY),
    ("reply: a quote that is escaped ends a string", "vivace/serve/json_scan.cc", "if (c == '\\\\') at_ = At::escape;", "", REPLY),
    ("reply: the line end before </parameter> stays", "vivace/serve/call_xml.cc", "if (value_.ends_with('\\n')) value_.pop_back();", "", REPLY),
    ("reply: a call in reasoning is made", "vivace/serve/reply_parser.cc", "search_ = TextSearch({o_.reasoning->close}), trim_ = true;", "search_ = TextSearch({o_.reasoning->close}), trim_ = true, at_ = o_.calls ? At::text : at;", REPLY),
    ("text: an expert's ups lie on its gates", "vivace/engine/weight_uploader.cc", "t.data = static_cast<char*>(t.data) + from[k].shape[1] * row_bytes(t.dtype, t.shape[2]);", "static_cast<void>(k);", STEPS),
    ("text: each expert's up is the one before's", "vivace/engine/weight_uploader.cc", "pieces.push_back({expert(from[i], e), expert(part, e)})", "pieces.push_back({expert(from[i], i > 0 && e > 0 ? e - 1 : e), expert(part, e)})", STEPS),
    ("text: int4 codes are cut, not rounded", "vivace/engine/blocks.cc", "x[i] * scale + 8.5", "x[i] * scale + 8.0", "tests/test_int4.py"),
    ("text: FP4 parts lie on each other", "vivace/engine/weight_uploader.cc", "copy(slice(g.to, row, 1), g.from[i])", "copy(slice(g.to, 0, 1), g.from[i])", "tests/test_fp4.py"),
    ("text: FP4 scales of parts lie on each other", "vivace/engine/weight_uploader.cc", "copy(slice(g.to_scale[0], row, 1)", "copy(slice(g.to_scale[0], 0, 1)", "tests/test_fp4.py"),
    ("FP4: rows of a gate keep the scales of the query's", "vivace/engine/weights.cc", "scales.scales.block = mine_of(scales.scales.block);", "", "tests/test_nvfp4.py -k codes"),
    ("fp8 releases: all experts have the first one's scales", "vivace/engine/weights.cc", "row / N * down + ", "", "tests/test_fp8_release.py -k reference"),
    ("FP4: a scale that divides multiplies by its reciprocal", "vivace/engine/weights.cc", "divisor > 0 ? stored / divisor : stored * whole", "stored * whole", "tests/test_nvfp4.py -k reference"),
    ("text: FP4 parts take the first one's scale", "vivace/models/decoder/weights.cc", "!alike(w.q, w.k) || ", "", "tests/test_fp4.py"),
    ("GGUF of hybrids: value heads stay in the file's order", "vivace/models/decoder/gguf_layout.cc", "if (each == 1 || r.k_heads == 1) return {};", "if (each != 0) return {};", GGUF),
    ("GGUF of hybrids: value heads are moved the other way", "vivace/models/decoder/gguf_layout.cc", "head % each * r.k_heads + head / each", "head % r.k_heads * each + head / r.k_heads", GGUF),
    ("GGUF of hybrids: queries are moved in place of values", "vivace/models/decoder/gguf_layout.cc", "*t, 2 * r.k_width(), r.v_dim, order", "*t, 0, r.v_dim, order", GGUF),
    ("GGUF of hybrids: the convolution keeps the file's order", "vivace/models/decoder/gguf_layout.cc", "{&w->conv_in, &w->conv}", "{&w->conv_in}", GGUF),
    ("GGUF of hybrids: the gate keeps the file's order", "vivace/models/decoder/gguf_layout.cc", "w->delta_gate = source.reordered(w->delta_gate, 0, r.v_dim, order);", "", GGUF),
    ("GGUF of hybrids: o's columns keep the file's order", "vivace/models/decoder/gguf_layout.cc", "w->o = source.reordered_columns(w->o, order);", "", GGUF),
    ("GGUF of hybrids: the decay's bias keeps the file's order", "vivace/models/decoder/gguf_layout.cc", "&w->delta_rate, &w->delta_bias}", "&w->delta_rate}", GGUF),
    ("GGUF of hybrids: rates are taken for their logarithms", "vivace/models/decoder/gguf_layout.cc", "std::log(-static_cast<double>(rates[i]))", "-static_cast<double>(rates[i])", GGUF),
    ("GGUF of hybrids: decay and correction change places", "vivace/models/decoder/weights.cc", '"blk.{}.ssm_beta.weight", "model.layers.{}.linear_attn.in_proj_b.weight"', '"blk.{}.ssm_alpha.weight", "model.layers.{}.linear_attn.in_proj_b.weight"', GGUF),
    ("Qwen3-Next: b and a of key heads change places", "vivace/models/decoder/weights.cc", "return {2 * each, {{{0, each}}}};", "return {2 * each, {{{each, each}}}};", "tests/test_hybrid_gguf.py -k qwen3next"),
    ("Qwen3-Next: values and gates of key heads change places", "vivace/models/decoder/weights.cc", "{r.k_dim, r.k_dim}, {2 * r.k_dim, values_of_key(r)}", "{r.k_dim, r.k_dim}, {2 * r.k_dim + values_of_key(r), values_of_key(r)}", NEXT),
    ("Qwen3-Next: keys are read as queries", "vivace/models/decoder/weights.cc", "{{{0, r.k_dim}, {r.k_dim, r.k_dim},", "{{{r.k_dim, r.k_dim}, {0, r.k_dim},", NEXT),
    ("Qwen3-Next: parts of a group lie group by group", "vivace/engine/weights.cc", "(i * group + first) * row", "(i * group / 2 + first) * row", NEXT),
    ("Qwen3-Next: rows of a key head keep the scales of the first", "vivace/engine/weights.cc", "row = tensor(column.data, row.dtype, Shape(column.shape[0]));", "row = tensor(row.data, row.dtype, Shape(column.shape[0]));", "tests/test_qwen3_next.py -k quantized_layouts"),
    ("Qwen3-Next: the rotated part of a head is the default", "vivace/models/decoder/config.cc", 'root.get_double("partial_rotary_factor", 0.25)', 'root.get_double("partial_rotary_factors", 0.25)', NEXT),
    ("GGUF of hybrids: key heads' value heads are moved once more", "vivace/models/decoder/gguf_layout.cc", "if (c.has(kKeyGroups)) return {};", "if (c.has(kKeyGroups) && each == 1) return {};", "tests/test_hybrid_gguf.py -k qwen3next"),
    ("GGUF of hybrids: a draft layer's norms change places", "vivace/models/decoder/weights.cc", '"blk.{}.nextn.enorm.weight"', '"blk.{}.nextn.hnorm.weight"', "tests/test_hybrid_gguf.py -k draft_layers"),
    ("GGUF of hybrids: a draft layer goes on from rows before the norm", "vivace/models/decoder/config.cc", "c->drafts_from_normed = true;", "c->drafts_from_normed = false;", "tests/test_hybrid_gguf.py -k draft_layers"),
    ("policies: FP4 of compressed-tensors hides the family", "vivace/models/vla/config.cc", ' || checkpoint.find(top + name + "_packed") != nullptr', "", "tests/test_policy_e4m3.py -k 'actions and compressed'"),
    ("input_scale: products of a site take the last one's", "vivace/models/decoder/input_scales.cc", "largest = std::max(largest, value[0]);", "largest = value[0];", "tests/test_input_scales.py -k given"),
    ("input_scale: the head's is left out", "vivace/models/decoder/input_scales.cc", "all.emplace_back(site_count(c) - 1, head);", "", "tests/test_input_scales.py -k given"),
    ("input_scale: rows of the head take a scale that nobody said", "vivace/models/decoder/input_scales.cc", "  InputScales scales;\n", "  InputScales scales;\n  scales.head = true;\n", "tests/test_input_scales.py -k quantized"),
    ("input_scale: sites of a layer change places", "vivace/models/decoder/input_scales.cc", "f(site, checkpoint.find(of + product + kSuffix));", "f(site ^ 1, checkpoint.find(of + product + kSuffix));", "tests/test_input_scales.py -k given"),
    ("input_scale: negative ones are taken", "vivace/models/decoder/kv_scales.cc", "if (!(value > 0 && std::isfinite(value)))", "if (std::isnan(value))", "tests/test_input_scales.py -k bad"),
    ("KV scales: heads take the first one's", "vivace/models/decoder/kv_scales.cc", "if (values[static_cast<size_t>(i)] != values[0])", "if (false)", "tests/test_kv_scales.py -k bad"),
    ("e4m3 rows: scales are divided by", "vivace/engine/weights.cc", "f32_of_e4m3(codes[i]) * row[i / t.shape[1]]", "f32_of_e4m3(codes[i]) / row[i / t.shape[1]]", "tests/test_e4m3_rows.py -k reference"),
    ("e4m3 rows: scales are of columns", "vivace/engine/weights.cc", "row[i / t.shape[1]]", "row[i % t.shape[1] % t.shape[0]]", "tests/test_e4m3_rows.py -k reference"),
    ("e4m3 rows: a kept matrix's scales are their reciprocals", "vivace/engine/weights.cc", "if (n == 1) std::fill_n(values, N, values[0]);", "if (n == 1) std::fill_n(values, N, values[0]);\n  if (keep_e4m3_) for (int64_t i = 0; i < N; ++i) values[i] = 1 / values[i];", "tests/test_e4m3_rows.py -k codes"),
    ("e4m3 rows: one scale is the first row's alone", "vivace/engine/weights.cc", "if (n == 1) std::fill_n(values, N, values[0]);", "if (n == 1) std::fill_n(values + 1, N - 1, 1.0f);", "tests/test_e4m3_rows.py -k reference"),
    ("e4m3 rows: rows of a gate keep the scales of the query's", "vivace/engine/weights.cc", "row = tensor(column.data, row.dtype, Shape(column.shape[0]));", "", "tests/test_e4m3_rows.py -k codes"),
    ("e4m3 rows: gates and ups keep their scales apart", "vivace/engine/weight_uploader.cc", "lay((g.to_scale.size() == 2 ? g.given[i].block : g.given[i].row).data, g.part_of(scales, i));", "lay((g.to_scale.size() == 2 ? g.given[i].block : g.given[i].row).data, g.to_scale.size() == 2 ? g.part_of(scales, i) : slice(scales, static_cast<int64_t>(i) * g.from[i].shape[0], g.from[i].shape[0]));", "tests/test_e4m3_rows.py -k codes"),
    ("e4m3 rows: negative scales are taken", "vivace/engine/weights.cc", "if (!(values[i] > 0 && std::isfinite(values[i])))", "if (std::isnan(values[i]))", "tests/test_e4m3_rows.py -k bad"),
    ("e4m3 rows: a bf16 part of a product is read as codes", "vivace/models/decoder/weights.cc", "if (of_a == nullptr || of_b == nullptr || a.dtype != b.dtype) return of_a == of_b;", "if (of_a == nullptr || of_b == nullptr || a.dtype != b.dtype) return true;", "tests/test_e4m3_rows.py -k said"),
    ("text: FP4 codes are read high nibble first", "vivace/engine/weights.cc", "(i % 2 * 4) & 15", "((i + 1) % 2 * 4) & 15", "tests/test_fp4.py"),
    ("text: int8 codes are cut, not rounded", "vivace/engine/blocks.cc", "y + std::copysign(0.5f, y)", "y", "tests/test_int4.py"),
    ("random models: a sequence beside others has its neighbour's slot", "vivace/models/decoder/step_io.cc", "put(in_.slot, i, r.slot);", "put(in_.slot, i, r.slot > 0 && rows.size() > 1 ? r.slot - 1 : r.slot);", RANDOM.format("text")),
    ("random models: the position of the sequence before", "vivace/models/decoder/step_io.cc", "put(in_.pos, i, r.pos);", "put(in_.pos, i, i > 0 && rows[i - 1].slot != r.slot ? rows[i - 1].pos : r.pos);", RANDOM.format("text")),
    ("random models: a window of one more", "vivace/models/decoder/pipeline.cc", "static_cast<double>(c_.window)", "static_cast<double>(c_.window + 1)", RANDOM.format("text")),
    ("random models: query heads alternate between keys", "vivace/cpu/attention/heads.h", "kv = tile.h0 / (a.Hq / a.Hkv)", "kv = tile.h0 % a.Hkv", RANDOM.format("text"), "vivace/cpu/attention/level_avx512.cc"),
    ("demo arm: what is lost comes in time", "python/vivace/demo/link.py", "late += RETRANSMIT", "late += 0", "tests/test_demo_arm.py -k in_order"),
    ("demo arm: a connection that should break does not", "python/vivace/demo/link.py", "self._dies = None if seconds is None else time.monotonic() + seconds", "self._dies = None", "tests/test_demo_arm.py -k breaks_and --timeout 20"),
    ("demo arm: nobody bounds the targets", "python/vivace/demo/closed_loop.py", "max_step=max_step, ask_after", "max_step=1.0, ask_after", "tests/test_demo_arm.py -k never_jump"),
    ("demo arm: changed tensors lie below the others", "python/vivace/demo/weights.py", "(old | new).items()", "(new | old).items()", "tests/test_demo_arm.py -k lie_over"),
    ("random models: layers that cross count on", "vivace/models/vla/flow.cc", "[b * A + t] = static_cast<int32_t>(t);", "[b * A + t] = static_cast<int32_t>(prefix + t);", RANDOM.format("smolvla")),
    ("random models: every second layer sees actions", "vivace/models/vla/config.cc", "c->self_every = std::max<int64_t>(every, 0);", "c->self_every = every > 0 ? 2 : 0;", RANDOM.format("smolvla")),
    ("random models: an observation attends to its neighbour's prefix", "vivace/models/vla/flow.cc", "(action_.slot)[b * A + t] = static_cast<int32_t>(b)", "(action_.slot)[b * A + t] = static_cast<int32_t>(b > 1 ? b - 1 : b)", RANDOM.format("policy")),
    ("random models: a prompt's word stands one place late", "vivace/models/vla/base.cc", "place(t, at++, b)", "place(t, ++at, b)", RANDOM.format("policy")),
    ("text: every second capital is passed over", "vivace/engine/text/lower.cc", "% row->step == 0", "% 2 == 0", "tests/test_prompt.py"),
    ("prompt: a state below the bins is the first of them", "vivace/models/vla/prompt.cc", "+ 128.0, -1.0, 255.0", "+ 128.0, 0.0, 255.0", "tests/test_prompt.py"),
    ("text: of equal unions the rightmost goes first", "vivace/engine/text/pieces.cc", "worth < o.worth : at > o.at", "worth < o.worth : at < o.at", "tests/test_pieces.py"),
    ("text: a user's piece is worth no more than another", "vivace/engine/text/pieces.cc", "* most_) - 0.1)", "* most_) - 9.1)", "tests/test_pieces.py"),
    ("text: spaces at the end stay", "vivace/engine/text/normalize.cc", "  if (collapse)\n    while (out->size()", "  if (!collapse)\n    while (out->size()", "tests/test_pieces.py"),
    ("control: an answer's deadline is the watchdog's", "vivace/serve/chunks.cc", "now - asked_ > o_.deadline", "now - asked_ > o_.watchdog", "tests/test_control.py -k deadline"),
    ("control: twice the bound", "vivace/serve/chunks.cc", "if (!(std::fabs(step) > bound))", "if (!(std::fabs(step) > 2 * bound))", "tests/test_control.py -k jump"),
    ("control: a chunk for the state ahead begins at once", "vivace/serve/chunks.cc", "return tick < current_.request.tick ? previous_ : current_;", "return current_;", "tests/test_control.py -k future"),
    ("control: what comes before a chunk is not bounded", "vivace/serve/chunks.cc", "to[d] = bounded(wanted[d], before[d], d, &clamped);", "to[d] = wanted[d];", "tests/test_control.py -k future"),
    ("control: a chunk that never began pushes the one before it out", "vivace/serve/chunks.cc", "if (tick_ >= current_.request.tick) std::swap(previous_, current_);", "std::swap(previous_, current_);", "tests/test_control.py -k never_began"),
    ("robots: the state ahead is where the first action leads", "vivace/models/vla/robots.cc", "actions[(rows - 1) * width + d]", "actions[d]", f"{HOST} -k own"),
    ("whisper: OpenAI's norms change places", "vivace/models/whisper/weights.cc", '"attn_ln", "cross_attn", "cross_attn_ln"', '"cross_attn_ln", "cross_attn", "attn_ln"', "tests/test_whisper.py -k openais"),
    ("random models: an image's columns turn as its lines", "vivace/models/decoder/model.cc", "static_cast<int32_t>(i % 3) : 0", "static_cast<int32_t>(i % 3 != 0) : 0", RANDOM.format("qwen3_vl")),
    ("control: an answer to another runner's question counts", "vivace/serve/chunks.cc", "if (request.id > first_ && ", "if (first_ >= 0 || ", "tests/test_control_fuzz.py"),
    ("control: what is blended leaves f32", "vivace/serve/chunks.cc", "static_cast<float>(static_cast<double>(old[d]) + (static_cast<double>(wanted[d]) - static_cast<double>(old[d])) * mixed)", "old[d] + (wanted[d] - old[d]) * static_cast<float>(mixed)", "tests/test_control.py -k ends_of_f32"),
    ("control: the old chunk is blended though it is stale", "vivace/serve/chunks.cc", "if (old != nullptr && now - previous_.request.observed > o_.max_action_age) old = nullptr;", "", "tests/test_control_fuzz.py"),
    ("control: a stale chunk is used", "vivace/serve/chunks.cc", "if (wanted != nullptr && !(tick->age <= o_.max_action_age)) wanted = nullptr;", "", "tests/test_control_fuzz.py"),
    ("control: answers are not looked at", "vivace/serve/chunks.cc", "else if (!finite(actions) || !finite(normalized))", "else if (!finite(actions) && !finite(normalized))", "tests/test_control_fuzz.py"),
    ("control: an answer that is overtaken, or a second one, counts", "vivace/serve/chunks.cc", "if (request.id <= delivered_) return {};", "", "tests/test_control_fuzz.py"),
    ("control: an answer of before the restart counts", "vivace/serve/chunks.cc", "if (got.request.id < first_id_) return;", "", "tests/test_control_fuzz.py"),
    ("tensor: a negative view is taken as it is", "python/src/tensor.cc", "if (negated > 0)", "if (negated > 1)", f"{ARRAYS} -k negative"),
    ("tensor: the second call of a type does not ask", "python/src/tensor.cc", "known[known_count++] = found;", "(known[known_count++] = found).is_neg.reset();", f"{ARRAYS} -k negative"),
    ("control: a request of another runner counts", "vivace/serve/chunks.cc", "if (request.id > first_ &&", "if (request.id > 0 ||", "tests/test_control.py -k bad_values"),
    ("policy: what leaves is not looked at", "vivace/models/vla/base.cc", "if (!std::isfinite(v))  // the robot's", "if (v == 0 && v != 0)  // the robot's", "tests/test_policy_finite.py"),
    ("policy: the network's actions are not looked at", "vivace/models/vla/base.cc", "if (!std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); }))", "if (x.empty())", "tests/test_policy_finite.py"),
    ("policy: statistics may be of any size", "vivace/models/vla/statistics.cc", "constexpr double kMost = 1e30;", "constexpr double kMost = 1e300;", "tests/test_policy_finite.py"),
    ("policy: calibration passes over NaN", "vivace/models/layer/calibration.cc", "if (!std::isfinite(v))", "if (v == INFINITY)", "tests/test_policy_finite.py"),
    ("control: an answer counts from its arrival", "vivace/serve/chunks.cc", "const int64_t place = tick - chunk.request.tick;\n  return", "const int64_t place = tick - joined_;\n  return", "tests/test_control.py -k counts"),
]

# Some of them again, to be found by calls that nobody wrote down: tests/differential.
DRAWN = {"the last row is forgotten": "norm", "scale and shift swapped": "norm", "attention: causal sees one key too many": "attention", "attention: the length is max_action_age": "attention", "the slot is ignored": "kv_append",
         "the output stride is the input's": "norm", "inv_scale restarts at every chunk": "act_mul"}
FAULTS += [(f"drawn calls: {f[0]}", *f[1:4], f"tests/test_differential.py -k 'values and [{DRAWN[f[0]]}]'", *f[5:]) for f in FAULTS if f[0] in DRAWN]

# Only a device shows these: it runs behind the host, and has norms behind products.
BEHIND = [
    ("text: a prompt of one row is taken for an answer", "vivace/serve/batcher.cc", "rows_.push_back(row(*job, pos, pos == size - 1, true));", "rows_.push_back(row(*job, pos, pos == size - 1, false));", STEPS),
    ("text: draws are read before their step ends", "vivace/models/decoder/step_io.cc", "VV_TRY(f.done->synchronize());", "", STEPS),
    ("text: steps that are queued share their inputs", "vivace/models/decoder/step_io.cc", "static_cast<size_t>(flight) * bytes_", "static_cast<size_t>(flight * 0) * bytes_", STEPS),
    ("text: rows leave with the weight of a norm that is done", "vivace/models/decoder/pipeline.cc", "w_.layers[next].attn_norm", "w_.layers[next - 1].attn_norm", STEPS),
]
WAITS = "tests/gpu/test_gpu.py -k 'waits and [gemm-'"
BEHIND.append(("a product's weights are read while they are written", "vivace/ops/registry.cc", "if (weights_ == Weights::ordered && call.reads_ahead()) launch.pdl = false;", "", WAITS))
SHORT = "tests/test_model_steps.py -k 'f32_text or errs_no or join or each_row or running_ahead'"  # device time is dear
DECODER = [(*f[:4], SHORT if f[4] == STEPS else f[4], *f[5:]) for f in [*FAULTS, *BEHIND] if f[4] in (STEPS, WAITS, "tests/test_pages.py")]


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

    def python(self, folder, changed, text):
        """The same for a Python file."""
        package, inside = folder / "package" / "vivace", Path(changed).relative_to("python/vivace")
        shutil.copytree(ROOT / "python/vivace", package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / inside).write_text(text)
        library = Path(self.build, self.link[self.output])
        (package / library.name).symlink_to(library)
        return package.parent

    def variant(self, folder, changed, text, source):
        """An importable package below `folder` in which `changed` has the given text."""
        if changed.endswith(".py"):
            return self.python(folder, changed, text)
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
        beside = ["-iquote", str((ROOT / source).parent)] if source.startswith("python/") else []
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
    if not places(text, right):
        raise SystemExit(f"{changed} no longer contains {right!r}: bring this fault up to date")
    return module.variant(Path(folder), changed, replaced(text, right, wrong), source[0] if source else changed)


def notices(path, fault, *more):
    """Whether the tests fail on the package with this fault below `path`; what they said."""
    search = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *more, *shlex.split(fault[4])], cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=300)
    if "--timeout" in fault[4] and " Timeout +" in done.stdout + done.stderr:
        return True, "a test hangs"
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
                sources=["vivace/models/decoder/*.cc", "vivace/models/decoder/*.h", "vivace/serve/*.cc", "vivace/engine/weight_uploader.cc", "tests/planted_faults.py", "tests/test_model_steps.py", "tests/test_pages.py"]) if receipt else None

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
