// Blocks of the caches and recurrent states, for who keeps account of them above: what a sequence is besides its
// tokens.
#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {

using engine::Sampling;

Status DecoderModel::check_blocks(const char* call, std::span<const int32_t> blocks) const {
  for (const int32_t b : blocks)
    if (b < 0 || b >= limits_.pages)
      return Status(Code::kInvalidArgument, strf("%s: block %d is outside [0, %d)", call, b, limits_.pages));
  return {};
}

Status DecoderModel::resume(int slot, const Sampling& sampling, std::span<const int32_t> fed) {
  VV_TRY(check_slot("resume", slot));
  VV_TRY(engine::check(sampling));
  if (!pages_.used()) return TextModel::resume(slot, sampling, fed);
  if (runtime_->place() == Place::host) VV_TRY(source_.check_files());
  pages_.release(slot);
  return begin(slot, sampling, fed);
}

Status DecoderModel::map(int slot, int first, std::span<const int32_t> blocks) {
  VV_TRY(check_slot("map", slot));
  if (!pages_.used()) return TextModel::map(slot, first, blocks);
  VV_TRY(check_blocks("map", blocks));
  return pages_.map(runtime_->stream(), slot, first, blocks);
}

int64_t DecoderModel::block_bytes() const {
  if (!pages_.used()) return 0;
  return 2 * static_cast<int64_t>(buffers_.k_cache.size()) * slice(buffers_.k_cache.front(), 0, 1).span_bytes();
}

Status DecoderModel::copy_block(int32_t from, int32_t to) {
  const int32_t both[] = {from, to};
  VV_TRY(check_blocks("copy_block", both));
  for (const auto* caches : {&buffers_.k_cache, &buffers_.v_cache})
    for (const Tensor& cache : *caches) {
      const Tensor source = slice(cache, from, 1);
      VV_TRY(runtime_->stream().copy(slice(cache, to, 1).data, source.data, static_cast<size_t>(source.span_bytes())));
    }
  return {};
}

int64_t DecoderModel::state_bytes() const {
  return limits_.recurrent ? config_.state_width() * static_cast<int64_t>(sizeof(float)) : 0;
}

Status DecoderModel::check_state(const char* call, int state) const {
  const int count = limits_.recurrent ? limits_.max_batch + limits_.states : 0;
  return state >= 0 && state < count
             ? Status()
             : Status(Code::kInvalidArgument, strf("%s: state %d is outside [0, %d)", call, state, count));
}

Tensor DecoderModel::state_of(int state) const {
  return state < limits_.max_batch ? slice(buffers_.state, state, 1)
                                   : slice(buffers_.kept_state, state - limits_.max_batch, 1);
}

Status DecoderModel::copy_state(int from, int to) {
  if (!limits_.recurrent) return TextModel::copy_state(from, to);
  VV_TRY(check_state("copy_state", from));
  VV_TRY(check_state("copy_state", to));
  VV_TRY(runtime_->stream().copy(state_of(to).data, state_of(from).data, static_cast<size_t>(state_bytes())));
  state_pos_[static_cast<size_t>(to)] = state_pos_[static_cast<size_t>(from)];
  return {};
}

Status DecoderModel::read_state(int state, std::span<std::byte> to) {
  if (!limits_.recurrent) return TextModel::read_state(state, to);
  VV_TRY(check_state("read_state", state));
  VV_CHECK_EQ(kInvalidArgument, static_cast<int64_t>(to.size()), state_bytes());
  VV_TRY(runtime_->stream().copy(to.data(), state_of(state).data, to.size()));
  return runtime_->stream().synchronize();
}

Status DecoderModel::write_state(int state, int position, std::span<const std::byte> from) {
  if (!limits_.recurrent) return TextModel::write_state(state, position, from);
  VV_TRY(check_state("write_state", state));
  VV_CHECK_EQ(kInvalidArgument, static_cast<int64_t>(from.size()), state_bytes());
  if (position < 1 || position > limits_.context)
    return Status(Code::kInvalidArgument,
                  strf("write_state: position %d is outside [1, %d]", position, limits_.context));
  VV_TRY(runtime_->stream().copy(state_of(state).data, from.data(), from.size()));
  state_pos_[static_cast<size_t>(state)] = position;
  return runtime_->stream().synchronize();
}

template <class F>
Status DecoderModel::each_run(std::span<const int32_t> blocks, F&& f) {
  size_t offset = 0;
  for (const auto* caches : {&buffers_.k_cache, &buffers_.v_cache})
    for (const Tensor& cache : *caches)
      for (size_t i = 0, end; i < blocks.size(); i = end) {
        for (end = i + 1; end < blocks.size() && blocks[end] == blocks[end - 1] + 1;) ++end;
        const Tensor run = slice(cache, blocks[i], static_cast<int64_t>(end - i));
        VV_TRY(f(run, offset));
        offset += static_cast<size_t>(run.span_bytes());
      }
  return {};
}

Status DecoderModel::read_blocks(std::span<const int32_t> blocks, std::span<std::byte> to) {
  VV_TRY(check_blocks("read_blocks", blocks));
  VV_CHECK_EQ(kInvalidArgument, static_cast<int64_t>(to.size()), static_cast<int64_t>(blocks.size()) * block_bytes());
  VV_TRY(each_run(blocks, [&](const Tensor& run, size_t offset) {
    return runtime_->stream().copy(to.data() + offset, run.data, static_cast<size_t>(run.span_bytes()));
  }));
  return runtime_->stream().synchronize();
}

Status DecoderModel::write_blocks(std::span<const int32_t> blocks, std::span<const std::byte> from) {
  VV_TRY(check_blocks("write_blocks", blocks));
  VV_CHECK_EQ(kInvalidArgument, static_cast<int64_t>(from.size()), static_cast<int64_t>(blocks.size()) * block_bytes());
  VV_TRY(each_run(blocks, [&](const Tensor& run, size_t offset) {
    return runtime_->stream().copy(run.data, from.data() + offset, static_cast<size_t>(run.span_bytes()));
  }));
  return runtime_->stream().synchronize();
}

}  // namespace vivace::models::decoder
