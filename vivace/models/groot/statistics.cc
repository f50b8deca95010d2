#include "vivace/models/groot/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/json.h"

namespace vivace::models::groot {
namespace {

namespace fs = std::filesystem;
using engine::Json;
using engine::JsonValue;

constexpr int64_t kMostDims = 4096, kMostRows = 1024;
constexpr double kMost = 1e30;  // of a robot's value: what a network makes of it is far within f32

fs::path folder_of(const engine::Checkpoint& checkpoint) {
  return fs::path(checkpoint.files().front().path()).parent_path();
}

std::string lower(std::string_view s) {
  std::string out(s);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

/// The number of a name; null where there is no file of names.
Result<std::optional<int>> number_of(const fs::path& folder, const std::string& tag) {
  const fs::path file = folder / "embodiment_id.json";
  std::error_code error;
  if (!fs::exists(file, error)) return std::optional<int>();
  VV_ASSIGN(const Json json, Json::parse_file(file.string()));
  std::string list;
  for (const JsonValue v : json.root()) {
    if (v.key() != tag) {
      list += (list.empty() ? "" : ", ") + std::string(v.key());
      continue;
    }
    VV_ASSIGN(const int64_t id, v.as_int());
    if (id < 0 || id > kMostDims)
      return v.error(Code::kCorruptData, strf("wanted a number from 0 on, got %ld", static_cast<long>(id)));
    return std::optional<int>(static_cast<int>(id));
  }
  return Status(Code::kInvalidArgument, "embodiment: '" + tag + "' is none of " + list);
}

/// A vector, or a row of it for each action of a chunk.
Status numbers(const JsonValue& value, int64_t* dims, std::vector<float>* out) {
  VV_ASSIGN(const JsonValue array, value.as_array());
  const auto read = [&](const JsonValue& list) -> Status {
    if (*dims == 0) *dims = static_cast<int64_t>(list.size());
    if (static_cast<int64_t>(list.size()) != *dims || *dims < 1 || *dims > kMostDims)
      return list.error(Code::kCorruptData, strf("wanted %ld numbers, got %zu", static_cast<long>(*dims), list.size()));
    for (const JsonValue v : list) {
      VV_ASSIGN(const double x, v.as_double());
      if (!(std::fabs(x) <= kMost))
        return v.error(Code::kCorruptData, strf("beyond %g: f32 does not hold what comes of it", kMost));
      out->push_back(static_cast<float>(x));
    }
    return {};
  };
  if (array.size() == 0 || !(*array.begin()).is_array()) return read(array);
  if (static_cast<int64_t>(array.size()) > kMostRows) return array.error(Code::kCorruptData, "too many rows");
  for (const JsonValue v : array) {
    VV_ASSIGN(const JsonValue list, v.as_array());
    VV_TRY(read(list));
  }
  return {};
}

/// A group's range beside those before it.
Status join(Range* all, const Range& group, const JsonValue& where) {
  const int64_t rows = std::max<int64_t>({all->rows(), group.rows(), 1}), dims = all->dims + group.dims;
  if ((all->dims > 0 && all->rows() != 1 && all->rows() != rows) || (group.rows() != 1 && group.rows() != rows))
    return where.error(Code::kCorruptData, "its rows are as many as no other group's");
  Range joined{dims, {}, {}, all->deviation};
  joined.deviation.insert(joined.deviation.end(), group.deviation.begin(), group.deviation.end());
  for (int64_t r = 0; r < rows; ++r)
    for (const Range* part : {static_cast<const Range*>(all), &group})
      for (int64_t d = 0; d < part->dims; ++d) {
        const auto at = static_cast<size_t>((part->rows() == 1 ? 0 : r) * part->dims + d);
        joined.low.push_back(part->low[at]);
        joined.high.push_back(part->high[at]);
      }
  *all = std::move(joined);
  return {};
}

/// The three rows of a rotation of which two are given, roughly.
std::array<double, 9> rotation(const float* two) {
  std::array<double, 9> m{};
  std::copy_n(two, 6, m.begin());
  double *const a = m.data(), *const b = a + 3, *const c = a + 6;
  const auto dot = [](const double* x, const double* y) { return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]; };
  const auto unit = [&](double* x) {
    const double n = std::sqrt(dot(x, x));
    for (int i = 0; i < 3; ++i) x[i] /= n;
  };
  unit(a);
  const double along = dot(a, b);
  for (int i = 0; i < 3; ++i) b[i] -= along * a[i];
  unit(b);
  for (int i = 0; i < 3; ++i) c[i] = a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3];
  return m;
}

/// `pose` is a motion from `from`, and becomes the pose that it leads to.
void compose(const float* from, float* pose) {
  const std::array<double, 9> at = rotation(from + 3), by = rotation(pose + 3);
  double place[3], rows[6];
  for (size_t i = 0; i < 3; ++i) {
    place[i] = static_cast<double>(from[i]);
    for (size_t k = 0; k < 3; ++k) place[i] += at[3 * i + k] * static_cast<double>(pose[k]);
  }
  for (size_t i = 0; i < 2; ++i)
    for (size_t j = 0; j < 3; ++j) {
      rows[3 * i + j] = 0;
      for (size_t k = 0; k < 3; ++k) rows[3 * i + j] += at[3 * i + k] * by[3 * k + j];
    }
  for (size_t i = 0; i < 3; ++i) pose[i] = static_cast<float>(place[i]);
  for (size_t i = 0; i < 6; ++i) pose[3 + i] = static_cast<float>(rows[i]);
}

class Reader {
 public:
  Reader(const JsonValue& statistics, const JsonValue& modality, bool percentiles, bool relative, bool sines)
      : statistics_(statistics), modality_(modality), percentiles_(percentiles), relative_(relative), sines_(sines) {}

  /// The keys of a modality, in the order in which its values lie.
  Result<std::vector<std::string>> keys(const char* what) const {
    VV_ASSIGN(const JsonValue config, modality_.at(what));
    VV_ASSIGN(const JsonValue list, config.at("modality_keys"));
    std::vector<std::string> out;
    for (const JsonValue v : list) {
      VV_ASSIGN(const std::string_view key, v.as_string());
      out.emplace_back(key);
    }
    return out;
  }
  /// Whether a list of a modality's, which may be absent or null, has a group.
  Result<bool> listed(const char* what, const char* list, const std::string& key) const {
    VV_ASSIGN(const JsonValue config, modality_.at(what));
    const auto found = config.find(list);
    if (!found.has_value() || found->is_null()) return false;
    VV_ASSIGN(const JsonValue keys, found->as_array());
    for (const JsonValue v : keys) {
      VV_ASSIGN(const std::string_view one, v.as_string());
      if (one == key) return true;
    }
    return false;
  }
  Result<Range> group(const char* what, const std::string& key, bool percentiles, bool deviation) const {
    VV_ASSIGN(const JsonValue all, statistics_.at(what));
    VV_ASSIGN(const JsonValue own, all.at(key));
    VV_ASSIGN(const JsonValue low, own.at(deviation ? "mean" : percentiles ? "q01" : "min"));
    VV_ASSIGN(const JsonValue high, own.at(deviation ? "std" : percentiles ? "q99" : "max"));
    Range r;
    VV_TRY(numbers(low, &r.dims, &r.low));
    VV_TRY(numbers(high, &r.dims, &r.high));
    if (r.low.size() != r.high.size()) return own.error(Code::kCorruptData, "as many of one end as of the other");
    r.deviation.assign(static_cast<size_t>(r.dims), deviation);
    return r;
  }
  Status read(GrootStatistics* s) const {
    VV_ASSIGN(const auto states, keys("state"));
    std::vector<int64_t> first;  // value of each group of the state
    for (const std::string& key : states) {
      VV_ASSIGN(const bool turned, listed("state", "sin_cos_embedding_keys", key));
      VV_ASSIGN(const bool deviation, listed("state", "mean_std_embedding_keys", key));
      const bool sines = sines_ && turned;
      VV_ASSIGN(const Range r, group("state", key, percentiles_, deviation && !sines));
      if (r.rows() != 1) return statistics_.error(Code::kCorruptData, "state." + key + ": wanted one vector");
      for (int64_t d = 0; d < r.dims; ++d)
        s->places.push_back({s->network_state + d, sines ? s->network_state + r.dims + d : -1});
      s->network_state += sines ? 2 * r.dims : r.dims;
      first.push_back(s->state.dims);
      VV_TRY(join(&s->state, r, statistics_));
    }
    first.push_back(s->state.dims);
    VV_ASSIGN(const auto actions, keys("action"));
    VV_ASSIGN(const JsonValue config, modality_.at("action"));
    const auto details = config.find("action_configs");
    for (size_t i = 0; i < actions.size(); ++i) {
      std::string from, type;
      bool relative = false, pose = false;
      if (details.has_value() && details->is_array() && i < details->size()) {
        auto it = details->begin();
        for (size_t k = 0; k < i; ++k) ++it;
        const JsonValue own = *it;
        VV_ASSIGN(const std::string_view rep, own.get_string("rep", "absolute"));
        VV_ASSIGN(const std::string_view kind, own.get_string("type", "non_eef"));
        VV_ASSIGN(const std::string_view state, own.get_string("state_key", ""));
        relative = relative_ && lower(rep) == "relative";
        from = state, type = lower(kind);
        VV_ASSIGN(const std::string_view format, own.get_string("format", "default"));
        pose = relative && type == "eef";
        if (relative &&
            ((type != "non_eef" && !pose) || (pose && lower(format) != "xyz_rot6d" && lower(format) != "xyz+rot6d")))
          return own.error(Code::kUnsupported, "action " + actions[i] + ": relative actions of type " + type +
                                                   " and format " + lower(format) +
                                                   " are not served; load with statistics=\"none\"");
      }
      VV_ASSIGN(const bool deviation, listed("action", "mean_std_embedding_keys", actions[i]));
      VV_ASSIGN(const Range r,
                group(relative ? "relative_action" : "action", actions[i], percentiles_ && !relative, deviation));
      VV_TRY(join(&s->actions, r, statistics_));
      int64_t at = -1;
      if (relative) {
        const auto found = std::find(states.begin(), states.end(), from.empty() ? actions[i] : from);
        if (found == states.end())
          return config.error(Code::kCorruptData,
                              "action " + actions[i] + ": there is no state that it is a step from");
        const auto group = static_cast<size_t>(found - states.begin());
        at = first[group];
        if (first[group + 1] - at != r.dims)
          return config.error(Code::kCorruptData,
                              strf("action %s has %ld values, its state %ld", actions[i].c_str(),
                                   static_cast<long>(r.dims), static_cast<long>(first[group + 1] - at)));
      }
      if (pose) {
        if (r.dims != GrootStatistics::kPose)
          return config.error(Code::kCorruptData,
                              strf("action %s: a pose has %ld values, got %ld", actions[i].c_str(),
                                   static_cast<long>(GrootStatistics::kPose), static_cast<long>(r.dims)));
        s->poses.push_back({s->actions.dims - r.dims, at});
        at = -1;
      }
      for (int64_t d = 0; d < r.dims; ++d) s->reference.push_back(at < 0 ? -1 : static_cast<int>(at + d));
    }
    if (s->state.dims == 0 || s->actions.dims == 0)
      return modality_.error(Code::kCorruptData, "wanted groups of state and action");
    if (const auto steps = config.find("delta_indices"); steps.has_value() && steps->is_array())
      s->horizon = static_cast<int64_t>(steps->size());
    if (s->actions.rows() > 1)
      s->horizon = s->horizon == 0 ? s->actions.rows() : std::min(s->horizon, s->actions.rows());
    if (const auto video = modality_.find("video"); video.has_value() && video->is_object()) {
      VV_ASSIGN(s->cameras, keys("video"));
    }
    return {};
  }

 private:
  const JsonValue &statistics_, &modality_;
  bool percentiles_, relative_, sines_;
};

}  // namespace

float GrootStatistics::normalize(float x, size_t dim) const {
  if (places[dim].cosine >= 0) return std::sin(x);
  if (state.deviation[dim]) return state.high[dim] == 0 ? x : (x - state.low[dim]) / state.high[dim];
  const float low = state.low[dim], range = state.high[dim] - low;
  if (range == 0) return 0.0f;
  const float y = 2 * (x - low) / range - 1;
  return clip ? std::clamp(y, -1.0f, 1.0f) : y;
}

void GrootStatistics::normalize(std::span<const float> own, float* out) const {
  for (size_t d = 0; d < own.size(); ++d) {
    out[places[d].at] = normalize(own[d], d);
    if (places[d].cosine >= 0) out[places[d].cosine] = std::cos(own[d]);
  }
}

void GrootStatistics::unnormalize(const float* x, size_t row, const float* own, float* out) const {
  const size_t first = actions.rows() == 1 ? 0 : row * static_cast<size_t>(actions.dims);
  for (size_t d = 0; d < static_cast<size_t>(actions.dims); ++d) {
    const float low = actions.low[first + d], high = actions.high[first + d];
    if (actions.deviation[d]) out[d] = high == 0 ? x[d] : x[d] * high + low;
    else out[d] = (std::clamp(x[d], -1.0f, 1.0f) + 1.0f) * 0.5f * (high - low) + low;
    if (reference[d] >= 0) out[d] += own[reference[d]];
  }
  for (const Pose& p : poses) compose(own + p.state, out + p.action);
}

bool GrootStatistics::relative() const {
  return !poses.empty() || std::any_of(reference.begin(), reference.end(), [](int at) { return at >= 0; });
}

Result<int> embodiment_of(const engine::Checkpoint& checkpoint, const std::string& tag) {
  VV_ASSIGN(const std::optional<int> number, number_of(folder_of(checkpoint), tag));
  if (!number.has_value())
    return Status(
        Code::kInvalidArgument,
        "embodiment: '" + tag +
            "' is none of the names in embodiment_id.json, a file that the checkpoint does not have: give a number");
  return *number;
}

Result<GrootStatistics> read_statistics(const engine::Checkpoint& checkpoint, const std::string& tag, int embodiment) {
  const fs::path folder = folder_of(checkpoint), file = folder / "statistics.json",
                 processor = folder / "processor_config.json";
  std::error_code error;
  for (const fs::path& wanted : {file, processor})
    if (!fs::exists(wanted, error))
      return Status(Code::kNotFound, "statistics: " + wanted.filename().string() + " is not in " + folder.string() +
                                         "; put it there, or load with statistics=\"none\" for normalised values");
  VV_ASSIGN(const Json all, Json::parse_file(file.string()));
  VV_ASSIGN(const Json config, Json::parse_file(processor.string()));
  VV_ASSIGN(const JsonValue options, config.root().at("processor_kwargs"));
  VV_ASSIGN(const JsonValue modalities, options.at("modality_configs"));
  GrootStatistics s;
  s.source = file.string();
  std::vector<std::string> fits;
  std::string list;
  for (const JsonValue v : all.root()) {
    const std::string name(v.key());
    list += (list.empty() ? "" : ", ") + name;
    if (tag.empty() && embodiment >= 0) {
      VV_ASSIGN(const std::optional<int> number, number_of(folder, name));
      if (number != embodiment) continue;
    }
    if (tag.empty() || name == tag) fits.push_back(name);
  }
  if (fits.size() != 1) {
    const std::string of = !tag.empty()      ? "'" + tag + "'"
                           : embodiment >= 0 ? strf("number %d", embodiment)
                                             : "this policy";
    return Status(Code::kInvalidArgument, strf("embodiment: the checkpoint has statistics of %s; %zu of them are %s: "
                                               "name one, or load with statistics=\"none\"",
                                               list.c_str(), fits.size(), of.c_str()));
  }
  s.tag = fits[0];
  VV_ASSIGN(const std::optional<int> number, number_of(folder, s.tag));
  s.embodiment = number.value_or(embodiment);
  if (s.embodiment < 0)
    return Status(Code::kInvalidArgument,
                  "embodiment: the checkpoint has no embodiment_id.json: give the number of " + s.tag);
  VV_ASSIGN(const JsonValue own, all.root().at(s.tag));
  VV_ASSIGN(const JsonValue modality, modalities.at(s.tag));
  VV_ASSIGN(const bool percentiles, options.get_bool("use_percentiles", false));
  VV_ASSIGN(const bool relative, options.get_bool("use_relative_action", false));
  VV_ASSIGN(s.clip, options.get_bool("clip_outliers", true));
  VV_ASSIGN(const bool sines, options.get_bool("apply_sincos_state_encoding", false));
  VV_TRY(Reader(own, modality, percentiles, relative, sines).read(&s));
  return s;
}

}  // namespace vivace::models::groot
