#include "vivace/models/vla/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/json.h"

namespace vivace::models::vla {
namespace {

namespace fs = std::filesystem;
using engine::Json;
using engine::JsonValue;
using Kind = Scaler::Kind;

constexpr double kOpenpi = 1e-6;  // joins every divisor there
constexpr float kLerobot = 1e-8f; // joins a deviation, and stands for a range of zero
constexpr int kDeepest = 3;       // folders of assets that name a robot
constexpr size_t kMostDims = 4096;
constexpr double kMost = 1e30;  // of a robot's value: what a network makes of it, some tens of them, is far within f32

struct Pair {
  Kind kind;
  const char *name, *low, *high;
};
constexpr Pair kPairs[] = {
    {Kind::identity, "IDENTITY", "", ""},
    {Kind::mean_std, "MEAN_STD", "mean", "std"},
    {Kind::quantiles, "QUANTILES", "q01", "q99"},
    {Kind::min_max, "MIN_MAX", "min", "max"},
};
const Pair& pair_of(Kind kind) {
  return *std::find_if(std::begin(kPairs), std::end(kPairs), [&](const Pair& p) { return p.kind == kind; });
}

/// Finite numbers of equal count, of which every range is one, and by which nothing leaves f32.
Status check(const Scaler& s, const std::string& where) {
  if (s.kind == Kind::identity) return {};
  if (s.low.size() != s.high.size() || s.low.empty() || s.low.size() > kMostDims)
    return Status(Code::kCorruptData, strf("%s: wanted as many of %s as of %s, got %zu and %zu", where.c_str(),
                                           pair_of(s.kind).low, pair_of(s.kind).high, s.low.size(), s.high.size()));
  for (size_t i = 0; i < s.low.size(); ++i) {
    const double range = s.kind == Kind::mean_std ? s.high[i] : s.high[i] - s.low[i];
    if (!std::isfinite(s.low[i]) || !std::isfinite(s.high[i]))
      return Status(Code::kCorruptData, strf("%s: dimension %zu is not finite", where.c_str(), i));
    if (!(range > 0))
      return Status(Code::kInvalidArgument,
                    strf("%s: dimension %zu never moved (%s %g, %s %g): its normalised value means nothing; use "
                         "statistics of data in which it moves, or drop it",
                         where.c_str(), i, pair_of(s.kind).low, s.low[i], pair_of(s.kind).high, s.high[i]));
    if (std::fabs(s.low[i]) > kMost || std::fabs(s.high[i]) > kMost)
      return Status(Code::kCorruptData,
                    strf("%s: dimension %zu has %s %g and %s %g, beyond %g: f32 does not hold what comes of them",
                         where.c_str(), i, pair_of(s.kind).low, s.low[i], pair_of(s.kind).high, s.high[i], kMost));
  }
  return {};
}

Status numbers(const JsonValue& object, const char* key, std::vector<double>* out) {
  VV_ASSIGN(const JsonValue list, object.at(key));
  VV_ASSIGN(const JsonValue array, list.as_array());
  for (const JsonValue v : array) {
    VV_ASSIGN(const double x, v.as_double());
    out->push_back(x);
  }
  return {};
}

Result<Scaler> openpi_scaler(const JsonValue& all, const char* what, bool quantiles, const std::string& file,
                             int64_t padded) {
  Scaler s;
  s.kind = quantiles ? Kind::quantiles : Kind::mean_std;
  bool cut = false;
  VV_ASSIGN(const JsonValue own, all.at(what));
  VV_TRY(numbers(own, pair_of(s.kind).low, &s.low));
  VV_TRY(numbers(own, pair_of(s.kind).high, &s.high));
  while (s.low.size() == s.high.size() && s.low.size() > 1 && s.low.back() == 0 && s.high.back() == 0 &&
         (padded > 0 && (s.size() == padded || cut)))
    s.low.pop_back(), s.high.pop_back(), cut = true;
  VV_TRY(check(s, file + ": " + what));
  return s;
}

Result<Statistics> read_openpi(const fs::path& file, bool quantiles, int64_t state_dim, int64_t action_dim) {
  VV_ASSIGN(const Json json, Json::parse_file(file.string()));
  VV_ASSIGN(const JsonValue all, json.root().at("norm_stats"));
  Statistics s;
  s.source = file.string();
  VV_ASSIGN(s.state, openpi_scaler(all, "state", quantiles, s.source, state_dim));
  VV_ASSIGN(s.actions, openpi_scaler(all, "actions", quantiles, s.source, action_dim));
  return s;
}

/// The step of a processor file that (un)normalises, and its tensors.
Result<Scaler> read_lerobot(const fs::path& folder, const char* processor, const char* registered, const char* feature,
                            const char* map_key) {
  const fs::path file = folder / processor;
  VV_ASSIGN(const Json json, Json::parse_file(file.string()));
  VV_ASSIGN(const JsonValue steps, json.root().at("steps"));
  for (const JsonValue step : steps) {
    VV_ASSIGN(const std::string_view name, step.get_string("registry_name", ""));
    if (name != registered) continue;
    VV_ASSIGN(const JsonValue config, step.at("config"));
    VV_ASSIGN(const JsonValue map, config.at("norm_map"));
    VV_ASSIGN(const std::string_view mode, map.get_string(map_key, "IDENTITY"));
    Scaler s;
    s.flavour = Scaler::Flavour::lerobot;
    const Pair* const found =
        std::find_if(std::begin(kPairs), std::end(kPairs), [&](const Pair& p) { return mode == p.name; });
    if (found == std::end(kPairs))
      return map.error(Code::kUnsupported,
                       std::string(map_key) + ": normalisation '" + std::string(mode) + "' is not served");
    s.kind = found->kind;
    if (s.kind == Kind::identity) return s;
    VV_ASSIGN(const std::string_view state_file, step.get_string("state_file"));
    if (state_file.find('/') != std::string_view::npos)
      return step.error(Code::kCorruptData, "state_file: wanted a file beside this one");
    VV_ASSIGN(const engine::Checkpoint state, engine::Checkpoint::open((folder / state_file).string()));
    const auto read = [&](const char* part, std::vector<double>* out) -> Status {
      VV_ASSIGN(const Tensor t, state.tensor(std::string(feature) + "." + part));
      if (t.dtype != DType::f32 || t.shape.rank != 1)
        return Status(Code::kUnsupported,
                      strf("%s: %s.%s: wanted a vector of f32, got %s %s", std::string(state_file).c_str(), feature,
                           part, vivace::name(t.dtype), to_string(t.shape).c_str()));
      for (int64_t i = 0; i < t.shape[0]; ++i) {
        float v;
        std::memcpy(&v, static_cast<const char*>(t.data) + i * 4, 4);
        out->push_back(static_cast<double>(v));
      }
      return {};
    };
    VV_TRY(read(found->low, &s.low));
    VV_TRY(read(found->high, &s.high));
    VV_TRY(check(s, file.string() + ": " + feature));
    return s;
  }
  return Status(Code::kNotFound, file.string() + ": no step is a " + registered);
}

/// Folders below `assets` that hold a norm_stats.json, by their names relative to it.
std::vector<std::string> robots_below(const fs::path& assets) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator it(assets, error), end; !error && it != end; it.increment(error)) {
    if (it.depth() >= kDeepest) it.disable_recursion_pending();
    if (it->path().filename() == "norm_stats.json")
      found.push_back(fs::relative(it->path().parent_path(), assets, error).string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

float Scaler::normalize(float x, size_t i) const {
  if (kind == Kind::identity) return x;
  const double l = low[i], h = high[i];
  if (flavour == Flavour::openpi) {
    const double v = static_cast<double>(x);
    return static_cast<float>(kind == Kind::mean_std ? (v - l) / (h + kOpenpi)
                                                     : (v - l) / (h - l + kOpenpi) * 2.0 - 1.0);
  }
  const float lf = static_cast<float>(l), hf = static_cast<float>(h);
  if (kind == Kind::mean_std) return (x - lf) / (hf + kLerobot);
  const float range = hf - lf;
  return 2.0f * (x - lf) / (range == 0 ? kLerobot : range) - 1.0f;
}

float Scaler::unnormalize(float x, size_t i) const {
  if (kind == Kind::identity) return x;
  const double l = low[i], h = high[i];
  if (flavour == Flavour::openpi) {
    const double v = static_cast<double>(x);
    return static_cast<float>(kind == Kind::mean_std ? v * (h + kOpenpi) + l : (v + 1.0) / 2.0 * (h - l + kOpenpi) + l);
  }
  const float lf = static_cast<float>(l), hf = static_cast<float>(h);
  if (kind == Kind::mean_std) return x * hf + lf;
  const float range = hf - lf, divisor = range == 0 ? kLerobot : range;
  return kind == Kind::quantiles ? (x + 1.0f) * divisor / 2.0f + lf : (x + 1.0f) / 2.0f * divisor + lf;
}

Result<Statistics> read_statistics(const engine::Checkpoint& checkpoint, const std::string& robot, bool quantiles,
                                   int64_t state_dim, int64_t action_dim) {
  const fs::path folder = fs::path(checkpoint.files().front().path()).parent_path();
  std::error_code error;
  if (fs::exists(folder / "policy_preprocessor.json", error)) {
    Statistics s;
    s.source = (folder / "policy_preprocessor.json").string();
    VV_ASSIGN(s.state,
              read_lerobot(folder, "policy_preprocessor.json", "normalizer_processor", "observation.state", "STATE"));
    VV_ASSIGN(s.actions,
              read_lerobot(folder, "policy_postprocessor.json", "unnormalizer_processor", "action", "ACTION"));
    return s;
  }
  if (robot.empty() && fs::exists(folder / "norm_stats.json", error))
    return read_openpi(folder / "norm_stats.json", quantiles, state_dim, action_dim);
  const std::vector<std::string> robots = robots_below(folder / "assets");
  if (robots.empty())
    return Status(
        Code::kNotFound,
        "statistics: neither norm_stats.json, assets/<robot>/norm_stats.json nor policy_preprocessor.json is in " +
            folder.string() + "; put them there, or load with statistics=\"none\" for normalised actions");
  std::string list;
  for (const std::string& r : robots) list += (list.empty() ? "" : ", ") + r;
  if (robot.empty() ? robots.size() > 1 : std::find(robots.begin(), robots.end(), robot) == robots.end())
    return Status(Code::kInvalidArgument, "robot: wanted one of " + list + ", got '" + robot + "'");
  return read_openpi(folder / "assets" / (robot.empty() ? robots.front() : robot) / "norm_stats.json", quantiles,
                     state_dim, action_dim);
}

}  // namespace vivace::models::vla
