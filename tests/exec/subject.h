// A backend under test. The contract tests are written once and run for every subject.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "vivace/exec/backend.h"

namespace vivace::exec::testing {

/// What the contract tests need of a backend besides its interface: one kernel, prepared for it.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual Backend& backend() = 0;
  /// to[i] = to[i] * a + from[i] + b for i < n: steps that do not commute, so order shows.
  virtual Launch affine(float* to, const float* from, float a, float b, uint32_t n) = 0;
};

/// `make` answers Unsupported where the machine lacks the device; the tests then skip.
struct SubjectRow {
  const char* name;
  Result<std::unique_ptr<Subject>> (*make)();
};
Result<std::unique_ptr<Subject>> make_cpu_subject();
Result<std::unique_ptr<Subject>> make_cuda_subject();
Result<std::unique_ptr<Subject>> make_deferred_subject();  // see deferred_subject_test.cc

inline void PrintTo(const SubjectRow& row, std::ostream* out) { *out << row.name; }

#define VV_SUBJECT_SUITE(suite, ...)                                        \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, ::testing::Values(__VA_ARGS__), \
                           [](const auto& info) { return std::string(info.param.name); })
#define VV_CONTRACT_SUITE(suite)                                                                       \
  VV_SUBJECT_SUITE(suite, SubjectRow{"cpu", make_cpu_subject}, SubjectRow{"cuda", make_cuda_subject}, \
                   SubjectRow{"deferred", make_deferred_subject})

class ForeignExecutable final : public Executable {
 public:
  size_t launches() const override { return 0; }
};
class ForeignEvent final : public Event {
 public:
  Status synchronize() override { return {}; }
};

#define VV_EXPECT_OK(expr)                                    \
  do {                                                        \
    const ::vivace::Status vv_s = (expr);                     \
    EXPECT_TRUE(vv_s.ok()) << vv_s.to_string();               \
  } while (0)

/// The code, and that the message holds `part`.
inline void expect_error(const Status& s, Code code, const std::string& part) {
  EXPECT_STREQ(vivace::name(s.code()), vivace::name(code)) << s.to_string();
  EXPECT_NE(s.message().find(part), std::string::npos) << "no '" << part << "' in: " << s.to_string();
}

class ContractTest : public ::testing::TestWithParam<SubjectRow> {
 protected:
  static constexpr uint32_t kCount = 1000;

  void SetUp() override {
    auto made = GetParam().make();
    if (!made.ok() && made.status().code() == Code::kUnsupported) GTEST_SKIP() << made.status().to_string();
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    subject_ = std::move(made).value();
    stream_ = make_stream();
    x_ = make_region("x", ramp(0.25f));
    y_ = make_region("y", ramp(-1.5f));
  }

  std::unique_ptr<Stream> make_stream() {
    auto s = subject_->backend().make_stream();
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return std::move(s).value();
  }
  std::unique_ptr<Event> make_event() {
    auto e = subject_->backend().make_event();
    EXPECT_TRUE(e.ok()) << e.status().to_string();
    return std::move(e).value();
  }
  static std::vector<float> ramp(float step) {
    std::vector<float> v(kCount);
    for (uint32_t i = 0; i < kCount; ++i) v[i] = step * static_cast<float>(i) + 1;
    return v;
  }
  Buffer make_region(const char* name, const std::vector<float>& values) {
    auto b = subject_->backend().make_buffer(name, values.size() * sizeof(float));
    EXPECT_TRUE(b.ok()) << b.status().to_string();
    Buffer out = std::move(b).value();
    write(out, values);
    return out;
  }
  void write(const Buffer& b, const std::vector<float>& values) {
    VV_EXPECT_OK(stream_->copy(b.data(), values.data(), b.bytes()));
    VV_EXPECT_OK(stream_->synchronize());
  }
  std::vector<float> read(const Buffer& b) {
    std::vector<float> v(b.bytes() / sizeof(float));
    VV_EXPECT_OK(stream_->copy(v.data(), b.data(), b.bytes()));
    VV_EXPECT_OK(stream_->synchronize());
    return v;
  }
  Status affine(Stream& s, const Buffer& to, const Buffer& from, float a, float b) {
    return s.launch(
        subject_->affine(static_cast<float*>(to.data()), static_cast<const float*>(from.data()), a, b, kCount));
  }
  /// The same step on the host, in the same precision: both round the product and both sums.
  static void reference(std::vector<float>* to, const std::vector<float>& from, float a, float b) {
    for (size_t i = 0; i < to->size(); ++i) {
      volatile float p = (*to)[i] * a;  // volatile: no contraction to a fused multiply-add
      volatile float q = p + from[i];
      (*to)[i] = q + b;
    }
  }

  std::unique_ptr<Subject> subject_;  // first, so that it goes last
  std::unique_ptr<Stream> stream_;
  Buffer x_, y_;
};

}  // namespace vivace::exec::testing
