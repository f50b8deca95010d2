#include "vivace/serve/reply_parser.h"

#include "vivace/engine/checkpoint/parse.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::serve {
namespace {

using Kind = ReplyDelta::Kind;

/// Of a call whose name is not known yet: beyond it the call is text.
constexpr size_t kMostHeld = 64 << 10;
constexpr std::string_view kFunction = "<function=";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::vector<std::string> markers(const CallFormat* f) {
  if (f == nullptr) return {};
  std::vector<std::string> open{f->open};
  if (f->form == CallForm::xml) open.emplace_back(kFunction);  // often without the marker around it
  return open;
}

}  // namespace

Result<std::unique_ptr<ReplyParser>> ReplyParser::make(ReplyOptions options) {
  for (const std::string& s : options.stop)
    if (s.empty() || !engine::is_utf8(s))
      return Status(Code::kInvalidArgument, "reply: a stop string is empty or no UTF-8");
  if (options.in_reasoning && options.reasoning == nullptr)
    return Status(Code::kInvalidArgument, "reply: it cannot begin in reasoning that it has no markers of");
  if (options.one_call && options.calls == nullptr)
    return Status(Code::kInvalidArgument, "reply: it cannot end after a call, since it has no form of calls");
  return std::unique_ptr<ReplyParser>(new ReplyParser(std::move(options)));
}

ReplyParser::ReplyParser(ReplyOptions options) : o_(std::move(options)), stops_(o_.stop), at_(At::begin), search_({}) {
  if (o_.reasoning == nullptr) to(At::text);
}

void ReplyParser::feed(std::string_view bytes, std::vector<ReplyDelta>* deltas) {
  if (over()) return;
  out_ = deltas;
  bytes_.append(bytes);
  const size_t whole = engine::text::whole_utf8(bytes_);
  std::string valid, text;
  engine::text::append_valid_utf8(std::string_view(bytes_).substr(0, whole), &valid);
  bytes_.erase(0, whole);
  stops_.feed(valid, &text);
  passed_ += text.size();
  put_all(text);
}

std::string ReplyParser::finish(std::string_view why, bool named, std::vector<ReplyDelta>* deltas) {
  out_ = deltas;
  const bool early = over();
  if (!early) {
    std::string valid, text;
    engine::text::append_valid_utf8(bytes_, &valid);
    stops_.feed(valid, &text);
    stops_.finish(&text);
    passed_ += text.size();
    put_all(text);
  }
  bytes_.clear();
  while (at_ == At::begin && !held_.empty()) {  // a marker that is not whole
    const std::string held = std::exchange(held_, {});
    to(o_.in_reasoning ? At::reasoning : At::text);
    put_all(held);
  }
  if (at_ == At::call && !reader_->begun()) {
    const std::string raw = std::exchange(raw_, {});
    to(At::text);
    say(Kind::text, raw);
  } else if (at_ == At::call) {
    const bool complete = reader_->complete();
    if (!complete) add(Kind::arguments, calls_ - 1, reader_->rest());
    end_call(complete);
  } else if (at_ == At::broken) {
    add(Kind::arguments, calls_ - 1, held_);
  } else if (at_ == At::reasoning) {
    say(Kind::reasoning, held_);
  } else if (at_ == At::text) {
    say(Kind::text, held_);
  }
  held_.clear(), raw_.clear();
  if (at_ == At::text && calls_ == 0) add(Kind::text, -1, std::exchange(space_, {}));
  if (!early && why != "stop") return std::string(why);
  return calls_ > 0 && whole_ == calls_ && !named ? "tool_calls" : "stop";
}

void ReplyParser::put_all(std::string_view s) {
  for (size_t i = 0; i < s.size() && !enough_; ++i) put(s[i]);
}

void ReplyParser::put(char c) {
  switch (at_) {
    case At::begin: return at_begin(c);
    case At::text: return in_text(c);
    case At::call: return in_call(c);
    case At::closing: return in_closing(c);
    case At::reasoning:
    case At::broken: break;
  }
  held_.push_back(c);
  const size_t found = search_.put(c);
  const size_t known = held_.size() - (found == TextSearch::kNone ? search_.held() : search_.wanted(found).size());
  const std::string text = held_.substr(0, known);
  held_.erase(0, known);
  if (at_ == At::reasoning) say(Kind::reasoning, text);
  else add(Kind::arguments, calls_ - 1, text);
  if (found == TextSearch::kNone) return;
  space_.clear();
  to(At::text);
  trim_ = true;
}

void ReplyParser::to(At at) {
  at_ = at;
  held_.clear();
  fresh_ = true;
  if (at == At::text) search_ = TextSearch(markers(o_.calls));
  if (at == At::reasoning) search_ = TextSearch({o_.reasoning->close}), trim_ = true;
  if (at == At::broken)
    search_ =
        TextSearch(*o_.calls->close != '\0' ? std::vector<std::string>{o_.calls->close} : std::vector<std::string>{});
}

/// White space, and then the marker of reasoning, or the answer itself.
void ReplyParser::at_begin(char c) {
  const std::string_view open = o_.reasoning->open;
  held_.push_back(c);
  const size_t spaces = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
  const std::string_view begun = std::string_view(held_).substr(spaces);
  if (begun == open) return to(At::reasoning);
  if (open.starts_with(begun)) return;
  const std::string held = std::exchange(held_, {});
  to(o_.in_reasoning ? At::reasoning : At::text);
  put_all(held);
}

void ReplyParser::in_text(char c) {
  const CallFormat* f = o_.calls;
  if (f == nullptr) return say(Kind::text, {&c, 1});
  if (f->bare && fresh_ && calls_ > 0 && c == ';') return;  // between calls
  if (f->bare && fresh_ && c == '{' && held_.empty()) return open_call(read_json_call(o_.tools, true), ""), put(c);
  fresh_ = fresh_ && is_space(c);
  held_.push_back(c);
  const size_t found = search_.put(c);
  const size_t known = held_.size() - (found == TextSearch::kNone ? search_.held() : search_.wanted(found).size());
  say(Kind::text, std::string_view(held_).substr(0, known));
  held_.erase(0, known);
  if (found == TextSearch::kNone) return;
  std::string marker = std::exchange(held_, {});
  if (f->form == CallForm::json) open_call(read_json_call(o_.tools, false), std::move(marker));
  else if (f->form == CallForm::xml) open_call(read_xml_call(o_.tools, found == 1), std::move(marker));
  else open_call(read_braces_call(f->quote), std::move(marker));
}

void ReplyParser::open_call(std::unique_ptr<CallReader> reader, std::string raw) {
  reader_ = std::move(reader);
  raw_ = std::move(raw);
  to(At::call);
}

void ReplyParser::in_call(char c) {
  const bool had = reader_->begun();
  const CallReader::Step step = raw_.size() < kMostHeld ? reader_->put(c) : CallReader::Step::bad;
  if (!had && !reader_->begun()) {
    if (step == CallReader::Step::more) return raw_.push_back(c);
    const std::string raw = std::exchange(raw_, {});  // no call: text as it stands
    to(At::text);
    fresh_ = false;
    say(Kind::text, raw);
    return put(c);
  }
  if (!had) {
    raw_.clear();
    space_.clear();
    out_->push_back({Kind::call, calls_, o_.id_prefix + std::to_string(calls_), reader_->name()});
    ++calls_;
  }
  add(Kind::arguments, calls_ - 1, std::exchange(reader_->arguments(), {}));
  if (step == CallReader::Step::whole) return end_call(true);
  if (step == CallReader::Step::more) return;
  const std::string rest = reader_->rest() + c;
  if (reader_->complete()) end_call(true);
  else to(At::broken);
  put_all(rest);
}

void ReplyParser::end_call(bool whole) {
  whole_ += whole;
  reader_.reset();
  enough_ = o_.one_call && whole;
  to(*o_.calls->close != '\0' ? At::closing : At::text);
  trim_ = true;
}

/// White space and the closing marker; what else comes belongs to what follows.
void ReplyParser::in_closing(char c) {
  const std::string_view close = o_.calls->close;
  held_.push_back(c);
  const size_t spaces = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
  const std::string_view begun = std::string_view(held_).substr(spaces);
  if (begun == close) return to(At::text);
  if (close.starts_with(begun)) return;
  const std::string held = std::exchange(held_, {});
  to(At::text);
  put_all(held);
}

/// Text or reasoning: white space waits for what follows it, where it may be dropped.
void ReplyParser::say(Kind kind, std::string_view s) {
  const bool plain = o_.calls == nullptr && o_.reasoning == nullptr;
  for (const char c : s) {
    if (!plain && is_space(c)) {
      if (!trim_) space_.push_back(c);
      continue;
    }
    trim_ = false;
    if (!space_.empty()) add(kind, -1, std::exchange(space_, {}));
    add(kind, -1, {&c, 1});
  }
}

void ReplyParser::add(Kind kind, int index, std::string_view s) {
  if (s.empty()) return;
  if (out_->empty() || out_->back().kind != kind || out_->back().index != index) out_->push_back({kind, index, {}, {}});
  out_->back().text.append(s);
}

}  // namespace vivace::serve
