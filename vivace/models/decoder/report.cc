// What a load decided, and its memory.
#include <algorithm>
#include <string_view>

#include "vivace/base/check.h"
#include "vivace/engine/forms.h"
#include "vivace/engine/json_text.h"
#include "vivace/models/decoder/decoder_model.h"

namespace vivace::models::decoder {
namespace {

engine::Forms forms_of(const DecoderWeights& w) {
  engine::Forms forms;
  forms.add("embedding", w.embed);
  for (const LayerWeights& l : w.layers) {
    if (l.delta_in.present())
      forms.add("layers", "qkv", l.delta_in);
    else if (l.conv_in.present())
      forms.add("layers", "qkv", l.conv_in);
    else if (l.qkv.present())
      forms.add("layers", "qkv", l.qkv);
    else for (const Tensor* t : {&l.qk, &l.q, &l.k, &l.v}) forms.add("layers", "qkv", *t);
    if (l.delta_ba.present()) forms.add("layers", "decay", l.delta_ba);
    else for (const Tensor* t : {&l.delta_b, &l.delta_a}) forms.add("layers", "decay", *t);
    forms.add("layers", "convolution", l.conv);
    forms.add("layers", "o", l.o);
    forms.add("layers", "router", l.router);
    if (l.gate_up.present()) forms.add("layers", "gate_up", l.gate_up);
    else for (const Tensor* t : {&l.gate, &l.up}) forms.add("layers", "gate_up", *t);
    forms.add("layers", "down", l.down);
    if (w.shared_is_expert) continue;  // then it is in the three above
    for (const Tensor* t : {&l.shared_open, &l.shared_gate, &l.shared_up, &l.shared_down})
      forms.add("layers", "shared_expert", *t);
  }
  if (w.draft.fc.present()) {
    const LayerWeights& d = w.draft.layer;
    for (const Tensor* t :
         {&w.draft.fc, &d.qkv, &d.qk, &d.q, &d.k, &d.v, &d.o, &d.router, &d.gate_up, &d.gate, &d.up, &d.down})
      forms.add("draft_layer", *t);
  }
  forms.add("head", w.head);
  return forms;
}

std::string images_of(const engine::ImageLimits& l) {
  return l.tokens == 0 ? "null"
                       : strf("{\"token\": %d, \"side\": %d, \"max_tokens\": %d, \"places\": %d}", l.token, l.side,
                              l.tokens, l.places);
}

/// Matrices that the checkpoint has with scales: how many were taken as they are, and how many became 16 bits.
std::string stored_of(const engine::WeightSource& source) {
  std::string forms;
  for (const auto& s : source.stored())
    forms += strf("%s\"%s\": {\"kept\": %ld, \"dequantized\": %ld}", forms.empty() ? "" : ", ", s.form.c_str(),
                  static_cast<long>(s.kept), static_cast<long>(s.dequantized));
  return "{" + forms + "}";
}

/// Parts of a checkpoint that nothing here runs, by the number of their tensors; GGUF files have draft layers behind
/// the others. Scales of activations are of these but `input_scales`: rows get scales of their own, or calibrated ones.
std::string unread_of(const engine::Checkpoint& checkpoint, bool sees, bool drafts, int64_t layers,
                      int64_t input_scales) {
  std::string parts;
  for (const std::string& prefix : {std::string("mtp."), std::string("model.visual."),
                                   strf("blk.%ld.", static_cast<long>(layers))}) {
    const auto count =
        std::count_if(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                      [&](const engine::TensorEntry& t) { return std::string_view(t.name).starts_with(prefix); });
    if (count == 0 || (prefix == "model.visual." ? sees : drafts)) continue;
    parts += strf("%s\"%s*\": %ld", parts.empty() ? "" : ", ", prefix.c_str(), static_cast<long>(count));
  }
  for (const auto& [suffix, read] : {std::pair{".input_scale", input_scales}, {".input_global_scale", int64_t{0}}}) {
    const int64_t count =
        std::count_if(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                      [&](const engine::TensorEntry& t) { return std::string_view(t.name).ends_with(suffix); }) -
        read;
    if (count > 0) parts += strf("%s\"*%s\": %ld", parts.empty() ? "" : ", ", suffix, static_cast<long>(count));
  }
  return "{" + parts + "}";
}

}  // namespace

engine::Report DecoderModel::report() const {
  const auto number = [](int64_t v) { return std::to_string(v); };
  const DecoderConfig& c = config_;
  engine::Forms forms = forms_of(weights_);
  if (encoder_ != nullptr) encoder_->forms(&forms);
  return {
      {"family", engine::json_string(family_)},
      {"device", engine::json_string(runtime_->name())},
      {"precision", engine::json_string(plan_.name)},
      {"invariance", engine::json_string(options_.invariance)},
      {"decode_layers", engine::json_string(launches_.empty() ? "used" : "launches: " + launches_)},
      {"kv_dtype", engine::json_string(name(kv_dtype_))},
      {"kv_scales", kv_scales_ == KvScales::none ? "null" : kv_scales_ == KvScales::used ? "\"used\"" : "\"unread\""},
      {"threads", number(runtime_->threads())},
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
      {"prefill_chunk", number(limits_.prefill_chunk)},
      {"max_in_flight_steps", number(limits_.max_in_flight_steps)},
      {"weight_dtype", engine::json_string(name(weights_.layers.front().o.dtype))},
      {"head_dtype", engine::json_string(name(weights_.head.dtype))},
      {"forms", forms.json()},
      {"stored", stored_of(source_)},
      {"images", images_of(limits_.images)},
      {"activations", engine::json_string(name(plan_.hidden))},
      {"activations_to_e4m3",
       !plan_.eight_in()                     ? "null"
       : plan_.entry == ActQuant::per_token  ? "\"by token\""
       : input_scales_.sites.empty()         ? "\"calibrated\""
                                             : "\"checkpoint\""},
      {"tied", c.tied ? "true" : "false"},
      {"experts", number(c.experts)},
      {"experts_used", number(c.experts_used)},
      {"window", number(c.window)},
      {"recurrent_layers", number(c.recurrent_layers())},
      {"state_bytes", number(c.state_width() * int64_t{sizeof(float)})},
      {"kept_states", number(limits_.states)},
      {"unread_tensors", unread_of(source_.checkpoint(), encoder_ != nullptr, config_.drafts, c.layers,
                                   input_scales_.tensors)},
      {"mtp", number(limits_.mtp)},
      {"guesses", strf("{\"checked\": %ld, \"right\": %ld}", static_cast<long>(guesses_checked_.load()),
                       static_cast<long>(guesses_right_.load()))},
      {"rope_style", engine::json_string(c.rope_style)},
      {"num_kv_blocks", number(limits_.pages)},
      {"streamed_layers", number(static_cast<int64_t>(stream_.layers().size()))},
      {"graphs", number(static_cast<int64_t>(variants_.size()))},
      {"launches", number(static_cast<int64_t>(graph_->executable(variants_.front().key())->launches()))},
      {"gates", number(work_.gates)},
      {"head_parts",
       number(std::max_element(variants_.begin(), variants_.end(),
                               [](const Variant& a, const Variant& b) { return a.head_parts < b.head_parts; })
                  ->head_parts)},
      {"weight_bytes", number(uploader_.bytes() + (encoder_ != nullptr ? encoder_->weight_bytes() : 0))},
      {"arena_bytes", number(arena_.bytes())},
      {"load_s", phases_json()}};
}

std::vector<engine::MemoryLine> DecoderModel::memory() const {
  std::vector<engine::MemoryLine> lines;
  if (uploader_.bytes() > 0) lines.push_back({"weights", uploader_.bytes()});
  else lines.push_back({"weights (mapped)", source_.bytes()});
  if (encoder_ != nullptr) lines.push_back({"weights of the vision tower", encoder_->weight_bytes()});
  if (!stream_.layers().empty()) {
    lines.push_back({"streamed layer", stream_.region_bytes()});
    lines.push_back({"weights of streamed layers (host)", stream_.host_bytes()});
  }
  if (source_.copied_bytes() > 0) lines.push_back({"weights (copied)", source_.copied_bytes()});
  for (engine::MemoryLine& line : arena_.lines()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace vivace::models::decoder
