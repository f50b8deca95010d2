#include "vivace/models/vla/prompt.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/text/lower.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::models::vla {
namespace {

constexpr int32_t kBegin = 2;  // of PaliGemma's vocabulary

/// Without spaces of any kind at its ends.
std::string_view stripped(std::string_view s) {
  const auto is_space = [](char32_t c) { return engine::text::is_space(c) || (c >= 0x1c && c <= 0x1f); };
  char32_t c = 0;
  for (int n; (n = engine::text::read_utf8(s, &c)) > 0 && is_space(c);) s.remove_prefix(static_cast<size_t>(n));
  for (size_t end = s.size(); end > 0;) {
    size_t at = end - 1;
    while (at > 0 && (static_cast<uint8_t>(s[at]) & 0xc0) == 0x80) --at;
    if (engine::text::read_utf8(s.substr(at), &c) != static_cast<int>(end - at) || !is_space(c)) break;
    s = s.substr(0, end = at);
  }
  return s;
}

/// Normalised values as words: 256 bins of [-1, 1], what lies below is -1.
Result<std::string> words_of(std::span<const float> state) {
  std::string words;
  for (size_t i = 0; i < state.size(); ++i) {
    if (!std::isfinite(state[i])) return Status(Code::kInvalidArgument, strf("state: value %zu is not finite", i));
    const double bin = std::clamp(std::floor(128.0 * static_cast<double>(state[i])) + 128.0, -1.0, 255.0);
    if (i > 0) words += ' ';
    words += std::to_string(static_cast<int>(bin));
  }
  return words;
}

/// The family as this checkpoint has it.
Result<Family> family_of(std::string_view name, bool state_words) {
  const Family* const found = find_family(name);
  if (found == nullptr)
    return Status(Code::kInvalidArgument,
                  "config: wanted pi05, pi0, pi0fast or smolvla, got '" + std::string(name) + "'");
  Family own = *found;
  if (!state_words) own.features &= ~static_cast<uint32_t>(kStateInPrompt);
  return own;
}

}  // namespace

Result<std::vector<PromptPart>> prompt_parts(const Family& family, std::string_view task,
                                             std::span<const float> state) {
  if (family.has(kSmolVlm)) {  // as it is, on a line of its own
    std::string line(task);
    if (!line.ends_with('\n')) line += '\n';
    return std::vector<PromptPart>{std::move(line)};
  }
  std::string text(stripped(task));
  std::replace(text.begin(), text.end(), '_', ' ');
  const bool with_state = family.has(kStateInPrompt), codes = family.has(kCodes);
  if (!with_state || !codes) std::replace(text.begin(), text.end(), '\n', ' ');
  if (with_state) {
    if (state.empty())
      return Status(Code::kInvalidArgument,
                    strf("state: %s writes it into the prompt; give it, or token ids as prompt", family.name));
    VV_ASSIGN(const std::string words, words_of(state));
    if (codes) {
      VV_ASSIGN(text, engine::text::lower(text));
    }
    text = "Task: " + text + ", State: " + words + (codes ? ";\n" : ";\nAction: ");
  }
  std::vector<PromptPart> parts{kBegin, std::move(text)};
  // lerobot's pi0-FAST begins the answer with a second one, which is part of the prompt.
  if (codes) parts.emplace_back(kBegin);
  else if (!with_state) parts.emplace_back("\n");
  return parts;
}

Result<std::vector<PromptPart>> prompt_parts(std::string_view family, std::string_view task,
                                             std::span<const float> state, bool state_words) {
  VV_ASSIGN(const Family own, family_of(family, state_words));
  return prompt_parts(own, task, state);
}

Result<Prompter> Prompter::open(const std::string& tokenizer, std::string_view family, bool state_words) {
  VV_ASSIGN(const Family own, family_of(family, state_words));
  VV_ASSIGN(engine::text::Tokenizer loaded, engine::text::Tokenizer::load(tokenizer));
  if (loaded.size() <= kBegin)
    return Status(Code::kCorruptData, strf("tokenizer: %d tokens, prompts begin with token %d", loaded.size(), kBegin));
  return Prompter(own, std::move(loaded));
}

Result<std::vector<int32_t>> Prompter::tokens(std::string_view task, std::span<const float> state) const {
  VV_ASSIGN(const std::vector<PromptPart> parts, prompt_parts(family_, task, state));
  std::vector<int32_t> ids;
  for (const PromptPart& part : parts) {
    if (const int32_t* const id = std::get_if<int32_t>(&part)) ids.push_back(*id);
    else VV_TRY(tokenizer_.encode(std::get<std::string>(part), false, &ids));
  }
  return ids;
}

}  // namespace vivace::models::vla
