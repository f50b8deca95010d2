#include <string>

#include "vivace/base/printable.h"
#include "vivace/capi/guard.h"

#ifndef VV_VERSION
#error "VV_VERSION comes from the build"
#endif

namespace vivace::capi {
namespace {

static_assert(static_cast<int>(Code::kInternal) == VV_INTERNAL && VV_INTERNAL == kCodeCount - 1);
static_assert(static_cast<int>(Code::kNoVariant) == VV_NO_VARIANT &&
              static_cast<int>(Code::kCudaError) == VV_CUDA_ERROR);

thread_local std::string t_error;

/// The text that `make` gives; none where there is no memory for one.
template <class Make>
void keep(Make&& make) {
  try {
    t_error = make();
  } catch (const std::exception&) {
    t_error.clear();
  }
}

}  // namespace

vv_status answer(const char* call, const Status& status) {
  if (status.ok()) [[likely]] return VV_OK;
  keep([&] { return printable(std::string(call) + ": " + status.to_string()); });
  return static_cast<vv_status>(status.code());
}

Status from_callback(vv_status status) {
  if (status == VV_OK) return {};
  if (status < 0 || status >= kCodeCount)
    return Status(Code::kInvalidArgument, strf("the callback answered %d, which is no vv_status", status));
  return Status(static_cast<Code>(status),
                t_error.empty() ? "the callback gave no reason (vv_fail gives one)" : t_error);
}

void clear_error() { t_error.clear(); }

}  // namespace vivace::capi

extern "C" {

const char* vv_version(void) { return VV_VERSION; }
const char* vv_status_name(vv_status status) { return vivace::name(static_cast<vivace::Code>(status)); }
const char* vv_last_error(void) { return vivace::capi::t_error.c_str(); }

vv_status vv_fail(vv_status status, const char* why) {
  vivace::capi::keep([&] { return std::string(why == nullptr ? "" : why); });
  return status;
}

}  // extern "C"
