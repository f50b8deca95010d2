#include "vivace/models/vision/encoder.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::models::vision {
namespace {

constexpr int kStagings = 2;              // images whose pixels are on their way
constexpr int64_t kNarrower[] = {16, 4};  // parts of the most patches, for runs over smaller images

}  // namespace

Status ImageEncoder::load_weights(const engine::WeightSource& source, const std::string& at) {
  return VisionLoader(source, options_.act, options_.stored, &uploader_, &own_).load(at, config_, &weights_);
}

void ImageEncoder::declare(engine::Arena& arena) {
  const int64_t M = options_.tokens, P = M * config_.token_patches(), all = rows();
  const DType act = options_.act, i32 = DType::i32;
  arena.declare("image.pixels", DType::u8, Shape(P, config_.patch, config_.patch, 3), &in_.pixels);
  arena.declare("image.line", i32, Shape(P), &in_.line);
  arena.declare("image.column", i32, Shape(P), &in_.column);
  arena.declare("image.number", i32, Shape(P), &in_.image);  // of the one there is: 0
  arena.declare("image.offsets", i32, Shape(2), &in_.image_offsets);
  arena.declare("image.patches", i32, Shape(1), &in_.patches);
  arena.declare("image.tokens", i32, Shape(1), &in_.tokens);
  declare_buffers(arena, config_, P, act, &buffers_);
  arena.declare("image.made", act, Shape(M, config_.out), &tokens_);
  arena.declare("images", act, Shape(all + options_.words, config_.out), &mixed_);
  made_.resize(config_.deepstack.size());
  levels_.resize(made_.size());
  for (size_t i = 0; i < made_.size(); ++i) {
    arena.declare(strf("image.level.%zu", i), act, Shape(M, config_.out), &made_[i]);
    arena.declare(strf("images.level.%zu", i), act, Shape(all + 1, config_.out), &levels_[i]);
  }
}

Status ImageEncoder::commit(engine::Runtime& runtime) {
  VV_TRY(uploader_.commit(runtime));
  own_.clear();
  VV_TRY(fill_constants(runtime, config_, buffers_));
  const int64_t P = in_.line.shape[0];
  staging_.resize(kStagings);
  for (Staging& s : staging_) {
    VV_ASSIGN(s.buffer, runtime.reserve_shared("image", static_cast<size_t>(in_.pixels.span_bytes() + 8 * P + 16)));
    VV_ASSIGN(s.copied, runtime.backend().make_event());
    VV_TRY(runtime.stream().record(*s.copied));
  }
  VV_ASSIGN(positions_.buffer,
            runtime.reserve_shared("positions", static_cast<size_t>(buffers_.positions.span_bytes())));
  VV_ASSIGN(positions_.copied, runtime.backend().make_event());
  VV_TRY(runtime.stream().record(*positions_.copied));
  // The host's ops do no work for rows that are not there.
  if (runtime.place() != Place::host)
    for (const int64_t part : kNarrower)
      if (const int64_t n = P / part / config_.token_patches() * config_.token_patches(); n > 0) bounds_.push_back(n);
  bounds_.push_back(P);
  graph_ = std::make_unique<exec::Graph>("image", bounds_.size());
  exec::Stream& stream = runtime.stream();
  for (const int64_t n : bounds_) {
    // A dry run without patches sizes every scratch area and loads every kernel, which a capture must not do.
    VV_TRY(record(stream, n));
    VV_TRY(stream.synchronize());
    VV_TRY(graph_->capture(key(n), stream, [&](exec::Stream& s) { return record(s, n); }));
    VV_TRY(graph_->pin(key(n)));
  }
  return {};
}

Status ImageEncoder::record(exec::Stream& stream, int64_t patches) const {
  ops::Recorder rec(stream, ops::Weights::constant);
  const int64_t tokens = patches / config_.token_patches();
  VisionInputs in = in_;
  for (Tensor* t : {&in.pixels, &in.line, &in.column, &in.image}) *t = top(*t, patches);
  VisionBuffers b = buffers_;
  for (Tensor* t : {&b.patches, &b.positions, &b.stack.hidden, &b.stack.normed, &b.stack.qkv, &b.stack.q, &b.stack.k,
                    &b.stack.v, &b.stack.attended, &b.stack.inner})
    *t = top(*t, patches);
  std::vector<Tensor> levels;
  for (const Tensor& t : made_) levels.push_back(top(t, tokens));
  const Show show;
  return record_vision(rec, {config_, weights_, b, show}, in, top(tokens_, tokens), levels);
}

Status ImageEncoder::place_positions(engine::Runtime& runtime, const Grid& grid) {
  if (grid == placed_) return {};
  VV_TRY(positions_.copied->synchronize());
  placed_ = {};
  char* const begin = static_cast<char*>(positions_.buffer.data());
  const char* const end = write_positions(grid, config_, weights_.positions, options_.act, begin);
  VV_TRY(runtime.stream().copy(buffers_.positions.data, begin, static_cast<size_t>(end - begin)));
  VV_TRY(runtime.stream().record(*positions_.copied));
  placed_ = grid;
  return {};
}

Status ImageEncoder::see(engine::Runtime& runtime, int place, const engine::Image& image) {
  const int64_t side = config_.token_side();
  if (place < 0 || place >= options_.places)
    return Status(Code::kInvalidArgument, strf("see: place %d is outside [0, %d)", place, options_.places));
  if (image.data == nullptr || image.height < 1 || image.width < 1 || image.height % side != 0 ||
      image.width % side != 0 || image.height / side * (image.width / side) > options_.tokens)
    return Status(Code::kInvalidShape,
                  strf("see: an image has sides that are multiples of %ld pixels, at most %ld tokens of %ld x %ld in "
                       "all; got %d x %d",
                       static_cast<long>(side), static_cast<long>(options_.tokens), static_cast<long>(side),
                       static_cast<long>(side), image.height, image.width));
  const Pixels pixels{image.data, image.height, image.width, int64_t{image.width} * 3, 0};
  const Grid grid = grid_of(pixels, config_);
  const int64_t P = grid.patches(), tokens = P / config_.token_patches();
  exec::Stream& stream = runtime.stream();
  Staging& s = staging_[next_];
  next_ = (next_ + 1) % staging_.size();
  VV_TRY(s.copied->synchronize());
  auto* const u8 = static_cast<uint8_t*>(s.buffer.data());
  auto* const line = reinterpret_cast<int32_t*>(u8 + in_.pixels.span_bytes());
  int32_t *const column = line + in_.line.shape[0], *const counts = column + in_.line.shape[0];
  write_patches(pixels, config_, u8, line, column);
  counts[0] = 0, counts[1] = counts[2] = static_cast<int32_t>(P), counts[3] = static_cast<int32_t>(tokens);
  const auto bytes = [](int64_t n) { return static_cast<size_t>(n); };
  VV_TRY(stream.copy(in_.pixels.data, u8, bytes(P * config_.patch_values())));
  VV_TRY(stream.copy(in_.line.data, line, bytes(4 * P)));
  VV_TRY(stream.copy(in_.column.data, column, bytes(4 * P)));
  VV_TRY(stream.copy(in_.image_offsets.data, counts, 8));
  VV_TRY(stream.copy(in_.patches.data, counts + 2, 4));
  VV_TRY(stream.copy(in_.tokens.data, counts + 3, 4));
  VV_TRY(stream.record(*s.copied));
  VV_TRY(place_positions(runtime, grid));
  const int64_t bound = *std::find_if(bounds_.begin(), bounds_.end(), [&](int64_t n) { return n >= P; });
  VV_TRY(options_.eager ? record(stream, bound) : graph_->replay(key(bound), stream));
  const auto keep = [&](const Tensor& made, const Tensor& all) {
    const Tensor from = top(made, tokens);
    return stream.copy(slice(all, place * options_.tokens, tokens).data, from.data,
                       static_cast<size_t>(from.span_bytes()));
  };
  VV_TRY(keep(tokens_, mixed_));
  for (size_t i = 0; i < made_.size(); ++i) VV_TRY(keep(made_[i], levels_[i]));
  return {};
}

}  // namespace vivace::models::vision
