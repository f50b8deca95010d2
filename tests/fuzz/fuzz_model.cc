// Any bytes as config.json beside real weights, or as a whole GGUF model: an error that names the place, or a
// model that steps. The first byte picks the checkpoint beside which the rest stands; beyond them, GGUF.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/fuzz/fuzz.h"
#include "vivace/models/models.h"

using namespace vivace;
namespace fs = std::filesystem;

namespace {

constexpr const char* kBeside[] = {"llama",         "llama_untied", "qwen2",     "qwen3_yarn", "gemma3",
                                   "gemma3_params", "mixtral",      "qwen3_moe", "gpt2"};
constexpr size_t kBesides = std::size(kBeside);
// What a load may take beyond 4 x the file: every buffer is sized by context, batch and chunk, small here.
constexpr size_t kRoom = 64u << 20;

/// One folder a checkpoint, in memory-backed storage, with links to the fixtures' weights.
const fs::path& root() {
  static const fs::path path = [] {
    const fs::path shm = "/dev/shm";
    const fs::path p =
        (fs::exists(shm) ? shm : fs::temp_directory_path()) / ("vivace-fuzz-" + std::to_string(getpid()));
    for (const char* name : kBeside) {
      fs::create_directories(p / name);
      const fs::path weights = fs::path(VV_SOURCE_DIR) / "tests/fixtures/tiny" / name / "model.safetensors";
      fuzz::require(fs::exists(weights), "the fixtures are there");
      fs::create_symlink(weights, p / name / "model.safetensors");
    }
    std::atexit([] { fs::remove_all(root()); });
    return p;
  }();
  return path;
}

void write(const fs::path& file, const uint8_t* data, size_t size) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

void step(engine::Model& model, size_t file_bytes) {
  int64_t own = 0;
  for (const engine::MemoryLine& line : model.memory())
    if (line.name != "weights (mapped)") own += line.bytes;
  fuzz::require(own >= 0 && static_cast<uint64_t>(own) <= 4 * file_bytes + kRoom, "memory linear in the file");
  fuzz::require(!model.report().empty(), "every model reports");
  auto* text = dynamic_cast<engine::TextModel*>(&model);
  fuzz::require(text != nullptr && text->limits().vocab >= 1 && text->limits().context >= 1, "limits are sane");
  const engine::TokenRow row{0, 0, 0, true};
  engine::Sampled drawn;
  const Status s = text->step({&row, 1}, {&drawn, 1});
  fuzz::require(s.ok(), "a model that loads steps");
  fuzz::require(drawn.token >= -1 && drawn.token < text->limits().vocab, "the token is of the vocabulary");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return -1;
  const size_t which = data[0] % (kBesides + 1);
  const bool gguf = which == kBesides;
  const fs::path file = gguf ? root() / "fuzz.gguf" : root() / kBeside[which] / "config.json";
  write(file, data + 1, size - 1);
  const fs::path weights = gguf ? file : file.parent_path() / "model.safetensors";
  const size_t bytes = size + fs::file_size(weights);
  const fuzz::MemoryBound bound(bytes + kRoom / 40);
  engine::LoadOptions options;
  options.device = "cpu";
  options.threads = 1;
  options.prefill_chunk = 2;
  auto model = models::load_model(gguf ? file.string() : file.parent_path().string(), options);
  if (model.ok())
    step(**model, bytes);
  else
    fuzz::require(model.status().message().find("vivace-fuzz-") != std::string::npos, "errors name the file");
  return 0;
}
