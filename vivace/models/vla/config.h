// PolicyConfig: the numbers of a vision-language-action policy, from a config.json or its variant's name.
#pragma once
#include "vivace/engine/policy.h"
#include "vivace/engine/weights.h"

namespace vivace::models::vla {

/// What a family has. Weights and pipeline ask for these, never for a family's name.
enum Feature : uint32_t {
  kFlow = 1,           // an action expert denoises whole chunks
  kAdaNorm = 2,        // the expert's norms take scale, shift and gate from the time
  kStateToken = 4,     // the state is a token before the actions
  kStateInPrompt = 8,  // the state is words of the prompt
  kCodes = 16,         // actions are tokens of the language model
  kQuantiles = 32,     // statistics are q01 and q99, not mean and deviation
  kSmolVlm = 64,       // towers of SmolVLM2: squares of patches become a token, images are scaled as words are, norms'
                       // weights stand as they are, SiLU; a prompt is the task and a newline
  kStateLast = 128,    // the state is the last token of the prefix, which the others do not see
  kCrosses = 256,      // of the expert's layers some attend to the prefix alone, through matrices of their own; actions
                       // see those before them
};

struct Family {
  const char* name;
  uint32_t features;
  int prompt_tokens;
  const char* proof;   // a tensor that only this family's checkpoints have

  bool has(uint32_t wanted) const { return (features & wanted) == wanted; }
};

inline constexpr Family kFamilies[] = {
    {"pi05", kFlow | kAdaNorm | kStateInPrompt | kQuantiles, 200, "time_mlp_in.weight"},
    {"pi0", kFlow | kStateToken, 48, "state_proj.weight"},
    {"pi0fast", kCodes | kStateInPrompt | kQuantiles, 250, nullptr},
    {"smolvla", kFlow | kSmolVlm | kStateLast | kCrosses, 48, "vlm_with_expert.lm_expert.norm.weight"},
};

/// Null where there is none of that name.
constexpr const Family* find_family(std::string_view name) {
  for (const Family& f : kFamilies)
    if (name == f.name) return &f;
  return nullptr;
}

/// One stack of layers.
struct Tower {
  int64_t width = 0, layers = 0, mlp = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

struct PolicyConfig {
  const Family* family = nullptr;
  Tower vision, text, expert;
  int64_t image = 224, patch = 14, vocab = 0;
  int64_t shuffle = 1;     // a token is made of so many lines and columns of patches
  int64_t self_every = 1;  // with kCrosses: layers that see actions too; 0: none
  int64_t action_dim = 32, state_dim = 32, horizon = 50, steps = 10;
  double rope_theta = 10000, eps = 1e-6, vision_eps = 1e-6;
  double min_period = 4e-3, max_period = 4.0;
  bool lerobot = false;     // saved by lerobot: its resize, its normalisation
  bool state_words = true;  // of a family with kStateInPrompt: openpi's discrete_state_input
  std::vector<std::string> cameras;  // names of the slots, where config.json has them

  bool has(uint32_t wanted) const { return family->has(wanted); }
  int64_t view_patches() const { return (image / patch) * (image / patch); }
  int64_t view_tokens() const { return view_patches() / (shuffle * shuffle); }
  bool crosses(size_t layer) const {
    return has(kCrosses) && (self_every == 0 || static_cast<int64_t>(layer) % self_every != 0);
  }
  int64_t patch_values() const { return patch * patch * 3; }
};

/// Where the three parts of a checkpoint's names differ between what saved them.
struct Names {
  std::string vision, text, expert, top;  // each ends where "layers", "embeddings" or "action_in_proj" begins
  std::string embed, projector;
};

/// The spelling of the names in this checkpoint.
Names names_of(const engine::Checkpoint& checkpoint);

/// The family by config.json's "type", else by the tensors; null where it is no policy.
const Family* family_of(const engine::Checkpoint& checkpoint);

/// Reads and checks the configuration; options.config empty or "auto": the family is found. Errors: InvalidArgument
/// names the families and what the checkpoint holds.
Result<PolicyConfig> read_config(const engine::Checkpoint& checkpoint, const engine::PolicyOptions& options);

}  // namespace vivace::models::vla
