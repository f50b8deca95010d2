// Every CUDA kernel compiles for every chip, without a GPU, and keeps within its resources. Many
// instances share a translation unit: that is four times faster than one each. Skips without NVRTC.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "vivace/engine/checkpoint/json.h"
#include "vivace/jit/embedded.h"
#include "vivace/jit/nvrtc.h"
#include "vivace/ops/kernel_store.h"

namespace vivace::ops {
namespace {

#define VV_NEED_NVRTC() \
  if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message()

constexpr size_t kPerUnit = 24;             // instances of one op a translation unit
constexpr int kMaxStaticSmem = 48 * 1024;   // what every chip gives without asking

/// Kernels that may spill, by op and tactic: most bytes of stack, and why that is right.
struct Allowed {
  const char* op;
  const char* tactic;
  int bytes;
  Arch before;  // only on chips before this one
  const char* why;
};
constexpr std::array<Allowed, 23> kSpills{{
    {"attention_prefill_tma<", "AttentionTile{256, 256, 8, 1, 64, 2, 1, true, true, true}, vivace::kernels::Standard>",
     96, Arch::sm100a, "heads of 256 fill a warpgroup's 240 registers; outside of the loop over keys"},
    {"attention_prefill_tma<", "AttentionTile{256, 256, 8, 1, 80, 2, 1, true, true, true}, vivace::kernels::Standard>",
     56, Arch::sm100a, "the same; all in the warp that asks, which has 24"},
    {"attention_prefill_tma<", "AttentionTile{256, 256, 4, 1, 80, 2, 1, true, true, true}, vivace::kernels::Standard>",
     8, Arch::sm100a, "one word, stored once a tile and read once where its rows leave"},
    {"attention_prefill_tma<",
     "AttentionTile{256, 256, 8, 1, 80, 2, 1, true, true, true, true}, vivace::kernels::Standard>", 8, Arch::sm100a,
     "of a full mask: one word, in the warp that asks, which has 24"},
    {"attention_split_kv<", "e4m3, vivace::kernels::AttentionSplitKV{128, 128, 1, 1, 128, 3, 1, 1}>", 24, Arch::sm100a,
     "two blocks an SM leave 168 registers; the turn, the next block and a barrier's number are read from the stack in "
     "each turn of 128 keys"},
    {"attention_stream<", "}>", 32, Arch::sm100a, "two blocks an SM leave 168 registers; loop counters are parked"},
    {"attention_stream<", "}, vivace::kernels::e4m3>", 20, Arch::sm100a, "the same with outputs in e4m3"},
    {"norm<", ", false, false, false, false, false}>", 16, Arch::sm121a,
     "ptxas parks a few words of the form with adaptive rows, far below the register limit, on some chips"},
    {"norm<", "NormPolicy{256, 4, true, true, false, true, false, false}>", 8, Arch::sm86,
     "sm_80: one word, in the path that a reciprocal takes for subnormal numbers alone"},
    {"norm<", "e4m3, vivace::kernels::NormPolicy{128, 4, true, true, true, true, false, false}>", 8, Arch::sm121a,
     "sm_120a: a frame that no instruction stores to or reads"},
    {"norm<vivace::kernels::f16, vivace::kernels::f16, vivace::kernels::e4m3",
     "NormPolicy{128, 4, true, true, false, false, false, false}>", 16, Arch::sm121a,
     "sm_120a: columns of two groups, stored before the sums and read once each where codes are written"},
    {"norm<float", "true, true, true, false, true, false}>", 8, Arch::sm100a,
     "sm_90a: stored and read once a row: the sum, or an address between loads of x and of the residual"},
    {"norm_block_scaled<", ", false, false, false, false, false}>", 16, Arch::sm121a,
     "as norm's: columns and addresses of adaptive rows"},
    {"norm_block_scaled<", "NormPolicy{256, 4, true, true, false, false, true, false}>", 8, Arch::sm121a,
     "sm_120a: a column, stored before the sums and read once where codes are written"},
    {"latent_plain<float", "LatentPlain{8}>", 8, Arch::sm121a,
     "sm_120a: an address, stored and read once, some fifty instructions apart"},
    {"gemm_weight_only<",
     "GemmWeightOnly{2, 4, 1, 1, 2, 1, 2048, true, 0, vivace::DType::f32, false, false, 2, false}>", 8, Arch::sm121a,
     "sm_120a, q4_0: two blocks an SM leave 128 registers; a word stored before the loop over K, read once behind it"},
    {"grouped_gemm<", "GemmWeightOnly{4, 2, 1, 1, 3, 1, 4096, true, 0, vivace::DType::f32, false, false, 0, false}>",
     28, Arch::sm86,
     "sm_80, q4_k: three blocks an SM leave 80 registers; places of a thread's copies, read where a step's are issued"},
    {"gemm_tile<vivace::kernels::e4m3", ">", 64, Arch::sm89,
     "chips before sm_89 upcast e4m3 in registers; there the tile is slow by nature"},
    {"gemm_stream<vivace::kernels::e4m3", ">", 64, Arch::sm89, "the same where tokens are few"},
    {"gemm_stream<", "GemmStream{4, 2, 1, 2, 2, 1, false, true}>", 8, Arch::sm121a,
     "sm_120a: ptxas takes 64 registers by itself; the thread's number, stored first of all and read once behind the "
     "loop over K"},
    {"gemm_stream<", "GemmStream{4, 2, 1, 2, 2, 2, false, true}>", 8, Arch::sm121a, "the same of two blocks along K"},
    {"sample<", "SamplePolicy{256, 8, 4, false}>", 8, Arch::sm121a,
     "sm_120a: one word since rows may have masks; other chips have none"},
    {"rope<", "RopePolicy{64, 8, 8, 16, 1, 2}>", 8, Arch::sm86,
     "sm_80: ptxas parks one word around the sines' branches, far below the register limit; heads of 256"},
}};

int allowed_spill(const std::string& expression, Arch arch) {
  for (const Allowed& a : kSpills)
    if (arch < a.before && expression.find(a.op) != std::string::npos && expression.ends_with(a.tactic)) return a.bytes;
  return 0;
}

/// One unit: instances of one header, compiled together. One that spills there is compiled by itself, as the library
/// does: ptxas parks words of some kernels only where others are beside them.
void compile_and_judge(const std::string& header, const std::vector<std::string>& expressions, Arch arch) {
  const jit::Source source{header + ".cu", "#include \"" + header + "\"\n", expressions, {}, arch};
  const Result<jit::Binary> binary = jit::compile(source);
  ASSERT_TRUE(binary.ok()) << name(arch) << ": " << binary.status().to_string();
  EXPECT_EQ(binary->arch, name(arch));
  EXPECT_EQ(binary->warnings, "") << header << " for " << name(arch);
  std::map<std::string, jit::Resources> by_symbol;
  for (const jit::Resources& r : binary->resources) by_symbol[r.symbol] = r;
  for (const std::string& e : expressions) {
    const Result<std::string> symbol = binary->symbol(e);
    ASSERT_TRUE(symbol.ok()) << symbol.status().to_string();
    ASSERT_TRUE(by_symbol.contains(*symbol)) << "ptxas said nothing of " << e;
    const jit::Resources& r = by_symbol[*symbol];
    EXPECT_GT(r.registers, 0) << e;
    EXPECT_LE(r.registers, 255) << e;
    if (expressions.size() > 1 && (r.spill_stores > 0 || r.stack_bytes > 0)) {
      compile_and_judge(header, {e}, arch);
      continue;
    }
    EXPECT_LE(r.spill_stores, allowed_spill(e, arch))
        << e << " spills " << r.spill_stores << " + " << r.spill_loads << " bytes on " << name(arch);
    EXPECT_LE(r.stack_bytes, allowed_spill(e, arch))
        << e << " has a stack frame on " << name(arch) << ": an array that is indexed at run time?";
    EXPECT_LE(r.static_smem, kMaxStaticSmem) << e << " on " << name(arch);
  }
}

/// Ops whose kernels are for Hopper alone; elsewhere models run other ops in their place.
constexpr std::array<std::string_view, 2> kOnHopper{{"decode_layers", "decode_layers_cross"}};

/// Whether an op may have no kernel on a chip: its parts run there, or other ops do.
bool may_lack(const OpRow& row, Arch arch) {
  return row.spec->composite || (!chip(arch).wgmma && std::ranges::find(kOnHopper, row.spec->name) != kOnHopper.end());
}

class CompileGate : public testing::TestWithParam<const OpRow*> {};

/// Chips of which more than one tactic a kernel is compiled: the oldest, the one that is measured, the newest. The
/// others differ from these in no path of the kernels.
bool thorough(Arch a) { return a == Arch::sm80 || a == Arch::sm90a || a == Arch::sm120a; }

/// A third, by a hash of the kernel's name, so that no dtype and no switch of a policy falls through a regular step.
/// VIVACE_GATE=all compiles every one. Of the chip that is measured tests/kernels.json has them all: see
/// TableOfKernelsSpillsNoMore.
bool chosen(const std::string& expression) {
  static const char* const gate = std::getenv("VIVACE_GATE");
  if (gate != nullptr && std::string_view(gate) == "all") return true;
  uint32_t hash = 2166136261U;  // FNV-1a: the same on every machine
  for (const char c : expression) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619U;
  return (hash >> 16) % 3 == 0;
}

TEST_P(CompileGate, TacticsWithinResources) {
  VV_NEED_NVRTC();
  for (const Arch arch : kGpuArchs) {
    if (!thorough(arch) || GetParam()->spec->min_arch > arch) continue;
    const std::vector<Instance> all = GetParam()->instances(arch);
    if (all.empty() && may_lack(*GetParam(), arch)) continue;
    ASSERT_FALSE(all.empty()) << "no instance for " << name(arch);
    std::set<std::string> unique;
    std::vector<std::string> unit;
    for (const Instance& i : all) {
      EXPECT_STREQ(i.header, all[0].header);
      EXPECT_EQ(i.expression.find('?'), std::string::npos)
          << "an element type that kernels do not know: " << i.expression;
      if (unique.insert(i.expression).second && (unique.size() == 1 || chosen(i.expression)))
        unit.push_back(i.expression);
      if (unit.size() == kPerUnit) {
        compile_and_judge(all[0].header, unit, arch);
        unit.clear();
      }
    }
    if (!unit.empty()) compile_and_judge(all[0].header, unit, arch);
  }
}

TEST_P(CompileGate, OneTacticOnEveryOtherChip) {
  VV_NEED_NVRTC();
  for (const Arch arch : kGpuArchs) {
    if (thorough(arch) || GetParam()->spec->min_arch > arch) continue;
    const std::vector<Instance> all = GetParam()->instances(arch);
    if (all.empty() && may_lack(*GetParam(), arch)) continue;
    ASSERT_FALSE(all.empty()) << "no instance for " << name(arch);
    compile_and_judge(all[0].header, {all[0].expression}, arch);
  }
}

std::vector<const OpRow*> gpu_rows() {
  std::vector<const OpRow*> rows;
  for (const OpRow* row : table())
    if (row->instances != nullptr &&
        std::ranges::any_of(kGpuArchs, [&](Arch arch) { return !row->instances(arch).empty(); }))
      rows.push_back(row);
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Ops, CompileGate, testing::ValuesIn(gpu_rows()),
                         [](const auto& info) { return std::string(info.param->spec->name); });

/// What tools/kernel_table has compiled, every kernel of the chip that is measured; a test of the tools keeps the table
/// up to date with the sources.
TEST(CompileGateItself, TableOfKernelsSpillsNoMore) {
  const Result<engine::Json> table = engine::Json::parse_file(VV_SOURCE_DIR "/tests/kernels.json");
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  ASSERT_EQ(*table->root().get_string("arch"), name(Arch::sm90a));
  const engine::JsonValue ops = *table->root().at("ops");
  EXPECT_GT(ops.size(), 40U);
  constexpr int kPickedAlone = 24;  // of kernels that cases pick and no list has: as much as when they were first seen
  std::set<std::string> listed;
  for (const OpRow* row : gpu_rows())
    for (const Instance& i : row->instances(Arch::sm90a)) listed.insert(i.expression);
  int stacks = 0;
  for (const engine::JsonValue op : ops) {
    const Result<engine::JsonValue> of_op = op.at("stacks");
    ASSERT_TRUE(of_op.ok()) << of_op.status().to_string() << ": run tools/kernel_table --all";
    for (const engine::JsonValue kernel : *of_op) {
      const std::string expression(kernel.key());
      const int allowed = allowed_spill(expression, Arch::sm90a);
      EXPECT_LE(*kernel.as_int(), listed.contains(expression) ? allowed : std::max(allowed, kPickedAlone))
          << expression << " has a stack frame";
      ++stacks;
    }
  }
  EXPECT_GT(stacks, 0) << "some are allowed: is a frame still seen?";
}

TEST(CompileGateItself, EveryHeaderAlone) {
  VV_NEED_NVRTC();
  int headers = 0;
  for (const jit::Header& h : jit::embedded_headers()) {
    if (!std::string_view(h.name).ends_with(".cuh")) continue;
    ++headers;
    const jit::Source source{std::string(h.name) + ".cu",
                             std::string("#include \"") + h.name + "\"\n__global__ void nothing() {}\n",
                             {"nothing"},
                             {},
                             Arch::sm90a};
    const Result<jit::Binary> binary = jit::compile(source);
    EXPECT_TRUE(binary.ok()) << h.name << ": " << binary.status().to_string();
  }
  EXPECT_GT(headers, 8);
}

/// The gate must be able to fail: each of its bounds is broken once.
TEST(CompileGateItself, SeesSpillsStackAndErrors) {
  VV_NEED_NVRTC();
  const std::string body =
      "extern \"C\" __global__ void __launch_bounds__(1024) k(float* x, int n) {\n"
      "  float v[200];\n#pragma unroll\n  for (int i = 0; i < 200; ++i) v[i] = x[i * 7 + threadIdx.x];\n"
      "  __syncthreads();\n#pragma unroll\n  for (int i = 0; i < 200; ++i) x[i * 5] = v[199 - i] * v[i];\n}\n";
  const Result<jit::Binary> spilling = jit::compile({"spill.cu", body, {"k"}, {}, Arch::sm90a});
  ASSERT_TRUE(spilling.ok()) << spilling.status().to_string();
  EXPECT_GT(spilling->resources.at(0).spill_stores, 0);
  const std::string stack = "extern \"C\" __global__ void k(float* x, int n) {\n  float v[32];\n"
                            "  for (int i = 0; i < 32; ++i) v[(i * n) & 31] = x[i];\n  x[n] = v[n & 31];\n}\n";
  const Result<jit::Binary> indexed = jit::compile({"stack.cu", stack, {"k"}, {}, Arch::sm90a});
  ASSERT_TRUE(indexed.ok());
  EXPECT_GT(indexed->resources.at(0).stack_bytes, 0);
  EXPECT_EQ(jit::compile({"bad.cu", "extern \"C\" __global__ void k() { undefined_name(); }", {"k"}, {}, Arch::sm90a})
                .status()
                .code(),
            Code::kCompileError);
}

}  // namespace
}  // namespace vivace::ops
