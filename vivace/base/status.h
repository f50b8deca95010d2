// Status and Result<T>: how every fallible call answers. OK costs one null pointer, no allocation.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace vivace {

enum class Code : int {
  kOk = 0,
  kInvalidArgument,  // a value that no call of this kind accepts
  kInvalidShape,     // a dimension or rank that the port's shape refuses
  kInvalidDType,     // a dtype that the port's list refuses
  kInvalidLayout,    // strides, alignment or contiguity
  kInvalidDevice,    // host pointer where a device pointer is wanted, or the other way round
  kAliasError,       // an output overlaps another port
  kUnsupported,      // well-formed, but no kernel, format or chip here serves it
  kNoVariant,        // a ShapeKey that was not captured
  kNotFound,         // file, tensor, op, model or symbol that is not there
  kCorruptData,      // a file that breaks its format's rules
  kIoError,          // the operating system refused a read or write
  kOutOfMemory,      // an allocation or quota that does not fit
  kLimitExceeded,    // context length, queue, header or depth limits
  kCompileError,     // NVRTC refused the source
  kCudaError,        // a driver call failed; the message has call, op and arguments
  kClosed,           // use after close()
  kCancelled,        // stopped by the caller
  kFailedPrecondition,  // right call, wrong time (replay before capture, growth after freeze)
  kInternal,         // a broken invariant of ours: please report
};
inline constexpr int kCodeCount = 20;

/// Stable name of a code, e.g. "InvalidShape"; docs/errors.md has a row for each.
const char* name(Code c);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code c, std::string message) : rep_(std::make_unique<Rep>(Rep{c, std::move(message)})) {}
  Status(const Status& o) : rep_(o.rep_ ? std::make_unique<Rep>(*o.rep_) : nullptr) {}
  Status& operator=(const Status& o) {
    rep_ = o.rep_ ? std::make_unique<Rep>(*o.rep_) : nullptr;
    return *this;
  }
  Status(Status&&) = default;
  Status& operator=(Status&&) = default;

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const;
  /// "InvalidShape: gemm: port w: ..." or "OK".
  std::string to_string() const;
  /// The same error with `prefix` (who was asked for what) before its message; OK stays OK.
  Status with_context(const std::string& prefix) &&;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::unique_ptr<Rep> rep_;
};

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: `return value;` must work
  Result(Status status) : status_(std::move(status)) {  // NOLINT: so must `return Status(...)`
    if (status_.ok()) status_ = Status(Code::kInternal, "Result built from an OK status without a value");
  }
  bool ok() const { return status_.ok(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T operator*() && { return std::move(*value_); }  // by value: `for (x : *f())` must not dangle
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

/// printf-style message builder for the setup phase (allocates; never on the hot path).
[[gnu::format(printf, 1, 2)]] std::string strf(const char* format, ...);

}  // namespace vivace
