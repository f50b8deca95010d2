// What a load decided, and its memory.
#include "vivace/base/check.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {

engine::Report DecoderModel::report() const {
  const auto quoted = [](const std::string& s) { return '"' + s + '"'; };
  const auto number = [](int64_t v) { return std::to_string(v); };
  const DecoderConfig& c = config_;
  std::string phases;
  for (const auto& [name, seconds] : phases_) phases += strf("%s\"%s\": %.4f", phases.empty() ? "" : ", ", name, seconds);
  return {{"family", quoted(family_)},
          {"device", quoted(machine_->name())},
          {"precision", quoted(plan_.name)},
          {"invariance", quoted(options_.invariance)},
          {"kv_dtype", quoted(name(kv_dtype_))},
          {"threads", number(machine_->threads())},
          {"layers", number(c.layers)},
          {"hidden", number(c.hidden)},
          {"heads", number(c.heads)},
          {"kv_heads", number(c.kv_heads)},
          {"head_dim", number(c.head_dim)},
          {"mlp", number(c.mlp)},
          {"vocab", number(c.vocab)},
          {"context", number(limits_.context)},
          {"trained_context", number(c.context)},
          {"max_batch", number(limits_.max_batch)},
          {"chunk", number(limits_.chunk)},
          {"ahead", number(limits_.ahead)},
          {"weight_dtype", quoted(name(weights_.layers.front().o.dtype))},
          {"head_dtype", quoted(name(weights_.head.dtype))},
          {"tied", c.tied ? "true" : "false"},
          {"experts", number(c.experts)},
          {"experts_used", number(c.experts_used)},
          {"window", number(c.window)},
          {"rope_style", quoted(c.rope_style)},
          {"kv_pages", number(pages_.count())},
          {"streamed_layers", number(static_cast<int64_t>(stream_.layers().size()))},
          {"graphs", number(static_cast<int64_t>(variants_.size()))},
          {"launches", number(static_cast<int64_t>(graph_->executable(variants_.front().key())->launches()))},
          {"weight_bytes", number(placement_.bytes())},
          {"arena_bytes", number(arena_.bytes())},
          {"load_s", "{" + phases + "}"}};
}

std::vector<engine::MemoryLine> DecoderModel::memory() const {
  std::vector<engine::MemoryLine> lines;
  if (placement_.bytes() > 0) lines.push_back({"weights", placement_.bytes()});
  else lines.push_back({"weights (mapped)", source_.bytes()});
  if (!stream_.layers().empty()) {
    lines.push_back({"streamed layer", stream_.region_bytes()});
    lines.push_back({"weights of streamed layers (host)", stream_.host_bytes()});
  }
  if (source_.copied_bytes() > 0) lines.push_back({"weights (copied)", source_.copied_bytes()});
  for (engine::MemoryLine& line : arena_.lines()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace vivace::models::decoder
