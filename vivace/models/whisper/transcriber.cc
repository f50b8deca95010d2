#include "vivace/models/whisper/transcriber.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/engine/audio/sound.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/models/whisper/model.h"
#include "vivace/models/whisper/repeats.h"

namespace vivace::models::whisper {
namespace {

using engine::SpeechTokens;

constexpr int64_t kFramesAStep = 2;
constexpr double kFrame = 0.01;         // seconds
constexpr double kResetAbove = 0.5;     // temperature of text that is no prompt for what follows
constexpr double kFast = 25;            // characters a second of a segment's text that nobody speaks
constexpr int64_t kLeastLookedAt = 20;  // characters of a segment that is looked at

double seconds(int64_t frames) {
  return hundredths(static_cast<double>(frames) * kFrame);
}

/// Whether one timestamp stands at the end, so that nothing is said behind it.
bool ends_alone(const std::vector<int32_t>& ids, const SpeechTokens& t) {
  const size_t n = ids.size();
  return n >= 2 && ids[n - 1] >= t.first_timestamp && ids[n - 2] < t.first_timestamp;
}

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

/// Pairs of layer and head under `key`.
Status read_heads(const engine::JsonValue& root, const char* key, std::vector<std::pair<int, int>>* to) {
  const auto list = root.find(key);
  if (!list || list->is_null()) return {};
  const auto wrong = [&] { return list->error(Code::kCorruptData, "wanted pairs of layer and head"); };
  if (!list->is_array()) return wrong();
  for (const engine::JsonValue& pair : *list) {
    std::vector<int64_t> two;
    if (!pair.is_array()) return wrong();
    for (const engine::JsonValue& v : pair) {
      VV_ASSIGN(const int64_t at, v.as_int());
      two.push_back(at);
    }
    if (two.size() != 2 || std::min(two[0], two[1]) < 0 || std::max(two[0], two[1]) > 1 << 20) return wrong();
    to->emplace_back(static_cast<int>(two[0]), static_cast<int>(two[1]));
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
    VV_TRY(read_heads(config->root(), "alignment_heads", &t.heads_));
  }
  const engine::SpeechLimits l = t.model_->limits();
  const bool own = t.heads_.empty();
  for (int layer = l.layers / 2; own && layer < l.layers; ++layer)
    for (int head = 0; head < l.heads; ++head) t.heads_.emplace_back(layer, head);
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

Result<std::vector<int32_t>> Transcriber::told(const char* name, const std::string& text) const {
  std::vector<int32_t> ids;
  if (text.empty()) return ids;
  VV_TRY(tokenizer_.encode(" " + std::string(stripped(text)), false, &ids));
  const int most = model_->limits().positions / 2 - 1;
  if (ids.size() > static_cast<size_t>(most))
    return Status(Code::kLimitExceeded,
                  strf("transcribe: %s: %zu tokens, a window may be told %d; shorten it", name, ids.size(), most));
  return ids;
}

struct Transcriber::Heard {
  const TranscribeOptions* options;
  std::string language;
  std::vector<int32_t> lead, hot;  // what every window's text begins with; text before every window
  std::vector<int32_t> said;       // that is a prompt for what follows
  int64_t content = 0;             // frames
  double spoken = 0;               // where the last word ended

  /// What was said before: the newest that fits, behind the hot words.
  std::vector<int32_t> before(size_t most) const {
    std::vector<int32_t> ids(hot.begin(), hot.begin() + static_cast<int64_t>(std::min(hot.size(), most)));
    const size_t room = std::min(said.size(), most - ids.size());
    ids.insert(ids.end(), said.end() - static_cast<int64_t>(room), said.end());
    return ids;
  }
};

struct Transcriber::Tried {
  engine::Transcript said;
  double temperature = 0, avg_logprob = 0, compression = 0;
  std::vector<Part> parts;
  int64_t after = 0;  // the frame where the next window begins

  bool repeats(const TranscribeOptions& o) const { return compression > o.compression_limit; }
  bool silent(const TranscribeOptions& o) const { return static_cast<double>(said.no_speech) > o.no_speech_limit; }
  bool poor(const TranscribeOptions& o) const {
    if (avg_logprob < o.logprob_limit) return !silent(o);  // silence, which another try does not change
    return repeats(o);
  }
};

Result<Transcription> Transcriber::transcribe(std::span<const float> samples, const TranscribeOptions& options) {
  const engine::SpeechLimits l = model_->limits();
  if (options.beams < 1)
    return Status(Code::kInvalidArgument, strf("transcribe: beams: wanted at least 1, got %d", options.beams));
  if (options.best_of < 1)
    return Status(Code::kInvalidArgument, strf("transcribe: best_of: wanted at least 1, got %d", options.best_of));
  bool draws = false;
  for (const float t : options.temperatures) {
    if (!(t >= 0 && t <= 10))
      return Status(Code::kInvalidArgument,
                    strf("transcribe: temperature: wanted 0 to 10, got %g", static_cast<double>(t)));
    draws = draws || t > 0;
  }
  if (options.temperatures.empty())
    return Status(Code::kInvalidArgument, "transcribe: temperature: wanted one or several, got none");
  if (options.beams > l.rows || (draws && options.best_of > l.rows))
    return Status(Code::kLimitExceeded, strf("transcribe: beams %d and best_of %d: the model was loaded with %d rows; "
                                             "load with rows",
                                             options.beams, options.best_of, l.rows));
  Transcription out;
  float peak = 0;
  if (!samples.empty()) {
    VV_ASSIGN(peak, model_->peak(samples));
  }
  Heard h{&options, {}, {}, {}, {}, static_cast<int64_t>(samples.size()) / l.hop};
  VV_ASSIGN(h.said, told("prompt", options.prompt));
  VV_ASSIGN(h.hot, told("hotwords", options.hotwords));
  VV_ASSIGN(h.lead, lead(samples, peak, options, &h.language));
  out.language = h.language;
  const double length = static_cast<double>(samples.size()) / l.rate;
  for (int64_t seek = 0; seek < h.content;) {
    const engine::SpeechWindow window{samples, seek, std::min<int64_t>(l.frames, h.content - seek), peak};
    VV_TRY(model_->encode({&window, 1}));
    VV_ASSIGN(Tried found, decode(h, seek, window.frames));
    if (found.silent(options) && found.avg_logprob <= options.logprob_limit) {
      seek += window.frames;
      continue;
    }
    if (options.words) {
      VV_TRY(add_words(h, &found.parts, seek, window.frames, &h.spoken));
      double last = -1;
      for (const Part& part : found.parts)
        if (!part.words.empty()) last = part.words.back().end;
      const auto after = static_cast<int64_t>(std::nearbyint(last / kFrame));
      if (after > seek && !ends_alone(found.said.tokens, model_->tokens())) found.after = after;
    }
    if (!options.condition) h.said.clear();
    for (Part& part : found.parts) {
      VV_ASSIGN(std::string text, text_of(part.text));
      if (part.start == part.end || stripped(text).empty()) continue;
      if (options.condition && found.temperature <= kResetAbove)
        h.said.insert(h.said.end(), part.tokens.begin(), part.tokens.end());
      // The network may write a time in the silence behind the sound.
      out.segments.push_back({std::min(part.start, length), std::min(part.end, length), std::move(text),
                              std::move(part.tokens), std::move(part.logprobs), std::move(part.words),
                              found.avg_logprob, static_cast<double>(found.said.no_speech), found.compression,
                              found.temperature});
    }
    if (found.temperature > kResetAbove) h.said.clear();
    seek = found.after > seek ? found.after : seek + window.frames;  // whatever was said, the sound goes on
  }
  return out;
}

Result<Transcriber::Tried> Transcriber::decode(const Heard& h, int64_t seek, int64_t frames) {
  const SpeechTokens& t = model_->tokens();
  const TranscribeOptions& o = *h.options;
  engine::SpeechRequest request;
  const std::vector<int32_t> before = h.before(static_cast<size_t>(model_->limits().positions / 2 - 1));
  if (!before.empty()) request.prompt.push_back(t.sot_prev);
  request.prompt.insert(request.prompt.end(), before.begin(), before.end());
  request.prompt.insert(request.prompt.end(), h.lead.begin(), h.lead.end());
  request.suppress = suppress_;
  request.suppress_first = suppress_first_;
  request.timestamps = o.timestamps;
  if (!o.timestamps) request.prompt.push_back(t.no_timestamps);
  request.length_penalty = o.length_penalty;
  std::vector<Tried> tries;
  for (size_t n = 0; n < o.temperatures.size(); ++n) {
    request.temperature = o.temperatures[n];
    request.candidates = request.temperature > 0 ? o.best_of : o.beams;
    request.patience = request.temperature > 0 ? 1 : o.patience;
    request.seed = request.temperature > 0 ? o.seed + n : 0;
    VV_ASSIGN(Tried tried, attempt(h, request, seek, frames));
    bool again = o.timestamps && tried.repeats(o);
    if (o.timestamps && !again) {
      VV_ASSIGN(again, too_fast(tried.parts));
    }
    if (again) {
      engine::SpeechRequest untimed = request;
      untimed.timestamps = false;
      untimed.prompt.push_back(t.no_timestamps);
      VV_ASSIGN(tried, attempt(h, untimed, seek, frames));
    }
    tries.push_back(std::move(tried));
    if (!tries.back().poor(o)) return std::move(tries.back());
  }
  const auto clear = [&](const Tried& x) { return !x.repeats(o); };
  const bool any = std::any_of(tries.begin(), tries.end(), clear);
  Tried* best = nullptr;
  for (Tried& x : tries)
    if ((!any || clear(x)) && (best == nullptr || x.avg_logprob > best->avg_logprob)) best = &x;
  return std::move(*best);
}

Result<Transcriber::Tried> Transcriber::attempt(const Heard& h, engine::SpeechRequest request, int64_t seek,
                                                int64_t frames) {
  std::vector<engine::Transcript> found;
  VV_TRY(model_->decode({&request, 1}, &found));
  Tried tried;
  tried.said = std::move(found[0]);
  tried.temperature = static_cast<double>(request.temperature);
  tried.avg_logprob = tried.said.logprob / static_cast<double>(tried.said.tokens.size() + 1);
  VV_ASSIGN(const std::string text, text_of(tried.said.tokens));
  tried.compression = compression_ratio(stripped(text));
  if (request.timestamps || !h.options->timestamps) {
    tried.after = cut(tried.said, seek, frames, &tried.parts);
  } else {
    VV_ASSIGN(tried.after, aligned(h, tried.said, seek, frames, &tried.parts));
  }
  return tried;
}

int64_t Transcriber::cut(const engine::Transcript& said, int64_t seek, int64_t frames, std::vector<Part>* parts) const {
  const SpeechTokens& t = model_->tokens();
  const std::vector<int32_t>& ids = said.tokens;
  const auto is_mark = [&](size_t i) { return ids[i] >= t.first_timestamp; };
  const auto frame = [&](size_t i) { return kFramesAStep * (ids[i] - t.first_timestamp); };
  const auto add = [&](size_t first, size_t end, int64_t from, int64_t to) {
    const auto a = static_cast<int64_t>(first), b = static_cast<int64_t>(end);
    Part part{seconds(seek + from),
              seconds(seek + to),
              {ids.begin() + a, ids.begin() + b},
              {},
              {said.logprobs.begin() + a, said.logprobs.begin() + b},
              {}};
    std::copy_if(part.tokens.begin(), part.tokens.end(), std::back_inserter(part.text),
                 [&](int32_t id) { return id < t.eot; });
    parts->push_back(std::move(part));
  };
  const size_t n = ids.size();
  const bool alone = ends_alone(ids, t);
  std::vector<size_t> breaks;
  for (size_t i = 1; i < n; ++i)
    if (is_mark(i - 1) && is_mark(i)) breaks.push_back(i);
  if (breaks.empty()) {
    int64_t to = frames;
    for (size_t i = 0; i < n; ++i)
      if (is_mark(i)) to = frame(i) != 0 ? frame(i) : frames;
    add(0, n, 0, to);
    return seek + frames;
  }
  if (alone) breaks.push_back(n);
  size_t first = 0;
  for (const size_t at : breaks) {
    add(first, at, frame(first), frame(at - 1));
    first = at;
  }
  return seek + (alone ? frames : frame(first - 1));
}

Result<int64_t> Transcriber::aligned(const Heard& h, const engine::Transcript& said, int64_t seek, int64_t frames,
                                     std::vector<Part>* parts) {
  const SpeechTokens& t = model_->tokens();
  std::vector<int32_t> text;
  std::vector<float> likely;
  for (size_t i = 0; i < said.tokens.size(); ++i)
    if (said.tokens[i] < t.eot) text.push_back(said.tokens[i]), likely.push_back(said.logprobs[i]);
  if (text.empty() || frames < 2) return cut(said, seek, frames, parts);
  VV_ASSIGN(const engine::Alignment lies, model_->align(0, h.lead, text, static_cast<int>(frames), heads_));
  const auto decode = [this](std::span<const int32_t> ids) { return text_of(ids); };
  VV_ASSIGN(std::vector<Sentence> found, sentences(text, lies.start, h.language, decode));
  int64_t after = seek + frames;
  if (found.size() > 1 && after < h.content && !found.back().ends) {
    after = seek + kFramesAStep * found.back().first;
    found.pop_back();
  }
  size_t at = 0;
  for (Sentence& s : found) {
    const auto a = static_cast<int64_t>(at), b = a + static_cast<int64_t>(s.tokens.size());
    at = static_cast<size_t>(b);
    parts->push_back({seconds(seek + kFramesAStep * s.first),
                      seconds(seek + kFramesAStep * s.last),
                      s.tokens,
                      s.tokens,
                      {likely.begin() + a, likely.begin() + b},
                      {}});
  }
  return after;
}

Result<bool> Transcriber::too_fast(const std::vector<Part>& parts) const {
  for (const Part& part : parts) {
    VV_ASSIGN(const std::string text, text_of(part.text));
    const std::string_view said = stripped(text);
    const auto n =
        std::count_if(said.begin(), said.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
    if (n >= kLeastLookedAt && static_cast<double>(n) > kFast * (part.end - part.start)) return true;
  }
  return false;
}

Status Transcriber::add_words(const Heard& h, std::vector<Part>* parts, int64_t seek, int64_t frames, double* spoken) {
  std::vector<int32_t> text;
  for (const Part& part : *parts) text.insert(text.end(), part.text.begin(), part.text.end());
  if (text.empty() || frames < 2) return {};
  VV_ASSIGN(const engine::Alignment lies, model_->align(0, h.lead, text, static_cast<int>(frames), heads_));
  return place_words(
      parts, lies.start, lies.probability, static_cast<double>(seek) * kFrame, h.language,
      [this](std::span<const int32_t> ids) { return text_of(ids); }, spoken);
}

/// Of those that are text.
Result<std::string> Transcriber::text_of(std::span<const int32_t> ids) const {
  std::vector<int32_t> text;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(text), [&](int32_t id) { return id < model_->tokens().eot; });
  std::string out;
  VV_TRY(tokenizer_.decode(text, &out));
  return out;
}

Result<Transcription> Transcriber::transcribe_file(std::span<const uint8_t> file, const TranscribeOptions& options) {
  VV_ASSIGN(engine::Sound sound, engine::read_sound(file));
  VV_ASSIGN(sound, engine::resampled(std::move(sound), model_->limits().rate));
  return transcribe(sound.samples, options);
}

}  // namespace vivace::models::whisper
