// Steps of one row as one launch of all layers: when, and what decode_layers_cross takes of the model.
#include "vivace/base/check.h"
#include "vivace/models/layer/stacked.h"
#include "vivace/models/whisper/whisper_model.h"
#include "vivace/ops/decode_layers_cross.h"

namespace vivace::models::whisper {

Status WhisperModel::decode_by_launches(const Status& why) {
  launches_ = why.message();
  return options_.decode_layers == "on" ? Status(why.code(), "decode_layers on: " + launches_) : Status();
}

Status WhisperModel::check_decode_layers() {
  constexpr int64_t kHead = ops::defs::decode_layers_cross::Args::D;
  const std::string& wanted = options_.decode_layers;
  if (wanted != "auto" && wanted != "on" && wanted != "off")
    return Status(Code::kInvalidArgument, "decode_layers: wanted auto, on or off, got '" + wanted + "'");
  const auto launches = [&](const std::string& why) { return decode_by_launches(Status(Code::kUnsupported, why)); };
  if (wanted == "off") return launches("off");
  if (limits_.rows != 1) return launches(strf("rows is %d", limits_.rows));
  if (options_.gates.gate != nullptr) return launches("a scheduler's gates stand between launches");
  if (plan_.hidden != DType::bf16 || plan_.matrix != DType::bf16)
    return launches(strf("precision %s: weights and activations are not bf16", plan_.name));
  if (const int64_t head = config_.head_dim(config_.decoder); head != kHead)
    return launches(strf("heads of %ld, wanted %ld", static_cast<long>(head), static_cast<long>(kHead)));
  if (wanted == "auto" && !ops::decode_layers_cross.has_kernel(runtime_->arch()))
    return launches("no kernel for this device");
  return {};
}

Result<CrossStacks> WhisperModel::stack_layers() const {
  CrossStacks s;
  const auto all = [&](auto&& part) {
    std::vector<const Tensor*> of;
    for (const DecoderLayer& l : weights_.decoder) of.push_back(part(l));
    return of;
  };
  VV_ASSIGN(s.norms, stacked("norms", all([](const DecoderLayer& l) { return &l.one_launch.norms; })));
  VV_ASSIGN(s.norm_biases, stacked("norms", all([](const DecoderLayer& l) { return &l.one_launch.norm_biases; })));
  VV_ASSIGN(s.biases, stacked("biases", all([](const DecoderLayer& l) { return &l.one_launch.biases; })));
  for (const auto& [name, matrix, to] : {std::tuple{"qkv", &DecoderLayer::qkv, &s.qkv},
                                         {"o", &DecoderLayer::o, &s.o},
                                         {"cross_q", &DecoderLayer::cross_q, &s.cross_q},
                                         {"cross_o", &DecoderLayer::cross_o, &s.cross_o},
                                         {"up", &DecoderLayer::up, &s.up},
                                         {"down", &DecoderLayer::down, &s.down}}) {
    const auto m = matrix;
    VV_ASSIGN(*to, stacked(name, all([&](const DecoderLayer& l) { return &(l.*m).w; })));
  }
  const WhisperBuffers& b = buffers_;
  for (const auto& [name, from, to] : {std::tuple{"k_cache", &b.k_cache, &s.k_cache},
                                       {"v_cache", &b.v_cache, &s.v_cache},
                                       {"cross_k", &b.cross_k, &s.cross_k},
                                       {"cross_v", &b.cross_v, &s.cross_v},
                                       {"cross_q", &b.text.cross_q, &s.queries}}) {
    std::vector<const Tensor*> of;
    for (const Tensor& t : *from) of.push_back(&t);
    VV_ASSIGN(*to, stacked(name, of));
  }
  s.queries.shape.dim[1] = 1;  // of a step's first row
  return s;
}

Status WhisperModel::open_decode_layers() {
  if (!launches_.empty()) return {};
  Result<CrossStacks> stacks = stack_layers();
  if (!stacks.ok()) return decode_by_launches(stacks.status());
  stacks_ = std::move(stacks).value();
  // A step without a row loads the kernel, or says why there is none.
  *text_in_.host<int32_t>(text_.rows) = *text_in_.host<int32_t>(text_.samples) = 0;
  Status s = record_step(runtime_->stream(), 1);
  return s.code() == Code::kUnsupported ? decode_by_launches(s) : s;
}

}  // namespace vivace::models::whisper
