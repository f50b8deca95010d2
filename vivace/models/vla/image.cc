#include "vivace/models/vla/image.h"

#include <cstring>

#include "vivace/base/check.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::models::vla {
namespace {

constexpr size_t kMostPrepared = 64;  // sizes and places of frames that are kept; beyond, all are made anew
constexpr int64_t kUsualHeight = 480, kUsualWidth = 640;

/// Planes of red, green and blue as pixels.
void interleave(const engine::Frame& frame, char* to) {
  for (int64_t y = 0; y < frame.height; ++y) {
    const uint8_t* const red = frame.data + y * frame.stride;
    const uint8_t *const green = red + frame.plane, *const blue = green + frame.plane;
    for (int64_t x = 0; x < frame.width; ++x, to += 3)
      to[0] = static_cast<char>(red[x]), to[1] = static_cast<char>(green[x]), to[2] = static_cast<char>(blue[x]);
  }
}

}  // namespace

Status ImagePreprocessor::open(engine::Runtime& runtime, const Tensor& pixels, Resize kind, int64_t frames) {
  runtime_ = &runtime, pixels_ = pixels, kind_ = kind;
  runs_.reserve(static_cast<size_t>(pixels.shape[0]));
  VV_TRY(begin(static_cast<size_t>(frames * kUsualHeight * kUsualWidth * 3)));
  const Run one{kUsualHeight, kUsualWidth, 0, 1, 0};
  VV_ASSIGN(const exec::Launch* const launch, launch_of(one));
  VV_TRY(runtime.stream().launch(*launch));
  return runtime.stream().synchronize();
}

Status ImagePreprocessor::begin(size_t bytes) {
  used_ = 0, images_ = 0;
  runs_.clear();
  if (bytes <= staging_.bytes()) return {};
  VV_TRY(runtime_->stream().synchronize());  // an earlier call may still read what goes
  prepared_.clear();
  exec::Buffer raw;
  VV_ASSIGN(exec::Buffer staging, runtime_->reserve_shared("frames", bytes));
  if (runtime_->place() != Place::host) {
    VV_ASSIGN(raw, runtime_->reserve("frames on the device", bytes));
  }
  staging_ = std::move(staging), raw_ = std::move(raw);  // both or neither: what is kept says how much fits
  return {};
}

Status ImagePreprocessor::add(const engine::Frame& frame) {
  char* const to = static_cast<char*>(staging_.data()) + used_;
  const auto line = static_cast<size_t>(frame.width * 3);
  if (!runs_.empty() && runs_.back().height == frame.height && runs_.back().width == frame.width) ++runs_.back().count;
  else runs_.push_back({frame.height, frame.width, images_, 1, used_});
  const size_t at = used_, bytes = line * static_cast<size_t>(frame.height);
  const int64_t picture = images_++;
  used_ += bytes;
  const bool as_it_is = as_they_are(runs_.back()), goes_off = as_it_is || raw_.data() != nullptr,
             packed = frame.plane == 0 && frame.stride == frame.width * 3;
  const void* from = to;
  if (frame.plane != 0) interleave(frame, to);
  else if (frame.page_locked && packed && goes_off) from = frame.data;
  else if (packed) std::memcpy(to, frame.data, bytes);
  else
    for (int64_t y = 0; y < frame.height; ++y)
      std::memcpy(to + static_cast<size_t>(y) * line, frame.data + y * frame.stride, line);
  // On its way while the next one is copied.
  if (as_it_is) return runtime_->stream().copy(slice(pixels_, picture, 1).data, from, bytes);
  return goes_off ? runtime_->stream().copy(source() + at, from, bytes) : Status();
}

Result<const exec::Launch*> ImagePreprocessor::launch_of(const Run& run) {
  for (const Prepared& p : prepared_)
    if (p.run == run) return &p.launch;
  if (prepared_.size() == kMostPrepared) prepared_.clear();
  const Tensor frames =
      tensor(source() + run.at, DType::u8, Shape(run.count, run.height, run.width, 3), runtime_->place());
  ops::Call call(*ops::resize_pad.spec);
  VV_TRY(ops::bind(call, {{"x", frames}, {"out", slice(pixels_, run.first, run.count)}},
                   {{"filter", kind_ == Resize::openpi ? "triangle" : "linear"},
                    {"align", kind_ == Resize::smolvla ? "end" : "centre"}}));
  VV_TRY(call.check());
  Prepared p{run, {}};
  VV_TRY(ops::resize_pad.prepare(call, {runtime_->stream().device()}, &p.launch));
  prepared_.push_back(p);
  return &prepared_.back().launch;
}

Status ImagePreprocessor::scale() {
  for (const Run& run : runs_) {
    if (as_they_are(run)) continue;
    VV_ASSIGN(const exec::Launch* const launch, launch_of(run));
    VV_TRY(runtime_->stream().launch(*launch));
  }
  return {};
}

}  // namespace vivace::models::vla
