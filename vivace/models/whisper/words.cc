#include "vivace/models/whisper/words.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "vivace/base/check.h"

namespace vivace::models::whisper {
namespace {

constexpr std::string_view kBefore = "\"'\u201c\u00bf([{-",
                           kAfter = "\"'.\u3002,\uff0c!\uff01?\uff1f:\uff1a\u201d)]}\u3001",
                           kEnds = ".\u3002!\uff01?\uff1f", kMarks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
                           kBroken = "\ufffd", kSpaces = " \t\n\r\f\v";
constexpr std::array<std::string_view, 6> kUnspaced{"zh", "ja", "th", "lo", "my", "yue"};
constexpr double kStep = 0.02, kLongestMedian = 0.7;  // seconds

struct Timed {
  std::string text;
  std::vector<int32_t> tokens;
  double start = 0, end = 0, probability = 0;
};

bool among(std::string_view text, std::string_view marks) {
  return marks.find(text) != std::string_view::npos;
}

/// Whether text ends as a sentence does: by its last character.
bool ends_sentence(std::string_view text) {
  const std::string_view said = stripped(text);
  if (said.empty()) return false;
  size_t at = said.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(said[at]) & 0xC0) == 0x80) --at;
  return among(said.substr(at), kEnds);
}

/// Tokens in runs that are whole characters. What never becomes one stays the run that it is in.
Result<std::vector<Run>> characters(std::span<const int32_t> tokens, const Decode& decode) {
  VV_ASSIGN(const std::string whole, decode(tokens));
  std::vector<Run> out;
  std::vector<int32_t> run;
  size_t at = 0;
  for (const int32_t t : tokens) {
    run.push_back(t);
    VV_ASSIGN(std::string text, decode(run));
    const size_t broken = text.find(kBroken);
    // A replacement character that the whole text has at this place is a character of its own.
    if (broken != std::string::npos && whole.compare(std::min(at + broken, whole.size()), kBroken.size(), kBroken) != 0)
      continue;
    at += text.size();
    out.push_back({std::move(text), std::move(run)});
    run.clear();
  }
  if (!run.empty()) {
    VV_ASSIGN(std::string text, decode(run));
    out.push_back({std::move(text), std::move(run)});
  }
  return out;
}

/// A word that is too long at a sentence's end has a pause in it.
void shorten_at_sentences(std::vector<Timed>* words, double most) {
  for (size_t i = 1; i < words->size(); ++i) {
    Timed& word = (*words)[i];
    if (!(word.end - word.start > most && most > 0)) continue;
    if (among(word.text, kEnds))
      word.end = word.start + most;
    else if (among((*words)[i - 1].text, kEnds))
      word.start = word.end - most;
  }
}

void append(std::vector<int32_t>* to, const std::vector<int32_t>& more) {
  to->insert(to->end(), more.begin(), more.end());
}

/// Marks join the word that they open or close; their own place stays empty.
void join_punctuation(std::vector<Timed>* words) {
  if (words->empty()) return;
  size_t at = words->size() - 1;
  for (size_t i = words->size() - 1; i-- > 0;) {
    Timed &mark = (*words)[i], &word = (*words)[at];
    const std::string_view said = stripped(mark.text);
    if (!mark.text.empty() && mark.text[0] == ' ' && !said.empty() && among(said, kBefore)) {
      word.text = mark.text + word.text;
      append(&mark.tokens, word.tokens);
      word.tokens = std::move(mark.tokens);
      mark.text.clear(), mark.tokens.clear();
    } else {
      at = i;
    }
  }
  at = 0;
  for (size_t i = 1; i < words->size(); ++i) {
    Timed &word = (*words)[at], &mark = (*words)[i];
    if (mark.text.empty()) continue;
    if (!(!word.text.empty() && word.text.back() == ' ') && among(mark.text, kAfter)) {
      word.text += mark.text;
      append(&word.tokens, mark.tokens);
      mark.text.clear(), mark.tokens.clear();
    } else {
      at = i;
    }
  }
}

/// The first words after a pause must not begin in it.
void after_pause(std::vector<TextWord>* own, double spoken, double usual, double most) {
  TextWord& first = (*own)[0];
  TextWord* const second = own->size() > 1 ? &(*own)[1] : nullptr;
  if (!(first.end - spoken > 4 * usual)) return;
  if (!(first.end - first.start > most || (second != nullptr && second->end - first.start > 2 * most))) return;
  if (second != nullptr && second->end - second->start > most)
    first.end = second->start = std::max(second->end / 2, second->end - most);
  first.start = std::max(0.0, first.end - most);
}

/// A part's own ends count where they are within half a second of a word's that sticks out.
void meet(Part* part, std::vector<TextWord>* own, double usual) {
  TextWord &first = own->front(), &last = own->back();
  if (part->start < first.end && part->start - 0.5 > first.start)
    first.start = std::max(0.0, std::min(first.end - usual, part->start));
  else
    part->start = first.start;
  if (part->end > last.start && part->end + 0.5 < last.end)
    last.end = std::max(last.start + usual, part->end);
  else
    part->end = last.end;
}

}  // namespace

double hundredths(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", seconds);
  return std::strtod(text, nullptr);
}

std::string_view stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

Result<std::vector<Run>> split_words(std::span<const int32_t> tokens, const std::string& language,
                                     const Decode& decode) {
  VV_ASSIGN(std::vector<Run> runs, characters(tokens, decode));
  if (std::find(kUnspaced.begin(), kUnspaced.end(), language) != kUnspaced.end()) return runs;
  std::vector<Run> words;
  for (Run& run : runs) {
    if (words.empty() || run.text.starts_with(' ') || among(stripped(run.text), kMarks)) {
      words.push_back(std::move(run));
    } else {
      words.back().text += run.text;
      append(&words.back().tokens, run.tokens);
    }
  }
  return words;
}

Result<std::vector<Sentence>> sentences(std::span<const int32_t> tokens, std::span<const int32_t> starts,
                                        const std::string& language, const Decode& decode) {
  VV_ASSIGN(const std::vector<Run> words, split_words(tokens, language, decode));
  std::vector<Sentence> out;
  Sentence now;
  size_t at = 0, begin = 0;
  for (const Run& word : words) {
    append(&now.tokens, word.tokens);
    at += word.tokens.size();
    if (!ends_sentence(word.text)) continue;
    out.push_back({std::move(now.tokens), starts[begin], starts[at], true});
    now.tokens.clear();
    begin = at;
  }
  if (!now.tokens.empty()) out.push_back({std::move(now.tokens), starts[begin], starts[at], false});
  return out;
}

Status place_words(std::vector<Part>* parts, std::span<const int32_t> starts, std::span<const float> probabilities,
                   double offset, const std::string& language, const Decode& decode, double* spoken) {
  std::vector<int32_t> text;
  for (const Part& part : *parts) append(&text, part.text);
  VV_ASSIGN(const std::vector<Run> runs, split_words(text, language, decode));
  std::vector<Timed> words;
  std::vector<double> lasted;
  size_t at = 0;
  for (const Run& run : runs) {
    const size_t n = run.tokens.size();
    double sum = 0;
    for (size_t i = at; i < at + n; ++i) sum += static_cast<double>(probabilities[i]);
    words.push_back({run.text, run.tokens, starts[at] * kStep, starts[at + n] * kStep, sum / static_cast<double>(n)});
    if (words.back().end > words.back().start) lasted.push_back(words.back().end - words.back().start);
    at += n;
  }
  std::sort(lasted.begin(), lasted.end());
  const size_t half = lasted.size() / 2;
  const double middle = lasted.empty()          ? 0
                        : lasted.size() % 2 > 0 ? lasted[half]
                                                : (lasted[half - 1] + lasted[half]) / 2;
  const double usual = std::min(kLongestMedian, middle), most = 2 * usual;
  shorten_at_sentences(&words, most);
  join_punctuation(&words);
  at = 0;
  for (Part& part : *parts) {
    part.words.clear();
    for (size_t taken = 0; at < words.size() && taken < part.text.size(); ++at) {
      const Timed& w = words[at];
      if (!w.text.empty())
        part.words.push_back({w.text, hundredths(offset + w.start), hundredths(offset + w.end), w.probability});
      taken += w.tokens.size();
    }
    if (!part.words.empty()) {
      after_pause(&part.words, *spoken, usual, most);
      meet(&part, &part.words, usual);
      *spoken = part.end;
    }
    part.start = hundredths(part.start), part.end = hundredths(part.end);
    for (TextWord& w : part.words) w.start = hundredths(w.start), w.end = hundredths(w.end);
  }
  return {};
}

}  // namespace vivace::models::whisper
