#include "vivace/models/vla/image.h"

#include <cstring>

#include "vivace/base/check.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::models::vla {
namespace {

constexpr size_t kMostPrepared = 64;  // sizes and places of frames that are kept; beyond, all are made anew
constexpr int64_t kUsualHeight = 480, kUsualWidth = 640;

}  // namespace

Status Pictures::open(engine::Machine& machine, const Tensor& pixels, Resize kind, int64_t frames) {
  machine_ = &machine, pixels_ = pixels, kind_ = kind;
  runs_.reserve(static_cast<size_t>(pixels.shape[0]));
  VV_TRY(begin(static_cast<size_t>(frames * kUsualHeight * kUsualWidth * 3)));
  const Run one{kUsualHeight, kUsualWidth, 0, 1, 0};
  VV_ASSIGN(const exec::Launch* const launch, launch_of(one));
  VV_TRY(machine.stream().launch(*launch));
  return machine.stream().synchronize();
}

Status Pictures::begin(size_t bytes) {
  used_ = 0, pictures_ = 0;
  runs_.clear();
  if (bytes <= staging_.bytes()) return {};
  VV_TRY(machine_->stream().synchronize());  // an earlier call may still read what goes
  prepared_.clear();
  exec::Buffer raw;
  VV_ASSIGN(exec::Buffer staging, machine_->reserve_shared("frames", bytes));
  if (machine_->place() != Place::host) {
    VV_ASSIGN(raw, machine_->reserve("frames on the device", bytes));
  }
  staging_ = std::move(staging), raw_ = std::move(raw);  // both or neither: what is kept says how much fits
  return {};
}

Status Pictures::add(const engine::Frame& frame) {
  char* const to = static_cast<char*>(staging_.data()) + used_;
  const auto line = static_cast<size_t>(frame.width * 3);
  if (frame.stride == frame.width * 3) std::memcpy(to, frame.data, line * static_cast<size_t>(frame.height));
  else
    for (int64_t y = 0; y < frame.height; ++y) std::memcpy(to + static_cast<size_t>(y) * line, frame.data + y * frame.stride, line);
  if (!runs_.empty() && runs_.back().height == frame.height && runs_.back().width == frame.width) ++runs_.back().count;
  else runs_.push_back({frame.height, frame.width, pictures_, 1, used_});
  const size_t at = used_, bytes = line * static_cast<size_t>(frame.height);
  const int64_t picture = pictures_++;
  used_ += bytes;
  // On its way while the next one is copied.
  if (as_they_are(runs_.back())) return machine_->stream().copy(slice(pixels_, picture, 1).data, to, bytes);
  return raw_.data() != nullptr ? machine_->stream().copy(source() + at, to, bytes) : Status();
}

Result<const exec::Launch*> Pictures::launch_of(const Run& run) {
  for (const Prepared& p : prepared_)
    if (p.run == run) return &p.launch;
  if (prepared_.size() == kMostPrepared) prepared_.clear();
  const Tensor frames = tensor(source() + run.at, DType::u8, Shape(run.count, run.height, run.width, 3), machine_->place());
  ops::Call call(*ops::resize_pad.spec);
  VV_TRY(ops::bind(call, {{"x", frames}, {"out", slice(pixels_, run.first, run.count)}}, {{"filter", kind_ == Resize::openpi ? "triangle" : "linear"}}));
  VV_TRY(call.check());
  Prepared p{run, {}};
  VV_TRY(ops::resize_pad.prepare(call, {machine_->stream().device()}, &p.launch));
  prepared_.push_back(p);
  return &prepared_.back().launch;
}

Status Pictures::scale() {
  for (const Run& run : runs_) {
    if (as_they_are(run)) continue;
    VV_ASSIGN(const exec::Launch* const launch, launch_of(run));
    VV_TRY(machine_->stream().launch(*launch));
  }
  return {};
}

}  // namespace vivace::models::vla
