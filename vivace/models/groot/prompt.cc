#include "vivace/models/groot/prompt.h"

#include "vivace/base/check.h"

namespace vivace::models::groot {

Result<std::string> formal(std::string_view task) {
  std::string out;
  for (const char c : task) {
    if (static_cast<uint8_t>(c) >= 0x80)
      return Status(Code::kUnsupported,
                    "prompt: groot_n17 writes small letters, which are known of ASCII alone; pass token ids");
    if (c >= 'A' && c <= 'Z') out += static_cast<char>(c - 'A' + 'a');
    else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == ' ' || (c >= '\t' && c <= '\r'))
      out += c;
  }
  return out;
}

Result<Prompter> Prompter::open(const std::string& tokenizer) {
  VV_ASSIGN(engine::text::Tokenizer loaded, engine::text::Tokenizer::load(tokenizer));
  Prompter p(std::move(loaded));
  for (const auto& [name, to] : {std::pair{"<|im_start|>", &p.begin_},
                                 {"<|im_end|>", &p.end_},
                                 {"<|vision_start|>", &p.image_begin_},
                                 {"<|image_pad|>", &p.image_},
                                 {"<|vision_end|>", &p.image_end_}})
    if (*to = p.tokenizer_.find(name); *to < 0)
      return Status(Code::kCorruptData,
                    std::string("tokenizer: ") + name + " is not in the vocabulary; prompts need Qwen3-VL's");
  return p;
}

Result<std::vector<int32_t>> Prompter::tokens(std::string_view task, int images) const {
  VV_ASSIGN(const std::string words, formal(task));
  std::vector<int32_t> ids{begin_};
  VV_TRY(tokenizer_.encode("user\n", false, &ids));
  for (int i = 0; i < images; ++i) ids.insert(ids.end(), {image_begin_, image_, image_end_});
  VV_TRY(tokenizer_.encode(words, false, &ids));
  ids.push_back(end_);
  VV_TRY(tokenizer_.encode("\n", false, &ids));
  return ids;
}

}  // namespace vivace::models::groot
