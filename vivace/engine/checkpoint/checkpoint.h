// Checkpoint: named tensors and metadata of a model file, whatever its format. Nothing is copied or
// read ahead.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "vivace/base/tensor.h"
#include "vivace/engine/checkpoint/mapped_file.h"
#include "vivace/engine/checkpoint/metadata.h"

namespace vivace::engine {

/// Where one tensor lies. Readers guarantee: bytes == shape x dtype, [offset, offset + bytes)
/// inside the file and shared with no other tensor, names unique and printable.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  int file = 0;  // index into Checkpoint::files()
  Shape shape;   // outermost first, row-major: GGUF's dimensions are reversed
  uint64_t offset = 0, bytes = 0;
};

enum class Format : uint8_t { gguf, safetensors };
const char* name(Format f);

/// Move-only; owns the mappings, and every view it hands out lives as long as it does (moves keep
/// them).
class Checkpoint {
 public:
  /// `path`: a .gguf file, a .safetensors file, a *.safetensors.index.json with its shards, or a
  /// directory that holds model.safetensors, model.safetensors.index.json, or exactly one
  /// *.safetensors or *.gguf file. Errors: NotFound, IoError, CorruptData (file, field, wanted,
  /// got), LimitExceeded, Unsupported (an element type or format that Vivace does not read;
  /// pickles, because loading one runs its code).
  static Result<Checkpoint> open(const std::string& path);

  /// A hub folder's config.json (or the folder) as a checkpoint without tensors: what a model of random
  /// weights is made from. Errors: NotFound, IoError.
  static Result<Checkpoint> open_config(const std::string& path);

  Format format() const { return format_; }
  const std::vector<MappedFile>& files() const { return files_; }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }  // in file order
  const TensorEntry* find(std::string_view name) const;                 // nullptr if absent
  /// Dense view into the mapping, Place::host, read-only (writing to it faults). GGUF data is
  /// aligned; safetensors does not promise it, so look at the address before you cast. Errors:
  /// NotFound.
  Result<Tensor> tensor(std::string_view name) const;
  Tensor tensor(const TensorEntry& entry) const;
  const Metadata& metadata() const { return metadata_; }

  /// Identity of the contents, 64 hex digits: the file's SHA-256, or for shards the SHA-256 of
  /// their hex digests in file order. Reads everything. IoError if a file changed since it was
  /// opened.
  Result<std::string> digest() const;

 private:
  Format format_ = Format::gguf;
  std::vector<MappedFile> files_;
  std::vector<TensorEntry> tensors_;
  std::vector<uint32_t> by_name_;
  Metadata metadata_;

  static Result<Checkpoint> open_file(const std::string& path);
  static Result<Checkpoint> open_shards(const std::string& index_path);
};

}  // namespace vivace::engine
