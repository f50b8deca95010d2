// Any bytes as a model's reply, in any family's form: whole or in pieces, the same deltas, and each as it was promised.
#include "tests/fuzz/fuzz.h"
#include "vivace/engine/checkpoint/parse.h"
#include "vivace/serve/json_scan.h"
#include "vivace/serve/reply_parser.h"

using namespace vivace;
using serve::ReplyDelta;
using serve::ReplyParser;

namespace {

struct Reply {
  std::string text, reasoning, finish;
  std::vector<std::string> names, arguments;
  int whole = 0;
  bool operator==(const Reply&) const = default;
};

void add(const std::vector<ReplyDelta>& deltas, Reply* reply) {
  for (const ReplyDelta& d : deltas) {
    fuzz::require(!d.text.empty() && engine::is_utf8(d.text), "deltas hold whole characters");
    if (d.kind == ReplyDelta::Kind::text) reply->text += d.text;
    if (d.kind == ReplyDelta::Kind::reasoning) reply->reasoning += d.text;
    if (d.kind == ReplyDelta::Kind::call) {
      fuzz::require(d.index == static_cast<int>(reply->names.size()) && d.id == "call_" + std::to_string(d.index),
                    "calls are counted");
      reply->names.push_back(d.text);
      reply->arguments.emplace_back();
    }
    if (d.kind == ReplyDelta::Kind::arguments) {
      fuzz::require(d.index + 1 == static_cast<int>(reply->names.size()), "arguments are of the last call");
      reply->arguments.back() += d.text;
    }
  }
}

Reply parse(const serve::ReplyOptions& options, std::string_view bytes, size_t piece) {
  auto parser = ReplyParser::make(options);
  fuzz::require(parser.ok(), "the options are right");
  Reply reply;
  for (std::string_view rest = bytes; !rest.empty(); rest.remove_prefix(std::min(piece, rest.size()))) {
    std::vector<ReplyDelta> deltas;
    (*parser)->feed(rest.substr(0, piece), &deltas);
    add(deltas, &reply);
  }
  std::vector<ReplyDelta> deltas;
  reply.finish = (*parser)->finish("stop", false, &deltas);
  add(deltas, &reply);
  reply.whole = (*parser)->whole_calls();
  fuzz::require((*parser)->calls() == static_cast<int>(reply.names.size()), "calls() counts them");
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto forms = serve::call_formats();
  serve::ReplyOptions options;
  if (const size_t form = data[0] % (forms.size() + 1); form < forms.size()) options.calls = &forms[form];
  if ((data[0] & 0x20) != 0) options.reasoning = &serve::reasoning_formats()[data[0] >> 7];
  options.in_reasoning = options.reasoning != nullptr && (data[0] & 0x40) != 0;
  options.tools = {
      {"f", {{"a", serve::ValueKind::other}, {"b", serve::ValueKind::string}, {"c", serve::ValueKind::either}}},
      {"g", {}}};
  if ((data[1] & 0x80) != 0) options.stop = {"END", "NDx"};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Reply whole = [&] {
    const fuzz::MemoryBound bound(size);
    return parse(options, bytes, bytes.size() + 1);
  }();
  fuzz::require(parse(options, bytes, 1) == whole, "byte by byte it is the same");
  fuzz::require(parse(options, bytes, 1 + data[1] % 0x80) == whole, "in pieces it is the same");
  fuzz::require(
      (whole.finish == "tool_calls") == (whole.whole > 0 && whole.whole == static_cast<int>(whole.names.size())),
      "a finish says whether all calls are whole");
  if (whole.finish == "tool_calls")
    for (const std::string& a : whole.arguments) fuzz::require(serve::is_json(a), "a whole call's arguments are JSON");
  return 0;
}
