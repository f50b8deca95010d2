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

void WhisperModel::want(size_t i, const Wanted& w) {
  static_assert(sizeof(Spans) == 5 * sizeof(int32_t));
  text_in_.host<int32_t>(text_.sample_rows)[i] = w.row;
  text_in_.host<int32_t>(text_.mask_slot)[i] = w.mask;
  text_in_.host<int32_t>(text_.told)[i] = w.told;
  text_in_.host<int32_t>(text_.asked)[i] = w.asked;
  std::memcpy(text_in_.host<int32_t>(text_.spans) + 5 * i, &w.spans, sizeof w.spans);
}

Status WhisperModel::step(std::span<const Row> rows, std::span<const Wanted> wanted) {
  for (size_t i = 0; i < rows.size(); ++i) {
    text_in_.host<int32_t>(text_.tokens)[i] = rows[i].token;
    text_in_.host<int32_t>(text_.pos)[i] = rows[i].pos;
    text_in_.host<int32_t>(text_.slot)[i] = rows[i].line;
    text_in_.host<int32_t>(text_.window)[i] = rows[i].window;
  }
  for (size_t i = 0; i < wanted.size(); ++i) want(i, wanted[i]);
  *text_in_.host<int32_t>(text_.rows) = static_cast<int32_t>(rows.size());
  *text_in_.host<int32_t>(text_.samples) = static_cast<int32_t>(wanted.size());
  const auto most = static_cast<int64_t>(std::max(rows.size(), wanted.size()));  // of a row two things may be wanted
  const int64_t bound = *std::lower_bound(steps_.begin(), steps_.end(), most);
  const Accounted step(options_.account.get());
  VV_TRY(run(step_key(bound), [&](exec::Stream& s) { return record_step(s, bound); }));
  VV_TRY(runtime_->stream().synchronize());
  return runtime_->place() == Place::host ? source_.check_lost() : Status();
}

Candidates::Seen WhisperModel::seen(size_t i) const {
  const size_t at = i * static_cast<size_t>(told_.token.shape[1]);
  return {text_out_.host<int32_t>(told_.token) + at, text_out_.host<float>(told_.logprob) + at, logits_row(i)};
}

Status WhisperModel::fetch_logits(size_t first, size_t n) {
  if (host_logits_ == buffers_.text.logits.data) return {};
  const size_t row = static_cast<size_t>(config_.vocab) * sizeof(float);
  exec::Stream& stream = runtime_->stream();
  VV_TRY(stream.copy(logits_row(first).data(), static_cast<char*>(buffers_.text.logits.data) + first * row, n * row));
  return stream.synchronize();
}

Status WhisperModel::feed(int window, std::span<const int32_t> tokens, const Spans& spans,
                          const std::function<int32_t(size_t)>& asked_of,
                          const std::function<Status(size_t, size_t)>& each) {
  const auto chunk = static_cast<size_t>(steps_.back());
  own_places(0);
  std::vector<Row> rows;
  std::vector<Wanted> wanted;
  for (size_t first = 0; first < tokens.size(); first += chunk) {
    rows.clear();
    wanted.clear();
    for (size_t i = first; i < std::min(tokens.size(), first + chunk); ++i) {
      wanted.push_back({.row = static_cast<int32_t>(rows.size()), .spans = spans, .asked = asked_of(i)});
      rows.push_back({tokens[i], static_cast<int32_t>(i), 0, window});
    }
    VV_TRY(step(rows, wanted));
    VV_TRY(each(first, rows.size()));
  }
  return {};
}

Result<std::vector<float>> WhisperModel::languages(int window) {
  VV_TRY(check_window("languages", window));
  const engine::SpeechTokens& t = config_.tokens;
  if (!t.multilingual) return Status(Code::kUnsupported, "languages: this model was trained on one language");
  VV_TRY(feed(
      window, std::span(&t.sot, 1), every(), [](size_t) { return -1; },
      [&](size_t, size_t n) { return fetch_logits(0, n); }));
  const std::span<const float> row =
      logits_row(0).subspan(static_cast<size_t>(t.first_language), static_cast<size_t>(t.languages));
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
  VV_TRY(feed(
      window, tokens, every(), [](size_t) { return -1; },
      [&](size_t, size_t n) {
        VV_TRY(fetch_logits(0, n));
        all.insert(all.end(), logits_row(0).data(), logits_row(0).data() + n * static_cast<size_t>(config_.vocab));
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

Status WhisperModel::record_weights(ops::Recorder& rec, int window, std::span<const std::pair<int, int>> heads,
                                    int64_t row, int64_t n, int64_t columns, int64_t at) const {
  const int64_t D = config_.head_dim(config_.decoder);
  const Tensor& all = buffers_.attention;
  float* const to = static_cast<float*>(all.data) + at;
  for (size_t i = 0; i < heads.size(); ++i) {
    const auto layer = static_cast<size_t>(heads[i].first);
    const auto column = [&](const Tensor& t) {  // [N, H] of one head
      Tensor r = tensor(static_cast<char*>(t.data) + row_bytes(t.dtype, heads[i].second * D), t.dtype,
                        Shape(t.shape[0], D), t.place);
      r.stride[0] = config_.width;
      return r;
    };
    const Tensor k = buffers_.cross_k[layer],
                 keys = tensor(slice(k, window, 1).data, k.dtype, Shape(columns, config_.width), k.place),
                 out = tensor(to + static_cast<int64_t>(i) * n * columns, DType::f32, Shape(n, columns), k.place);
    VV_TRY(rec(ops::gemm,
               {{"x", column(slice(buffers_.text.cross_q[layer], row, n))}, {"w", column(keys)}, {"out", out}},
               {{"alpha", 1 / std::sqrt(static_cast<double>(D))}}));
  }
  const Tensor x = tensor(to, DType::f32, Shape(static_cast<int64_t>(heads.size()) * n, columns), all.place);
  return rec(ops::softmax, {{"x", x}, {"out", x}});
}

Result<const float*> WhisperModel::fetch_weights(int64_t count) {
  const Tensor& all = buffers_.attention;
  float* const to = scores_out_.host<float>(all);
  exec::Stream& stream = runtime_->stream();
  VV_TRY(stream.copy(to, all.data, static_cast<size_t>(count) * sizeof(float)));
  VV_TRY(stream.synchronize());
  return to;
}

Status WhisperModel::see(std::vector<Group>& groups, std::span<const Part> parts) {
  const auto some = [&](const Part& part, size_t h) {
    const std::span<const std::pair<int, int>> heads = groups[part.group].request->follow.heads;
    return h < heads.size() ? heads.subspan(h, std::min<size_t>(kHeadsAtOnce, heads.size() - h)) : heads.first(0);
  };
  size_t most = 0;
  for (const Part& part : parts)
    most = std::max(most, groups[part.group].follower ? groups[part.group].request->follow.heads.size() : 0);
  for (size_t h = 0; h < most; h += kHeadsAtOnce) {  // a part's rows and heads fit, and so do those of all
    ops::Recorder rec(runtime_->stream());
    int64_t at = 0;
    for (const Part& part : parts)
      if (const auto heads = some(part, h); !heads.empty()) {
        VV_TRY(record_weights(rec, groups[part.group].request->window, heads, part.row, part.rows, config_.source, at));
        at += static_cast<int64_t>(heads.size()) * part.rows * config_.source;
      }
    VV_ASSIGN(const float* weights, fetch_weights(at));
    for (const Part& part : parts)
      for (size_t i = 0, n = some(part, h).size(); i < n; ++i, weights += part.rows * config_.source)
        groups[part.group].follower->add(h + i, weights, part.rows);
  }
  for (const Part& part : parts)
    if (groups[part.group].follower) groups[part.group].follower->end(part.rows);
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

WhisperModel::Wanted WhisperModel::choice(const Group& g, size_t candidate, size_t row) const {
  return {.row = static_cast<int32_t>(row),
          .spans = g.candidates.spans(candidate, config_.vocab),
          .mask = 2 * g.line + (g.said > 0 ? 1 : 0),
          .told = g.candidates.listed()};
}

Status WhisperModel::begin(std::vector<Group>& groups, std::vector<Transcript>* out) {
  const size_t words = static_cast<size_t>(text_.mask.shape[1]);
  int32_t* const masks = mask_in_.host<int32_t>(text_.mask);
  for (const Group& g : groups) {
    own_places(g.line);
    for (const size_t later : {0u, 1u})
      write_mask(config_.tokens, *g.request, later == 0,
                 {masks + (2 * static_cast<size_t>(g.line) + later) * words, words});
  }
  VV_TRY(mask_in_.copy_in(runtime_->stream()));

  const auto room = static_cast<size_t>(steps_.back());
  std::vector<Row> rows;
  std::vector<Wanted> wanted;
  std::vector<Part> parts;
  std::vector<std::pair<size_t, bool>> whose;  // of each wanted row: the group, and whether text begins there
  const auto run_rows = [&]() -> Status {
    VV_TRY(step(rows, wanted));
    for (size_t i = 0; i < whose.size(); ++i) {
      const auto [group, begins] = whose[i];
      if (begins)
        VV_TRY(take(groups[group], i, 1));
      else
        (*out)[group].no_speech = static_cast<float>(std::exp(asked(i)));
    }
    VV_TRY(see(groups, parts));
    for (const Part& part : parts)
      if (groups[part.group].said > 0) look(groups[part.group]);
    rows.clear(), wanted.clear(), parts.clear(), whose.clear();
    return {};
  };
  // Each prompt is cut where it would be alone: what is seen of its attention depends on how many rows there are.
  const auto longest = std::max_element(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.request->prompt.size() < b.request->prompt.size();
  });
  for (size_t first = 0; longest != groups.end() && first < longest->request->prompt.size(); first += room)
    for (size_t n = 0; n < groups.size(); ++n) {
      const Group& g = groups[n];
      const std::vector<int32_t>& prompt = g.request->prompt;
      if (first >= prompt.size()) continue;
      const size_t end = std::min(prompt.size(), first + room),
                   sot = static_cast<size_t>(std::find(prompt.rbegin(), prompt.rend(), config_.tokens.sot).base() -
                                             prompt.begin() - 1);
      if (rows.size() + (end - first) > room || wanted.size() + 2 > room) VV_TRY(run_rows());
      parts.push_back({n, static_cast<int64_t>(rows.size()), static_cast<int64_t>(end - first)});
      for (size_t i = first; i < end; ++i) {
        if (i == sot) {
          wanted.push_back(
              {.row = static_cast<int32_t>(rows.size()), .spans = every(), .asked = config_.tokens.no_speech});
          whose.emplace_back(n, false);
        }
        if (i + 1 == prompt.size()) {
          wanted.push_back(choice(g, 0, rows.size()));
          whose.emplace_back(n, true);
        }
        rows.push_back({prompt[i], static_cast<int32_t>(i), g.line, g.request->window});
      }
    }
  return rows.empty() ? Status() : run_rows();
}

Status WhisperModel::take(Group& g, size_t first, size_t n) {
  if (g.candidates.listed() == 0) VV_TRY(fetch_logits(first, n));
  std::vector<Candidates::Seen> rows;
  for (size_t i = first; i < first + n; ++i) rows.push_back(seen(i));
  VV_TRY(g.candidates.step(rows));
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
  std::vector<Wanted> wanted;
  for (Group& g : groups) {
    g.row = rows.size();
    if (!g.over) {
      const auto pos = static_cast<int32_t>(g.request->prompt.size()) + g.said - 1;
      const std::span<const Candidates::Next> next = g.candidates.next();
      for (size_t i = 0; i < next.size(); ++i) {
        wanted.push_back(choice(g, i, rows.size()));
        rows.push_back({next[i].token, pos, g.line + static_cast<int>(i), g.request->window});
      }
    }
    g.rows = rows.size() - g.row;
  }
  VV_TRY(step(rows, wanted));
  std::vector<Part> parts;
  for (size_t i = 0; i < groups.size(); ++i) {
    Group& g = groups[i];
    if (g.over) continue;
    VV_TRY(take(g, g.row, g.rows));
    parts.push_back({i, static_cast<int64_t>(g.row), static_cast<int64_t>(g.rows)});
  }
  VV_TRY(see(groups, parts));
  for (const Part& part : parts) look(groups[part.group]);
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
  VV_TRY(begin(groups, out));
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
  std::vector<float> weights(heads.size() * static_cast<size_t>(T * columns));
  engine::Alignment result;
  const auto begin = static_cast<int64_t>(lead.size());
  // Of each token of text its probability among text, where the one before it was read.
  const int32_t eot = config_.tokens.eot;
  const auto next = [&](size_t at) { return at + 1 < tokens.size() ? std::min(tokens[at + 1], eot - 1) : -1; };
  VV_TRY(feed(window, tokens, {0, eot, eot, eot, 0}, next, [&](size_t first, size_t n) -> Status {
    for (size_t i = 0; i < n; ++i)
      if (first + i >= static_cast<size_t>(begin) && first + i + 2 < tokens.size())
        result.probability.push_back(static_cast<float>(std::exp(asked(i))));
    for (size_t h = 0; h < heads.size(); h += kHeadsAtOnce) {
      const auto some = heads.subspan(h, std::min<size_t>(kHeadsAtOnce, heads.size() - h));
      ops::Recorder rec(runtime_->stream());
      VV_TRY(record_weights(rec, window, some, 0, static_cast<int64_t>(n), columns, 0));
      VV_ASSIGN(const float* const part, fetch_weights(static_cast<int64_t>(some.size() * n) * columns));
      const size_t held = n * static_cast<size_t>(columns);
      for (size_t i = 0; i < some.size(); ++i)
        std::copy_n(part + i * held, held,
                    weights.data() + (static_cast<int64_t>(h + i) * T + static_cast<int64_t>(first)) * columns);
    }
    return {};
  }));
  const std::vector<float> mean = alignment_weights(&weights, static_cast<int64_t>(heads.size()), T, columns);
  result.start = first_hits({mean.data() + begin * columns, static_cast<size_t>((T - 1 - begin) * columns)},
                            T - 1 - begin, columns);
  return result;
}

}  // namespace vivace::models::whisper
