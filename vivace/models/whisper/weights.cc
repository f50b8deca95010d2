#include "vivace/models/whisper/weights.h"

#include "vivace/base/check.h"
#include "vivace/models/layer/precision_plan.h"

namespace vivace::models::whisper {
namespace {

using engine::WeightUploader;
using engine::WeightRule;
using engine::WeightSource;

constexpr PrecisionPlan kPlans[] = {
    {"f32", DType::f32, DType::f32, true, "f32"},
    {"bf16", DType::bf16, DType::bf16, false, "f32"},
    {"f16", DType::f16, DType::f16, false, "f32"},
    {"w8a16", DType::bf16, DType::e4m3, false, "f32"},      // e4m3 weights of a step, with a scale a row
    {"fp8", DType::bf16, DType::e4m3, false, "f32", true},  // e4m3 in all products but the convolutions', bf16 between
    {"fp8_static", DType::bf16, DType::e4m3, false, "f32", true, true},
    {"q8", DType::f32, DType::q8_0, false, "q8"},       // int8 weights in blocks of 32 meet activations as int8
};

/// What a layout calls its tensors.
struct Names {
  const char *encoder, *decoder, *layers, *positions, *embed, *encoder_norm, *decoder_norm;
  const char *self, *self_norm, *cross, *cross_norm, *up, *down, *mlp_norm;  // of a layer
  const char *q, *k, *v, *o;                                                 // of an attention
};
constexpr Names kHub{
    "model.encoder.", "model.decoder.", "layers.", "embed_positions.weight", "embed_tokens.weight", "layer_norm",
    "layer_norm", "self_attn", "self_attn_layer_norm", "encoder_attn", "encoder_attn_layer_norm", "fc1", "fc2",
    "final_layer_norm", ".q_proj", ".k_proj", ".v_proj", ".out_proj"};
constexpr Names kOpenai{
    "encoder.", "decoder.", "blocks.", "positional_embedding", "token_embedding.weight", "ln_post",
    "ln", "attn", "attn_ln", "cross_attn", "cross_attn_ln", "mlp.0", "mlp.2",
    "mlp_ln", ".query", ".key", ".value", ".out"};
/// OpenAI's where its first tensor is there.
const Names& names_of(const engine::Checkpoint& checkpoint) {
  return checkpoint.find(kOpenai.encoder + std::string("conv1.weight")) != nullptr ? kOpenai : kHub;
}

class Loader {
 public:
  Loader(const WeightSource& source, const WhisperConfig& config, const PrecisionPlan& plan, WeightUploader* uploader,
         std::vector<std::unique_ptr<std::byte[]>>* own, bool one_launch)
      : source_(source), c_(config), plan_(plan), uploader_(uploader), own_(own), one_launch_(one_launch) {}

  Status all(WhisperWeights* w) {
    const int64_t H = c_.width;
    const std::string enc = names_.encoder, dec = names_.decoder;
    VV_TRY(convolution(enc + "conv1", c_.mels, &w->conv1));
    VV_TRY(convolution(enc + "conv2", H, &w->conv2));
    VV_TRY(table(enc + names_.positions, Shape(c_.source, H), &w->sinusoids));
    of_windows_ = true;
    w->encoder.resize(static_cast<size_t>(c_.encoder.layers));
    for (size_t i = 0; i < w->encoder.size(); ++i) {
      EncoderLayer& l = w->encoder[i];
      const std::string at = enc + names_.layers + std::to_string(i) + ".";
      VV_TRY(attention(at + names_.self, &l.qkv, &l.o));
      VV_TRY(norm(at + names_.self_norm, &l.attn_norm));
      VV_TRY(mlp(at, c_.encoder.mlp, &l.up, &l.down));
      VV_TRY(norm(at + names_.mlp_norm, &l.mlp_norm));
    }
    VV_TRY(norm(enc + names_.encoder_norm, &w->encoder_norm));
    of_windows_ = false;
    w->decoder.resize(static_cast<size_t>(c_.decoder.layers));
    for (size_t i = 0; i < w->decoder.size(); ++i) {
      DecoderLayer& l = w->decoder[i];
      const std::string at = dec + names_.layers + std::to_string(i) + ".", cross = at + names_.cross;
      VV_TRY(attention(at + names_.self, &l.qkv, &l.o));
      VV_TRY(norm(at + names_.self_norm, &l.attn_norm));
      VV_TRY(linear(cross + names_.q, H, H, true, &l.cross_q));
      of_windows_ = true;
      VV_TRY(linear(cross + names_.k, H, H, false, &l.cross_k));
      VV_TRY(linear(cross + names_.v, H, H, true, &l.cross_v));
      of_windows_ = false;
      VV_TRY(linear(cross + names_.o, H, H, true, &l.cross_o));
      VV_TRY(norm(at + names_.cross_norm, &l.cross_norm));
      VV_TRY(mlp(at, c_.decoder.mlp, &l.up, &l.down));
      VV_TRY(norm(at + names_.mlp_norm, &l.mlp_norm));
      if (one_launch_) join(&l);
    }
    VV_TRY(norm(dec + names_.decoder_norm, &w->decoder_norm));
    VV_TRY(table(dec + names_.positions, Shape(c_.positions, H), &w->positions));
    return embedding(dec + names_.embed, w);
  }

 private:
  Result<Tensor> get(const std::string& name, const Shape& shape) const {
    return source_.get(WeightRule{"", name.c_str(), shape});
  }

  Status norm(const std::string& name, Norm* to) {
    VV_ASSIGN(to->weight, get(name + ".weight", Shape(c_.width)));
    VV_ASSIGN(to->bias, get(name + ".bias", Shape(c_.width)));
    uploader_->add(&to->weight, to->weight.dtype);
    uploader_->add(&to->bias, to->weight.dtype, true);
    return {};
  }
  /// Block formats take rows of whole blocks.
  DType matrix_dtype(const Tensor& t) const {
    if (plan_.matrix == DType::e4m3) return plan_.hidden;  // where eight() says no
    return plan_.stored                                                           ? t.dtype
           : is_block(plan_.matrix) && t.shape[1] % info(plan_.matrix).block != 0 ? plan_.hidden
                                                                                  : plan_.matrix;
  }
  /// A step reads weights for a few rows, and fewer bytes are quicker; 1,500 rows of a window are held back by the
  /// products themselves, which dequantizing on the way does not make quicker, and e4m3 rows do.
  bool eight() const { return plan_.matrix == DType::e4m3 && (plan_.eight || !of_windows_); }
  DType vector_dtype(const Tensor& t) const {
    return plan_.stored || info(plan_.hidden).bytes == 4 ? t.dtype : plan_.hidden;
  }

  Status linear(const std::string& name, int64_t N, int64_t K, bool bias, Linear* to) {
    VV_ASSIGN(to->w, get(name + ".weight", Shape(N, K)));
    if (eight())
      uploader_->quantize({&to->w}, &to->w, &to->scale.row);
    else uploader_->add(&to->w, matrix_dtype(to->w));
    if (!bias) return {};
    VV_ASSIGN(to->bias, get(name + ".bias", Shape(N)));
    uploader_->add(&to->bias, vector_dtype(to->bias), true);
    return {};
  }
  /// Queries, keys and values as one product. Keys have no bias.
  Status attention(const std::string& name, Linear* qkv, Linear* o) {
    const int64_t H = c_.width;
    const char* const parts[] = {names_.q, names_.k, names_.v};
    for (int i = 0; i < 3; ++i) {
      VV_ASSIGN(qkv->parts[i], get(name + parts[i] + ".weight", Shape(H, H)));
      if (i == 1) continue;
      VV_ASSIGN(qkv->part_bias[i], get(name + parts[i] + ".bias", Shape(H)));
    }
    qkv->part_bias[1] = tensor(nullptr, qkv->part_bias[0].dtype, Shape(H));
    if (!source_.synthetic()) {
      own_->push_back(std::make_unique<std::byte[]>(static_cast<size_t>(qkv->part_bias[1].span_bytes())));  // zeros
      qkv->part_bias[1].data = own_->back().get();
    }
    Tensor *const w = qkv->parts, *const b = qkv->part_bias;
    if (eight())
      uploader_->quantize({w, w + 1, w + 2}, &qkv->w, &qkv->scale.row);
    else uploader_->join({w, w + 1, w + 2}, &qkv->w, matrix_dtype(*w));
    uploader_->join({b, b + 1, b + 2}, &qkv->bias, vector_dtype(*b), WeightUploader::Rows::after, true);
    return linear(name + names_.o, H, H, true, o);
  }
  /// Copies of what is small, side by side; what launches read stays as it is.
  void join(DecoderLayer* l) {
    auto& to = l->one_launch;
    const Norm* const norms[] = {&l->attn_norm, &l->cross_norm, &l->mlp_norm};
    for (int i = 0; i < 3; ++i) to.weight[i] = norms[i]->weight, to.bias[i] = norms[i]->bias;
    const Tensor* const added[] = {l->qkv.part_bias, l->qkv.part_bias + 1, l->qkv.part_bias + 2, &l->o.bias,
                                   &l->cross_q.bias, &l->cross_o.bias,     &l->up.bias,          &l->down.bias};
    for (int i = 0; i < 8; ++i) to.added[i] = *added[i];
    Tensor *const w = to.weight, *const b = to.bias, *const a = to.added;
    constexpr auto after = WeightUploader::Rows::after;
    uploader_->join({w, w + 1, w + 2}, &to.norms, DType::f32);
    uploader_->join({b, b + 1, b + 2}, &to.norm_biases, DType::f32, after, true);
    uploader_->join({a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7}, &to.biases, DType::bf16, after, true);
  }
  Status mlp(const std::string& at, int64_t inner, Linear* up, Linear* down) {
    VV_TRY(linear(at + names_.up, inner, c_.width, true, up));
    return linear(at + names_.down, c_.width, inner, true, down);
  }
  /// [H, C, 3] as a product takes it: rows of C * 3.
  Status convolution(const std::string& name, int64_t C, Linear* to) {
    VV_ASSIGN(const Tensor kernel, get(name + ".weight", Shape(c_.width, C, 3)));
    to->w = tensor(kernel.data, kernel.dtype, Shape(c_.width, C * 3));
    uploader_->add(&to->w, plan_.stored ? kernel.dtype : plan_.hidden);
    VV_ASSIGN(to->bias, get(name + ".bias", Shape(c_.width)));
    uploader_->add(&to->bias, vector_dtype(to->bias), true);
    return {};
  }
  Status table(const std::string& name, const Shape& shape, Tensor* to) {
    VV_ASSIGN(*to, get(name, shape));
    uploader_->add(to, plan_.hidden);
    return {};
  }
  /// The tokens' table, whose rows are looked up as they are, and the head: the same where it is tied, or its twin in
  /// blocks.
  Status embedding(const std::string& name, WhisperWeights* w) {
    const Shape shape(c_.vocab, c_.width);
    Tensor table;
    VV_ASSIGN(table, get(name, shape));
    if (!c_.tied) {
      VV_ASSIGN(w->head, get("proj_out.weight", shape));
    } else if (eight() || is_block(matrix_dtype(table))) {
      w->head = table;
    }
    if (w->head.present() && eight()) uploader_->quantize({&w->head}, &w->head, &w->head_scale);
    else if (w->head.present()) uploader_->add(&w->head, matrix_dtype(w->head));
    if (c_.tied && w->head.present() && !eight()) return {};
    w->embed = table;
    uploader_->add(&w->embed, plan_.stored ? table.dtype : plan_.hidden);
    return {};
  }

  const WeightSource& source_;
  const WhisperConfig& c_;
  const PrecisionPlan& plan_;
  const Names& names_ = names_of(source_.checkpoint());
  bool of_windows_ = false;  // the matrices that are read next meet windows of sound
  WeightUploader* uploader_;
  std::vector<std::unique_ptr<std::byte[]>>* own_;
  bool one_launch_;
};

}  // namespace

Result<PrecisionPlan> pick_plan(const std::string& precision, Place place) {
  return models::pick_plan(kPlans, precision, place);
}

Status load_weights(const WeightSource& source, const WhisperConfig& config, const PrecisionPlan& plan,
                    WeightUploader* uploader, std::vector<std::unique_ptr<std::byte[]>>* own, bool one_launch,
                    WhisperWeights* weights) {
  return Loader(source, config, plan, uploader, own, one_launch).all(weights);
}

engine::Forms forms_of(const WhisperWeights& w) {
  engine::Forms forms;
  forms.add("convolutions", w.conv1.w);
  for (const EncoderLayer& l : w.encoder)
    for (const auto& [product, m] : {std::pair{"qkv", &l.qkv}, {"o", &l.o}, {"up", &l.up}, {"down", &l.down}})
      forms.add("encoder", product, m->w);
  for (const DecoderLayer& l : w.decoder)
    for (const auto& [product, m] : {std::pair{"qkv", &l.qkv},
                                     {"o", &l.o},
                                     {"cross_q", &l.cross_q},
                                     {"cross_k", &l.cross_k},
                                     {"cross_v", &l.cross_v},
                                     {"cross_o", &l.cross_o},
                                     {"up", &l.up},
                                     {"down", &l.down}})
      forms.add("decoder", product, m->w);
  forms.add("embedding", w.table());
  forms.add("head", w.projection());
  return forms;
}

}  // namespace vivace::models::whisper
