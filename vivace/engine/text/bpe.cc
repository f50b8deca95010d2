#include "vivace/engine/text/bpe.h"

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/text/control.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::engine::text {
namespace {

constexpr int64_t kSpare = 4096;  // ids beyond the number of tokens: some vocabularies have gaps
constexpr int64_t kControl = 3, kUserDefined = 4;  // GGUF's token types

/// GPT-2 writes a byte as a character: printable ones as themselves, the others from U+0100 on.
struct ByteNames {
  char32_t of[256];
  std::unordered_map<char32_t, uint8_t> byte;
  ByteNames() {
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool shown = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
      of[b] = shown ? static_cast<char32_t>(b) : next++;
      byte[of[b]] = static_cast<uint8_t>(b);
    }
  }
};

const ByteNames& names() {
  static const ByteNames all;
  return all;
}

/// The bytes that a token's written form stands for; false where it holds another character.
bool to_bytes(std::string_view written, std::string* bytes) {
  bytes->clear();
  char32_t c;
  for (int n; !written.empty(); written.remove_prefix(static_cast<size_t>(n))) {
    if ((n = read_utf8(written, &c)) == 0) return false;
    const auto found = names().byte.find(c);
    if (found == names().byte.end()) return false;
    bytes->push_back(static_cast<char>(found->second));
  }
  return true;
}

Status corrupt(const std::string& what) { return Status(Code::kCorruptData, "tokenizer: " + what); }
Status unsupported(const std::string& what) {
  return Status(Code::kUnsupported, "tokenizer: " + what + "; pass token ids, or use the Python tokenizer");
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Status BytePairs::put(int64_t id, std::string_view written) {
  if (id < 0 || id >= most_)
    return corrupt(strf("token id %ld is outside [0, %ld)", static_cast<long>(id), static_cast<long>(most_)));
  if (written.size() > 2 * kMostToken)
    return Status(Code::kLimitExceeded, strf("tokenizer: token %ld of %zu bytes, at most %zu are accepted",
                                             static_cast<long>(id), written.size(), 2 * kMostToken));
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& t = tokens_[static_cast<size_t>(id)];
  if (t.known) return corrupt(strf("two tokens have id %ld", static_cast<long>(id)));
  t.known = true;
  // A token that is no row of bytes is an added one: its text is its own, and no merge reaches it.
  if (to_bytes(written, &t.bytes)) ids_.emplace(t.bytes, static_cast<int32_t>(id));
  else t.bytes = std::string(written);
  return {};
}

Status BytePairs::merge(std::string_view left, std::string_view right, int32_t rank) {
  std::string a, b;
  if (!to_bytes(left, &a) || !to_bytes(right, &b))
    return corrupt(strf("merge %d holds characters that stand for no byte", rank));
  const auto l = ids_.find(a), r = ids_.find(b), both = ids_.find(a + b);
  if (l == ids_.end() || r == ids_.end() || both == ids_.end())
    return corrupt(strf("merge %d is of tokens that are not in the vocabulary", rank));
  merges_[pair_of(l->second, r->second)] = {rank, both->second};
  return {};
}

Status BytePairs::add(std::string_view text, int32_t id, bool special) {
  Token& t = tokens_[static_cast<size_t>(id)];
  if (t.added)
    return corrupt(strf("two added tokens have id %d", id));  // one may steer: the other's text would become it
  t.bytes = std::string(text);
  t.special = special, t.added = true;
  if (!text.empty()) added_.push_back({std::string(text), id, special});
  return {};
}

Status BytePairs::finish(std::string_view chat_template) {
  std::vector<PrefixTable::Entry> names, parts;
  std::unordered_set<int32_t> control;
  for (const Added& a : added_) {
    const bool steers = is_control(a.text, a.special, chat_template);
    (steers ? names : parts).emplace_back(a.text, a.id);
    if (steers) control.insert(a.id);
  }
  VV_ASSIGN(names_, PrefixTable::of(std::move(names)));
  VV_ASSIGN(parts_, PrefixTable::of(std::move(parts)));
  // Plain text never becomes a control token, not by merging either.
  std::erase_if(ids_, [&](const auto& entry) { return control.count(entry.second) > 0; });
  std::erase_if(merges_, [&](const auto& entry) { return control.count(entry.second.to) > 0; });
  for (int b = 0; b < 256; ++b) {
    const auto found = ids_.find(std::string(1, static_cast<char>(b)));
    of_byte_[b] = found == ids_.end() ? -1 : found->second;  // a byte without a token is left out, as the library does
  }
  return {};
}

Result<BytePairs> BytePairs::load(const std::string& checkpoint) {
  if (checkpoint.size() > 5 && checkpoint.compare(checkpoint.size() - 5, 5, ".gguf") == 0) {
    VV_ASSIGN(const Checkpoint file, Checkpoint::open(checkpoint));
    return from_gguf(file.metadata());
  }
  const bool is_file = checkpoint.find(".safetensors") != std::string::npos;
  const size_t slash = checkpoint.rfind('/');
  const std::string folder = !is_file                     ? checkpoint + "/"
                             : slash == std::string::npos ? ""
                                                          : checkpoint.substr(0, slash + 1);
  VV_ASSIGN(const Json json, Json::parse_file(folder + "tokenizer.json"));
  VV_ASSIGN(const std::string chat_template, chat_template_of(folder));
  return from_json(json, chat_template);
}

Result<BytePairs> BytePairs::from_gguf(const Metadata& meta) {
  VV_ASSIGN(const std::string_view kind, meta.get_string("tokenizer.ggml.model"));
  if (kind != "gpt2")
    return unsupported("tokenizer.ggml.model: wanted gpt2 (byte-level BPE), got '" + std::string(kind) + "'");
  BytePairs t;
  std::string pre = "default";
  if (meta.has("tokenizer.ggml.pre")) {
    VV_ASSIGN(const std::string_view given, meta.get_string("tokenizer.ggml.pre"));
    pre = std::string(given);
  }
  if (pre == "llama-bpe" || pre == "llama3") t.split_ = Split::llama3, t.whole_first_ = true;
  else if (pre == "qwen2") t.split_ = Split::qwen2, t.nfc_ = true;
  else if (pre == "smollm") t.split_ = Split::digits;
  else if (pre != "default" && pre != "gpt-2")
    return unsupported("tokenizer.ggml.pre: wanted default, gpt-2, smollm, llama-bpe, llama3 or qwen2, got '" + pre +
                       "'");
  VV_ASSIGN(const std::span<const std::string_view> tokens, meta.get_strings("tokenizer.ggml.tokens"));
  VV_ASSIGN(const std::span<const std::string_view> merges, meta.get_strings("tokenizer.ggml.merges"));
  std::vector<int64_t> types;
  if (meta.has("tokenizer.ggml.token_type")) {
    VV_ASSIGN(types, meta.get_i64s("tokenizer.ggml.token_type"));
    if (types.size() != tokens.size())
      return corrupt(strf("tokenizer.ggml.token_type: wanted %zu entries, got %zu", tokens.size(), types.size()));
  }
  t.most_ = static_cast<int64_t>(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) VV_TRY(t.put(static_cast<int64_t>(i), tokens[i]));
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ');
    if (space == std::string_view::npos) return corrupt(strf("tokenizer.ggml.merges: entry %zu is not two words", i));
    VV_TRY(t.merge(merges[i].substr(0, space), merges[i].substr(space + 1), static_cast<int32_t>(i)));
  }
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i] == kControl || types[i] == kUserDefined)
      VV_TRY(t.add(tokens[i], static_cast<int32_t>(i), types[i] == kControl));
  std::string_view chat_template;
  if (meta.has("tokenizer.chat_template")) {
    VV_ASSIGN(chat_template, meta.get_string("tokenizer.chat_template"));
  }
  VV_TRY(t.finish(chat_template));
  return t;
}

namespace {

/// What a pre_tokenizer of tokenizer.json means.
Result<Split> read_split(const JsonValue& pre) {
  VV_ASSIGN(const std::string_view type, pre.get_string("type"));
  if (type == "ByteLevel") {
    VV_ASSIGN(const bool prefix, pre.get_bool("add_prefix_space", true));
    VV_ASSIGN(const bool words, pre.get_bool("use_regex", true));
    if (prefix || !words)
      return unsupported("pre_tokenizer: ByteLevel with a space before the text, or alone without its words");
    return Split::gpt2;
  }
  if (type != "Sequence") return unsupported("pre_tokenizer: " + std::string(type));
  VV_ASSIGN(const JsonValue steps, pre.at("pretokenizers"));
  if (!steps.is_array() || steps.size() != 2)
    return unsupported(strf("pre_tokenizer: a sequence of %zu steps", steps.size()));
  auto step = steps.begin();
  const JsonValue first = *step, last = *++step;
  VV_ASSIGN(const std::string_view kind, first.get_string("type"));
  VV_ASSIGN(const std::string_view then, last.get_string("type"));
  VV_ASSIGN(const bool prefix, last.get_bool("add_prefix_space", true));
  VV_ASSIGN(const bool words, last.get_bool("use_regex", true));
  if (then != "ByteLevel" || prefix)
    return unsupported("pre_tokenizer: a sequence that does not end in ByteLevel without a space before the text");
  if (kind == "Digits" && words) {
    VV_ASSIGN(const bool each, first.get_bool("individual_digits", false));
    if (!each) return unsupported("pre_tokenizer: Digits that stay together");
    return Split::digits;
  }
  if (kind != "Split" || words) return unsupported("pre_tokenizer: " + std::string(kind) + " before ByteLevel");
  VV_ASSIGN(const std::string_view behavior, first.get_string("behavior"));
  VV_ASSIGN(const bool invert, first.get_bool("invert", false));
  VV_ASSIGN(const JsonValue pattern, first.at("pattern"));
  VV_ASSIGN(const std::string_view regex, pattern.get_string("Regex"));
  if (behavior != "Isolated" || invert) return unsupported("pre_tokenizer: a Split that is not isolated");
  return split_of(regex);
}

}  // namespace

Result<BytePairs> BytePairs::from_json(const Json& json, std::string_view chat_template) {
  const JsonValue root = json.root();
  VV_ASSIGN(const JsonValue model, root.at("model"));
  VV_ASSIGN(const std::string_view type, model.get_string("type", "BPE"));
  VV_ASSIGN(const bool fallback, model.get_bool("byte_fallback", false));
  if (type != "BPE" || fallback)
    return unsupported("model: wanted byte-level BPE, got " + std::string(type) +
                       (fallback ? " with byte_fallback" : ""));
  BytePairs t;
  VV_ASSIGN(t.whole_first_, model.get_bool("ignore_merges", false));
  if (const auto normalizer = root.find("normalizer"); normalizer && !normalizer->is_null()) {
    VV_ASSIGN(const std::string_view name, normalizer->get_string("type"));
    if (name != "NFC") return unsupported("normalizer: " + std::string(name));
    t.nfc_ = true;
  }
  VV_ASSIGN(const JsonValue pre, root.at("pre_tokenizer"));
  VV_ASSIGN(t.split_, read_split(pre));
  VV_ASSIGN(const JsonValue vocab, model.at("vocab"));
  const auto added = root.find("added_tokens");
  t.most_ = static_cast<int64_t>(vocab.size() + (added ? added->size() : 0)) + kSpare;
  for (const JsonValue& entry : vocab) {
    VV_ASSIGN(const int64_t id, entry.as_int());
    VV_TRY(t.put(id, entry.key()));
  }
  VV_ASSIGN(const JsonValue merges, model.at("merges"));
  int32_t rank = 0;
  for (const JsonValue& entry : merges) {
    std::string_view left, right;
    if (entry.is_string()) {
      VV_ASSIGN(const std::string_view words, entry.as_string());
      const size_t space = words.find(' ');
      if (space == std::string_view::npos) return corrupt(strf("model.merges: entry %d is not two words", rank));
      left = words.substr(0, space), right = words.substr(space + 1);
    } else {
      if (!entry.is_array() || entry.size() != 2) return entry.error(Code::kCorruptData, "expected two words");
      auto word = entry.begin();
      VV_ASSIGN(left, (*word).as_string());
      ++word;
      VV_ASSIGN(right, (*word).as_string());
    }
    VV_TRY(t.merge(left, right, rank++));
  }
  if (added && !added->is_null())
    for (const JsonValue& entry : *added) {
      VV_ASSIGN(const int64_t id, entry.get_int("id"));
      VV_ASSIGN(const std::string_view content, entry.get_string("content"));
      VV_ASSIGN(const bool special, entry.get_bool("special", false));
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        VV_ASSIGN(const bool set, entry.get_bool(flag, false));
        if (set) return unsupported("added token '" + std::string(content) + "' with " + flag);
      }
      if (id < 0 || id >= t.size() || !t.tokens_[static_cast<size_t>(id)].known) VV_TRY(t.put(id, content));
      VV_TRY(t.add(content, static_cast<int32_t>(id), special));
    }
  VV_TRY(t.finish(chat_template));
  return t;
}

int32_t BytePairs::find(std::string_view token) const {
  for (const Added& a : added_)
    if (a.text == token) return a.id;
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? -1 : found->second;
}

Status BytePairs::encode(std::string_view text, bool special, std::vector<int32_t>* ids) const {
  if (text.size() > kMostText)
    return Status(Code::kLimitExceeded,
                  strf("encode: a text of %zu bytes, at most %zu are encoded", text.size(), kMostText));
  char32_t c = 0;
  for (size_t at = 0; at < text.size();) {
    const int n = read_utf8(text.substr(at), &c);
    if (n == 0)
      return Status(Code::kInvalidArgument, strf("encode: byte %zu of the text does not begin a UTF-8 character", at));
    if (nfc_ && may_compose(c))
      return unsupported(
          strf("encode: the text holds U+%04X, which NFC may change; normalise it first and take characters that stand "
               "alone",
               static_cast<unsigned>(c)));
    at += static_cast<size_t>(n);
  }
  // Added tokens cut the text: at each place the longest that fits.
  size_t plain = 0, at = 0;
  while (at < text.size()) {
    auto match = parts_.longest(text.substr(at));
    if (special) match = std::max(match, names_.longest(text.substr(at)));
    if (match.first == 0) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), ids);
    ids->push_back(match.second);
    plain = at += match.first;
  }
  encode_plain(text.substr(plain), ids);
  return {};
}

void BytePairs::encode_plain(std::string_view text, std::vector<int32_t>* ids) const {
  std::vector<std::string_view> pieces;
  split(text, split_, &pieces);
  for (const std::string_view piece : pieces) encode_piece(piece, ids);
}

void BytePairs::encode_piece(std::string_view piece, std::vector<int32_t>* ids) const {
  if (whole_first_)
    if (const auto whole = ids_.find(std::string(piece)); whole != ids_.end()) return ids->push_back(whole->second);
  // A chain of symbols; the merge of least rank goes first, of equals the leftmost.
  struct Symbol {
    int32_t id, before, after;
  };
  struct Candidate {
    int32_t rank, at, left, right, to;
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::vector<Symbol> chain;
  for (const char b : piece)
    if (const int32_t id = of_byte_[static_cast<uint8_t>(b)]; id >= 0) {
      const auto n = static_cast<int32_t>(chain.size());
      chain.push_back({id, n - 1, n + 1});
    }
  if (chain.empty()) return;
  chain.back().after = -1;
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t at) {
    if (at < 0 || chain[static_cast<size_t>(at)].after < 0) return;
    const int32_t left = chain[static_cast<size_t>(at)].id,
                  right = chain[static_cast<size_t>(chain[static_cast<size_t>(at)].after)].id;
    if (const auto found = merges_.find(pair_of(left, right)); found != merges_.end())
      queue.push({found->second.rank, at, left, right, found->second.to});
  };
  for (int32_t i = 0; i < static_cast<int32_t>(chain.size()); ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = chain[static_cast<size_t>(best.at)];
    if (left.id != best.left || left.after < 0 || chain[static_cast<size_t>(left.after)].id != best.right)
      continue;  // merged meanwhile
    Symbol& right = chain[static_cast<size_t>(left.after)];
    right.id = -1;
    left.id = best.to;
    left.after = right.after;
    if (left.after >= 0) chain[static_cast<size_t>(left.after)].before = best.at;
    consider(left.before);
    consider(best.at);
  }
  for (int32_t i = 0; i >= 0; i = chain[static_cast<size_t>(i)].after) ids->push_back(chain[static_cast<size_t>(i)].id);
}

Result<std::string_view> BytePairs::bytes_of(int32_t id) const {
  if (id < 0 || id >= size())
    return Status(Code::kInvalidArgument, strf("decode: token %d is outside [0, %d)", id, size()));
  const Token& t = tokens_[static_cast<size_t>(id)];
  return t.special ? std::string_view() : std::string_view(t.bytes);
}

Status BytePairs::decode(std::span<const int32_t> ids, std::string* text) const {
  std::string bytes;
  for (const int32_t id : ids) {
    VV_ASSIGN(const std::string_view of, bytes_of(id));
    bytes += of;
  }
  append_valid_utf8(bytes, text);
  return {};
}

Status TextStream::next(int32_t id, std::string* text) {
  VV_ASSIGN(const std::string_view of, tokenizer_.bytes_of(id));
  held_ += of;
  const size_t whole = whole_utf8(held_);
  append_valid_utf8(std::string_view(held_).substr(0, whole), text);
  held_.erase(0, whole);
  return {};
}

void TextStream::finish(std::string* text) {
  append_valid_utf8(held_, text);
  held_.clear();
}

}  // namespace vivace::engine::text
