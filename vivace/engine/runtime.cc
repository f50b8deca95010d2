#include "vivace/engine/runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/cpu/pool.h"
#include "vivace/device/cuda_memory.h"
#include "vivace/device/cuda_transfer.h"
#include "vivace/device/green.h"
#include "vivace/device/residence.h"
#include "vivace/exec/cpu_stream.h"
#include "vivace/exec/cuda_stream.h"
#include "vivace/exec/stream_switch.h"

namespace vivace::engine {
namespace {

/// The stream or the two of a runtime.
class Streams : public Runtime {
 public:
  exec::Stream& stream() final { return switch_ ? switch_->stream() : first(); }
  int variants() const final { return switch_ ? 2 : 1; }
  int variant() const final { return switch_ && switch_->second() ? 1 : 0; }
  Status use_whole(bool whole) final {
    if (switch_) return switch_->use(whole);
    if (!whole) return {};
    return Status(Code::kUnsupported, "this model was loaded for one part of its device, and has no graphs of another");
  }

 protected:
  virtual exec::Stream& first() = 0;
  Status add_second(exec::Stream& second) {
    VV_ASSIGN(std::unique_ptr<exec::Event> order, backend().make_event());
    switch_.emplace(first(), second, std::move(order));
    return {};
  }

 private:
  std::optional<exec::StreamSwitch> switch_;
};

/// Bytes that a runtime of the host has reserved. Its buffers keep it.
struct Account {
  const int64_t most;
  std::atomic<int64_t> held{0};
};

class Host final : public Streams {
 public:
  static Result<std::unique_ptr<Runtime>> open(int threads, int64_t most_bytes, bool whole_too) {
    auto host = std::unique_ptr<Host>(new Host(threads, most_bytes));
    if (whole_too) VV_TRY(host->add_second(host->second_));
    return std::unique_ptr<Runtime>(std::move(host));
  }
  const char* name() const override { return "cpu"; }
  Place place() const override { return Place::host; }
  Arch arch() const override { return Arch::cpu; }
  int multiprocessors() const override { return 0; }
  int threads() const override { return pool_.threads(); }
  exec::Backend& backend() override { return backend_; }
  int max_in_flight_steps() const override { return 1; }

  Result<exec::Buffer> reserve(std::string name, size_t bytes) override {
    const int64_t wanted = static_cast<int64_t>(bytes), held = account_->held.fetch_add(wanted);
    auto counted = std::make_unique<Counted>(account_, wanted);
    if (account_->most != 0 && wanted > account_->most - held)
      return Status(Code::kLimitExceeded,
                    strf("%s: %ld bytes are wanted, %ld of a limit of %ld are left; raise bytes, or lower context or "
                         "max_batch",
                         name.c_str(), static_cast<long>(wanted), static_cast<long>(account_->most - held),
                         static_cast<long>(account_->most)));
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED)
      return Status(Code::kOutOfMemory, strf("%s: cannot reserve %zu bytes: %s; lower context or max_batch",
                                             name.c_str(), bytes, std::strerror(errno)));
    return exec::Buffer(
        std::move(name), p, bytes, Place::host,
        [](void* data, size_t size, void* context) {
          munmap(data, size);
          delete static_cast<Counted*>(context);
        },
        counted.release());
  }
  Result<exec::Buffer> reserve_shared(std::string name, size_t bytes) override {
    return reserve(std::move(name), bytes);
  }
  Result<int64_t> free_bytes() override { return int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE); }
  Result<std::function<Status()>> begin_upload(std::span<const Upload> copies) override {
    for (const Upload& c : copies) std::memcpy(c.to, c.from, c.bytes);
    return std::function<Status()>([] { return Status(); });
  }
  void yield_to(const std::atomic<bool>*) override {}  // gates stop its threads
  void finish_uploads() override {}
  Result<Moved> sleep() override { return nowhere(); }
  Result<Moved> wake() override { return nowhere(); }

 private:
  Host(int threads, int64_t most_bytes)
      : pool_(threads),
        backend_(pool_),
        stream_(pool_),
        second_(pool_),
        account_(std::make_shared<Account>(most_bytes)) {}
  exec::Stream& first() override { return stream_; }
  struct Counted {
    Counted(std::shared_ptr<Account> a, int64_t n) : account(std::move(a)), bytes(n) {}
    ~Counted() { account->held.fetch_sub(bytes); }
    std::shared_ptr<Account> account;
    int64_t bytes;
  };
  static Status nowhere() {
    return Status(Code::kUnsupported,
                  "sleep: this model is on the host, where the memory of one that sleeps goes; close it instead");
  }
  cpu::Pool pool_;
  exec::CpuBackend backend_;
  exec::CpuStream stream_, second_;
  std::shared_ptr<Account> account_;
};

/// This process's shares of a device lie one behind the other: a new one takes the place of one that went and was as
/// large, or what follows the last. Its place is free again when the object goes.
class Share {
 public:
  static Result<std::unique_ptr<Share>> take(const device::Device& device, int ordinal, double share) {
    const int all = device.info().sm_count, want = std::max(1, static_cast<int>(std::lround(share * all)));
    const std::lock_guard lock(mutex_);
    std::vector<Place>& places = places_[ordinal];
    size_t at = 0;
    while (at < places.size() && (places[at].taken || places[at].multiprocessors != want)) ++at;
    std::vector<int> counts;
    for (size_t i = 0; i < at; ++i) counts.push_back(places[i].multiprocessors);
    counts.push_back(want);
    VV_ASSIGN(std::vector<device::Partition> cut, device::split(device, counts));
    if (at == places.size()) places.push_back({want, false});
    places[at].taken = true;
    return std::unique_ptr<Share>(new Share(std::move(cut.back()), ordinal, at));
  }
  ~Share() {
    const std::lock_guard lock(mutex_);
    std::vector<Place>& places = places_[ordinal_];
    places[at_].taken = false;
    while (!places.empty() && !places.back().taken) places.pop_back();
  }
  const device::Partition& partition() const { return partition_; }

 private:
  struct Place {
    int multiprocessors;
    bool taken;
  };
  Share(device::Partition partition, int ordinal, size_t at)
      : partition_(std::move(partition)), ordinal_(ordinal), at_(at) {}
  static inline std::mutex mutex_;
  static inline std::map<int, std::vector<Place>> places_;  // of a device
  device::Partition partition_;
  int ordinal_;
  size_t at_;
};

class Gpu final : public Streams {
 public:
  static Result<std::unique_ptr<Runtime>> open(int ordinal, double share, bool urgent, int64_t most_bytes,
                                               bool whole_too) {
    VV_ASSIGN(device::Device* const device, device::Device::get(ordinal));
    VV_TRY(device->check_arch());
    auto gpu = std::unique_ptr<Gpu>(new Gpu(*device));
    VV_ASSIGN(gpu->backend_, exec::CudaBackend::create(*device));
    VV_ASSIGN(device::Pool* const pool, device::shared_pool(*device));
    gpu->memory_ = device::Residence::create(*pool, strf("a model on %s", gpu->name()), most_bytes);
    const auto whole = [&] { return device::Stream::create(*device, urgent ? device->priority_levels() - 1 : 0); };
    if (share == 0) {
      VV_ASSIGN(device::Stream stream, whole());
      gpu->add(std::move(stream));
    } else {
      VV_ASSIGN(gpu->share_, Share::take(*device, ordinal, share));
      VV_ASSIGN(device::Stream stream, gpu->share_->partition().stream());
      gpu->add(std::move(stream));
    }
    if (whole_too) {
      VV_ASSIGN(device::Stream stream, whole());
      gpu->add(std::move(stream));
      VV_TRY(gpu->add_second(*gpu->streams_[1]));
    }
    return std::unique_ptr<Runtime>(std::move(gpu));
  }
  ~Gpu() override {
    for (const auto& stream : streams_) {
      static_cast<void>(stream->synchronize());  // its own work: what it used may go from here on
      memory_->remove_stream(id(*stream));
    }
  }
  const char* name() const override { return backend_->name(); }
  Place place() const override { return Place::device; }
  Arch arch() const override { return device_.info().arch; }
  int multiprocessors() const override { return share_ ? share_->partition().sm_count() : device_.info().sm_count; }
  int threads() const override { return 0; }
  exec::Backend& backend() override { return *backend_; }
  int max_in_flight_steps() const override { return 4; }

  Result<exec::Buffer> reserve(std::string name, size_t bytes) override {
    VV_TRY(memory_->check_quota(name, bytes));  // before what others have is looked at
    VV_ASSIGN(const int64_t free, free_bytes());
    const int64_t wanted = static_cast<int64_t>(bytes);
    if (wanted > free)
      return Status(Code::kOutOfMemory, strf("%s: %s has %ld bytes free, %ld are wanted, %ld too many; lower context "
                                             "or max_batch, or use a smaller precision",
                                             name.c_str(), this->name(), static_cast<long>(free),
                                             static_cast<long>(wanted), static_cast<long>(wanted - free)));
    return backend_->make_buffer(std::move(name), bytes, memory_);
  }
  Result<exec::Buffer> reserve_shared(std::string name, size_t bytes) override {
    VV_ASSIGN(device::PinnedBuffer pinned, device::PinnedBuffer::create(device_, bytes));
    std::memset(pinned.data(), 0, bytes);
    struct Held {
      const device::Device* device;
      std::shared_ptr<device::Residence> memory;
      device::PinnedBuffer pinned;
    };
    auto* const held = new Held{&device_, memory_, std::move(pinned)};
    return exec::Buffer(
        std::move(name), held->pinned.data(), bytes, Place::device,
        [](void*, size_t, void* context) {
          const std::unique_ptr<Held> h(static_cast<Held*>(context));
          // Its next owner may be another model: no work of this one may write it any more.
          if (h->device->bind().ok()) static_cast<void>(h->memory->wait());
        },
        held);
  }
  Result<int64_t> free_bytes() override {
    VV_ASSIGN(device::Pool* const pool, device::shared_pool(device_));
    VV_ASSIGN(const device::PoolStats stats, pool->stats());
    return stats.device_free + stats.cached -
           stats.stranded;  // what closed models had: the pool trims itself before it refuses
  }
  Result<std::function<Status()>> begin_upload(std::span<const Upload> copies) override {
    if (transfers_ == nullptr) {
      VV_ASSIGN(lanes_, device::CudaCopies::create(device_));
      // A thread brings 5 GB/s out of a mapped file. Seen on a link of 55 GB/s: 48 GB/s with eight threads, 51 with
      // twelve or sixteen.
      const int cores = static_cast<int>(std::thread::hardware_concurrency());
      VV_ASSIGN(transfers_, device::TransferEngine::create(*lanes_, {.chunk_bytes = size_t{2} << 20,
                                                                     .staging_threads = std::clamp(cores / 2, 4, 12),
                                                                     .pause = pause_}));
    }
    std::vector<device::Ticket> tickets;
    for (const Upload& c : copies) {
      VV_ASSIGN(device::Ticket ticket,
                transfers_->submit({.to = c.to, .from = c.from, .bytes = c.bytes, .priority = -1, .staged = true}));
      tickets.push_back(std::move(ticket));
    }
    return std::function<Status()>([tickets = std::move(tickets)] {
      Status first;  // all are waited for, whatever becomes of one
      for (const device::Ticket& t : tickets)
        if (Status s = t.wait(); first.ok()) first = std::move(s);
      return first;
    });
  }
  void yield_to(const std::atomic<bool>* urgent_runs) override { pause_ = urgent_runs; }
  void finish_uploads() override {
    transfers_.reset();
    lanes_.reset();
  }
  Result<Moved> sleep() override {
    VV_TRY(stream().synchronize());  // what the other one was given came before
    VV_ASSIGN(const device::Residence::Moved moved, memory_->sleep(pause_));
    return Moved{moved.bytes, moved.seconds};
  }
  Result<Moved> wake() override {
    VV_TRY(device_.bind());
    VV_ASSIGN(const device::Residence::Moved moved, memory_->wake(pause_));
    return Moved{moved.bytes, moved.seconds};
  }

 private:
  explicit Gpu(const device::Device& device) : device_(device) {}
  const device::Device& device_;
  std::unique_ptr<exec::CudaBackend> backend_;
  std::unique_ptr<Share> share_;  // outlives its stream
  exec::Stream& first() override { return *streams_[0]; }
  static device::StreamId id(const exec::CudaStream& s) { return reinterpret_cast<device::StreamId>(s.handle()); }
  void add(device::Stream stream) {
    streams_.push_back(std::make_unique<exec::CudaStream>(std::move(stream)));
    streams_.back()->use(memory_);
    memory_->add_stream(id(*streams_.back()));
  }
  const std::atomic<bool>* pause_ = nullptr;
  std::shared_ptr<device::Residence> memory_;  // what reserve() gave; buffers keep it
  std::vector<std::unique_ptr<exec::CudaStream>> streams_;
  std::unique_ptr<device::CudaCopies> lanes_;  // outlives transfers_
  std::unique_ptr<device::TransferEngine> transfers_;
};

/// Whether the first device is one that kernels exist for. A driver that does not work is as good as none.
bool has_gpu() {
  const Result<int> devices = device::Device::count();
  if (!devices.ok() || *devices == 0) return false;
  const Result<device::Device*> first = device::Device::get(0);
  return first.ok() && (*first)->check_arch().ok();
}

}  // namespace

Status Runtime::upload(std::span<const Upload> copies) {
  VV_ASSIGN(const std::function<Status()> wait, begin_upload(copies));
  return wait();
}

Result<std::unique_ptr<Runtime>> Runtime::open(const std::string& device, int threads, double share, bool urgent,
                                               int64_t most_bytes, bool whole_too) {
  constexpr int kMostThreads = 4096;
  if (threads < 0 || threads > kMostThreads)
    return Status(Code::kInvalidArgument,
                  strf("threads: wanted 0 (one a physical core) to %d, got %d", kMostThreads, threads));
  if (!(share >= 0 && share < 1))
    return Status(Code::kInvalidArgument, strf("partition: wanted a share of the device in (0, 1), got %g", share));
  if (device == "cpu" || (device == "auto" && !has_gpu())) {
    if (share != 0) return Status(Code::kUnsupported, "partition: the host is shared by threads, set their number");
    return Host::open(threads, most_bytes, whole_too);
  }
  if (device == "auto") return open("cuda", threads, share, urgent, most_bytes, whole_too);
  int ordinal = 0;
  const std::string number = device.rfind("cuda:", 0) == 0 ? device.substr(5) : "0";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ordinal);
  if ((device != "cuda" && device.rfind("cuda:", 0) != 0) || error != std::errc() ||
      end != number.data() + number.size())
    return Status(Code::kInvalidArgument, "device: wanted auto, cpu, cuda or cuda:N, got '" + device + "'");
  Result<std::unique_ptr<Runtime>> gpu = Gpu::open(ordinal, share, urgent, most_bytes, whole_too);
  if (!gpu.ok()) return std::move(gpu).status().with_context("device '" + device + "'");
  return gpu;
}

}  // namespace vivace::engine
