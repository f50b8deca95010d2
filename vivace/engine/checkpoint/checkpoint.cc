#include "vivace/engine/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "vivace/base/check.h"
#include "vivace/base/sha256.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::engine {
namespace {

namespace fs = std::filesystem;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

bool is_pickle(std::string_view path) {
  for (std::string_view suffix : {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
    if (path.ends_with(suffix)) return true;
  return false;
}

Status refuse_pickle(const std::string& path) {
  return Status(
      Code::kUnsupported,
      path +
          ": a pickle is a program that runs when it is loaded, so Vivace never opens one; save "
          "the model as "
          "safetensors on a machine that trusts it (transformers: model.save_pretrained(folder))");
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Full paths of the folder's entries with one of the suffixes, sorted.
Result<std::vector<std::string>> list(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (path.ends_with(".gguf") || path.ends_with(".safetensors") || is_pickle(path))
      found.push_back(path);
  }
  if (error) return Status(Code::kIoError, folder + ": cannot list: " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

/// The file that stands for a model folder.
Result<std::string> choose(const std::string& folder) {
  for (const char* name : {"model.safetensors", kIndexName})
    if (const std::string path = folder + "/" + name; exists(path)) return path;
  VV_ASSIGN(const std::vector<std::string> found, list(folder));
  std::vector<std::string> usable;
  for (const std::string& path : found)
    if (!is_pickle(path)) usable.push_back(path);
  if (usable.size() == 1) return usable[0];
  if (usable.size() > 1) {
    std::string names;
    for (size_t i = 0; i < usable.size() && i < 8; ++i)
      names += (i ? ", " : "") + fs::path(usable[i]).filename().string();
    return Status(Code::kInvalidArgument,
                  strf("%s: %zu checkpoints (%s%s); name the file you want", folder.c_str(),
                       usable.size(), names.c_str(), usable.size() > 8 ? ", ..." : ""));
  }
  if (!found.empty()) return refuse_pickle(found[0]);
  return Status(Code::kNotFound, folder + ": wanted model.safetensors, " + kIndexName +
                                     ", or one .safetensors or .gguf file; found none");
}

}  // namespace

const char* name(Format f) {
  return f == Format::gguf ? "gguf" : "safetensors";
}

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    VV_ASSIGN(file, choose(path));
  }
  if (file.ends_with(kIndexSuffix)) return open_shards(file);
  return open_file(file);
}

Result<Checkpoint> Checkpoint::open_config(const std::string& path) {
  std::error_code error;
  VV_ASSIGN(MappedFile file, MappedFile::open(fs::is_directory(path, error) ? path + "/config.json" : path));
  Checkpoint out;
  out.format_ = Format::safetensors;
  out.files_.push_back(std::move(file));
  return out;
}

Result<Checkpoint> Checkpoint::open_file(const std::string& path) {
  VV_ASSIGN(MappedFile file, MappedFile::open(path));
  const Bytes bytes = file.bytes();
  const bool magic = bytes.size() >= 4 && std::equal(bytes.begin(), bytes.begin() + 4, "GGUF");
  Checkpoint out;
  if (path.ends_with(".safetensors"))
    out.format_ = Format::safetensors;
  else if (path.ends_with(".gguf") || magic)
    out.format_ = Format::gguf;
  else if (is_pickle(path))
    return refuse_pickle(path);
  else
    return Status(Code::kUnsupported,
                  path + ": neither GGUF nor named *.safetensors or *" + std::string(kIndexSuffix));
  VV_ASSIGN(ParsedFile parsed,
            out.format_ == Format::gguf ? parse_gguf(bytes, path) : parse_safetensors(bytes, path));
  out.tensors_ = std::move(parsed.tensors);
  out.metadata_ = std::move(parsed.metadata);
  out.files_.push_back(std::move(file));
  VV_ASSIGN(out.by_name_, index_by_name(out.tensors_, path));
  return out;
}

Result<Checkpoint> Checkpoint::open_shards(const std::string& index_path) {
  VV_ASSIGN(const MappedFile index_file, MappedFile::open(index_path));
  VV_ASSIGN(const ShardIndex index, parse_shard_index(index_file.bytes(), index_path));
  Checkpoint out;
  out.format_ = Format::safetensors;
  for (size_t i = 0; i < index.shards.size(); ++i) {
    const std::string path = (fs::path(index_path).parent_path() / index.shards[i]).string();
    auto file = MappedFile::open(path);
    if (!file.ok()) return std::move(file).status().with_context(index_path + ": weight_map");
    VV_ASSIGN(ParsedFile parsed, parse_safetensors(file->bytes(), path));
    for (TensorEntry& t : parsed.tensors) {
      t.file = static_cast<int>(i);
      out.tensors_.push_back(std::move(t));
    }
    if (out.tensors_.size() > kMaxTensors)
      return Status(Code::kLimitExceeded,
                    strf("%s: more than %llu tensors in the shards", index_path.c_str(),
                         static_cast<unsigned long long>(kMaxTensors)));
    if (i == 0) out.metadata_ = std::move(parsed.metadata);
    out.files_.push_back(std::move(file).value());
  }
  VV_ASSIGN(out.by_name_, index_by_name(out.tensors_, index_path));
  // Index and shards must agree both ways, or they come from different saves.
  for (const auto& [tensor, shard] : index.tensors) {
    const TensorEntry* t = out.find(tensor);
    if (!t || t->file != static_cast<int>(shard))
      return Status(Code::kCorruptData, index_path + ": weight_map puts tensor " + quote(tensor) +
                                            " in " + index.shards[shard] +
                                            ", which does not hold it");
  }
  if (index.tensors.size() != out.tensors_.size())
    return Status(Code::kCorruptData,
                  strf("%s: weight_map lists %zu tensors, the shards hold %zu", index_path.c_str(),
                       index.tensors.size(), out.tensors_.size()));
  return out;
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto at =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [this](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

Tensor Checkpoint::tensor(const TensorEntry& entry) const {
  const uint8_t* data = files_[static_cast<size_t>(entry.file)].bytes().data() + entry.offset;
  return vivace::tensor(const_cast<uint8_t*>(data), entry.dtype, entry.shape);
}

Result<Tensor> Checkpoint::tensor(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (!entry)
    return Status(Code::kNotFound, strf("%s: no tensor %s among %zu",
                                        files_.empty() ? "checkpoint" : files_[0].path().c_str(),
                                        quote(name).c_str(), tensors_.size()));
  return tensor(*entry);
}

Result<std::string> Checkpoint::digest() const {
  std::string all;
  for (const MappedFile& file : files_) {
    VV_TRY(file.check_unchanged());
    const Bytes b = file.bytes();
    all += hex(sha256({reinterpret_cast<const char*>(b.data()), b.size()}));
    VV_TRY(file.check_unchanged());
  }
  return files_.size() == 1 ? all : hex(sha256(all));
}

}  // namespace vivace::engine
