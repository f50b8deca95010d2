// The op table and the Recorder, on real rows and real memory.
#include "vivace/ops/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_stream.h"

namespace vivace::ops {
namespace {

using ::testing::HasSubstr;

bool has_port(const OpSpec& spec, std::string_view name) {
  for (const Port& p : spec.ports)
    if (name == p.name) return true;
  return false;
}

TEST(Table, RowsAreWellFormed) {
  std::set<std::string> names;
  for (const OpRow* row : table()) {
    const OpSpec& spec = *row->spec;
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name << " stands twice";
    EXPECT_EQ(find(spec.name), row);
    EXPECT_EQ(spec.composite, row->decompose != nullptr) << spec.name;
    EXPECT_EQ(!spec.composite, row->prepare != nullptr) << spec.name;
    EXPECT_TRUE(spec.composite || row->cost != nullptr) << spec.name;
    std::set<std::string> ports;
    for (const Port& p : spec.ports) {
      EXPECT_TRUE(ports.insert(p.name).second) << spec.name << "." << p.name << " stands twice";
      EXPECT_TRUE(p.dtypes[0] != '=' || has_port(spec, p.dtypes + 1)) << spec.name << "." << p.name << ": " << p.dtypes;
      EXPECT_TRUE(p.inplace[0] == '\0' || has_port(spec, p.inplace))
          << spec.name << "." << p.name << ": in place of " << p.inplace;
    }
  }
  EXPECT_EQ(find("no_such_op"), nullptr);
}

TEST(Table, AliasesFixAttributesThatTheirOpHas) {
  std::set<std::string> names;
  for (const Alias& alias : aliases()) {
    EXPECT_TRUE(names.insert(alias.name).second) << alias.name << " stands twice";
    EXPECT_EQ(find(alias.name), nullptr) << alias.name << " is also an op";
    std::string_view rest = alias.attrs;
    while (!rest.empty()) {
      const std::string_view one = rest.substr(0, rest.find(','));
      rest = one.size() == rest.size() ? std::string_view() : rest.substr(one.size() + 1);
      const size_t equals = one.find('=');
      ASSERT_NE(equals, std::string_view::npos) << alias.name << ": " << alias.attrs;
      Call call(*alias.op->spec);
      const std::string value(one.substr(equals + 1));
      const bool number =
          value == "-inf" || (!value.empty() && value.find_first_not_of("0123456789.-+e") == std::string::npos);
      const Status s =
          number ? call.set(one.substr(0, equals), std::stod(value)) : call.set(one.substr(0, equals), value);
      EXPECT_TRUE(s.ok()) << alias.name << ": " << s.to_string();
    }
  }
}

TEST(Table, SaysWhichChipsHaveAKernel) {
  EXPECT_TRUE(norm.has_kernel(Arch::sm80));
  EXPECT_TRUE(norm.has_kernel(Arch::sm90a));
  EXPECT_TRUE(rms_gemm.has_kernel(Arch::sm90a));
  EXPECT_FALSE(rms_gemm.has_kernel(Arch::sm80)) << "its two parts run there";
  EXPECT_FALSE(rms_gemm.has_kernel(Arch::cpu));
  EXPECT_FALSE(moe_mlp.has_kernel(Arch::sm90a)) << "it is its parts everywhere";
}

class RecorderTest : public ::testing::Test {
 protected:
  cpu::Pool pool_{2};
  exec::CpuStream stream_{pool_};
  Recorder rec_{stream_};
  float x_[2][6] = {{1, -2, 3, 4, 5, 6}, {0, 1, 2, -1, 2, -3}}, out_[2][3] = {};
  Tensor x() { return tensor(x_, DType::f32, Shape(2, 6)); }
  Tensor out() { return tensor(out_, DType::f32, Shape(2, 3)); }
};

TEST_F(RecorderTest, RunsAnOp) {
  // Ports given as an empty Tensor are ports not given.
  const Status s =
      rec_(act_mul, {{"x", x()}, {"inv_scale", Tensor{}}, {"out", out()}, {"rows", Tensor{}}}, {{"act", "relu"}});
  ASSERT_TRUE(s.ok()) << s.to_string();
  EXPECT_THAT(out_[0], ::testing::ElementsAre(4, 0, 18));
  EXPECT_THAT(out_[1], ::testing::ElementsAre(0, 2, -6));
}

TEST_F(RecorderTest, RefusesBeforeAnythingRuns) {
  out_[0][0] = 77;
  EXPECT_THAT(rec_(act_mul, {{"x", x()}, {"gates", x()}, {"out", out()}}).message(),
              HasSubstr("act_mul: no port 'gates'"));
  EXPECT_THAT(rec_(act_mul, {{"x", x()}, {"out", out()}}, {{"act", "tanh"}}).message(), HasSubstr("'tanh'"));
  EXPECT_THAT(rec_(act_mul, {{"x", x()}, {"out", x()}}).message(),
              HasSubstr("act_mul: port x: wanted [T,2*H] with 2*H = 12 on axis 1, got [2, 6]"));
  EXPECT_THAT(rec_(act_mul, {{"out", out()}}).message(), HasSubstr("exactly one of x (merged) and gate, got neither"));
  const Status both = rec_(act_mul, {{"x", x()}, {"up", out()}, {"out", tensor(x_, DType::f32, Shape(2, 3))}});
  EXPECT_EQ(both.code(), Code::kAliasError) << both.to_string();
  EXPECT_EQ(out_[0][0], 77);
}

TEST_F(RecorderTest, CapturesAndReplaysOnNewContent) {
  ASSERT_TRUE(stream_.begin_capture().ok());
  ASSERT_TRUE(rec_(act_mul, {{"x", x()}, {"out", out()}}, {{"act", "relu"}}).ok());
  auto graph = stream_.end_capture();
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(out_[0][0], 0) << "capturing runs nothing";
  EXPECT_EQ((*graph)->launches(), 1u);
  x_[0][0] = 10;
  ASSERT_TRUE(stream_.replay(**graph).ok());
  EXPECT_EQ(out_[0][0], 40);
}

/// A stream that keeps what it was last asked to launch.
class SeenStream : public exec::Stream {
 public:
  exec::Launch last;
  Status launch(const exec::Launch& launch) override {
    last = launch;
    return {};
  }
  Status copy(void*, const void*, size_t) override { return {}; }
  Status begin_capture() override { return {}; }
  Result<std::unique_ptr<exec::Executable>> end_capture() override { return Status(Code::kUnsupported, "none"); }
  bool capturing() const override { return false; }
  Status replay(exec::Executable&) override { return {}; }
  Status record(exec::Event&) override { return {}; }
  Status wait(exec::Event&) override { return {}; }
  Status pass(exec::Gate&, uint32_t) override { return {}; }
  Status set(exec::Gate&, int, bool) override { return {}; }
  Status synchronize() override { return {}; }
};

TEST(Weights, OnlyAPromiseLetsACallThatReadsAheadStartEarly) {
  float x[2][4] = {}, w[3][4] = {}, out[2][3] = {}, codes[2][4] = {};
  const Tensor tx = tensor(x, DType::f32, Shape(2, 4)), tw = tensor(w, DType::f32, Shape(3, 4)),
               to = tensor(out, DType::f32, Shape(2, 3));
  SeenStream stream;
  for (const Weights weights : {Weights::ordered, Weights::constant}) {
    Recorder rec(stream, weights);
    ASSERT_TRUE(rec(gemm, {{"x", tx}, {"w", tw}, {"out", to}}).ok());
    EXPECT_EQ(stream.last.pdl, weights == Weights::constant);
    ASSERT_TRUE(rec(norm, {{"x", tx}, {"out", tensor(codes, DType::f32, Shape(2, 4))}}).ok());
    EXPECT_TRUE(stream.last.pdl) << "it reads nothing ahead";
  }
  EXPECT_TRUE(Recorder(stream)(gemm, {{"x", tx}, {"w", tw}, {"out", to}}).ok());
  EXPECT_FALSE(stream.last.pdl) << "without a word operands are ordered";
  EXPECT_TRUE(rms_gemm.spec->reads_ahead() && gated_gemm.spec->reads_ahead() && !attention.spec->reads_ahead());
}

}  // namespace
}  // namespace vivace::ops
