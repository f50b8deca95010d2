#include "vivace/serve/snapshot.h"

#include <algorithm>
#include <utility>

#include "vivace/base/check.h"

namespace vivace::serve {
namespace {

constexpr int kShare = 2;  // of the blocks, what snapshots may hold: 1 / kShare, and a whole context less than all

Result<engine::KvBlocks*> blocks_of(engine::TextModel& model) {
  if (engine::KvBlocks* blocks = model.blocks(); blocks != nullptr) return blocks;
  return Status(Code::kUnsupported,
                "capsule: this model keeps no blocks of keys and values; load it with num_kv_blocks=\"full\"");
}

Status check_room(const engine::KvBlocks& blocks, int context, int wanted) {
  if (const int most = std::max(0, std::min(blocks.count() / kShare, blocks.count() - blocks.needed(context)));
      blocks.held() + wanted > most)
    return Status(Code::kLimitExceeded,
                  strf("capsule: it needs %d blocks of the caches, and capsules hold %d of at most %d; keep it on the "
                       "host, close others, or load with more num_kv_blocks",
                       wanted, blocks.held(), most));
  if (blocks.states() > 0 && blocks.held_states() + 1 > blocks.states() / kShare)
    return Status(
        Code::kLimitExceeded,
        strf("capsule: capsules hold %d states of at most %d; keep it on the host, close others, or load with "
             "more state_cache_bytes",
             blocks.held_states(), blocks.states() / kShare));
  return {};
}

}  // namespace

Result<std::unique_ptr<Snapshot>> Snapshot::take(EngineLoop& loop, std::string_view salt,
                                                 std::span<const int32_t> tokens, int64_t request, bool keep) {
  std::unique_ptr<Snapshot> made(new Snapshot(loop));
  if (request > 0) VV_TRY(loop.share(request));
  VV_TRY(loop.perform([&](engine::TextModel& model) -> Status {
    VV_ASSIGN(engine::KvBlocks* const blocks, blocks_of(model));
    if (keep) VV_TRY(check_room(*blocks, model.limits().context, blocks->needed(static_cast<int>(tokens.size()) - 1)));
    const engine::KvBlocks::Found found =
        blocks->match(blocks->root(std::as_bytes(std::span(salt))), tokens, false, &made->blocks_, 1);
    if (found.partial >= 0) made->blocks_.push_back(found.partial);
    made->kept_ = keep ? static_cast<int>(made->blocks_.size()) : 0;
    blocks->note_held(made->kept_);
    made->state_ = found.state, made->state_bytes_ = model.state_bytes();
    made->state_kept_ = keep && found.state >= 0;
    blocks->note_held_states(made->state_kept_);
    made->positions_ = found.positions, made->pure_ = model.limits().one_class ? found.positions : found.pure;
    made->block_bytes_ = model.block_bytes();
    return {};
  }));
  return made;
}

Result<std::unique_ptr<Snapshot>> Snapshot::write(EngineLoop& loop, std::string_view salt,
                                                  std::span<const int32_t> tokens, int positions, int pure,
                                                  std::span<const std::byte> bytes) {
  std::unique_ptr<Snapshot> made(new Snapshot(loop));
  VV_TRY(loop.perform([&](engine::TextModel& model) -> Status {
    VV_ASSIGN(engine::KvBlocks* const blocks, blocks_of(model));
    const engine::TextLimits limits = model.limits();
    if (positions < 0 || positions > limits.context || positions > static_cast<int>(tokens.size()) || pure < 0 ||
        pure > positions)
      return Status(Code::kInvalidArgument,
                    strf("capsule: wanted 0 to %d positions of %zu tokens, got %d, %d of them of prompts",
                         limits.context, tokens.size(), positions, pure));
    for (const int32_t t : tokens)
      if (t < 0 || t >= limits.vocab)
        return Status(Code::kInvalidArgument,
                      strf("capsule: token %d is outside the vocabulary [0, %d)", t, limits.vocab));
    const int count = blocks->needed(positions), size = blocks->positions();
    const int64_t of_blocks = count * model.block_bytes(), wanted = of_blocks + (count > 0 ? model.state_bytes() : 0);
    if (static_cast<int64_t>(bytes.size()) != wanted)
      return Status(Code::kInvalidArgument, strf("capsule: %d positions are %ld bytes here, got %zu", positions,
                                                 static_cast<long>(wanted), bytes.size()));
    if (count > blocks->available())
      return Status(Code::kLimitExceeded,
                    strf("capsule: it needs %d blocks of the caches, and %d are free; ask again when answers are over",
                         count, blocks->available()));
    const bool carries = limits.recurrent && count > 0;
    if (carries && (made->state_ = blocks->take_state()) < 0)
      return Status(
          Code::kLimitExceeded,
          strf("capsule: all %d places of states are held; ask again when answers are over, or load with more "
               "state_cache_bytes",
               blocks->states()));
    std::vector<int32_t>& mine = made->blocks_;
    for (int i = 0; i < count; ++i) mine.push_back(blocks->take());
    const auto began = std::chrono::steady_clock::now();
    const auto split = static_cast<size_t>(of_blocks);
    Status status = model.write_blocks(mine, bytes.first(split));
    if (status.ok() && carries)
      status = model.write_state(limits.max_batch + made->state_, positions, bytes.subspan(split));
    if (status.ok()) loop.note_restore(static_cast<int64_t>(bytes.size()), std::chrono::steady_clock::now() - began);
    const Hash128 root = blocks->root(std::as_bytes(std::span(salt)));
    for (int i = 0; status.ok() && i < count; ++i) {
      const int begin = i * size, end = std::min(begin + size, positions);
      const auto at = static_cast<size_t>(i);
      const auto put = blocks->put(root, i > 0 ? mine[at - 1] : -1, mine[at],
                                   tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                                   std::clamp(pure - begin, 0, end - begin));
      if (put.kept) continue;
      if (put.same < 0) status = Status(Code::kInternal, strf("capsule: block %d of it is not taken", i));
      else blocks->hold(put.same), blocks->drop(mine[at]), mine[at] = put.same;
    }
    if (status.ok() && carries)
      made->state_ = blocks->put_state(mine.back(), positions - (count - 1) * size, made->state_);
    if (!status.ok()) {
      if (carries) blocks->drop_state(std::exchange(made->state_, -1));
      return blocks->drop(&mine), status;
    }
    made->positions_ = positions, made->pure_ = pure;
    made->block_bytes_ = model.block_bytes(), made->state_bytes_ = model.state_bytes();
    return {};
  }));
  return made;
}

Snapshot::~Snapshot() {
  if (blocks_.empty()) return;
  loop_.post([blocks = std::move(blocks_), kept = kept_, state = state_,
              state_kept = state_kept_](engine::TextModel& model) mutable {
    model.blocks()->note_held(-kept);
    model.blocks()->note_held_states(-static_cast<int>(state_kept));
    if (state >= 0) model.blocks()->drop_state(state);
    model.blocks()->drop(&blocks);
  });
}

Result<engine::HostBytes> Snapshot::read() const {
  VV_ASSIGN(engine::HostBytes bytes, loop_.host_pool().take(static_cast<size_t>(this->bytes())));
  const std::span<std::byte> all = bytes;
  const size_t split = blocks_.size() * static_cast<size_t>(block_bytes_);
  VV_TRY(loop_.perform([&](engine::TextModel& model) -> Status {
    VV_TRY(model.read_blocks(blocks_, all.first(split)));
    return state_ >= 0 ? model.read_state(model.limits().max_batch + state_, all.subspan(split)) : Status();
  }));
  return bytes;
}

}  // namespace vivace::serve
