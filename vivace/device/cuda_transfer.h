// CudaCopies: the transfer engine's lanes on a GPU, one stream a direction, so that copies both ways
// overlap each other and the kernels.
#pragma once
#include <array>
#include <memory>

#include "vivace/device/stream.h"
#include "vivace/device/transfer.h"

namespace vivace::device {

class CudaCopies : public CopyBackend {
 public:
  /// `level`: urgency of the streams, as for Stream::create.
  static Result<std::unique_ptr<CudaCopies>> create(const Device& device, int level = 0);
  Status attach_thread() override { return device_.bind(); }
  Status copy(Direction lane, void* to, const void* from, size_t bytes) override;
  Result<Mark> mark_create() override;
  void mark_destroy(Mark mark) override;
  Status mark_set(Direction lane, Mark mark) override;
  Status mark_wait(Mark mark) override;
  Result<void*> host_allocate(size_t bytes) override;
  void host_free(void* data) override;

 private:
  explicit CudaCopies(const Device& device) : device_(device) {}
  const Device& device_;
  std::array<Stream, kDirections> lanes_;
};

}  // namespace vivace::device
