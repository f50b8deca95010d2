#include "vivace/models/groot/prompt.h"

#include "vivace/base/check.h"
#include "vivace/models/groot/config.h"

namespace vivace::models::groot {

Result<std::string> formal(std::string_view task) {
  std::string out;
  for (const char c : task) {
    if (static_cast<uint8_t>(c) >= 0x80)
      return Status(Code::kUnsupported,
                    "prompt: GR00T writes small letters, which are known of ASCII alone; pass token ids");
    if (c >= 'A' && c <= 'Z') out += static_cast<char>(c - 'A' + 'a');
    else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == ' ' || (c >= '\t' && c <= '\r'))
      out += c;
  }
  return out;
}

Result<Prompter> Prompter::open(const std::string& tokenizer, std::string_view family) {
  VV_ASSIGN(engine::text::Tokenizer loaded, engine::text::Tokenizer::load(tokenizer));
  const bool n16 = family == kN16;
  Prompter p(std::move(loaded), n16);
  for (const auto& [name, to] : {std::pair{"<|im_start|>", &p.begin_},
                                 {"<|im_end|>", &p.end_},
                                 {n16 ? "<img>" : "<|vision_start|>", &p.image_begin_},
                                 {n16 ? "<IMG_CONTEXT>" : "<|image_pad|>", &p.image_},
                                 {n16 ? "</img>" : "<|vision_end|>", &p.image_end_}})
    if (*to = p.tokenizer_.find(name); *to < 0)
      return Status(Code::kCorruptData, std::string("tokenizer: ") + name + " is not in the vocabulary; prompts need " +
                                            (n16 ? "Eagle's" : "Qwen3-VL's"));
  return p;
}

Result<std::vector<int32_t>> Prompter::tokens(std::string_view task, int images) const {
  VV_ASSIGN(std::string words, formal(task));
  std::vector<int32_t> ids{begin_};
  if (n16_) {
    VV_TRY(tokenizer_.encode("system\nYou are a helpful assistant.", false, &ids));
    ids.push_back(end_);
    VV_TRY(tokenizer_.encode("\n", false, &ids));
    ids.push_back(begin_);
    words = "user\n" + words;
    for (int i = 1; i <= images; ++i, words.clear()) {
      words += strf("<image %d>", i);
      VV_TRY(tokenizer_.encode(words, false, &ids));
      ids.insert(ids.end(), {image_begin_, image_, image_end_});
    }
  } else {
    VV_TRY(tokenizer_.encode("user\n", false, &ids));
    for (int i = 0; i < images; ++i) ids.insert(ids.end(), {image_begin_, image_, image_end_});
  }
  VV_TRY(tokenizer_.encode(words, false, &ids));
  ids.push_back(end_);
  VV_TRY(tokenizer_.encode("\n", false, &ids));
  return ids;
}

}  // namespace vivace::models::groot
