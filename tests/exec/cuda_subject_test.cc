// The CUDA subject, and what only this backend has: adoption of a CUgraphExec made elsewhere.
#include <span>
#include <string>

#include "tests/exec/subject.h"
#include "vivace/device/kernel.h"
#include "vivace/exec/cuda_stream.h"
#include "vivace/exec/graph.h"

namespace vivace::exec::testing {
namespace {

struct AffineArgs {
  float* to;
  const float* from;
  float a, b;
  uint32_t n;
};

// PTX, so that these tests need no compiler. @LAUNCH@ and @WAIT@: from Hopper on the kernel lets its
// successor start at once and waits for its predecessor, so that a captured step really overlaps.
constexpr const char* kPtx = R"(.version 7.8
.target @TARGET@
.address_size 64
.visible .entry affine(.param .align 8 .b8 args[32]) {
  .reg .pred %done;
  .reg .b32 %r<5>;
  .reg .b64 %d<5>;
  .reg .f32 %f<4>;
  ld.param.u64 %d0, [args];
  ld.param.u64 %d1, [args+8];
  ld.param.f32 %f0, [args+16];
  ld.param.f32 %f1, [args+20];
  ld.param.u32 %r0, [args+24];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  @LAUNCH@
  @WAIT@
  setp.ge.u32 %done, %r4, %r0;
  @%done bra END;
  mul.wide.u32 %d2, %r4, 4;
  add.u64 %d3, %d0, %d2;
  add.u64 %d4, %d1, %d2;
  ld.global.f32 %f2, [%d3];
  ld.global.f32 %f3, [%d4];
  mul.rn.f32 %f2, %f2, %f0;
  add.rn.f32 %f2, %f2, %f3;
  add.rn.f32 %f2, %f2, %f1;
  st.global.f32 [%d3], %f2;
END:
  ret;
}
)";

std::string ptx_for(int major) {
  const bool pdl = major >= 9;
  std::string s = kPtx;
  const auto put = [&s](const std::string& mark, const std::string& text) {
    s.replace(s.find(mark), mark.size(), text);
  };
  put("@TARGET@", pdl ? "sm_90" : "sm_80");
  put("@LAUNCH@", pdl ? "griddepcontrol.launch_dependents;" : "");
  put("@WAIT@", pdl ? "griddepcontrol.wait;" : "");
  return s;
}

class CudaSubject final : public Subject {
 public:
  static Result<std::unique_ptr<Subject>> make() {
    VV_ASSIGN(device::Device * device, device::Device::get(0));
    auto s = std::make_unique<CudaSubject>();
    VV_ASSIGN(s->backend_, CudaBackend::create(*device));
    const std::string ptx = ptx_for(device->info().major);
    // With its terminating null: the driver reads PTX as a C string.
    VV_ASSIGN(s->module_,
              device::Module::load(*device, std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1)), "affine.ptx"));
    VV_ASSIGN(s->kernel_, s->module_.kernel("affine"));
    return std::unique_ptr<Subject>(std::move(s));
  }
  Backend& backend() override { return *backend_; }
  Launch affine(float* to, const float* from, float a, float b, uint32_t n) override {
    Launch l;
    l.op = "affine";
    l.kernel = kernel_;
    l.block[0] = 128;
    l.grid[0] = (n + 127) / 128;
    l.set_args(AffineArgs{to, from, a, b, n});
    return l;
  }

 private:
  device::Module module_;
  device::Kernel* kernel_ = nullptr;
  std::unique_ptr<CudaBackend> backend_;
};

class CudaOnly : public ContractTest {};
VV_SUBJECT_SUITE(CudaOnly, SubjectRow{"cuda", make_cuda_subject});

TEST_P(CudaOnly, AdoptsAGraphThatOthersInstantiated) {
  auto device = device::Device::get(0);
  ASSERT_TRUE(device.ok());
  auto made = device::Stream::create(**device);
  ASSERT_TRUE(made.ok());
  CudaStream raw(std::move(made).value());
  // Captured through the driver, as a framework would, not through begin_capture().
  VV_EXPECT_OK(VV_CU_STATUS(cuStreamBeginCapture_v2, raw.handle(), cu::kCaptureRelaxed));
  VV_EXPECT_OK(affine(raw, x_, y_, 2, 5));
  cu::Graph graph = nullptr;
  VV_EXPECT_OK(VV_CU_STATUS(cuStreamEndCapture, raw.handle(), &graph));
  cu::GraphExec exec = nullptr;
  VV_EXPECT_OK(VV_CU_STATUS(cuGraphInstantiateWithFlags, &exec, graph, 0ull));

  expect_error(adopt_cuda_graph(**device, nullptr, false).status(), Code::kInvalidArgument, "null");
  auto want = ramp(0.25f);
  {
    auto executable = adopt_cuda_graph(**device, exec, false, 1);
    ASSERT_TRUE(executable.ok());
    EXPECT_EQ((*executable)->launches(), 1u);
    Graph variants("adopted", 1);
    VV_EXPECT_OK(variants.adopt(ShapeKey{1}, std::move(executable).value()));
    VV_EXPECT_OK(variants.replay(ShapeKey{1}, *stream_));
    reference(&want, ramp(-1.5f), 2, 5);
    EXPECT_EQ(read(x_), want);
  }
  // Not owned: still alive after the Graph has gone.
  VV_EXPECT_OK(VV_CU_STATUS(cuGraphLaunch, exec, raw.handle()));
  VV_EXPECT_OK(raw.synchronize());
  reference(&want, ramp(-1.5f), 2, 5);
  EXPECT_EQ(read(x_), want);
  VV_EXPECT_OK(VV_CU_STATUS(cuGraphExecDestroy, exec));
  VV_EXPECT_OK(VV_CU_STATUS(cuGraphDestroy, graph));
}

TEST_P(CudaOnly, ChecksGeometryBeforeTheDriverSeesIt) {
  Launch l = subject_->affine(static_cast<float*>(x_.data()), static_cast<const float*>(y_.data()), 1, 0, kCount);
  VV_EXPECT_OK(stream_->begin_capture());
  l.block[0] = 2048;
  expect_error(stream_->launch(l), Code::kInvalidArgument, "block (2048");
  l.block[0] = 128;
  VV_EXPECT_OK(stream_->launch(l));
  auto captured = stream_->end_capture();  // the refused launch did not spoil the capture
  ASSERT_TRUE(captured.ok()) << captured.status().to_string();
  EXPECT_EQ((*captured)->launches(), 1u);
}

}  // namespace

Result<std::unique_ptr<Subject>> make_cuda_subject() { return CudaSubject::make(); }

}  // namespace vivace::exec::testing
