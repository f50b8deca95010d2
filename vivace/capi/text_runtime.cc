#include "vivace/capi/text_runtime.h"

#include <algorithm>
#include <cstring>

#include "vivace/base/dtype.h"
#include "vivace/engine/json_text.h"

namespace vivace::capi {
namespace {

enum Port : int {
  kToken, kPos, kSlot, kSample,
  kTemperature, kTopP, kMinP, kRepetition, kPresence, kFrequency, kTopK, kSeed,
  kNext, kLogprob, kNextSlot, kLogits,
};

enum class Axis { rows, slots };  // prefill_chunk, max_batch

/// One row a port, in the order of Port.
struct PortRow {
  const char* name;
  DType dtype;
  vv_direction direction;
  vv_update update;
  Axis axis;
  bool per_token = false;  // a second axis over the vocabulary
};
constexpr PortRow kRows[] = {
    {"token", DType::i32, VV_INPUT, VV_STAGED, Axis::rows},
    {"pos", DType::i32, VV_INPUT, VV_STAGED, Axis::rows},
    {"slot", DType::i32, VV_INPUT, VV_STAGED, Axis::rows},
    {"sample", DType::i32, VV_INPUT, VV_STAGED, Axis::rows},
    {"temperature", DType::f32, VV_INPUT, VV_SETUP, Axis::slots},
    {"top_p", DType::f32, VV_INPUT, VV_SETUP, Axis::slots},
    {"min_p", DType::f32, VV_INPUT, VV_SETUP, Axis::slots},
    {"repetition", DType::f32, VV_INPUT, VV_SETUP, Axis::slots},
    {"presence", DType::f32, VV_INPUT, VV_SETUP, Axis::slots},
    {"frequency", DType::f32, VV_INPUT, VV_SETUP, Axis::slots},
    {"top_k", DType::i32, VV_INPUT, VV_SETUP, Axis::slots},
    {"seed", DType::i64, VV_INPUT, VV_SETUP, Axis::slots},
    {"next", DType::i32, VV_OUTPUT, VV_STAGED, Axis::slots},
    {"logprob", DType::f32, VV_OUTPUT, VV_STAGED, Axis::slots},
    {"next_slot", DType::i32, VV_OUTPUT, VV_STAGED, Axis::slots},
    {"logits", DType::f32, VV_OUTPUT, VV_SWAP, Axis::slots, true},
};

const PortRow& row(int port) { return kRows[port]; }

std::string in_port(int port) { return std::string("port ") + row(port).name + ": "; }

}  // namespace

int TextRuntime::port_count() {
  static_assert(std::size(kRows) == kPorts && kLogits == kPorts - 1);
  return kPorts;
}

Result<std::unique_ptr<TextRuntime>> TextRuntime::create(std::unique_ptr<engine::Model> model) {
  auto* text = dynamic_cast<engine::TextModel*>(model.get());
  if (text == nullptr)
    return Status(Code::kUnsupported, "a model of the " + model->family() + " family has no ports in this version");
  return std::unique_ptr<TextRuntime>(new TextRuntime(std::move(model), *text));
}

TextRuntime::TextRuntime(std::unique_ptr<engine::Model> model, engine::TextModel& text)
    : model_(std::move(model)), text_(text), limits_(text.limits()), report_(engine::json_object(text.report())) {
  for (int p = 0; p < kPorts; ++p)
    if (row(p).update != VV_SWAP)
      held_[static_cast<size_t>(p)].memory =
          std::make_unique<std::byte[]>(static_cast<size_t>(most(p)) * entry_bytes(p));
  changed_.assign(static_cast<size_t>(limits_.max_batch), 0);
  rows_.reserve(static_cast<size_t>(limits_.prefill_chunk));
  sampled_.reserve(static_cast<size_t>(limits_.max_batch));
  const engine::Sampling plain;  // what slots have until told otherwise
  const auto set = [&](int port, auto value) { std::fill_n(values<decltype(value)>(port), limits_.max_batch, value); };
  set(kTemperature, plain.temperature), set(kTopP, plain.top_p), set(kMinP, plain.min_p),
      set(kRepetition, plain.repetition);
  set(kPresence, plain.presence), set(kFrequency, plain.frequency), set(kTopK, plain.top_k), set(kSeed, plain.seed);
}

int64_t TextRuntime::bytes() const {
  int64_t total = 0;
  for (const engine::MemoryLine& line : model_->memory()) total += line.bytes;
  return total;
}

int64_t TextRuntime::most(int port) const {
  return row(port).axis == Axis::rows ? limits_.prefill_chunk : limits_.max_batch;
}

size_t TextRuntime::entry_bytes(int port) const {
  return static_cast<size_t>(info(row(port).dtype).bytes) *
         static_cast<size_t>(row(port).per_token ? limits_.vocab : 1);
}

Status TextRuntime::check_port(int port) const {
  return port >= 0 && port < kPorts ? Status()
                                    : Status(Code::kInvalidArgument, strf("port %d is outside [0, %d)", port, kPorts));
}

Status TextRuntime::describe(int port, vv_port_info* to) const {
  VV_TRY(check_port(port));
  const PortRow& r = row(port);
  *to = {sizeof *to,
         r.name,
         name(r.dtype),
         r.direction,
         r.update,
         r.per_token ? 2 : 1,
         {most(port), r.per_token ? limits_.vocab : 0},
         r.update != VV_SETUP,
         entry_bytes(port)};
  return {};
}

Result<int> TextRuntime::find(const std::string& name) const {
  std::string known;
  for (int p = 0; p < kPorts; ++p) {
    if (name == row(p).name) return p;
    known += std::string(p == 0 ? "" : ", ") + row(p).name;
  }
  return Status(Code::kNotFound, "no port named \"" + name + "\"; there are " + known);
}

/// A whole number of entries: all of them on SETUP ports, from one on elsewhere.
Status TextRuntime::check_entries(int port, size_t bytes, int64_t* entries) const {
  const size_t each = entry_bytes(port);
  *entries = static_cast<int64_t>(bytes / each);
  const int64_t least = row(port).update == VV_SETUP ? most(port) : 1;
  if (bytes % each == 0 && *entries >= least && *entries <= most(port)) return {};
  return Status(Code::kInvalidShape,
                in_port(port) + strf("wanted %ld to %ld entries of %zu bytes, got %zu bytes", static_cast<long>(least),
                                     static_cast<long>(most(port)), each, bytes));
}

Status TextRuntime::set_input(int port, const void* data, size_t bytes) {
  VV_TRY(check_port(port));
  if (row(port).direction != VV_INPUT) return Status(Code::kInvalidArgument, in_port(port) + "is an output");
  int64_t entries = 0;
  VV_TRY(check_entries(port, bytes, &entries));
  Held& h = held_[static_cast<size_t>(port)];
  if (row(port).update == VV_SETUP) {
    const size_t each = entry_bytes(port);
    for (size_t slot = 0; slot < changed_.size(); ++slot)
      if (std::memcmp(h.memory.get() + slot * each, static_cast<const std::byte*>(data) + slot * each, each) != 0)
        changed_[slot] = 1;
  }
  std::memcpy(h.memory.get(), data, bytes);
  h.entries = entries;
  return {};
}

Status TextRuntime::swap(int port, void* data, size_t bytes) {
  VV_TRY(check_port(port));
  if (row(port).update != VV_SWAP)
    return Status(Code::kInvalidArgument,
                  in_port(port) + "is no VV_SWAP port; use vv_model_set_input or vv_model_get_output");
  const size_t wanted = data == nullptr ? 0 : static_cast<size_t>(most(port)) * entry_bytes(port);
  if (bytes != wanted)
    return Status(Code::kInvalidShape, in_port(port) + strf("wanted %zu bytes, got %zu", wanted, bytes));
  if (reinterpret_cast<uintptr_t>(data) % alignof(float) != 0)
    return Status(Code::kInvalidLayout, in_port(port) + "the address is not aligned to its dtype");
  logits_ = data;
  held_[static_cast<size_t>(port)].entries = 0;  // the last step's are elsewhere
  return {};
}

engine::Sampling TextRuntime::sampling(int slot) const {
  return {values<float>(kTemperature)[slot], values<float>(kTopP)[slot],       values<float>(kMinP)[slot],
          values<int32_t>(kTopK)[slot],      values<float>(kRepetition)[slot], values<float>(kPresence)[slot],
          values<float>(kFrequency)[slot],   values<int64_t>(kSeed)[slot]};
}

Status TextRuntime::prepare() {
  for (int slot = 0; slot < limits_.max_batch; ++slot)
    if (changed_[static_cast<size_t>(slot)])
      if (Status s = engine::check(sampling(slot)); !s.ok()) return std::move(s).with_context(strf("slot %d", slot));
  for (int slot = 0; slot < limits_.max_batch; ++slot)
    if (changed_[static_cast<size_t>(slot)]) VV_TRY(restart(slot));
  return {};
}

Status TextRuntime::restart(int slot) {
  if (slot < 0 || slot >= limits_.max_batch)
    return Status(Code::kInvalidArgument, strf("slot %d is outside [0, %d)", slot, limits_.max_batch));
  VV_TRY(text_.start(slot, sampling(slot)));
  changed_[static_cast<size_t>(slot)] = 0;
  return {};
}

Status TextRuntime::gather_rows() {
  const auto entries = [this](int port) { return held_[static_cast<size_t>(port)].entries; };
  for (int p : {kToken, kPos, kSlot, kSample}) {
    if (entries(p) == 0) return Status(Code::kFailedPrecondition, in_port(p) + "was never set");
    if (entries(p) != entries(kToken))
      return Status(Code::kInvalidShape,
                    in_port(p) + strf("has %ld rows but port token has %ld", static_cast<long>(entries(p)),
                                      static_cast<long>(entries(kToken))));
  }
  rows_.clear();
  size_t samples = 0;
  for (int64_t i = 0; i < entries(kToken); ++i) {
    const int32_t slot = values<int32_t>(kSlot)[i], sample = values<int32_t>(kSample)[i];
    if (sample != 0 && sample != 1)
      return Status(Code::kInvalidArgument,
                    in_port(kSample) + strf("row %ld: wanted 0 or 1, got %d", static_cast<long>(i), sample));
    if (slot >= 0 && slot < limits_.max_batch && changed_[static_cast<size_t>(slot)])
      return Status(Code::kFailedPrecondition,
                    strf("slot %d: a SETUP port was set after it was prepared; call vv_model_prepare", slot));
    rows_.push_back({values<int32_t>(kToken)[i], values<int32_t>(kPos)[i], slot, sample == 1});
    samples += static_cast<size_t>(sample);
  }
  if (samples > static_cast<size_t>(limits_.max_batch))
    return Status(Code::kLimitExceeded, strf("at most %d rows may sample, got %zu", limits_.max_batch, samples));
  sampled_.resize(samples);  // within what was reserved
  return {};
}

Status TextRuntime::step() {
  for (int p : {kNext, kLogprob, kNextSlot, kLogits}) held_[static_cast<size_t>(p)].entries = 0;
  VV_TRY(gather_rows());
  VV_TRY(text_.step(rows_, sampled_));
  for (size_t i = 0; i < sampled_.size(); ++i) {
    values<int32_t>(kNext)[i] = sampled_[i].token;
    values<float>(kLogprob)[i] = sampled_[i].logprob;
    values<int32_t>(kNextSlot)[i] = sampled_[i].slot;
  }
  if (logits_ != nullptr && !sampled_.empty()) {
    VV_ASSIGN(const Tensor logits, text_.logits());
    std::memcpy(logits_, logits.data, static_cast<size_t>(logits.span_bytes()));
  }
  for (int p : {kNext, kLogprob, kNextSlot, kLogits})
    held_[static_cast<size_t>(p)].entries = static_cast<int64_t>(sampled_.size());
  return {};
}

Status TextRuntime::get_output(int port, void* data, size_t capacity, size_t* bytes) {
  VV_TRY(check_port(port));
  if (row(port).direction != VV_OUTPUT) return Status(Code::kInvalidArgument, in_port(port) + "is an input");
  const Held& h = held_[static_cast<size_t>(port)];
  *bytes = static_cast<size_t>(h.entries) * entry_bytes(port);
  if (capacity < *bytes)
    return Status(Code::kLimitExceeded, in_port(port) + strf("has %zu bytes, only %zu fit", *bytes, capacity));
  if (*bytes == 0) return {};
  if (data == nullptr) return Status(Code::kInvalidArgument, "data is NULL");
  if (port != kLogits || logits_ != nullptr) {
    std::memcpy(data, port == kLogits ? logits_ : h.memory.get(), *bytes);
    return {};
  }
  VV_ASSIGN(const Tensor logits, text_.logits());
  std::memcpy(data, logits.data, *bytes);
  return {};
}

}  // namespace vivace::capi
