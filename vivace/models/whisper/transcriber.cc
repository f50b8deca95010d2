#include "vivace/models/whisper/transcriber.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/audio/wav.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/models/whisper/model.h"

namespace vivace::models::whisper {
namespace {

using engine::SpeechTokens;

constexpr double kSilent = 0.6, kUnlikely = -1;  // a window that is silent, and no likelier
constexpr int64_t kFramesAStep = 2;
constexpr double kFrame = 0.01;                  // seconds

/// Token ids under `key` of the generation config, those of the vocabulary.
Status read_ids(const engine::JsonValue& root, const char* key, int vocab, std::vector<int32_t>* to) {
  const auto list = root.find(key);
  if (!list || list->is_null()) return {};
  if (!list->is_array()) return list->error(Code::kCorruptData, "wanted a list of token ids");
  for (const engine::JsonValue& v : *list) {
    VV_ASSIGN(const int64_t id, v.as_int());
    if (id >= 0 && id < vocab) to->push_back(static_cast<int32_t>(id));
  }
  return {};
}

}  // namespace

Result<Transcriber> Transcriber::load(const std::string& path, const engine::SpeechOptions& options) {
  VV_ASSIGN(engine::text::Tokenizer tokenizer, engine::text::Tokenizer::load(path));
  VV_ASSIGN(std::unique_ptr<engine::SpeechModel> model, load_speech(path, options));
  Transcriber t(std::move(model), std::move(tokenizer));
  if (t.tokenizer_.size() < t.model_->tokens().eot)
    return Status(Code::kInvalidShape,
                  strf("%s: its tokenizer has %d tokens, the model's text %d; they do not belong together",
                       path.c_str(), t.tokenizer_.size(), t.model_->tokens().eot));
  VV_TRY(t.find_languages().with_context(path));
  auto config = engine::Json::parse_file(path + "/generation_config.json");
  if (!config.ok() && config.status().code() != Code::kNotFound) return std::move(config).status();
  if (config.ok()) {
    VV_TRY(read_ids(config->root(), "suppress_tokens", t.model_->limits().vocab, &t.suppress_));
    VV_TRY(read_ids(config->root(), "begin_suppress_tokens", t.model_->limits().vocab, &t.suppress_first_));
  }
  return t;
}

Status Transcriber::find_languages() {
  const SpeechTokens& t = model_->tokens();
  if (!t.multilingual) return {};
  languages_.resize(static_cast<size_t>(t.languages));
  std::vector<std::string> codes{"haw", "yue"};
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b) codes.push_back({a, b});
  for (const std::string& code : codes) {
    const int32_t at = tokenizer_.find("<|" + code + "|>") - t.first_language;
    if (at >= 0 && at < t.languages) languages_[static_cast<size_t>(at)] = code;
  }
  if (std::all_of(languages_.begin(), languages_.end(), [](const std::string& code) { return code.empty(); }))
    return Status(Code::kUnsupported,
                  "its tokenizer has no languages where the model has them; they do not belong together");
  return {};
}

Result<std::vector<int32_t>> Transcriber::lead(std::span<const float> samples, float peak,
                                               const TranscribeOptions& options, std::string* language) {
  const SpeechTokens& t = model_->tokens();
  if (!t.multilingual) {
    if (options.translate)
      return Status(Code::kUnsupported, "transcribe: this model knows English alone and does not translate");
    if (!options.language.empty() && options.language != "en")
      return Status(Code::kInvalidArgument,
                    "transcribe: language: this model knows en, got '" + options.language + "'");
    *language = "en";
    return std::vector<int32_t>{t.sot};
  }
  int32_t which = 0;
  if (options.language.empty()) {
    const engine::SpeechLimits l = model_->limits();
    const engine::SpeechWindow first{samples, 0,
                                     std::min<int64_t>(l.frames, static_cast<int64_t>(samples.size()) / l.hop), peak};
    VV_TRY(model_->encode({&first, 1}));
    VV_ASSIGN(const std::vector<float> p, model_->languages(0));
    which = static_cast<int32_t>(std::max_element(p.begin(), p.end()) - p.begin());
  } else {
    const auto found = std::find(languages_.begin(), languages_.end(), options.language);
    if (found == languages_.end())
      return Status(Code::kInvalidArgument,
                    "transcribe: language: no such language in this model, '" + options.language + "'");
    which = static_cast<int32_t>(found - languages_.begin());
  }
  *language = languages_[static_cast<size_t>(which)];
  return std::vector<int32_t>{t.sot, t.first_language + which, options.translate ? t.translate : t.transcribe};
}

Result<Transcription> Transcriber::transcribe(std::span<const float> samples, const TranscribeOptions& options) {
  const engine::SpeechLimits l = model_->limits();
  const SpeechTokens& t = model_->tokens();
  if (options.beams < 1)
    return Status(Code::kInvalidArgument, strf("transcribe: beams: wanted at least 1, got %d", options.beams));
  Transcription out;
  float peak = 0;
  if (!samples.empty()) {
    VV_ASSIGN(peak, model_->peak(samples));
  }
  VV_ASSIGN(const std::vector<int32_t> lead, this->lead(samples, peak, options, &out.language));
  const int64_t content = static_cast<int64_t>(samples.size()) / l.hop;
  const auto most_prompt = static_cast<size_t>(l.positions / 2 - 1);
  std::vector<int32_t> said;
  for (int64_t seek = 0; seek < content;) {
    const engine::SpeechWindow window{samples, seek, std::min<int64_t>(l.frames, content - seek), peak};
    VV_TRY(model_->encode({&window, 1}));
    engine::SpeechRequest request;
    if (!said.empty()) {
      request.prompt.push_back(t.sot_prev);
      request.prompt.insert(request.prompt.end(), said.end() - static_cast<int64_t>(std::min(said.size(), most_prompt)),
                            said.end());
    }
    request.prompt.insert(request.prompt.end(), lead.begin(), lead.end());
    request.suppress = suppress_;
    request.suppress_first = suppress_first_;
    request.candidates = options.beams;
    std::vector<engine::Transcript> found;
    VV_TRY(model_->decode({&request, 1}, &found));
    const double likely = found[0].logprob / static_cast<double>(found[0].tokens.size() + 1);
    if (static_cast<double>(found[0].no_speech) > kSilent && likely <= kUnlikely) {
      seek += window.frames;
      continue;
    }
    const size_t first = out.segments.size();
    VV_ASSIGN(const int64_t after, take(found[0], seek, window.frames, &out.segments));
    if (!options.condition) said.clear();
    for (size_t i = first; i < out.segments.size() && options.condition; ++i)
      said.insert(said.end(), out.segments[i].tokens.begin(), out.segments[i].tokens.end());
    seek = after > seek ? after : seek + window.frames;  // whatever was said, the sound goes on
  }
  return out;
}

Result<int64_t> Transcriber::take(const engine::Transcript& said, int64_t seek, int64_t frames,
                                  std::vector<TextSegment>* out) const {
  const SpeechTokens& t = model_->tokens();
  const std::vector<int32_t>& ids = said.tokens;
  const auto is_mark = [&](size_t i) { return ids[i] >= t.first_timestamp; };
  const auto frame = [&](size_t i) { return kFramesAStep * (ids[i] - t.first_timestamp); };
  const auto add = [&](size_t first, size_t end, int64_t from, int64_t to) -> Status {
    TextSegment s;
    s.tokens.assign(ids.begin() + static_cast<int64_t>(first), ids.begin() + static_cast<int64_t>(end));
    std::vector<int32_t> text;
    std::copy_if(s.tokens.begin(), s.tokens.end(), std::back_inserter(text), [&](int32_t id) { return id < t.eot; });
    VV_TRY(tokenizer_.decode(text, &s.text));
    s.start = static_cast<double>(seek + from) * kFrame;
    s.end = static_cast<double>(seek + to) * kFrame;
    s.avg_logprob = said.logprob / static_cast<double>(ids.size() + 1);
    s.no_speech = static_cast<double>(said.no_speech);
    if (from != to && s.text.find_first_not_of(" \t\r\n") != std::string::npos) out->push_back(std::move(s));
    return {};
  };
  const size_t n = ids.size();
  const bool alone = n >= 2 && is_mark(n - 1) && !is_mark(n - 2);
  std::vector<size_t> breaks;
  for (size_t i = 1; i < n; ++i)
    if (is_mark(i - 1) && is_mark(i)) breaks.push_back(i);
  if (breaks.empty()) {
    int64_t to = frames;
    for (size_t i = 0; i < n; ++i)
      if (is_mark(i)) to = frame(i) != 0 ? frame(i) : frames;
    VV_TRY(add(0, n, 0, to));
    return seek + frames;
  }
  if (alone) breaks.push_back(n);
  size_t first = 0;
  for (const size_t at : breaks) {
    VV_TRY(add(first, at, frame(first), frame(at - 1)));
    first = at;
  }
  return seek + (alone ? frames : frame(first - 1));
}

Result<Transcription> Transcriber::transcribe_wav(std::span<const uint8_t> file, const TranscribeOptions& options) {
  VV_ASSIGN(const engine::Wav wav, engine::Wav::parse(file));
  if (wav.rate() != model_->limits().rate)
    return Status(Code::kUnsupported,
                  strf("transcribe: wanted a WAV file of %d samples a second, got %d: resample it first",
                       model_->limits().rate, wav.rate()));
  std::vector<float> samples(static_cast<size_t>(wav.frames()));
  VV_TRY(wav.mono(0, samples));
  return transcribe(samples, options);
}

}  // namespace vivace::models::whisper
