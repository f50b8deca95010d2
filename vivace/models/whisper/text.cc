// Text: prompts and steps through the network, candidates side by side, and where each word was said.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/models/whisper/alignment.h"
#include "vivace/models/whisper/whisper_model.h"

namespace vivace::models::whisper {

using engine::SpeechRequest;
using engine::Transcript;

void WhisperModel::own_places(int line) {
  const int64_t L = config_.positions;
  int32_t* const places = text_in_.host<int32_t>(text_.page_table) + line * L;
  for (int64_t i = 0; i < L; ++i) places[i] = static_cast<int32_t>(line * L + i);
}

Status WhisperModel::step(std::span<const Row> rows, std::span<const int32_t> wanted) {
  for (size_t i = 0; i < rows.size(); ++i) {
    text_in_.host<int32_t>(text_.tokens)[i] = rows[i].token;
    text_in_.host<int32_t>(text_.pos)[i] = rows[i].pos;
    text_in_.host<int32_t>(text_.slot)[i] = rows[i].line;
    text_in_.host<int32_t>(text_.window)[i] = rows[i].window;
  }
  std::copy(wanted.begin(), wanted.end(), text_in_.host<int32_t>(text_.sample_rows));
  *text_in_.host<int32_t>(text_.rows) = static_cast<int32_t>(rows.size());
  *text_in_.host<int32_t>(text_.samples) = static_cast<int32_t>(wanted.size());
  const int64_t bound = *std::lower_bound(steps_.begin(), steps_.end(), static_cast<int64_t>(rows.size()));
  const Accounted step(options_.account.get());
  VV_TRY(run(step_key(bound), [&](exec::Stream& s) { return record_step(s, bound); }));
  exec::Stream& stream = runtime_->stream();
  if (host_logits_ != buffers_.text.logits.data)
    VV_TRY(stream.copy(host_logits_, buffers_.text.logits.data,
                       wanted.size() * static_cast<size_t>(config_.vocab) * sizeof(float)));
  VV_TRY(stream.synchronize());
  return runtime_->place() == Place::host ? source_.check_lost() : Status();
}

Status WhisperModel::feed(int line, int window, std::span<const int32_t> tokens, bool all, int32_t also,
                          const std::function<Status(int32_t, std::span<const int32_t>)>& each) {
  const auto chunk = static_cast<size_t>(steps_.back());
  own_places(line);
  std::vector<Row> rows;
  std::vector<int32_t> wanted;
  for (size_t first = 0; first < tokens.size(); first += chunk) {
    rows.clear();
    wanted.clear();
    for (size_t i = first; i < std::min(tokens.size(), first + chunk); ++i) {
      const auto pos = static_cast<int32_t>(i);
      if (all || pos == also || i + 1 == tokens.size()) wanted.push_back(static_cast<int32_t>(rows.size()));
      rows.push_back({tokens[i], pos, line, window});
    }
    VV_TRY(step(rows, wanted));
    VV_TRY(each(static_cast<int32_t>(first), wanted));
  }
  return {};
}

Result<std::vector<float>> WhisperModel::languages(int window) {
  VV_TRY(check_window("languages", window));
  const engine::SpeechTokens& t = config_.tokens;
  if (!t.multilingual) return Status(Code::kUnsupported, "languages: this model was trained on one language");
  VV_TRY(feed(0, window, std::span(&t.sot, 1), false, -1, [](int32_t, std::span<const int32_t>) { return Status(); }));
  const std::span<const float> row(logits_row(0) + t.first_language, static_cast<size_t>(t.languages));
  const double all = log_sum_exp(row);
  if (!std::isfinite(all)) return Status(Code::kCorruptData, "languages: the network's logits are NaN");
  std::vector<float> p;
  for (const float v : row) p.push_back(static_cast<float>(std::exp(static_cast<double>(v) - all)));
  return p;
}

Result<std::vector<float>> WhisperModel::logits(int window, std::span<const int32_t> tokens) {
  VV_TRY(check_window("logits", window));
  if (tokens.empty() || tokens.size() > static_cast<size_t>(config_.positions))
    return Status(Code::kLimitExceeded,
                  strf("logits: wanted 1 to %ld tokens, got %zu", static_cast<long>(config_.positions), tokens.size()));
  for (const int32_t id : tokens)
    if (id < 0 || id >= config_.vocab)
      return Status(Code::kInvalidArgument,
                    strf("logits: token %d is outside the vocabulary [0, %ld)", id, static_cast<long>(config_.vocab)));
  std::vector<float> all;
  VV_TRY(feed(0, window, tokens, true, -1, [&](int32_t, std::span<const int32_t> wanted) {
    all.insert(all.end(), logits_row(0), logits_row(0) + wanted.size() * static_cast<size_t>(config_.vocab));
    return Status();
  }));
  return all;
}

Status WhisperModel::check(const SpeechRequest& r) const {
  VV_TRY(check_window("decode", r.window));
  const auto bad = [](const char* what, double got) {
    return Status(Code::kInvalidArgument, strf("decode: %s, got %g", what, got));
  };
  if (r.prompt.empty())
    return Status(Code::kInvalidArgument, "decode: the prompt is empty; it begins with the start of a transcript");
  if (r.prompt.size() >= static_cast<size_t>(config_.positions))
    return Status(Code::kLimitExceeded, strf("decode: a prompt of %zu tokens leaves no place of %ld for text",
                                             r.prompt.size(), static_cast<long>(config_.positions)));
  for (const std::vector<int32_t>* ids : {&r.prompt, &r.suppress, &r.suppress_first})
    for (const int32_t id : *ids)
      if (id < 0 || id >= config_.vocab)
        return Status(Code::kInvalidArgument, strf("decode: token %d is outside the vocabulary [0, %ld)", id,
                                                   static_cast<long>(config_.vocab)));
  if (std::find(r.prompt.begin(), r.prompt.end(), config_.tokens.sot) == r.prompt.end())
    return Status(Code::kInvalidArgument,
                  strf("decode: the prompt lacks token %d, the start of a transcript", config_.tokens.sot));
  if (!(r.temperature >= 0 && std::isfinite(r.temperature)))
    return bad("temperature: wanted 0 or more", static_cast<double>(r.temperature));
  if (r.candidates < 1) return bad("candidates: wanted at least 1", r.candidates);
  if (!(r.patience > 0 && r.patience <= 100))
    return bad("patience: wanted more than 0 and at most 100", static_cast<double>(r.patience));
  if (!std::isfinite(r.length_penalty))
    return bad("length_penalty: wanted a finite value", static_cast<double>(r.length_penalty));
  if (r.most < 1) return bad("most: wanted at least 1 token", r.most);
  const engine::SpeechFollow& f = r.follow;
  if (f.heads.empty()) return {};
  VV_TRY(check_heads("decode", f.heads));
  if (r.candidates != 1) return bad("follow: wanted one candidate", r.candidates);
  if (f.content < 0 || f.content > config_.source)
    return bad(strf("follow: content: wanted 0 to %ld places", static_cast<long>(config_.source)).c_str(), f.content);
  if (f.margin < 0 || f.margin > config_.source)
    return bad("follow: margin: wanted 0 or more places, no more than a window has", f.margin);
  if (f.rewind < 1) return bad("follow: rewind: wanted at least 1 place", f.rewind);
  return {};
}

Status WhisperModel::check_heads(const char* call, std::span<const std::pair<int, int>> heads) const {
  for (const auto& [layer, head] : heads)
    if (layer < 0 || layer >= limits_.layers || head < 0 || head >= limits_.heads)
      return Status(Code::kInvalidArgument, strf("%s: head %d of layer %d, there are %d layers of %d", call, head,
                                                 layer, limits_.layers, limits_.heads));
  return {};
}

Status WhisperModel::cross_scores(int window, const std::pair<int, int>& head, int64_t row, int64_t n, int64_t columns,
                                  float* to) {
  const int64_t D = config_.head_dim(config_.decoder);
  const auto layer = static_cast<size_t>(head.first);
  const auto column = [&](const Tensor& t) {  // [N, H] of one head
    Tensor r = tensor(static_cast<char*>(t.data) + row_bytes(t.dtype, head.second * D), t.dtype, Shape(t.shape[0], D),
                      t.place);
    r.stride[0] = config_.width;
    return r;
  };
  const Tensor k = buffers_.cross_k[layer],
               keys = tensor(slice(k, window, 1).data, k.dtype, Shape(columns, config_.width), k.place);
  const Tensor out = tensor(buffers_.attention.data, DType::f32, Shape(n, columns), k.place);
  exec::Stream& stream = runtime_->stream();
  ops::Recorder rec(stream);
  VV_TRY(rec(ops::gemm, {{"x", column(slice(buffers_.text.cross_q[layer], row, n))}, {"w", column(keys)}, {"out", out}},
             {{"alpha", 1 / std::sqrt(static_cast<double>(D))}}));
  VV_TRY(stream.copy(to, out.data, static_cast<size_t>(out.span_bytes())));
  return stream.synchronize();
}

Status WhisperModel::see(Group& g, int64_t row, int64_t n) {
  if (!g.follower) return {};
  const auto& heads = g.request->follow.heads;
  const auto columns = static_cast<size_t>(config_.source), rows = static_cast<size_t>(n);
  std::vector<float> scores(heads.size() * rows * columns);
  for (size_t h = 0; h < heads.size(); ++h)
    VV_TRY(cross_scores(g.request->window, heads[h], row, n, config_.source, scores.data() + h * rows * columns));
  for (size_t i = 0; i < rows; ++i)
    for (size_t h = 0; h < heads.size(); ++h) g.follower->add(h, {scores.data() + (h * rows + i) * columns, columns});
  return {};
}

void WhisperModel::look(Group& g) {
  if (!g.follower || g.candidates.next().empty()) return;  // the network ended it
  const engine::SpeechFollow& f = g.request->follow;
  const int32_t place = g.follower->place();
  if (!g.places.empty() && g.places.back() - place > f.rewind) g.end = engine::SpeechEnd::rewind;
  else if (f.content - place <= f.margin) g.end = engine::SpeechEnd::margin;
  g.places.push_back(place);
  g.over = g.over || g.end != engine::SpeechEnd::eot;
}

/// Runs the prompt; the first token of every candidate.
Status WhisperModel::begin(Group& g, Transcript* out) {
  const SpeechRequest& r = *g.request;
  const auto sot = static_cast<int32_t>(std::find(r.prompt.rbegin(), r.prompt.rend(), config_.tokens.sot).base() -
                                        r.prompt.begin() - 1);
  const auto vocab = static_cast<size_t>(config_.vocab);
  const auto last = static_cast<int32_t>(r.prompt.size()) - 1;
  return feed(g.line, r.window, r.prompt, false, sot, [&](int32_t first, std::span<const int32_t> wanted) -> Status {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const int32_t pos = first + wanted[i];
      float* const row = logits_row(i);
      if (pos == sot) {
        const double all = log_sum_exp({row, vocab});
        out->no_speech = static_cast<float>(std::exp(static_cast<double>(row[config_.tokens.no_speech]) - all));
      }
      if (pos == last) {
        float* const one[] = {row};
        VV_TRY(take(g, one));
      }
    }
    VV_TRY(see(g, 0, std::min<int64_t>(steps_.back(), static_cast<int64_t>(r.prompt.size()) - first)));
    if (g.said > 0) look(g);
    return {};
  });
}

/// Candidates choose; their lines of the cache follow.
Status WhisperModel::take(Group& g, std::span<float* const> rows) {
  VV_TRY(g.candidates.step(rows, config_.vocab));
  ++g.said;
  const auto places = static_cast<int64_t>(g.request->prompt.size()) + g.said;
  g.over = g.candidates.done() || g.said >= g.request->most || places > config_.positions;
  const int64_t L = config_.positions, held = std::min(places - 1, L);
  int32_t* const table = text_in_.host<int32_t>(text_.page_table);
  const std::span<const Candidates::Next> next = g.candidates.next();
  for (size_t i = 0; i < next.size(); ++i)
    std::memcpy(lines_.data() + static_cast<int64_t>(i) * L, table + (g.line + next[i].parent) * L,
                static_cast<size_t>(held) * sizeof(int32_t));
  for (size_t i = 0; i < next.size(); ++i) {
    const auto line = g.line + static_cast<int64_t>(i);
    std::memcpy(table + line * L, lines_.data() + static_cast<int64_t>(i) * L,
                static_cast<size_t>(held) * sizeof(int32_t));
    if (held < L) table[line * L + held] = static_cast<int32_t>(line * L + held);
  }
  return {};
}

/// One step of everybody who has not finished.
Status WhisperModel::advance(std::vector<Group>& groups) {
  std::vector<Row> rows;
  std::vector<int32_t> wanted;
  for (Group& g : groups) {
    g.row = rows.size();
    if (!g.over) {
      const auto pos = static_cast<int32_t>(g.request->prompt.size()) + g.said - 1;
      int line = g.line;
      for (const Candidates::Next& n : g.candidates.next()) rows.push_back({n.token, pos, line++, g.request->window});
    }
    g.rows = rows.size() - g.row;
  }
  for (size_t i = 0; i < rows.size(); ++i) wanted.push_back(static_cast<int32_t>(i));
  VV_TRY(step(rows, wanted));
  std::vector<float*> seen;
  for (Group& g : groups) {
    if (g.over) continue;
    seen.clear();
    for (size_t i = 0; i < g.rows; ++i) seen.push_back(logits_row(g.row + i));
    VV_TRY(take(g, seen));
    VV_TRY(see(g, static_cast<int64_t>(g.row), static_cast<int64_t>(g.rows)));
    look(g);
  }
  return {};
}

Status WhisperModel::decode(std::span<const SpeechRequest> requests, std::vector<Transcript>* out) {
  out->assign(requests.size(), {});
  int lines = 0;
  std::vector<Group> groups;
  groups.reserve(requests.size());
  for (const SpeechRequest& r : requests) {
    VV_TRY(check(r));
    if (lines + r.candidates > limits_.rows)
      return Status(Code::kLimitExceeded, strf("decode: %d candidates of all windows are more than the %d rows that "
                                               "the model was loaded with; load with rows",
                                               lines + r.candidates, limits_.rows));
    groups.emplace_back(config_.tokens, r, lines);
    if (!r.follow.heads.empty()) groups.back().follower.emplace(r.follow, config_.source);
    lines += r.candidates;
  }
  for (size_t i = 0; i < groups.size(); ++i) VV_TRY(begin(groups[i], &(*out)[i]));
  while (std::any_of(groups.begin(), groups.end(), [](const Group& g) { return !g.over; })) VV_TRY(advance(groups));
  for (size_t i = 0; i < groups.size(); ++i) {
    Group& g = groups[i];
    const float no_speech = (*out)[i].no_speech;
    (*out)[i] = g.candidates.best();
    (*out)[i].no_speech = no_speech;
    (*out)[i].places = std::move(g.places);
    (*out)[i].end = g.end == engine::SpeechEnd::eot && !g.candidates.done() ? engine::SpeechEnd::most : g.end;
  }
  return {};
}

Result<engine::Alignment> WhisperModel::align(int window, std::span<const int32_t> lead, std::span<const int32_t> text,
                                              int frames, std::span<const std::pair<int, int>> heads) {
  VV_TRY(check_window("align", window));
  std::vector<int32_t> tokens(lead.begin(), lead.end());
  tokens.push_back(config_.tokens.no_timestamps);
  tokens.insert(tokens.end(), text.begin(), text.end());
  tokens.push_back(config_.tokens.eot);
  const int64_t columns = frames / 2;
  if (frames < 2 || columns > config_.source)
    return Status(Code::kInvalidArgument,
                  strf("align: wanted 2 to %ld frames, got %d", static_cast<long>(config_.frames()), frames));
  if (heads.empty()) return Status(Code::kInvalidArgument, "align: no heads to align by");
  VV_TRY(check_heads("align", heads));
  if (tokens.size() > static_cast<size_t>(config_.positions))
    return Status(Code::kLimitExceeded, strf("align: %zu tokens do not fit into %ld places", tokens.size(),
                                             static_cast<long>(config_.positions)));
  for (const int32_t id : tokens)
    if (id < 0 || id >= config_.vocab)
      return Status(Code::kInvalidArgument,
                    strf("align: token %d is outside the vocabulary [0, %ld)", id, static_cast<long>(config_.vocab)));

  const auto T = static_cast<int64_t>(tokens.size());
  std::vector<float> scores(heads.size() * static_cast<size_t>(T * columns));
  engine::Alignment result;
  const auto begin = static_cast<int32_t>(lead.size());
  VV_TRY(feed(0, window, tokens, true, -1, [&](int32_t first, std::span<const int32_t> wanted) -> Status {
    const auto n = static_cast<int64_t>(wanted.size());
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(first + i);
      if (at < static_cast<size_t>(begin) || at + 2 >= tokens.size()) continue;
      const std::span<const float> words(logits_row(static_cast<size_t>(i)), static_cast<size_t>(config_.tokens.eot));
      result.probability.push_back(static_cast<float>(
          std::exp(static_cast<double>(words[static_cast<size_t>(std::min(tokens[at + 1], config_.tokens.eot - 1))]) -
                   log_sum_exp(words))));
    }
    for (size_t h = 0; h < heads.size(); ++h)
      VV_TRY(cross_scores(window, heads[h], 0, n, columns,
                          scores.data() + (static_cast<int64_t>(h) * T + first) * columns));
    return {};
  }));
  const std::vector<float> weights = alignment_weights(&scores, static_cast<int64_t>(heads.size()), T, columns);
  result.start = first_hits({weights.data() + begin * columns, static_cast<size_t>((T - 1 - begin) * columns)},
                            T - 1 - begin, columns);
  return result;
}

}  // namespace vivace::models::whisper
