// Where a SentencePiece vocabulary comes from: its own model file (a protocol buffer), GGUF metadata, tokenizer.json.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/mapped_file.h"
#include "vivace/engine/text/control.h"
#include "vivace/engine/text/pieces.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::engine::text {
namespace {

constexpr size_t kMostBytes = 64 << 20, kMostPieces = 1 << 20;
constexpr size_t kPieceBytes = 256;  // what a piece takes beside its text, tables included
constexpr int64_t kSpare = 4096;  // ids beyond the number of tokens: some vocabularies have gaps

Status corrupt(const std::string& what) { return Status(Code::kCorruptData, "tokenizer: " + what); }
Status unsupported(const std::string& what) {
  return Status(Code::kUnsupported, "tokenizer: " + what + "; pass token ids, or use the Python tokenizer");
}

/// Walks the fields of a message.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  /// The next field: false at the end. Errors: CorruptData.
  Result<bool> next() {
    if (rest_.empty()) return false;
    VV_ASSIGN(const uint64_t tag, varint());
    field_ = static_cast<uint32_t>(tag >> 3);
    text_ = {}, number_ = 0;
    switch (tag & 7) {
      case 0: {
        VV_ASSIGN(number_, varint());
        return true;
      }
      case 1: return take(8);
      case 2: {
        VV_ASSIGN(const uint64_t n, varint());
        return take(n);
      }
      case 5: return take(4);
      default: return corrupt(strf("field %u has wire type %d", field_, static_cast<int>(tag & 7)));
    }
  }
  uint32_t field() const { return field_; }
  std::string_view text() const { return text_; }
  bool flag() const { return number_ != 0; }
  int64_t number() const { return static_cast<int64_t>(number_); }
  float real() const {
    float v = 0;
    if (text_.size() == sizeof(v)) std::memcpy(&v, text_.data(), sizeof(v));
    return v;
  }

 private:
  Result<uint64_t> varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return corrupt("a number is cut off");
      const auto b = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      v |= uint64_t{b & 0x7fu} << shift;
      if (b < 0x80) return v;
    }
    return corrupt("a number of more than 64 bits");
  }
  Result<bool> take(uint64_t n) {
    if (n > rest_.size())
      return corrupt(strf("field %u has %lu bytes, %zu are left", field_, static_cast<unsigned long>(n), rest_.size()));
    text_ = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return true;
  }

  std::string_view rest_, text_;
  uint64_t number_ = 0;
  uint32_t field_ = 0;
};

/// Calls on(message) for every field of `bytes`.
template <class F>
Status each(std::string_view bytes, F&& on) {
  Message m(bytes);
  for (;;) {
    VV_ASSIGN(const bool more, m.next());
    if (!more) return {};
    VV_TRY(on(m));
  }
}

bool is_utf8(std::string_view s) {
  char32_t c = 0;
  while (!s.empty()) {
    const int n = read_utf8(s, &c);
    if (n == 0) return false;
    s.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

/// Where a pre_tokenizer cuts, held against pieces: none may lie across a cut, so that cutting changes nothing.
struct Cuts {
  bool before_space = false;      // at each mark of a space
  std::vector<char32_t> isolated; // around each of these
  bool across(std::string_view piece) const {
    char32_t c = 0;
    bool first = true;
    for (std::string_view s = piece; !s.empty(); first = false) {
      const int n = read_utf8(s, &c);
      if (n == 0) return true;
      s.remove_prefix(static_cast<size_t>(n));
      if (before_space && !first && c == 0x2581) return true;
      if (std::find(isolated.begin(), isolated.end(), c) != isolated.end() && (!first || !s.empty())) return true;
    }
    return false;
  }
};

Status read_cut(const JsonValue& step, Cuts* cuts) {
  VV_ASSIGN(const std::string_view type, step.get_string("type"));
  if (type != "Split") return unsupported("pre_tokenizer: " + std::string(type));
  VV_ASSIGN(const JsonValue pattern, step.at("pattern"));
  VV_ASSIGN(const std::string_view literal, pattern.get_string("String", ""));
  VV_ASSIGN(const std::string_view regex, pattern.get_string("Regex", ""));
  VV_ASSIGN(const std::string_view behavior, step.get_string("behavior"));
  VV_ASSIGN(const bool invert, step.get_bool("invert", false));
  const std::string_view what = literal.empty() ? regex : literal;
  if (literal == " ") return {};  // no space is left when it looks
  if (!invert && what == kSpaceMark && behavior == "MergedWithNext") {
    cuts->before_space = true;
    return {};
  }
  const bool set = regex.size() > 2 && regex.front() == '[' && regex.back() == ']' &&
                   regex.find_first_of("\\^-&[", 1) == std::string_view::npos;
  if (invert || !set || behavior != "Isolated")
    return unsupported("pre_tokenizer: a Split at '" + std::string(what) + "', " + std::string(behavior));
  char32_t c = 0;
  for (std::string_view s = regex.substr(1, regex.size() - 2); !s.empty();
       s.remove_prefix(static_cast<size_t>(read_utf8(s, &c)))) {
    read_utf8(s, &c);
    cuts->isolated.push_back(c);
  }
  return {};
}

/// A space before the text, as normalizers say it: [Prepend,] Replace.
Result<bool> read_normalizer(const JsonValue& root) {
  const auto n = root.find("normalizer");
  if (!n || n->is_null()) return unsupported("normalizer: none, so that spaces stay spaces");
  const auto step = [](const JsonValue& s, bool* prefix, bool* marks) -> Status {
    VV_ASSIGN(const std::string_view type, s.get_string("type"));
    if (type == "Prepend") {
      VV_ASSIGN(const std::string_view what, s.get_string("prepend"));
      if (what != kSpaceMark || *marks) return unsupported("normalizer: Prepend of '" + std::string(what) + "'");
      *prefix = true;
      return {};
    }
    if (type != "Replace") return unsupported("normalizer: " + std::string(type));
    VV_ASSIGN(const JsonValue pattern, s.at("pattern"));
    VV_ASSIGN(const std::string_view from, pattern.get_string("String", ""));
    VV_ASSIGN(const std::string_view to, s.get_string("content"));
    if (from != " " || to != kSpaceMark) return unsupported("normalizer: Replace of '" + std::string(from) + "'");
    *marks = true;
    return {};
  };
  bool prefix = false, marks = false;
  VV_ASSIGN(const std::string_view type, n->get_string("type"));
  if (type != "Sequence") {
    VV_TRY(step(*n, &prefix, &marks));
  } else {
    VV_ASSIGN(const JsonValue steps, n->at("normalizers"));
    for (const JsonValue& s : steps) VV_TRY(step(s, &prefix, &marks));
  }
  if (!marks) return unsupported("normalizer: spaces stay spaces");
  return prefix;
}

}  // namespace

/// Fills tokens and flags.
class PiecesReader {
 public:
  Pieces t;
  size_t most = kMostPieces;

  Status token(std::string_view text, float score, int64_t kind) {
    if (t.tokens_.size() >= most || text.size() > kMostToken)
      return Status(Code::kLimitExceeded, strf("tokenizer: piece %zu of %zu bytes: at most %zu of %zu are accepted",
                                               t.tokens_.size(), text.size(), most, kMostToken));
    if (kind < 1 || kind > 6)
      return corrupt(strf("piece %zu is of kind %ld", t.tokens_.size(), static_cast<long>(kind)));
    if (!is_utf8(text)) return corrupt(strf("piece %zu is no UTF-8", t.tokens_.size()));
    if (text.empty() && kind != 3) return corrupt(strf("piece %zu is empty", t.tokens_.size()));
    if (score != score) return corrupt(strf("the score of piece %zu is no number", t.tokens_.size()));
    t.tokens_.push_back({std::string(text), score, static_cast<Pieces::Kind>(kind), true});
    return {};
  }

  Status model_piece(std::string_view bytes) {
    std::string_view text;
    float score = 0;
    int64_t kind = 1;
    VV_TRY(each(bytes, [&](const Message& m) -> Status {
      if (m.field() == 1) text = m.text();
      if (m.field() == 2) score = m.real();
      if (m.field() == 3) kind = m.number();
      return {};
    }));
    return token(text, score, kind);
  }

  Status trainer(std::string_view bytes) {
    return each(bytes, [&](const Message& m) -> Status {
      if (m.field() == 3) {
        if (m.number() != 1 && m.number() != 2)
          return unsupported(
              strf("a SentencePiece model of type %ld: wanted unigram (1) or BPE (2)", static_cast<long>(m.number())));
        t.unigram_ = m.number() == 1;
      }
      if (m.field() == 24 && m.flag()) return unsupported("a SentencePiece model with spaces behind words");
      if (m.field() == 44 && m.text().size() > kMostToken)
        return Status(Code::kLimitExceeded,
                      strf("tokenizer: %zu bytes stand for what is unknown, at most %zu are accepted", m.text().size(),
                           kMostToken));
      if (m.field() == 44) t.unknown_surface_ = std::string(m.text());
      return {};
    });
  }

  Status normalizer(std::string_view bytes) {
    return each(bytes, [&](const Message& m) -> Status {
      if (m.field() == 2 && !m.text().empty()) return t.normalizer_.set_rules(m.text());
      if (m.field() == 3) t.normalizer_.prefix = m.flag();
      if (m.field() == 4) t.normalizer_.collapse = m.flag();
      if (m.field() == 5 && !m.flag()) return unsupported("a SentencePiece model whose spaces stay spaces");
      return {};
    });
  }

  Status json_tokens(const JsonValue& model, const JsonValue& root) {
    VV_ASSIGN(const JsonValue vocab, model.at("vocab"));
    const auto added = root.find("added_tokens");
    const int64_t most = static_cast<int64_t>(vocab.size() + (added ? added->size() : 0)) + kSpare;
    const auto place = [&](const JsonValue& at, int64_t id) -> Result<Pieces::Token*> {
      if (id < 0 || id >= most)
        return at.error(Code::kCorruptData,
                        strf("token id %ld is outside [0, %ld)", static_cast<long>(id), static_cast<long>(most)));
      if (static_cast<size_t>(id) >= t.tokens_.size())
        t.tokens_.resize(static_cast<size_t>(id) + 1, {"", 0, Pieces::Kind::normal, false});
      return &t.tokens_[static_cast<size_t>(id)];
    };
    for (const JsonValue& entry : vocab) {
      VV_ASSIGN(const int64_t id, entry.as_int());
      VV_ASSIGN(Pieces::Token* const to, place(entry, id));
      if (to->known) return corrupt(strf("two tokens have id %ld", static_cast<long>(id)));
      const std::string_view text = entry.key();
      const bool byte = text.size() == 6 && text.substr(0, 3) == "<0x" && text[5] == '>';
      *to = {std::string(text), 0, byte ? Pieces::Kind::byte : Pieces::Kind::normal, true};
    }
    VV_ASSIGN(const std::string_view unknown, model.get_string("unk_token", ""));
    for (auto& token : t.tokens_)
      if (!unknown.empty() && token.known && token.text == unknown) token.kind = Pieces::Kind::unknown;
    if (!added || added->is_null()) return {};
    std::unordered_set<int64_t> seen;
    for (const JsonValue& entry : *added) {
      VV_ASSIGN(const int64_t id, entry.get_int("id"));
      VV_ASSIGN(const std::string_view content, entry.get_string("content"));
      VV_ASSIGN(const bool special, entry.get_bool("special", false));
      for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
        VV_ASSIGN(const bool set, entry.get_bool(flag, false));
        if (set) return unsupported("added token '" + std::string(content) + "' with " + flag);
      }
      VV_ASSIGN(Pieces::Token* const to, place(entry, id));
      if (!seen.insert(id).second) return corrupt(strf("two added tokens have id %ld", static_cast<long>(id)));
      *to = {std::string(content), 0, special ? Pieces::Kind::control : Pieces::Kind::user, true};
    }
    return {};
  }

  Status json_merges(const JsonValue& model, const Cuts& cuts) {
    VV_ASSIGN(const JsonValue merges, model.at("merges"));
    std::unordered_map<std::string, int32_t> ids;
    for (size_t i = 0; i < t.tokens_.size(); ++i)
      if (t.tokens_[i].known) ids.emplace(t.tokens_[i].text, static_cast<int32_t>(i));
    int32_t rank = 0;
    for (const JsonValue& entry : merges) {
      std::string_view part[2];
      if (entry.is_string()) {
        VV_ASSIGN(const std::string_view words, entry.as_string());
        const size_t space = words.find(' ');
        if (space == std::string_view::npos) return corrupt(strf("model.merges: entry %d is not two words", rank));
        part[0] = words.substr(0, space), part[1] = words.substr(space + 1);
      } else {
        if (!entry.is_array() || entry.size() != 2) return entry.error(Code::kCorruptData, "expected two words");
        auto word = entry.begin();
        VV_ASSIGN(part[0], (*word).as_string());
        ++word;
        VV_ASSIGN(part[1], (*word).as_string());
      }
      const std::string whole = std::string(part[0]) + std::string(part[1]);
      const auto l = ids.find(std::string(part[0])), r = ids.find(std::string(part[1])), both = ids.find(whole);
      if (l == ids.end() || r == ids.end() || both == ids.end())
        return corrupt(strf("merge %d is of tokens that are not in the vocabulary", rank));
      if (cuts.across(whole)) return unsupported("pre_tokenizer: it cuts the piece '" + whole + "'");
      t.merges_[static_cast<uint64_t>(static_cast<uint32_t>(l->second)) << 32 | static_cast<uint32_t>(r->second)] = {
          rank++, both->second};
    }
    return {};
  }

  Result<Pieces> done(std::string_view chat_template) {
    if (t.tokens_.empty()) return corrupt("a vocabulary without pieces");
    VV_TRY(t.finish(chat_template));
    return std::move(t);
  }
};

Result<Pieces> Pieces::load(const std::string& path) {
  std::error_code error;
  const std::string file =
      std::filesystem::is_directory(path, error) ? (std::filesystem::path(path) / "tokenizer.model").string() : path;
  VV_ASSIGN(const MappedFile mapped, MappedFile::open(file));
  const Bytes bytes = mapped.bytes();
  if (bytes.size() > kMostBytes)
    return Status(Code::kLimitExceeded,
                  strf("%s: %zu bytes, at most %zu are accepted", file.c_str(), bytes.size(), kMostBytes));
  VV_ASSIGN(const std::string chat_template, chat_template_of(std::filesystem::path(file).parent_path().string()));
  Result<Pieces> read = from_model({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, chat_template);
  if (!read.ok()) return std::move(read).status().with_context(file);
  return read;
}

Result<Pieces> Pieces::from_model(std::string_view bytes, std::string_view chat_template) {
  PiecesReader r;
  r.t.unigram_ = true;  // unless the model says otherwise
  r.most = std::min(kMostPieces,
                    (4 * bytes.size() + (64 << 20)) / kPieceBytes);  // a hostile file names a piece with eight bytes
  VV_TRY(each(bytes, [&](const Message& m) -> Status {
    switch (m.field()) {
      case 1: return r.model_piece(m.text());
      case 2: return r.trainer(m.text());
      case 3: return r.normalizer(m.text());
      default: return {};
    }
  }));
  return r.done(chat_template);
}

Result<Pieces> Pieces::from_gguf(const Metadata& meta) {
  VV_ASSIGN(const std::string_view kind, meta.get_string("tokenizer.ggml.model"));
  if (kind != "llama")
    return unsupported("tokenizer.ggml.model: wanted llama (SentencePiece BPE), got '" + std::string(kind) + "'");
  PiecesReader r;
  VV_ASSIGN(const std::span<const std::string_view> tokens, meta.get_strings("tokenizer.ggml.tokens"));
  VV_ASSIGN(const auto scores, meta.get_f32s("tokenizer.ggml.scores"));
  VV_ASSIGN(const std::vector<int64_t> types, meta.get_i64s("tokenizer.ggml.token_type"));
  for (const auto& [what, n] : {std::pair{"scores", scores.size()}, {"token_type", types.size()}})
    if (n != tokens.size())
      return corrupt(strf("tokenizer.ggml.%s: wanted %zu entries, got %zu", what, tokens.size(), n));
  for (size_t i = 0; i < tokens.size(); ++i) VV_TRY(r.token(tokens[i], scores[i], types[i]));
  r.t.named_ = true;
  r.t.normalizer_.collapse = false;
  if (meta.has("tokenizer.ggml.add_space_prefix")) {
    VV_ASSIGN(r.t.normalizer_.prefix, meta.get_bool("tokenizer.ggml.add_space_prefix"));
  }
  std::string_view chat_template;
  if (meta.has("tokenizer.chat_template")) {
    VV_ASSIGN(chat_template, meta.get_string("tokenizer.chat_template"));
  }
  return r.done(chat_template);
}

Result<Pieces> Pieces::from_json(const Json& json, std::string_view chat_template) {
  const JsonValue root = json.root();
  VV_ASSIGN(const JsonValue model, root.at("model"));
  VV_ASSIGN(const std::string_view type, model.get_string("type", "BPE"));
  VV_ASSIGN(const bool fallback, model.get_bool("byte_fallback", false));
  VV_ASSIGN(const std::string_view unknown, model.get_string("unk_token", ""));
  VV_ASSIGN(const bool fused, model.get_bool("fuse_unk", false));
  if (type != "BPE" || !(fallback || (fused && !unknown.empty())))
    return unsupported("model: wanted BPE with byte_fallback, or with unk_token and fuse_unk, got " +
                       std::string(type) + " without them");
  VV_ASSIGN(const bool whole, model.get_bool("ignore_merges", false));
  if (whole) return unsupported("model: ignore_merges");
  PiecesReader r;
  r.t.listed_ = r.t.named_ = true;
  r.t.normalizer_.collapse = false;
  VV_ASSIGN(r.t.normalizer_.prefix, read_normalizer(root));
  Cuts cuts;
  if (const auto pre = root.find("pre_tokenizer"); pre && !pre->is_null()) {
    VV_ASSIGN(const std::string_view kind, pre->get_string("type"));
    if (kind != "Sequence") {
      VV_TRY(read_cut(*pre, &cuts));
    } else {
      VV_ASSIGN(const JsonValue steps, pre->at("pretokenizers"));
      for (const JsonValue& step : steps) VV_TRY(read_cut(step, &cuts));
    }
  }
  VV_TRY(r.json_tokens(model, root));
  VV_TRY(r.json_merges(model, cuts));
  for (size_t i = 0; i < r.t.tokens_.size() && !fallback;
       ++i)  // a control token besides, which plain text does not become by its own letters
    if (r.t.tokens_[i].known && r.t.tokens_[i].text == unknown) r.t.unknown_ = static_cast<int32_t>(i);
  return r.done(chat_template);
}

}  // namespace vivace::engine::text
