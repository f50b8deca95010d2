#include "vivace/base/status.h"

#include <cstdarg>
#include <cstdio>

namespace vivace {

const char* name(Code c) {
  static constexpr const char* kNames[kCodeCount] = {
      "OK",          "InvalidArgument", "InvalidShape", "InvalidDType", "InvalidLayout",
      "InvalidDevice", "AliasError",    "Unsupported",  "NoVariant",    "NotFound",
      "CorruptData", "IoError",         "OutOfMemory",  "LimitExceeded", "CompileError",
      "CudaError",   "Closed",          "Cancelled",    "FailedPrecondition", "Internal"};
  const int i = static_cast<int>(c);
  return i >= 0 && i < kCodeCount ? kNames[i] : "?";
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

std::string Status::to_string() const {
  return ok() ? std::string("OK") : std::string(name(code())) + ": " + message();
}

Status Status::with_context(const std::string& prefix) && {
  if (rep_) rep_->message = prefix + ": " + rep_->message;
  return std::move(*this);
}

std::string strf(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string s(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(s.data(), s.size() + 1, format, again);
  va_end(again);
  return s;
}

}  // namespace vivace
