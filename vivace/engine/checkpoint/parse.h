// What the readers share: format parsers over bytes, and the checks every format needs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "vivace/engine/checkpoint/checkpoint.h"

namespace vivace::engine {

/// Bounds on any input, so that memory stays below 4 x the file plus 64 MB whatever it claims.
inline constexpr uint64_t kMaxTensors = 1u << 18;
inline constexpr uint64_t kMaxMetaPairs = 1u << 16;
inline constexpr uint64_t kMaxNameBytes = 1024;
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit

struct ParsedFile {
  std::vector<TensorEntry> tensors;
  Metadata metadata;
};

/// `file` is the whole file and outlives the result; `name` stands in messages. Pure: no I/O, no
/// tensor data read.
Result<ParsedFile> parse_gguf(Bytes file, const std::string& name);
Result<ParsedFile> parse_safetensors(Bytes file, const std::string& name);

/// Shard of every tensor, from model.safetensors.index.json, in file order.
struct ShardIndex {
  std::vector<std::string> shards;                        // plain file names, unique
  std::vector<std::pair<std::string, uint32_t>> tensors;  // name, index into shards
};
Result<ShardIndex> parse_shard_index(Bytes file, const std::string& name);

/// shape x dtype in bytes; nullopt if it overflows or the last axis is not a whole number of
/// blocks.
std::optional<uint64_t> tensor_bytes(DType dtype, const Shape& shape);

/// Permutation that sorts `tensors` by name; CorruptData names a duplicate.
Result<std::vector<uint32_t>> index_by_name(const std::vector<TensorEntry>& tensors,
                                            const std::string& file);

/// CorruptData if two tensors share a byte; with `gapless`, also if they do not fill [begin, end)
/// exactly.
Status check_layout(const std::vector<TensorEntry>& tensors, uint64_t begin, uint64_t end,
                    bool gapless, const std::string& file);

/// Not empty, at most kMaxNameBytes, valid UTF-8, no control characters.
bool is_good_name(std::string_view s);
bool is_utf8(std::string_view s);
/// `s` in double quotes for a message: control and non-ASCII bytes as \xNN, shortened to 96
/// characters.
std::string quote(std::string_view s);

}  // namespace vivace::engine
