#include "vivace/engine/weights.h"

#include <cstring>

namespace vivace::engine {

std::string WeightSource::name_of(const WeightRule& rule, int layer) const {
  std::string name = checkpoint_.format() == Format::gguf ? rule.gguf : rule.hf;
  if (const size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, std::to_string(layer));
  return name;
}

bool WeightSource::has(const WeightRule& rule, int layer) const {
  const std::string name = name_of(rule, layer);
  return !name.empty() && checkpoint_.find(name) != nullptr;
}

Result<Tensor> WeightSource::get(const WeightRule& rule, int layer) const {
  const std::string tensor_name = name_of(rule, layer);
  const TensorEntry* e = checkpoint_.find(tensor_name);
  if (e == nullptr) return Status(Code::kNotFound, "tensor " + tensor_name + " is missing; the checkpoint is incomplete or of another family");
  if (!(e->shape == rule.shape))
    return Status(Code::kInvalidShape, "tensor " + tensor_name + ": wanted " + to_string(rule.shape) + ", got " + to_string(e->shape));
  Tensor t = checkpoint_.tensor(*e);
  const uintptr_t align = is_block(t.dtype) ? 2 : static_cast<uintptr_t>(info(t.dtype).bytes);
  if (reinterpret_cast<uintptr_t>(t.data) % align != 0) {
    auto copy = std::make_unique<std::byte[]>(e->bytes);
    std::memcpy(copy.get(), t.data, e->bytes);
    t.data = copy.get();
    copies_.push_back(std::move(copy));
  }
  return t;
}

int64_t WeightSource::bytes() const {
  int64_t total = 0;
  for (const MappedFile& f : checkpoint_.files()) total += static_cast<int64_t>(f.bytes().size());
  return total;
}

void WeightSource::touch() const {
  constexpr size_t kPage = 4096;
  unsigned sum = 0;
  for (const MappedFile& f : checkpoint_.files())
    for (size_t i = 0; i < f.bytes().size(); i += kPage) sum += f.bytes()[i];
  asm volatile("" : : "r"(sum));  // the reads are the point
}

}  // namespace vivace::engine
