#include "vivace/engine/model.h"

#include <algorithm>
#include <charconv>

#include "vivace/base/check.h"

namespace vivace::engine {

Status check(const Sampling& s) {
  const auto bad = [](const char* what, const char* want, auto got) {
    char text[32];  // the shortest that is this number: 1.0000001 is not told as 1
    *std::to_chars(text, text + sizeof text - 1, got).ptr = '\0';
    return Status(Code::kInvalidArgument, strf("%s: wanted %s, got %s", what, want, text));
  };
  if (!(s.temperature >= 0 && s.temperature < 1e6f)) return bad("temperature", "0 (greedy) to 1e6", s.temperature);
  if (!(s.top_p > 0 && s.top_p <= 1)) return bad("top_p", "a value in (0, 1]", s.top_p);
  if (!(s.min_p >= 0 && s.min_p <= 1)) return bad("min_p", "a value in [0, 1]", s.min_p);
  if (s.top_k < 0) return bad("top_k", "0 (off) or more", s.top_k);
  if (!(s.repetition > 0 && s.repetition < 1e6f)) return bad("repetition_penalty", "a value in (0, 1e6)", s.repetition);
  if (!(s.presence >= -1e6f && s.presence <= 1e6f))
    return bad("presence_penalty", "a value in [-1e6, 1e6]", s.presence);
  if (!(s.frequency >= -1e6f && s.frequency <= 1e6f))
    return bad("frequency_penalty", "a value in [-1e6, 1e6]", s.frequency);
  return {};
}

Result<Moved> Model::sleep() { return Status(Code::kUnsupported, family() + ": such a model cannot sleep"); }
Result<Moved> Model::wake() { return Status(Code::kUnsupported, family() + ": such a model cannot sleep"); }
HostPool& Model::host_pool() {
  static const std::shared_ptr<HostPool> plain = HostPool::make(nullptr, 0);
  return *plain;
}

Status TextModel::step(std::span<const TokenRow> rows, std::span<Sampled> out) {
  const auto sampled =
      static_cast<size_t>(std::count_if(rows.begin(), rows.end(), [](const TokenRow& r) { return r.sample; }));
  if (out.size() != sampled)
    return Status(Code::kInvalidArgument, strf("step: %zu rows sample but out holds %zu", sampled, out.size()));
  if (queued() > 0)
    return Status(Code::kFailedPrecondition, strf("step: %d steps are queued; collect() them first", queued()));
  VV_TRY(issue(rows));
  return collect(out);
}

void TextModel::release(int) {}

namespace {

Status no_blocks(const char* call) {
  return Status(Code::kUnsupported,
                strf("%s: this model's sequences share no blocks; load it with num_kv_blocks", call));
}

}  // namespace

KvBlocks* TextModel::blocks() { return nullptr; }
Status TextModel::resume(int, const Sampling&, std::span<const int32_t>) { return no_blocks("resume"); }
Status TextModel::map(int, int, std::span<const int32_t>) { return no_blocks("map"); }
int64_t TextModel::block_bytes() const { return 0; }
Status TextModel::copy_block(int32_t, int32_t) { return no_blocks("copy_block"); }
Status TextModel::read_blocks(std::span<const int32_t>, std::span<std::byte>) { return no_blocks("read_blocks"); }
Status TextModel::write_blocks(std::span<const int32_t>, std::span<const std::byte>) {
  return no_blocks("write_blocks");
}

namespace {

Status no_state(const char* call) {
  return Status(Code::kUnsupported, strf("%s: this model's sequences carry no recurrent state", call));
}

}  // namespace

int64_t TextModel::state_bytes() const {
  return 0;
}
Status TextModel::copy_state(int, int) {
  return no_state("copy_state");
}
Status TextModel::read_state(int, std::span<std::byte>) {
  return no_state("read_state");
}
Status TextModel::write_state(int, int, std::span<const std::byte>) {
  return no_state("write_state");
}

TextModel::Heard TextModel::heard(int) const {
  return {};
}
Status TextModel::draft(std::span<const TokenRow>, int, std::span<int32_t>) {
  return Status(Code::kUnsupported, family() + " was loaded without a draft layer; load it with mtp");
}
void TextModel::note_drafts(int64_t, int64_t) {}

Status TextModel::see(int, const Image&) {
  return Status(Code::kUnsupported, family() + " takes no images; its prompts are text");
}

Status TextModel::set_mask(int, std::span<const uint32_t>) {
  return Status(Code::kUnsupported, "set_mask: this model cannot forbid tokens");
}

Result<WorkTimes> TextModel::work_times() const {
  return Status(
      Code::kFailedPrecondition,
      "work_times: this model was loaded without gates, and nobody timed its steps; load it through a scheduler");
}

Status TextModel::observe(std::span<const TokenRow>, const Observer&, const Wanted&) {
  return Status(Code::kUnsupported, "observe: this model shows no values between its ops");
}

Result<std::vector<float>> TextModel::calibrate(std::span<const std::vector<int32_t>>, double) {
  return Status(Code::kUnsupported, "calibrate: this model has no plan with calibrated scales");
}

}  // namespace vivace::engine
