// Call::check on specs made for the purpose: every error once, with both sides in its message.
#include "vivace/ops/call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace vivace::ops {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Port kPorts[] = {
    in("x", "T,(Hq+2*Hkv)*D", "f32|bf16", "rows"),
    opt_in("w", "H,D", "q4_0|f32", "weight"),
    opt_in("mask", "T,(H+31)/32", "i32", "bits"),
    opt_inout("residual", "T,Hq*D", "=out", "stream"),
    out("out", "T,Hq*D", "f32|f16", "result", "residual"),
    opt_in("kv", "Hkv,D", "=x", "binds Hkv and D"),
    opt_in("any", "?,3", "f32", "first axis free"),
    rows_port(),
};
constexpr Attr kAttrs[] = {
    real("eps", 0.5, "r"),
    integer("window", 3, "i"),
    boolean("flag", true, "b"),
    choice("act", "none|silu|relu", "c"),
};
constexpr OpSpec kSpec{
    .name = "probe", .group = "test", .brief = "b", .formula = "f", .source = "s", .ports = kPorts, .attrs = kAttrs};
static_assert(kSpec.complete());

/// A call that passes; tests break one thing each. T = 4, Hkv = 2, D = 32, and Hq = 3 by x's width.
class CallTest : public ::testing::Test {
 protected:
  CallTest() {
    put("x", DType::f32, Shape(4, 7 * 32));
    put("kv", DType::f32, Shape(2, 32));
    put("out", DType::f32, Shape(4, 96));
  }
  Tensor put(const char* port, DType dtype, Shape shape) {
    memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(row_bytes(dtype, shape.elements())) + 64));
    const Tensor t = tensor(memory_.back().get(), dtype, shape);
    bind(port, t);
    return t;
  }
  void bind(const char* port, const Tensor& t) { ASSERT_TRUE(call_.bind(port, t).ok()); }
  void fails(Code code, const ::testing::Matcher<std::string>& message) {
    const Status s = call_.check();
    EXPECT_EQ(s.code(), code) << s.to_string();
    EXPECT_THAT(s.message(), AllOf(HasSubstr("probe: "), message));
  }

  Call call_{kSpec};
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

TEST_F(CallTest, AGoodCallBindsItsDims) {
  ASSERT_TRUE(call_.check().ok()) << call_.check().to_string();
  EXPECT_EQ(call_.dim("T"), 4);
  EXPECT_EQ(call_.dim("D"), 32);
  EXPECT_EQ(call_.dim("H"), 0) << "only absent ports bind H";
  EXPECT_EQ(call_.place(), Place::host);
  EXPECT_EQ(call_.row_stride("x"), 224);
  EXPECT_EQ(call_.row_stride("residual"), 0);
  EXPECT_EQ(call_.ptr("residual"), nullptr);
}

TEST_F(CallTest, CheckingTwiceGivesTheSame) {
  ASSERT_TRUE(call_.check().ok());
  put("kv", DType::f32, Shape(1, 16));
  put("any", DType::f32, Shape(9, 3));
  ASSERT_TRUE(call_.check().ok());
  EXPECT_EQ(call_.dim("D"), 16) << "dims of an earlier check must not stay";
}

TEST_F(CallTest, AMissingPortSaysWhatItWants) {
  bind("out", Tensor{});
  fails(Code::kInvalidArgument, AllOf(HasSubstr("port out: wanted f32|f16 [T,Hq*D]"), HasSubstr("got nothing")));
}

TEST_F(CallTest, NamesThatAreNotThere) {
  const Status port = call_.bind("y", Tensor{});
  EXPECT_EQ(port.code(), Code::kNotFound);
  EXPECT_THAT(port.message(), AllOf(HasSubstr("no port 'y'"), HasSubstr("x, w, mask, residual, out, kv, any, rows")));
  const Status attr = call_.set("epsilon", 1);
  EXPECT_EQ(attr.code(), Code::kNotFound);
  EXPECT_THAT(attr.message(), HasSubstr("eps, window, flag, act"));
}

TEST_F(CallTest, AttributesTakeTheirKindOnly) {
  EXPECT_EQ(call_.real("eps"), 0.5);
  EXPECT_EQ(call_.integer("window"), 3);
  EXPECT_TRUE(call_.flag("flag"));
  EXPECT_EQ(call_.integer("act"), 0);
  EXPECT_TRUE(call_.set("act", "relu").ok());
  EXPECT_EQ(call_.integer("act"), 2);
  EXPECT_TRUE(call_.set("window", -4.0).ok());
  EXPECT_EQ(call_.integer("window"), -4);
  EXPECT_THAT(call_.set("act", "gelu").message(), AllOf(HasSubstr("none|silu|relu"), HasSubstr("'gelu'")));
  EXPECT_THAT(call_.set("act", 1.0).message(), HasSubstr("the number 1"));
  EXPECT_THAT(call_.set("window", 1.5).message(), HasSubstr("takes an integer, got 1.5"));
  EXPECT_THAT(call_.set("flag", 2.0).message(), HasSubstr("true or false, got 2"));
  EXPECT_EQ(call_.set("eps", std::nan("")).code(), Code::kInvalidArgument);
  EXPECT_THAT(call_.set("eps", "silu").message(), HasSubstr("attribute eps takes a number, got 'silu'"));
  EXPECT_THAT(call_.set("epsilon", "silu").message(), HasSubstr("eps, window, flag, act"));
  EXPECT_EQ(call_.set("window", INFINITY).code(), Code::kInvalidArgument);
  EXPECT_EQ(call_.integer("act"), 2) << "a refused value must not stay";
  EXPECT_EQ(call_.integer("window"), -4);
}

TEST_F(CallTest, Dtypes) {
  put("x", DType::f16, Shape(4, 224));
  fails(Code::kInvalidDType, HasSubstr("port x: wanted f32|bf16, got f16"));
  put("x", DType::bf16, Shape(4, 224));
  fails(Code::kInvalidDType, HasSubstr("port kv: wanted the dtype of x (bf16), got f32"));
  put("kv", DType::bf16, Shape(2, 32));
  put("residual", DType::f16, Shape(4, 96));
  fails(Code::kInvalidDType, HasSubstr("port residual: wanted the dtype of out (f32), got f16"));
}

TEST_F(CallTest, RanksAndDims) {
  put("x", DType::f32, Shape(4, 7, 32));
  fails(Code::kInvalidShape, AllOf(HasSubstr("[4, 7, 32]"), HasSubstr("rank 3 for 2")));
  put("x", DType::f32, Shape(4, 224));
  put("out", DType::f32, Shape(5, 96));
  fails(Code::kInvalidShape, AllOf(HasSubstr("port out"), HasSubstr("T = 4 on axis 0"), HasSubstr("[5, 96]")));
}

TEST_F(CallTest, DivisionInADimRoundsDown) {
  put("w", DType::f32, Shape(33, 32));
  put("mask", DType::i32, Shape(4, 2));
  EXPECT_TRUE(call_.check().ok()) << call_.check().to_string();
  put("mask", DType::i32, Shape(4, 1));
  fails(Code::kInvalidShape, AllOf(HasSubstr("(H+31)/32 = 2 on axis 1"), HasSubstr("[4, 1]")));
}

TEST_F(CallTest, AFreeAxisTakesAnySizeAndALiteralOnlyItself) {
  put("any", DType::f32, Shape(0, 3));
  EXPECT_TRUE(call_.check().ok());
  put("any", DType::f32, Shape(5, 4));
  fails(Code::kInvalidShape, AllOf(HasSubstr("3 = 3 on axis 1"), HasSubstr("[5, 4]")));
  bind("any", Tensor{});
  put("rows", DType::i32, Shape(2));
  fails(Code::kInvalidShape, HasSubstr("port rows"));
}

TEST_F(CallTest, OnlyTheOutermostAxisMayBeStrided) {
  Tensor x = put("x", DType::f32, Shape(4, 224));  // room for two rows at the strides below
  x.shape.dim[0] = 2;
  put("out", DType::f32, Shape(2, 96));
  x.stride[0] = 300;
  bind("x", x);
  EXPECT_TRUE(call_.check().ok());
  EXPECT_EQ(call_.row_stride("x"), 300);
  x.stride[0] = 200;
  bind("x", x);
  fails(Code::kInvalidLayout, AllOf(HasSubstr("stride 200"), HasSubstr("224 elements")));
  x.stride[0] = 448, x.stride[1] = 2;
  bind("x", x);
  fails(Code::kInvalidLayout, AllOf(HasSubstr("axis 1 has stride 2, wanted 1")));
}

TEST_F(CallTest, BlocksAreWhole) {
  put("kv", DType::f32, Shape(2, 48));
  put("w", DType::q4_0, Shape(3, 48));
  fails(Code::kInvalidShape, AllOf(HasSubstr("last axis 48"), HasSubstr("q4_0 block, 32")));
  put("kv", DType::f32, Shape(2, 64));
  Tensor w = put("w", DType::q4_0, Shape(3, 64));
  EXPECT_TRUE(call_.check().ok());
  w.shape.dim[0] = 2, w.stride[0] = 80;
  bind("w", w);
  fails(Code::kInvalidLayout, AllOf(HasSubstr("stride 80"), HasSubstr("q4_0 block, 32")));
}

TEST_F(CallTest, AlignmentNullAndPlace) {
  Tensor x = put("x", DType::f32, Shape(4, 224));
  x.data = static_cast<char*>(x.data) + 2;
  bind("x", x);
  fails(Code::kInvalidLayout, HasSubstr("not aligned to f32's 4 bytes"));
  x.data = nullptr;
  bind("x", x);
  fails(Code::kInvalidArgument, HasSubstr("null data for [4, 224]"));
  put("x", DType::f32, Shape(4, 224));
  Tensor out = put("out", DType::f32, Shape(4, 96));
  out.place = Place::device;
  bind("out", out);
  fails(Code::kInvalidDevice, AllOf(HasSubstr("port out is in device memory"), HasSubstr("host memory")));
}

TEST_F(CallTest, NegativeAndOverflowingDims) {
  Tensor any = put("any", DType::f32, Shape(5, 3));
  any.shape.dim[0] = -1;
  bind("any", any);
  fails(Code::kInvalidShape, AllOf(HasSubstr("port any"), HasSubstr("[-1, 3]")));
  any.shape.dim[0] = int64_t{1} << 31;
  bind("any", any);
  fails(Code::kInvalidShape, HasSubstr("axis 0 of [2147483648, 3] is not in [0, 2147483647]"));
}

TEST_F(CallTest, InPlaceMeansTheSameView) {
  Tensor r = put("residual", DType::f32, Shape(4, 96));
  bind("out", r);
  EXPECT_TRUE(call_.check().ok()) << call_.check().to_string();
  Tensor shifted = r;
  shifted.data = static_cast<char*>(r.data) + 4;
  bind("out", shifted);
  fails(Code::kAliasError, AllOf(HasSubstr("residual"), HasSubstr("out"), HasSubstr("same view")));
}

TEST_F(CallTest, OutputsHaveMemoryOfTheirOwn) {
  Tensor x = put("x", DType::f32, Shape(4, 224));
  Tensor out = tensor(x.data, DType::f32, Shape(4, 96));
  bind("out", out);
  fails(Code::kAliasError, AllOf(HasSubstr("port out overlaps port x"), HasSubstr("memory of its own")));
  out.data = static_cast<char*>(x.data) + 4 * 224 * 4 - 4;
  bind("out", out);
  fails(Code::kAliasError, HasSubstr("port out overlaps port x"));
}

TEST_F(CallTest, ColumnSlicesOfOneMatrixDoNotOverlap) {
  put("x", DType::f32, Shape(4, 320));
  Tensor x = tensor(memory_.back().get(), DType::f32, Shape(4, 224));
  Tensor out = tensor(memory_.back().get() + 224 * 4, DType::f32, Shape(4, 96));
  x.stride[0] = out.stride[0] = 320;
  bind("x", x), bind("out", out);
  EXPECT_TRUE(call_.check().ok()) << call_.check().to_string();
  out.data = memory_.back().get() + 223 * 4;
  bind("out", out);
  fails(Code::kAliasError, HasSubstr("port out overlaps port x"));
}

}  // namespace
}  // namespace vivace::ops
