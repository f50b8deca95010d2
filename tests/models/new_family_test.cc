// A third family is config, weights and one graph: new_family/ is all of it, registered as models/policies.cc registers
// the product's, loaded from a checkpoint on disk and held to the same network written down in double.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include "tests/engine/checkpoint_files.h"
#include "tests/models/new_family/graph.h"

namespace vivace::models::nod {
namespace {

using engine::Observation;
using Matrix = std::vector<std::vector<double>>;  // rows

Observation observation(std::span<const int32_t> tokens, std::span<const float> state) {
  Observation o;
  o.tokens = tokens;
  o.state = state;
  return o;
}

/// PolicyOptions with one of them set.
template <class T>
engine::PolicyOptions with(T engine::PolicyOptions::* option, T value) {
  engine::PolicyOptions options;
  options.*option = std::move(value);
  return options;
}

/// What the registry needs to know, once a process.
Result<std::unique_ptr<engine::PolicyModel>> open_policy(const std::string& path, engine::PolicyOptions options = {}) {
  static const bool once = [] {
    static constexpr engine::PolicyRow kRows[] = {{kNames, &family_of, &load}};
    engine::add_policies(kRows);
    return true;
  }();
  EXPECT_TRUE(once);
  options.device = "cpu";
  options.threads = 1;
  return engine::load_policy(path, options);
}

/// A drawn checkpoint: its folder, its tensors.
class Checkpoint {
 public:
  Checkpoint(const NodConfig& c, std::mt19937& random) : c_(c) {
    const int64_t H = c.width;
    draw("words.weight", {c.vocab, H}, random);
    linear("state", H, c.state_dim, random);
    for (int64_t i = 0; i < c.layers; ++i) {
      const std::string in = "layers." + std::to_string(i) + ".";
      for (const char* norm : {"norm1", "norm2"}) this->norm(in + norm, random);
      linear(in + "q", c.q_width(), H, random);
      linear(in + "k", c.kv_width(), H, random);
      linear(in + "v", c.kv_width(), H, random);
      linear(in + "out", H, c.q_width(), random);
      linear(in + "up", c.mlp, H, random);
      linear(in + "down", H, c.mlp, random);
    }
    norm("norm", random);
    linear("actions", c.horizon * c.action_dim, H, random);
  }
  /// Writes both files; `without`: a tensor that is left out.
  std::string write(const std::string& without = "") const {
    std::string header, data;
    for (const auto& [name, t] : tensors_) {
      if (name == without) continue;
      const auto bytes = reinterpret_cast<const char*>(t.values.data());
      std::string shape;
      for (const int64_t n : t.shape) shape += (shape.empty() ? "" : ",") + std::to_string(n);
      header +=
          strf("%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", header.empty() ? "{" : ",",
               name.c_str(), shape.c_str(), data.size(), data.size() + 4 * t.values.size());
      data.append(bytes, 4 * t.values.size());
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    folder_.write("model.safetensors", engine::testing::le<uint64_t>(header.size()) + header + data);
    const auto number = [](int64_t v) { return std::to_string(v); };
    folder_.write("config.json",
                  "{\"type\":\"nod\",\"hidden_size\":" + number(c_.width) +
                      ",\"num_hidden_layers\":" + number(c_.layers) + ",\"intermediate_size\":" + number(c_.mlp) +
                      ",\"num_attention_heads\":" + number(c_.heads) +
                      ",\"num_key_value_heads\":" + number(c_.kv_heads) + ",\"head_dim\":" + number(c_.head_dim) +
                      ",\"vocab_size\":" + number(c_.vocab) + ",\"state_dim\":" + number(c_.state_dim) +
                      ",\"action_dim\":" + number(c_.action_dim) + ",\"chunk_size\":" + number(c_.horizon) + "}");
    return folder_.path();
  }
  const engine::testing::TempFolder& folder() const { return folder_; }

  /// The network, as its description reads: nothing of it is shared with the library.
  std::vector<double> actions(std::span<const float> state, std::span<const int32_t> words) const {
    Matrix x{product("state", {state.begin(), state.end()})};
    const std::vector<float>& table = tensors_.at("words.weight").values;
    for (const int32_t w : words) x.emplace_back(table.begin() + w * c_.width, table.begin() + (w + 1) * c_.width);
    for (int64_t i = 0; i < c_.layers; ++i) {
      const std::string in = "layers." + std::to_string(i) + ".";
      Matrix q, k, v;
      for (const auto& row : x) {
        const std::vector<double> n = normed(in + "norm1", row);
        q.push_back(product(in + "q", n)), k.push_back(product(in + "k", n)), v.push_back(product(in + "v", n));
      }
      const Matrix seen = attention(q, k, v);
      for (size_t t = 0; t < x.size(); ++t) {
        add(&x[t], product(in + "out", seen[t]));
        std::vector<double> inner = product(in + "up", normed(in + "norm2", x[t]));
        for (double& a : inner) a = 0.5 * a * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
        add(&x[t], product(in + "down", inner));
      }
    }
    return product("actions", normed("norm", x[0]));
  }

 private:
  struct Drawn {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  void draw(const std::string& name, std::vector<int64_t> shape, std::mt19937& random, double scale = 1,
            double at = 0) {
    size_t n = 1;
    for (const int64_t d : shape) n *= static_cast<size_t>(d);
    Drawn& t = tensors_[name] = {std::move(shape), std::vector<float>(n)};
    for (float& value : t.values) value = static_cast<float>(at + scale * std::normal_distribution<double>()(random));
  }
  void linear(const std::string& name, int64_t N, int64_t K, std::mt19937& random) {
    draw(name + ".weight", {N, K}, random, 1 / std::sqrt(static_cast<double>(K)));
    draw(name + ".bias", {N}, random, 0.1);
  }
  void norm(const std::string& name, std::mt19937& random) {
    draw(name + ".weight", {c_.width}, random, 0.1, 1);
    draw(name + ".bias", {c_.width}, random, 0.1);
  }
  std::vector<double> product(const std::string& name, const std::vector<double>& x) const {
    const std::vector<float>&w = tensors_.at(name + ".weight").values, &bias = tensors_.at(name + ".bias").values;
    std::vector<double> out(bias.begin(), bias.end());
    for (size_t n = 0; n < out.size(); ++n)
      for (size_t i = 0; i < x.size(); ++i) out[n] += static_cast<double>(w[n * x.size() + i]) * x[i];
    return out;
  }
  std::vector<double> normed(const std::string& name, std::vector<double> x) const {
    const std::vector<float>&w = tensors_.at(name + ".weight").values, &bias = tensors_.at(name + ".bias").values;
    double mean = 0, square = 0;
    for (const double a : x) mean += a / static_cast<double>(x.size());
    for (const double a : x) square += (a - mean) * (a - mean) / static_cast<double>(x.size());
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = (x[i] - mean) / std::sqrt(square + 1e-5) * static_cast<double>(w[i]) + static_cast<double>(bias[i]);
    return x;
  }
  Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v) const {
    const auto D = static_cast<size_t>(c_.head_dim), heads = static_cast<size_t>(c_.heads),
               group = heads / static_cast<size_t>(c_.kv_heads);
    Matrix out(q.size(), std::vector<double>(heads * D));
    for (size_t t = 0; t < q.size(); ++t)
      for (size_t h = 0; h < heads; ++h) {
        const size_t of = h / group * D;
        std::vector<double> p(k.size());
        double sum = 0;
        for (size_t j = 0; j < k.size(); ++j) {
          double score = 0;
          for (size_t d = 0; d < D; ++d) score += q[t][h * D + d] * k[j][of + d];
          sum += p[j] = std::exp(score / std::sqrt(static_cast<double>(D)));
        }
        for (size_t j = 0; j < k.size(); ++j)
          for (size_t d = 0; d < D; ++d) out[t][h * D + d] += p[j] / sum * v[j][of + d];
      }
    return out;
  }
  static void add(std::vector<double>* x, const std::vector<double>& y) {
    for (size_t i = 0; i < x->size(); ++i) (*x)[i] += y[i];
  }

  NodConfig c_;
  std::map<std::string, Drawn> tensors_;
  engine::testing::TempFolder folder_;
};

/// Drawn shapes: heads in groups and alone, widths that no tile divides.
NodConfig drawn_config(std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  NodConfig c;
  c.layers = draw(1, 3), c.kv_heads = draw(1, 3), c.heads = c.kv_heads * draw(1, 3), c.head_dim = 4 * draw(2, 8);
  c.width = 4 * draw(4, 16), c.mlp = 4 * draw(4, 24), c.vocab = draw(8, 40);
  c.state_dim = draw(1, 9), c.action_dim = draw(1, 7), c.horizon = draw(1, 5);
  return c;
}

TEST(NewFamily, AnswersAsItsDescriptionReads) {
  std::mt19937 random{20};
  for (int trial = 0; trial < 12; ++trial) {
    const NodConfig c = drawn_config(random);
    const Checkpoint checkpoint(c, random);
    const std::string folder = checkpoint.write();
    auto policy = open_policy(folder);
    ASSERT_TRUE(policy.ok()) << policy.status().to_string();
    ASSERT_EQ(*engine::policy_family(folder), "nod");
    auto eager = open_policy(folder, with(&engine::PolicyOptions::eager, true));
    ASSERT_TRUE(eager.ok()) << eager.status().to_string();
    for (size_t words : {size_t{0}, size_t{1}, size_t{random() % 20}, size_t{32}}) {
      std::vector<float> state(static_cast<size_t>(c.state_dim));
      for (float& s : state) s = std::normal_distribution<float>()(random);
      std::vector<int32_t> tokens(words);
      for (int32_t& t : tokens) t = static_cast<int32_t>(random() % static_cast<uint64_t>(c.vocab));
      const Observation o[] = {observation(tokens, state)};
      const std::vector<double> want = checkpoint.actions(state, tokens);
      std::vector<float> got(want.size()), again(want.size());
      const Status s = (*policy)->predict(o, got);
      ASSERT_TRUE(s.ok()) << s.to_string();
      // f32 sums of at most 96 products a step, three layers of a dozen such steps.
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(static_cast<double>(got[i]), want[i], 2e-4 * (1 + std::fabs(want[i]))) << trial << " " << words;
      ASSERT_TRUE((*eager)->predict(o, again).ok());
      ASSERT_EQ(got, again);  // captured or not: the same bits
    }
  }
}

TEST(NewFamily, SixteenBitsAndEightAreNear) {
  std::mt19937 random{21};
  NodConfig c = drawn_config(random);
  c.width = 64, c.mlp = 128, c.head_dim = 32, c.layers = 2;
  const Checkpoint checkpoint(c, random);
  const std::string folder = checkpoint.write();
  const std::vector<float> state(static_cast<size_t>(c.state_dim), 0.5f);
  const std::vector<int32_t> tokens{1, 2, 3};
  const Observation o[] = {observation(tokens, state)};
  const std::vector<double> want = checkpoint.actions(state, tokens);
  double norm = 0;
  for (const double v : want) norm += v * v;
  for (const auto& [precision, most] : {std::pair{"bf16", 0.03}, {"fp8", 0.3}}) {  // 2^-8 and 2^-4 a rounding
    auto policy = open_policy(folder, with(&engine::PolicyOptions::precision, std::string(precision)));
    ASSERT_TRUE(policy.ok()) << policy.status().to_string();
    std::vector<float> got(want.size());
    ASSERT_TRUE((*policy)->predict(o, got).ok());
    double error = 0;
    for (size_t i = 0; i < want.size(); ++i)
      error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    EXPECT_LT(std::sqrt(error / norm), most) << precision;
    EXPECT_GT(error, 0) << precision;
  }
}

TEST(NewFamily, WhatEveryModelHasCameWithTheLayer) {
  std::mt19937 random{22};
  const NodConfig c = drawn_config(random);
  const Checkpoint checkpoint(c, random);
  auto loaded = open_policy(checkpoint.write());
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  engine::PolicyModel& policy = **loaded;
  EXPECT_EQ(policy.family(), "nod");
  EXPECT_EQ(policy.memory().front().name, "weights");
  const std::vector<float> state(static_cast<size_t>(c.state_dim), 1);
  const Observation o[] = {observation({}, state)};
  std::vector<std::string> seen;
  const Status s = policy.observe(o, [&](const char* name, int, const Tensor& value) {
    seen.push_back(name);
    return value.place == Place::host ? Status() : Status(Code::kInternal, "not the host's");
  });
  EXPECT_TRUE(s.ok()) << s.to_string();
  EXPECT_EQ(seen.size(), static_cast<size_t>(c.layers) + 1);
  EXPECT_EQ(seen.back(), "actions");
  const auto profile = policy.profile(engine::PolicyModel::Stage::whole);
  ASSERT_TRUE(profile.ok()) << profile.status().to_string();
  EXPECT_EQ(profile->order.size(), static_cast<size_t>(7 * c.layers + 4));
  EXPECT_EQ(policy.calibrate(o, 100).status().code(), Code::kUnsupported);
  EXPECT_EQ(policy.set_act_scales({}).code(), Code::kUnsupported);
}

TEST(NewFamily, WrongCheckpointsAndCallsAreErrors) {
  std::mt19937 random{23};
  const NodConfig c = drawn_config(random);
  const Checkpoint checkpoint(c, random);
  using engine::testing::expect_error;
  expect_error(open_policy(checkpoint.write("layers.0.up.weight")), Code::kNotFound, {"layers.0.up.weight"});
  const std::string folder = checkpoint.write();
  expect_error(open_policy(folder, with(&engine::PolicyOptions::batch, 2)), Code::kInvalidArgument,
               {"one observation"});
  expect_error(open_policy(folder, with(&engine::PolicyOptions::precision, std::string("fp8_static"))),
               Code::kInvalidArgument, {"auto, f32, bf16, fp8"});
  expect_error(open_policy(folder, with(&engine::PolicyOptions::config, std::string("pi05"))), Code::kInvalidArgument,
               {"pi05"});
  auto policy = open_policy(folder);
  ASSERT_TRUE(policy.ok());
  std::vector<float> actions(static_cast<size_t>(c.horizon * c.action_dim));
  const std::vector<float> state(static_cast<size_t>(c.state_dim) + 1);
  const Observation wrong[] = {observation({}, state)};
  EXPECT_EQ((*policy)->predict(wrong, actions).code(), Code::kInvalidShape);
  const std::vector<int32_t> many(33);
  const Observation longer[] = {observation(many, std::span(state).subspan(1))};
  EXPECT_EQ((*policy)->predict(longer, actions).code(), Code::kLimitExceeded);
  EXPECT_EQ((*policy)->predict(longer, {}).code(), Code::kInvalidShape);
  checkpoint.folder().write("config.json", R"({"type": "nod", "hidden_size": 0})");
  expect_error(open_policy(folder), Code::kCorruptData, {"hidden_size"});
}

/// Lines that say something: no blank ones, comments, includes, lone braces.
int lines_of(const std::string& file) {
  std::ifstream in(std::string(VV_SOURCE_DIR) + "/tests/models/new_family/" + file);
  EXPECT_TRUE(in.is_open()) << file;
  int lines = 0;
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    const std::string_view text = std::string_view(line).substr(first);
    if (!text.starts_with("//") && !text.starts_with("#") && text != "}" && text != "};") ++lines;
  }
  return lines;
}

TEST(NewFamily, TakesSoManyLines) {
  const int config = lines_of("config.h"), weights = lines_of("weights.h"), graph = lines_of("graph.h");
  RecordProperty("lines", config + weights + graph);
  EXPECT_LE(config, 40);
  EXPECT_LE(weights, 40);
  EXPECT_LE(graph, 150);
}

}  // namespace
}  // namespace vivace::models::nod
