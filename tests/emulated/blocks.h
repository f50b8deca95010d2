// All blocks of a kernel whose blocks wait for each other, at once: each thread is a context of its own that goes on
// with the next where it waits. Warps meet where their instructions make them; copies into shared memory and words
// between blocks arrive late and in any order, and what a copy will overwrite holds no numbers until it has arrived.
// Stands in for vivace/kernels/ptx, tile/elem.cuh, gate/activation.h and decode/memory.cuh. For tests.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)

struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) {
  return {x, y};
}
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

namespace emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Barrier {
  int expected = 0, pending = 0;
  int64_t bytes = 0;
  unsigned phase = 0;
  void look() {
    if (pending == 0 && bytes == 0) phase ^= 1, pending = expected;
  }
};
struct Meeting {
  unsigned here = 0, turn = 0;
};
struct Warp {
  Meeting meeting;
  uint32_t exchanged[2][32][6];
};
struct Block {
  std::vector<std::byte> shared;
  std::vector<Barrier> barriers;  // by address / 8
  std::vector<Warp> warps;
  Meeting all, named[16];
};
struct Thread {
  ucontext_t context;
  jmp_buf here;
  Block* block;
  Index block_index, thread_index;
  uint64_t until = 0;                 // asleep
  const unsigned* watched = nullptr;  // waits while this is ...
  unsigned same = 0;
  bool started = false, finished = false;
};
/// Something that happens at a time, to memory of a block.
struct Event {
  uint64_t due;
  std::function<void()> happen;
};

inline constexpr size_t kStack = 48 << 10;
inline constexpr uint32_t kBase = 1024;  // of shared memory
inline std::vector<Thread> threads;
inline std::vector<std::unique_ptr<Block>> blocks;
inline std::vector<Event> events;
inline jmp_buf scheduler;
inline Thread* current;
inline const std::function<void()>* body;
inline uint64_t now, seed, most_ticks;
inline unsigned most_delay;

inline uint32_t draw() {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(seed >> 33);
}
inline void yield() {
  if (_setjmp(current->here) == 0) _longjmp(scheduler, 1);
}
/// Until `word` is no longer `same`.
inline void await(const unsigned& word, unsigned same) {
  current->watched = &word, current->same = same;
  while (word == same) yield();
  current->watched = nullptr;
}
inline void thread_main() {
  (*body)();
  current->finished = true;
  _longjmp(scheduler, 1);
}
[[gnu::noinline]] inline void resume(Thread& t) {
  current = &t;
  if (_setjmp(scheduler) != 0) return;
  if (t.started) _longjmp(t.here, 1);
  t.started = true;
  setcontext(&t.context);
}
inline void later(std::function<void()> happen) {
  events.push_back({now + draw() % most_delay, std::move(happen)});
}
inline void sleep(uint32_t ticks) {
  current->until = now + ticks;
  yield();
}
inline void meet(Meeting& m, unsigned count) {
  const unsigned turn = m.turn;
  if (++m.here == count) {
    m.here = 0, ++m.turn;
    return;
  }
  await(m.turn, turn);
}
inline Warp& warp() {
  return current->block->warps[current->thread_index.x / 32];
}
inline unsigned lane() {
  return current->thread_index.x % 32;
}
/// What each lane says, as all lanes of the warp then see it. One meeting: who is two exchanges ahead has met those who
/// still read.
inline const uint32_t (*exchange(const uint32_t* words, int count))[6] {
  Warp& w = warp();
  uint32_t(*const mine)[6] = w.exchanged[w.meeting.turn & 1];
  memcpy(mine[lane()], words, static_cast<size_t>(count) * 4);
  meet(w.meeting, 32);
  return mine;
}
inline std::byte* at(uint32_t address) {
  return current->block->shared.data() + address;
}
inline Barrier& barrier(uint32_t address) {
  return current->block->barriers[address / 8];
}
/// `bytes` arrive at `to` some time, piece by piece as `fill` makes them, and count down a barrier.
inline void copy_late(uint32_t to, size_t bytes, uint32_t address, std::function<void(std::byte*)> fill) {
  std::byte* const place = at(to);
  Barrier& b = barrier(address);
  memset(place, 0xff, bytes);
  later([=, &b, fill = std::move(fill)] {
    fill(place);
    b.bytes -= static_cast<int64_t>(bytes);
    b.look();
  });
}

/// 0: ended; 1: it never would.
inline int run(unsigned grid, unsigned block, size_t smem, const std::function<void()>& kernel) {
  static std::vector<std::unique_ptr<char[]>> stacks;
  body = &kernel, now = 0;
  threads.clear(), blocks.clear(), events.clear();
  threads.resize(size_t{grid} * block);
  while (stacks.size() < threads.size()) stacks.push_back(std::make_unique_for_overwrite<char[]>(kStack));
  for (unsigned b = 0; b < grid; ++b) {
    blocks.push_back(std::make_unique<Block>());
    blocks[b]->shared.resize(smem + kBase, std::byte{0xff});
    blocks[b]->barriers.resize((smem + kBase) / 8);
    blocks[b]->warps.resize(block / 32);
    for (unsigned i = 0; i < block; ++i) {
      Thread& t = threads[size_t{b} * block + i];
      t.block = blocks[b].get(), t.block_index = {b}, t.thread_index = {i};
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = stacks[size_t{b} * block + i].get();
      t.context.uc_stack.ss_size = kStack;
      t.context.uc_link = nullptr;
      makecontext(&t.context, &thread_main, 0);
    }
  }
  for (size_t left = threads.size(); left > 0; ++now) {
    if (now > most_ticks) return 1;
    for (size_t i = 0; i < events.size();)
      if (events[i].due <= now) {
        events[i].happen();
        events[i] = std::move(events.back());
        events.pop_back();
      } else {
        ++i;
      }
    left = 0;
    for (Thread& t : threads) {
      if (t.finished) continue;
      ++left;
      if (t.until <= now && (t.watched == nullptr || *t.watched != t.same)) resume(t);
    }
  }
  for (Event& e : events) e.happen();  // words of the last layer, that nobody waits for
  return 0;
}

}  // namespace emulated

#define blockIdx emulated::current->block_index
#define threadIdx emulated::current->thread_index

inline void __syncthreads() {
  emulated::meet(emulated::current->block->all, emulated::current->block->warps.size() * 32);
}
inline void __syncwarp() {
  emulated::meet(emulated::warp().meeting, 32);
}
[[noreturn]] inline void __trap() {
  fputs("a wait without an end\n", stderr);
  abort();
}
template <class T>
T __shfl_sync(uint32_t, T x, int from) {
  const uint32_t word = std::bit_cast<uint32_t>(x);
  return std::bit_cast<T>(emulated::exchange(&word, 1)[from % 32][0]);
}
template <class T>
T __shfl_xor_sync(uint32_t, T x, int mask) {
  const uint32_t word = std::bit_cast<uint32_t>(x);
  const unsigned from = emulated::lane() ^ static_cast<unsigned>(mask);
  return std::bit_cast<T>(emulated::exchange(&word, 1)[from][0]);
}
inline uint32_t __ballot_sync(uint32_t, bool x) {
  const uint32_t word = x;
  const auto all = emulated::exchange(&word, 1);
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= all[i][0] << i;
  return bits;
}
inline float __uint_as_float(uint32_t x) {
  return std::bit_cast<float>(x);
}
inline uint32_t __float_as_uint(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __log2f(float x) {
  return std::log2(x);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
using std::max;
using std::min;

namespace vivace::kernels {

struct bf16 {
  uint16_t bits;
};
inline float to_float(bf16 v) {
  return __uint_as_float(uint32_t{v.bits} << 16);
}
template <class T>
T from_float(float f) {
  const uint32_t u = __float_as_uint(f);
  if (f != f) return {0x7fff};
  return {static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
/// Four e4m3, of which 0x7f and 0xff are no numbers, as two pairs.
template <class T>
void upcast_e4m3_as(uint32_t four, uint32_t& low, uint32_t& high) {
  uint32_t pair[2] = {0, 0};
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = four >> 8 * i & 0xff, e = code >> 3 & 15, m = code & 7;
    float v = e == 0 ? std::ldexp(static_cast<float>(m), -9)
                     : std::ldexp(static_cast<float>(8 + m), static_cast<int>(e) - 10);
    if ((code & 0x7f) == 0x7f) v = NAN;
    pair[i / 2] |= uint32_t{from_float<T>(code & 0x80 ? -v : v).bits} << 16 * (i % 2);
  }
  low = pair[0], high = pair[1];
}
inline void sin_cos(float x, float* s, float* c) {
  *s = std::sin(x), *c = std::cos(x);
}
inline int valid_rows(const int32_t* rows, int T) {
  return rows == nullptr ? T : std::clamp(*rows, 0, T);
}
enum class Activation : int32_t { gelu_erf };
template <Activation>
float activate_as(float x) {
  return 0.5f * x * (1 + std::erf(x * 0.7071067812f));
}

namespace ptx {

inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(p) - emulated::current->block->shared.data());
}
inline uint64_t evict_first() {
  return 0;
}
inline float exp2_fast(float x) {
  return std::exp2(x);
}
template <class T>
uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | uint32_t{from_float<T>(high).bits} << 16;
}
inline void mbarrier_init(uint32_t at, int arrivals) {
  emulated::barrier(at) = {.expected = arrivals, .pending = arrivals};
}
inline void mbarrier_fence() {}
inline void tensor_fence() {}
inline void mbarrier_expect(uint32_t at, uint32_t bytes) {
  emulated::Barrier& b = emulated::barrier(at);
  b.bytes += bytes, --b.pending;
  b.look();
}
inline void mbarrier_arrive(uint32_t at) {
  --emulated::barrier(at).pending;
  emulated::barrier(at).look();
}
template <bool kCluster>
void mbarrier_wait(uint32_t at, int parity) {
  emulated::await(emulated::barrier(at).phase, static_cast<unsigned>(parity));
}
template <int kThreads>
void named_barrier(int id) {
  emulated::meet(emulated::current->block->named[id], kThreads);
}
/// A box of 64 rows: a map's words are where its matrix lies, its rows, words of a row, words from row to row, and
/// words of a box.
template <class Map>
void tma_load(uint32_t to, const Map& map, uint32_t barrier, int column, int row, uint64_t) {
  const auto width = map.words[4];
  emulated::copy_late(to, 64 * width * 4, barrier, [=](std::byte* place) {
    for (int r = 0; r < 64; ++r) {
      if (row + r < static_cast<int64_t>(map.words[1]))
        memcpy(place, reinterpret_cast<const uint32_t*>(map.words[0]) + (row + r) * map.words[3] + column, width * 4);
      else
        memset(place, 0, width * 4);
      place += width * 4;
    }
  });
}
template <class T>
void mma16816(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
  const auto all = emulated::exchange(mine, 6);
  const int g = static_cast<int>(emulated::lane() / 4), c = static_cast<int>(emulated::lane() % 4);
  const auto half = [](uint32_t pair, int k) { return __uint_as_float(k % 2 ? pair & 0xffff0000u : pair << 16); };
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * c + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k)
      sum += half(all[g * 4 + k % 8 / 2][i / 2 + k / 8 * 2], k) * half(all[column * 4 + k % 8 / 2][4 + k / 8], k);
    d[i] += sum;
  }
}

}  // namespace ptx

namespace decode {

inline void store_word(uint32_t* at, uint32_t word) {
  emulated::later([=] { *at = word; });
}
inline void store_words(uint32_t* at, uint32_t a, uint32_t b) {
  store_word(at, a), store_word(at + 1, b);
}
inline uint2 load_two_words(const uint32_t* at) {
  emulated::sleep(1 + emulated::most_delay / 8);
  return {at[0], at[1]};
}
inline uint4 load_four_words(const uint32_t* at) {
  emulated::sleep(1 + emulated::most_delay / 8);
  return {at[0], at[1], at[2], at[3]};
}
template <class T>
T read_as(const void* at) {
  T v;
  memcpy(&v, at, sizeof v);
  return v;
}
inline uint4 read_shared(uint32_t at) {
  return read_as<uint4>(emulated::at(at));
}
inline uint32_t read_shared_word(uint32_t at) {
  return read_as<uint32_t>(emulated::at(at));
}
inline void write_shared(uint32_t at, uint32_t v) {
  memcpy(emulated::at(at), &v, 4);
}
inline uint2 load_early(const void* at) {
  return read_as<uint2>(at);
}
inline uint4 load_early_16(const void* at) {
  return read_as<uint4>(at);
}
inline uint32_t load_early_4(const void* at) {
  return read_as<uint32_t>(at);
}
inline uint32_t load_early_2(const void* at) {
  return read_as<uint16_t>(at);
}
inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t) {
  emulated::copy_late(to, bytes, barrier, [=](std::byte* place) { memcpy(place, from, bytes); });
}
/// One of some points that a warp passes takes long.
inline void between(uint32_t turn, uint32_t point) {
  uint32_t h = static_cast<uint32_t>(emulated::seed >> 60) ^ blockIdx.x * 73856093u ^ turn * 19349663u ^
               point * 83492791u ^ threadIdx.x / 32 * 2654435761u;
  h ^= h >> 15, h *= 0x2c1b3c6du, h ^= h >> 12, h *= 0x297a2d39u, h ^= h >> 15;
  if (h % 8 == 0) emulated::sleep((h >> 8) % (8 * emulated::most_delay));
  __syncwarp();
}

}  // namespace decode
}  // namespace vivace::kernels
