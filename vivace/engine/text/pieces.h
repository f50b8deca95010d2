// SentencePiece: text to token ids and back, from its own tokenizer.model, a .gguf file or a tokenizer.json made of
// one.
#pragma once
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/checkpoint/metadata.h"
#include "vivace/engine/text/normalize.h"

namespace vivace::engine::text {

/// Joins pieces by the best score (BPE), or takes the row of pieces of the best sum of scores (unigram).
class Pieces {
 public:
  /// `path`: a tokenizer.model, or a folder that holds it. Errors: NotFound, CorruptData, LimitExceeded; Unsupported
  /// names what a model wants that is not done here.
  static Result<Pieces> load(const std::string& path);
  /// A serialised SentencePiece model. `chat_template`: what it names is a control token too.
  static Result<Pieces> from_model(std::string_view bytes, std::string_view chat_template = {});
  static Result<Pieces> from_gguf(const Metadata& metadata);
  /// BPE with byte_fallback, or with a token for all that is unknown.
  static Result<Pieces> from_json(const Json& tokenizer, std::string_view chat_template = {});
  Pieces(Pieces&&) = default;
  Pieces& operator=(Pieces&&) = default;

  /// Appends the ids of valid UTF-8. Names of control tokens (control.h) become these tokens only with `special`: a
  /// user's words cannot forge a turn. Errors: InvalidArgument (no UTF-8, at which byte).
  Status encode(std::string_view text, bool special, std::vector<int32_t>* ids) const;
  /// Appends the text of the ids, control tokens left out; bytes that are no UTF-8 become U+FFFD. Errors:
  /// InvalidArgument.
  Status decode(std::span<const int32_t> ids, std::string* text) const;
  /// The id of a token by its text as the vocabulary has it, control tokens included; -1: there is none.
  int32_t find(std::string_view token) const;
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  enum class Kind : uint8_t { normal = 1, unknown, control, user, unused, byte };  // as the formats number them
  struct Token {
    std::string text;
    float score = 0;
    Kind kind = Kind::normal;
    bool known = true;
  };
  struct Merge {
    int32_t rank, to;
  };
  friend class PiecesReader;
  Pieces() = default;
  /// After tokens and flags: tables. Errors: CorruptData.
  Status finish(std::string_view chat_template);
  Status encode_plain(std::string_view text, std::vector<int32_t>* ids) const;
  void join(std::string_view text, std::vector<int32_t>* ids) const;
  void best_row(std::string_view text, std::vector<int32_t>* ids) const;
  /// The id of a piece, its bytes where it is unknown and there are bytes, or the unknown token once a row.
  void put(std::string_view piece, int32_t id, std::vector<int32_t>* ids) const;
  int32_t piece(std::string_view text) const;

  std::vector<Token> tokens_;                         // never grows after finish(): views into it are kept
  std::unordered_map<std::string_view, int32_t> ids_; // what joining can reach
  std::unordered_map<uint64_t, Merge> merges_;  // by left << 32 | right; of a tokenizer.json, whose merges are listed
  PrefixTable kept_, row_;                      // matched whole: user's own pieces in normalised text; unigram's pieces
  PrefixTable names_, added_;                         // matched whole in the text itself: control tokens, added ones
  Normalizer normalizer_;
  std::string unknown_surface_ = " \xe2\x81\x87 ";
  int32_t of_byte_[256] = {};
  size_t longest_ = 0;                                // bytes of a piece
  int32_t unknown_ = -1;
  float least_ = 0;                                   // score of the worst normal piece
  float most_ = std::numeric_limits<float>::min();    // of the best; at least this, as the library has it
  bool unigram_ = false, bytes_ = false;              // bytes_: there is a token for each byte
  bool listed_ = false;                               // merges_ says what joins, not the scores
  bool named_ = false;  // user's own pieces are names in the text, not in the normalised one
};

}  // namespace vivace::engine::text
