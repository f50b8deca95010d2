#include "vivace/engine/model.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::engine {

Status check(const Sampling& s) {
  const auto bad = [](const char* what, const char* want, double got) {
    return Status(Code::kInvalidArgument, strf("%s: wanted %s, got %g", what, want, got));
  };
  if (!(s.temperature >= 0 && s.temperature < 1e6f)) return bad("temperature", "0 (greedy) to 1e6", s.temperature);
  if (!(s.top_p > 0 && s.top_p <= 1)) return bad("top_p", "a value in (0, 1]", s.top_p);
  if (!(s.min_p >= 0 && s.min_p <= 1)) return bad("min_p", "a value in [0, 1]", s.min_p);
  if (s.top_k < 0) return bad("top_k", "0 (off) or more", s.top_k);
  if (!(s.repetition > 0 && s.repetition < 1e6f)) return bad("repetition_penalty", "a value in (0, 1e6)", s.repetition);
  if (!(s.presence >= -1e6f && s.presence <= 1e6f)) return bad("presence_penalty", "a finite value", s.presence);
  if (!(s.frequency >= -1e6f && s.frequency <= 1e6f)) return bad("frequency_penalty", "a finite value", s.frequency);
  return {};
}

Status TextModel::step(std::span<const TokenRow> rows, std::span<Sampled> out) {
  const auto sampled = static_cast<size_t>(std::count_if(rows.begin(), rows.end(), [](const TokenRow& r) { return r.sample; }));
  if (out.size() != sampled) return Status(Code::kInvalidArgument, strf("step: %zu rows sample but out holds %zu", sampled, out.size()));
  if (queued() > 0) return Status(Code::kFailedPrecondition, strf("step: %d steps are queued; collect() them first", queued()));
  VV_TRY(issue(rows));
  return collect(out);
}

void TextModel::release(int) {}

int TextModel::free_pages() const { return 0; }

Status TextModel::observe(std::span<const TokenRow>, const Observer&) {
  return Status(Code::kUnsupported, "observe: this model shows no values between its ops");
}

Result<std::vector<float>> TextModel::calibrate(std::span<const std::vector<int32_t>>, double) {
  return Status(Code::kUnsupported, "calibrate: this model has no plan with calibrated scales");
}

}  // namespace vivace::engine
