// What arrays launch on a GPU, without one: which kernel, vector width, grid and arguments; and that every kernel of
// the table compiles with NVRTC. What the kernels compute is tests/test_array_emulated.py's.
#include "vivace/array/gpu_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>

#include "vivace/array/space.h"
#include "vivace/jit/nvrtc.h"

namespace vivace::array {
namespace {

using kernels::Fold;
using kernels::FoldSpace;
using kernels::kOut;
using kernels::MapProgram;
using kernels::MapSpace;
using kernels::Walk;

char* const kBase = reinterpret_cast<char*>(uintptr_t{1} << 40);  // never read

MapProgram one(Func f, Elem e, Elem result) {
  MapProgram p;
  p.operands = arity(f), p.result = result;
  for (int i = 0; i < p.operands; ++i) p.operand[i] = e;
  p.step[p.steps++] = {f, e, e, {0, 1, 2}};
  return p;
}
/// Axes with their strides: {dim, out, in 0, in 1}.
MapSpace space(std::initializer_list<std::array<int64_t, 4>> axes, char* out = kBase, char* x = kBase + (1 << 30),
               char* y = kBase + (2l << 30)) {
  MapSpace s;
  s.out = out, s.in[0] = x, s.in[1] = y;
  for (const auto& a : axes) {
    s.dim[s.rank] = a[0], s.out_stride[s.rank] = a[1], s.in_stride[0][s.rank] = a[2], s.in_stride[1][s.rank] = a[3];
    ++s.rank;
  }
  return s;
}

const MapProgram kAdd = one(Func::add, Elem::f32, Elem::f32);

TEST(GpuPlan, DenseMapsAreOneLineOfVectors) {
  MapSpace s = space({{300, 700, 700, 700}, {700, 1, 1, 1}});
  collapse(&s, 2, s.rank);
  const MapPlan p = plan_map(kAdd, s, 0);
  EXPECT_TRUE(p.kernel.flat);
  EXPECT_FALSE(p.kernel.wide);
  EXPECT_EQ(p.kernel.width, 4);
  EXPECT_EQ(p.args.vectors, 300 * 700 / 4);
  EXPECT_EQ(p.grid, (52500u + 255) / 256);
  EXPECT_EQ(p.kernel.walk[0], Walk::dense);
}

TEST(GpuPlan, WidthIsThatOfTheWidestAndTheWorstAligned) {
  const MapProgram bf16 = one(Func::add, Elem::bf16, Elem::bf16);
  EXPECT_EQ(plan_map(bf16, space({{1024, 1, 1, 1}}), 0).kernel.width, 8);
  EXPECT_EQ(plan_map(bf16, space({{1024, 1, 1, 1}}, kBase, kBase + 2), 0).kernel.width, 1);
  EXPECT_EQ(plan_map(bf16, space({{1024, 1, 1, 1}}, kBase, kBase + 4), 0).kernel.width, 2);
  EXPECT_EQ(plan_map(bf16, space({{1024, 1, 1, 1}}, kBase + 8), 0).kernel.width, 4);
  EXPECT_EQ(plan_map(bf16, space({{3, 1, 1, 1}}), 0).kernel.width, 2);                    // no longer than the line
  EXPECT_EQ(plan_map(kAdd, space({{8, 20, 20, 22}, {20, 1, 1, 1}}), 0).kernel.width, 2);  // a row starts at 22
  EXPECT_EQ(plan_map(one(Func::equal, Elem::u8, Elem::boolean), space({{4096, 1, 1, 1}}), 0).kernel.width, 8);
  EXPECT_EQ(plan_map(kAdd, space({{64, 2, 1, 1}}), 0).kernel.width, 1);  // the output is strided
}

TEST(GpuPlan, OperandsWalkEachInTheirWay) {
  const float three = 3;
  MapSpace s = space({{64, 128, 1, 0}, {128, 1, 64, 1}});
  const MapPlan turned = plan_map(kAdd, s, 0);
  EXPECT_EQ(turned.kernel.walk[0], Walk::strided);
  EXPECT_EQ(turned.kernel.walk[1], Walk::dense);
  EXPECT_EQ(turned.args.outer.rank, 1);
  EXPECT_EQ(turned.args.outer.stride[1][0], 0);
  EXPECT_EQ(turned.args.outer.stride[kOut][0], 128);
  s.in[1] = &three, s.in_stride[1][0] = s.in_stride[1][1] = 0;
  const uint64_t bits = 0x40400000;
  double wide;  // eight bytes are read, as of a Scalar
  std::memcpy(&wide, &bits, sizeof wide);
  s.in[1] = &wide;
  const MapPlan scaled = plan_map(kAdd, s, 2);
  EXPECT_EQ(scaled.kernel.walk[1], Walk::scalar);
  EXPECT_EQ(scaled.args.in[1], bits);
  EXPECT_EQ(plan_map(kAdd, space({{64, 1, 1, 0}}), 0).kernel.walk[1], Walk::still);
}

TEST(GpuPlan, NoShapeCompilesAnew) {
  std::set<std::string> keys;
  for (const int64_t n : {64, 128, 4096, 1 << 20})
    for (const int64_t m : {2, 3, 77}) keys.insert(plan_map(kAdd, space({{m, n, n, 0}, {n, 1, 1, 1}}), 0).kernel.key());
  EXPECT_EQ(keys.size(), 1u);
  EXPECT_NE(plan_map(kAdd, space({{64, 1, 1, 1}}), 0).kernel.key(), *keys.begin());
  EXPECT_NE(plan_map(kAdd, space({{64, 1, 1, 1}}), 0).kernel.key(),
            plan_map(one(Func::subtract, Elem::f32, Elem::f32), space({{64, 1, 1, 1}}), 0).kernel.key());
}

TEST(GpuPlan, OffsetsAreWideWhereTheyMustBe) {
  EXPECT_FALSE(plan_map(kAdd, space({{1 << 29, 1, 1, 1}}), 0).kernel.wide);
  const MapPlan large = plan_map(kAdd, space({{int64_t{1} << 32, 1, 1, 1}}), 0);
  EXPECT_TRUE(large.kernel.wide);
  EXPECT_EQ(large.grid, 1u << 22);
  EXPECT_TRUE(plan_map(kAdd, space({{2, 4, int64_t{1} << 33, 4}, {4, 1, 1, 1}}), 0).kernel.wide);  // few, far apart
  EXPECT_EQ(plan_map(kAdd, space({{0, 1, 1, 1}}), 0).grid, 0u);
}

TEST(GpuPlan, CopiesMoveBits) {
  MapProgram p;
  p.operands = 1, p.operand[0] = p.result = Elem::f16;
  const MapPlan plan = plan_map(p, space({{64, 1, 1, 0}}), 0);
  EXPECT_EQ(plan.kernel.program.operand[0], Elem::u16);
  p.operand[0] = p.result = Elem::boolean;
  EXPECT_EQ(plan_map(p, space({{64, 1, 1, 0}}), 0).kernel.program.result, Elem::u8);
  p.operand[0] = p.result = Elem::f64;
  EXPECT_EQ(plan_map(p, space({{64, 1, 1, 0}}), 0).kernel.program.result, Elem::u64);
}

/// A fold of f32 over [rows, columns] of these strides; the kept axis is the first.
FoldPlan folded(int64_t kept, int64_t kept_stride, int64_t n, int64_t stride, char* x = kBase) {
  MapProgram p;
  p.operands = 1, p.operand[0] = p.result = Elem::f32;
  FoldSpace f;
  f.space = space({{kept, 1, kept_stride, 0}, {n, 0, stride, 0}}, kBase, x);
  f.kept = 1;
  return plan_fold({}, p, f, 0, Elem::f32);
}

TEST(GpuPlan, FoldsByRowsOrColumns) {
  const FoldPlan rows = folded(8192, 4096, 4096, 1);
  EXPECT_EQ(rows.kernel.kind, GpuKernel::rows);
  EXPECT_EQ(rows.kernel.team, 256);
  EXPECT_EQ(rows.kernel.width, 4);
  EXPECT_EQ(rows.args.splits, 1);
  EXPECT_EQ(rows.grid[0], 8192u);
  const FoldPlan columns = folded(4096, 1, 8192, 4096);
  EXPECT_EQ(columns.kernel.kind, GpuKernel::columns);
  EXPECT_EQ(columns.grid[0], 32u);  // 128 columns a block
  EXPECT_EQ(columns.args.splits, 16);
  EXPECT_EQ(columns.args.units_a_split, 512);
  EXPECT_EQ(columns.partial_bytes, 4096 * 16 * 4);
  EXPECT_EQ(folded(1000, 12, 12, 1).kernel.team, 1);
  EXPECT_EQ(folded(1000, 128, 128, 1).kernel.team, 32);
  EXPECT_EQ(folded(1000, 128, 128, 1).grid[0], 125u);
}

TEST(GpuPlan, ALongFoldIsSplitByItsShapeAlone) {
  const FoldPlan whole = folded(1, 1, 1 << 26, 1);
  EXPECT_EQ(whole.args.splits, 512);
  EXPECT_EQ(whole.finish_grid, 1u);
  EXPECT_EQ(whole.last.kind, GpuKernel::finish);
  const FoldPlan moved = folded(1, 1, 1 << 26, 1, kBase + 4);  // other vectors, the same order of adding
  EXPECT_EQ(moved.kernel.walk[0], Walk::loose);
  EXPECT_EQ(moved.kernel.width, whole.kernel.width);
  EXPECT_EQ(moved.args.units_a_split, whole.args.units_a_split);
  EXPECT_EQ(folded(1, 1, 0, 1).args.units, 0);
}

/// What a unit's kernels take, as the gate of the ops has it: no spill, no stack.
void compile(const std::vector<GpuKernel>& all, Arch arch) {
  std::string text =
      "#include \"vivace/kernels/map/map.cuh\"\n#include \"vivace/kernels/map/fold.cuh\"\n"
      "namespace vivace::kernels {\n";
  std::vector<std::string> wanted;
  std::set<std::string> seen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!seen.insert(all[i].key()).second) continue;
    const std::string name = "Body_" + std::to_string(i);
    text += all[i].body(name);
    wanted.push_back(all[i].expression(name));
  }
  const Result<jit::Binary> b = jit::compile({"arrays.cu", text + "}\n", wanted, {"--fmad=false"}, arch});
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(b->warnings, "");
  ASSERT_EQ(b->resources.size(), wanted.size());
  for (const jit::Resources& r : b->resources) {
    EXPECT_EQ(r.spill_stores, 0) << r.symbol;
    EXPECT_LE(r.registers, 255) << r.symbol;
  }
}

class GpuPlanCompiles : public testing::TestWithParam<Elem> {};

TEST_P(GpuPlanCompiles, EveryFunctionCastAndFoldOfAType) {
  if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message();
  const Elem e = GetParam();
  // Widths of one kind differ in no path of the functions.
  const bool thorough =
      e == Elem::boolean || e == Elem::u8 || e == Elem::i32 || e == Elem::bf16 || e == Elem::f32 || e == Elem::f64;
  std::vector<GpuKernel> unit;
  const MapSpace flat = space({{1024, 1, 1, 1}}), lines = space({{8, 1024, 1, 1024}, {1024, 1, 8, 1}});
  for (int i = 0; i < kernels::kFuncCount; ++i) {
    const Func f = static_cast<Func>(i);
    if (!kernels::takes(rule(f), e) ||
        (!thorough && f != Func::add && f != Func::floor_divide && f != Func::clip && f != Func::philox))
      continue;
    MapSpace s = flat;
    s.in[2] = s.in[1], s.in_stride[2][0] = 1;
    unit.push_back(plan_map(one(f, e, kernels::gives_truth(rule(f)) ? Elem::boolean : e), s, 0).kernel);
  }
  for (int i = 0; i < kernels::kArithmeticCount; ++i) {
    MapProgram p;
    p.operands = 1, p.operand[0] = e, p.result = static_cast<Elem>(i);
    p.step[p.steps++] = {Func::cast, p.result, e, {0, 0, 0}};
    if (p.result != e && (thorough || i % 4 == 0)) unit.push_back(plan_map(p, flat, 0).kernel);
  }
  if (e != Elem::boolean) {
    unit.push_back(plan_map(one(Func::multiply, e, e), lines, 0).kernel);
    unit.push_back(
        plan_map(one(Func::multiply, e, e), space({{8, int64_t{1} << 33, 1, 9}, {1024, 1, 8, 1}}), 0).kernel);
  }
  const bool narrow = e == Elem::f16 || e == Elem::bf16;
  for (int i = 0; i < 8; ++i) {
    const Fold kind = static_cast<Fold>(i);
    const bool truths = kind == Fold::any || kind == Fold::all;
    if (truths ? e != Elem::boolean : e == Elem::boolean) continue;
    if (!thorough && kind != Fold::sum && kind != Fold::max && kind != Fold::argmin) continue;
    MapProgram p;
    p.operands = 1, p.operand[0] = e, p.result = narrow ? Elem::f32 : e;
    if (narrow) p.step[p.steps++] = {Func::cast, Elem::f32, e, {0, 0, 0}};
    const Elem out = kind == Fold::argmax || kind == Fold::argmin ? Elem::i64 : p.result;
    for (const bool down : {false, true}) {
      FoldSpace f;
      f.space = down ? space({{4096, 1, 1, 0}, {8192, 0, 4096, 0}}) : space({{1, 1, 1, 0}, {1 << 26, 0, 1, 0}});
      f.kept = 1;
      const FoldPlan plan = plan_fold({kind, nullptr}, p, f, 0, out);
      unit.push_back(plan.kernel);
      if (!down) unit.push_back(plan.last);
    }
  }
  compile(unit, Arch::sm90a);
}

std::vector<Elem> arithmetic() {
  std::vector<Elem> all;
  for (int i = 0; i < kernels::kArithmeticCount; ++i) all.push_back(static_cast<Elem>(i));
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, GpuPlanCompiles, testing::ValuesIn(arithmetic()),
                         [](const auto& info) { return std::string(name(info.param)); });

/// As the library compiles it: one kernel a unit.
TEST(GpuPlanCompilesOn, ItsOwn) {
  if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message();
  const FoldPlan whole = folded(1, 1, 1 << 26, 1);
  // x % c of a sum: joins by a program, with a constant.
  kernels::Joining joins;
  joins.combine = one(Func::add, Elem::f32, Elem::f32);
  joins.combine.operands = 3, joins.combine.operand[2] = Elem::f32;
  joins.combine.step[joins.combine.steps++] = {Func::remainder, Elem::f32, Elem::f32, {kernels::kMaxOperands, 2, 0}};
  joins.constant[2].f = 7;
  FoldPlan own = whole;
  own.kernel.how.own = own.last.how.own = &joins;
  EXPECT_NE(own.kernel.key(), whole.kernel.key());
  EXPECT_NE(own.last.key(), whole.last.key());
  const std::string sevens = own.kernel.key();
  joins.constant[2].f = 8;
  EXPECT_NE(own.kernel.key(), sevens);
  for (const GpuKernel& k : {plan_map(kAdd, space({{1024, 1, 1, 1}}), 0).kernel,
                             plan_map(one(Func::exp, Elem::bf16, Elem::bf16), space({{1024, 1, 1, 1}}), 0).kernel,
                             whole.kernel, whole.last, own.kernel, own.last}) {
    const Result<jit::Binary> b = jit::compile(k.source(Arch::sm90a));
    ASSERT_TRUE(b.ok()) << b.status().to_string();
    EXPECT_TRUE(b->symbol(k.source(Arch::sm90a).expressions[0]).ok());
  }
}

TEST(GpuPlanCompilesOn, OtherChips) {
  if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message();
  for (const Arch arch : {Arch::sm80, Arch::sm120a}) {
    const FoldPlan fold = folded(1, 1, 1 << 26, 1);
    compile({plan_map(kAdd, space({{1024, 1, 1, 1}}), 0).kernel,
             plan_map(one(Func::exp, Elem::bf16, Elem::bf16), space({{1024, 1, 1, 1}}), 0).kernel, fold.kernel,
             fold.last, folded(4096, 1, 8192, 4096).kernel},
            arch);
  }
}

}  // namespace
}  // namespace vivace::array
