// Byte-level BPE: text to token ids and back, as the tokenizers library does it.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/checkpoint/metadata.h"
#include "vivace/engine/text/prefix_table.h"
#include "vivace/engine/text/split.h"

namespace vivace::engine::text {

class BytePairs {
 public:
  /// The tokenizer of a checkpoint: of a .gguf file's metadata, or of tokenizer.json beside it. Errors: NotFound;
  /// CorruptData; Unsupported names what this reader does not do (SentencePiece, other patterns, normalisers).
  static Result<BytePairs> load(const std::string& checkpoint);
  static Result<BytePairs> from_gguf(const Metadata& metadata);
  /// `chat_template`: what it names is a control token too.
  static Result<BytePairs> from_json(const Json& tokenizer, std::string_view chat_template = {});

  /// Appends the ids of valid UTF-8. Names of control tokens (control.h) become these tokens only with `special`: a
  /// user's words cannot forge a turn. Errors: InvalidArgument (no UTF-8, at which byte), Unsupported (text that NFC
  /// might change).
  Status encode(std::string_view text, bool special, std::vector<int32_t>* ids) const;
  /// Appends the text of the ids, control tokens left out; bytes that are no UTF-8 become U+FFFD. Errors:
  /// InvalidArgument.
  Status decode(std::span<const int32_t> ids, std::string* text) const;
  /// The bytes of one token; of a control token none.
  Result<std::string_view> bytes_of(int32_t id) const;
  /// The id of a token by its text, control tokens included; -1: there is none.
  int32_t find(std::string_view token) const;
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  struct Token {
    std::string bytes;
    bool known = false, special = false, added = false;  // special: no part of decoded text
  };
  struct Added {
    std::string text;
    int32_t id;
    bool special;
  };
  struct Merge {
    int32_t rank, to;
  };
  BytePairs() = default;
  Status put(int64_t id, std::string_view written);
  Status merge(std::string_view left, std::string_view right, int32_t rank);
  Status add(std::string_view text, int32_t id, bool special);
  Status finish(std::string_view chat_template);
  void encode_plain(std::string_view text, std::vector<int32_t>* ids) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>* ids) const;

  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> ids_;     // by bytes; what merging can reach
  std::unordered_map<uint64_t, Merge> merges_;       // by left << 32 | right
  std::vector<Added> added_;
  PrefixTable names_, parts_;                        // matched whole: control tokens, the other added ones
  int32_t of_byte_[256] = {};
  int64_t most_ = 0;                                 // ids are below
  Split split_ = Split::gpt2;
  bool nfc_ = false, whole_first_ = false;           // whole_first_: a piece that is a token is not merged
};

/// Decodes an answer as it comes: characters whose bytes are not all there yet are held back.
class TextStream {
 public:
  explicit TextStream(const BytePairs& tokenizer) : tokenizer_(tokenizer) {}
  /// Appends the text that became final with this token.
  Status next(int32_t id, std::string* text);
  /// The answer ends here: appends what stands for bytes of a character that never came whole.
  void finish(std::string* text);

 private:
  const BytePairs& tokenizer_;
  std::string held_;
};

}  // namespace vivace::engine::text
