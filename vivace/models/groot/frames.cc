#include "vivace/models/groot/frames.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "vivace/base/check.h"
#include "vivace/models/layer/config_values.h"

namespace vivace::models::groot {
namespace {

using engine::Json;
using engine::JsonValue;
using Kind = FrameRules::Kind;
using Size = FrameScaler::Size;

constexpr const char* kNames[] = {"none", "area", "bicubic", "bilinear"};
constexpr int64_t kWorking = 16;  // times the pixels of the result that a step of the way may have

/// Python's round(): halves go to the even neighbour.
int64_t rounded(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

/// The size whose shorter side is `edge`.
Size shortest(const Size& s, int64_t edge) {
  const int64_t least = std::min(s.height, s.width);
  if (least == edge) return s;
  const double scale = static_cast<double>(edge) / static_cast<double>(least);
  return {std::max<int64_t>(rounded(static_cast<double>(s.height) * scale), 1),
          std::max<int64_t>(rounded(static_cast<double>(s.width) * scale), 1)};
}

Status read_sides(const JsonValue& options, const char* key, Size* out) {
  const auto list = options.find(key);
  if (!list.has_value() || list->is_null()) return {};
  if (!list->is_array() || list->size() != 2) return list->error(Code::kCorruptData, "wanted [height, width]");
  int64_t* to = &out->height;
  for (const JsonValue v : *list) {
    VV_ASSIGN(*to, v.as_int());
    if (*to < 1 || *to > kMostSide)
      return v.error(Code::kCorruptData, strf("wanted 1 to %ld pixels, got %ld", static_cast<long>(kMostSide),
                                              static_cast<long>(*to)));
    to = &out->width;
  }
  return {};
}

Status read_geometry(const JsonValue& options, Kind wanted, bool n16, FrameRules* r) {
  Size target, crop;
  VV_TRY(read_sides(options, "image_target_size", &target));
  VV_TRY(read_sides(options, "image_crop_size", &crop));
  if (const auto edge = options.find("shortest_image_edge"); edge.has_value() && !edge->is_null())
    VV_TRY(read_count(options, "shortest_image_edge", &r->edge, kMostSide));
  if (r->edge == 0) r->edge = target.height;
  VV_ASSIGN(r->letterbox, options.get_bool("letter_box_transform", false));
  VV_ASSIGN(const bool albumentations, options.get_bool("use_albumentations", false));
  const Kind kind = wanted != Kind::none ? wanted
                    : albumentations     ? Kind::area
                                         : (n16 ? Kind::bilinear : Kind::bicubic);
  if (kind == Kind::area ? r->edge == 0 : target.height == 0) return {};  // it says no sizes
  r->height = target.height, r->width = target.width;
  if (const auto share = options.find("crop_fraction"); share.has_value() && !share->is_null()) {
    VV_ASSIGN(r->crop, share->as_double());
    if (!(r->crop > 0 && r->crop <= 1)) return share->error(Code::kCorruptData, "wanted a share in (0, 1]");
  } else if (crop.height > 0 && target.height > 0) {
    r->crop = std::min(static_cast<double>(crop.height) / static_cast<double>(target.height), 1.0);
  }
  r->crop_height = crop.height > 0 ? crop.height : target.height;
  r->crop_width = crop.width > 0 ? crop.width : target.width;
  if (kind == Kind::bilinear && (r->crop_height > target.height || r->crop_width > target.width))
    return options.error(Code::kCorruptData, "image_crop_size is beyond image_target_size");
  r->kind = kind;
  return {};
}

}  // namespace

int64_t nearest_multiple(int64_t pixels, int64_t side) {
  const int64_t n = pixels / side, over = 2 * (pixels % side);
  return std::max<int64_t>(n + (over > side || (over == side && n % 2 == 1)), 1) * side;
}

const char* name(Kind kind) { return kNames[static_cast<size_t>(kind)]; }

Result<FrameRules> read_frame_rules(const engine::Checkpoint& checkpoint, const GrootConfig& config,
                                    const std::string& resize) {
  FrameRules r;
  r.side = config.vision.token_side();
  r.least = config.n16 ? 4 * r.side * r.side : 256 * 256;
  if (resize == "none") return r;
  const auto* const known = std::find(std::begin(kNames) + 1, std::end(kNames), resize);
  const bool find = resize == "auto";
  if (!find && known == std::end(kNames))
    return Status(Code::kInvalidArgument, std::string("resize: ") + config.family() +
                                              " has auto, none, area, bicubic and bilinear, got '" + resize + "'");
  const Kind wanted = find ? Kind::none : static_cast<Kind>(known - std::begin(kNames));
  const std::filesystem::path file =
      std::filesystem::path(checkpoint.files().front().path()).parent_path() / "processor_config.json";
  std::error_code error;
  if (std::filesystem::exists(file, error)) {
    VV_ASSIGN(const Json json, Json::parse_file(file.string()));
    if (const auto options = json.root().find("processor_kwargs"); options.has_value() && options->is_object())
      VV_TRY(read_geometry(*options, wanted, config.n16, &r));
  }
  if (!find && r.kind == Kind::none)
    return Status(Code::kNotFound, "resize: " + resize + " needs image_target_size" +
                                       (wanted == Kind::area ? " or shortest_image_edge" : "") +
                                       " of processor_kwargs in " + file.string() +
                                       "; load with resize=\"none\" for frames of the network's own size");
  return r;
}

vision::Filter FrameScaler::filter() const {
  return rules_.kind == Kind::area      ? vision::Filter::area
         : rules_.kind == Kind::bicubic ? vision::Filter::smooth_bicubic
                                        : vision::Filter::bilinear;
}

FrameScaler::Way FrameScaler::way(int64_t height, int64_t width) const {
  const FrameRules& r = rules_;
  Way w;
  w.square = {height, width};
  if (r.letterbox) w.square.height = w.square.width = std::max(height, width);
  const auto share = [&](int64_t side, bool whole) {
    const double part = static_cast<double>(side) * r.crop;
    return std::max<int64_t>(whole ? static_cast<int64_t>(part) : rounded(part), 1);
  };
  if (r.kind == Kind::area) {
    w.first = shortest(w.square, r.edge);
    w.crop = {share(w.first.height, true), share(w.first.width, true)};
    w.second = shortest(w.crop, r.edge);
  } else {
    w.second = {r.height, r.width};
    w.first = r.kind == Kind::bicubic ? Size{r.edge, r.edge} : w.second;
    w.crop = r.kind == Kind::bicubic ? Size{share(r.edge, false), share(r.edge, false)}
                                     : Size{r.crop_height, r.crop_width};
  }
  w.top = (w.first.height - w.crop.height) / 2, w.left = (w.first.width - w.crop.width) / 2;
  if (r.kind == Kind::bilinear) {
    w.top = rounded(static_cast<double>(w.first.height - w.crop.height) / 2);
    w.left = rounded(static_cast<double>(w.first.width - w.crop.width) / 2);
  }
  // The language model's own processor comes last.
  w.last = {nearest_multiple(w.second.height, r.side), nearest_multiple(w.second.width, r.side)};
  if (w.last.height * w.last.width < r.least) {
    const double grow = std::sqrt(static_cast<double>(r.least) /
                                  (static_cast<double>(w.second.height) * static_cast<double>(w.second.width)));
    const auto up = [&](int64_t side) {
      return static_cast<int64_t>(std::ceil(static_cast<double>(side) * grow / static_cast<double>(r.side))) * r.side;
    };
    w.last = {up(w.second.height), up(w.second.width)};
  }
  return w;
}

std::optional<Size> FrameScaler::size(int64_t height, int64_t width, int64_t most) const {
  const Way w = way(height, width);
  for (const Size& s : {w.first, w.crop, w.second})
    if (s.height > kWorking * most / s.width) return std::nullopt;
  if (w.last.height > most / w.last.width) return std::nullopt;
  return w.last;
}

vision::Pixels FrameScaler::scale(const vision::Pixels& from) {
  const Way w = way(from.height, from.width);
  const auto dense = [](std::vector<uint8_t>* v, const Size& s) -> vision::Pixels {
    const auto bytes = static_cast<size_t>(s.height * s.width * 3);
    if (v->size() < bytes) v->resize(bytes);
    return {v->data(), s.height, s.width, s.width * 3, 0};
  };
  vision::Pixels at = from;
  if (from.plane != 0 || from.height != w.square.height || from.width != w.square.width) {
    at = dense(&square_, w.square);
    std::fill_n(square_.begin(), at.height * at.stride, uint8_t{0});
    uint8_t* const corner = square_.data() + (w.square.height - from.height) / 2 * at.stride +
                            (w.square.width - from.width) / 2 * 3;
    for (int64_t y = 0; y < from.height; ++y) {
      const uint8_t* const line = from.data + y * from.stride;
      uint8_t* const to = corner + y * at.stride;
      if (from.plane == 0) std::memcpy(to, line, static_cast<size_t>(from.width * 3));
      else
        for (int64_t x = 0; x < from.width; ++x)
          for (int64_t c = 0; c < 3; ++c) to[3 * x + c] = line[c * from.plane + x];
    }
  }
  const auto step = [&](std::vector<uint8_t>* v, const Size& s, vision::Filter by) {
    if (at.height == s.height && at.width == s.width) return;
    const vision::Pixels to = dense(v, s);
    resizer_.run(at, s.height, s.width, by, v->data());
    at = to;
  };
  step(&first_, w.first, filter());
  at.data += w.top * at.stride + w.left * 3;
  at.height = w.crop.height, at.width = w.crop.width;
  step(&second_, w.second, filter());
  step(&last_, w.last, vision::Filter::bicubic);
  return at;
}

}  // namespace vivace::models::groot
