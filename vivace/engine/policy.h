// Policies: camera frames, a prompt and the arm's state in, a chunk of actions out.
#pragma once
#include <optional>
#include <span>

#include "vivace/engine/model.h"

namespace vivace::engine {

/// How to load a policy. Zeros and "auto" are resolved once, at load, and named in Model::report().
struct PolicyOptions {
  std::string config;               // pi05 | pi0 | pi0fast | smolvla | groot_n17 | groot_n16
  std::string device = "auto";      // auto | cpu | cuda | cuda:N
  std::string precision = "auto";   // auto | f32 | bf16 | fp8 | fp8_static
  std::string resize = "auto";      // how frames become the network's: openpi | lerobot, of groot area | bicubic |
                                    // bilinear | none; auto: as the checkpoint was saved
  std::string statistics = "auto";  // auto: of the checkpoint, an error if it has none; none: actions stay normalised
  std::vector<bool> delta;          // dimensions whose actions are steps from the state: it is added again
  std::string robot;                // which of several statistics; empty: the only one
  std::vector<float> act_scales;    // of fp8_static and no other plan: what calibrate() gave
  int threads = 0;                  // host: 0 = one a physical core
  int views = 0;                    // camera slots; 0 = 3
  int horizon = 0;                  // actions of a chunk; 0 = the checkpoint's
  int steps = 0;                    // of the flow; 0 = the checkpoint's, else 10
  int batch = 1;                    // observations of one call
  int prompt_tokens = 0;            // most tokens of a prompt; 0 = the family's
  int max_action_tokens = 0;                    // pi0fast: most tokens of an answer; 0 = 256
  std::string codec;  // pi0fast: folder with tokenizer.json and processor_config.json of the actions' codec
  bool eager = false;               // issue ops one by one instead of replaying graphs: for debugging, same bits
  double partition = 0;             // share of the device's multiprocessors, in (0, 1); 0 = all of it
  bool random_weights = false;      // of the shapes that config.json says, drawn where the model runs: for timing
  std::shared_ptr<UrgentGate> urgent = {};  // of a scheduler's tenant whose calls are urgent: what they shut
  GateSite gates = {};                      // of one whose calls are not: what each passes before it begins, and within
  int64_t most_bytes = 0;           // of the device's memory that it may take; 0: as many as there are
  int embodiment = -1;              // groot: the one whose weights are loaded; -1: all of them
  std::string expert = "bf16";      // of pi05's fp8_static: what the action expert's products read, bf16 | e4m3. In
                                    // plans without 8 bits e4m3 has calibrate() look at the expert too
  bool switches = false;            // its graphs are captured for the whole device too, see use_whole()
};

struct PolicyLimits {
  int views = 0, horizon = 0, steps = 0, batch = 0, prompt_tokens = 0;
  int max_action_tokens = 0;        // most tokens of an answer; 0: a flow
  int action_dim = 0;   // of the network's actions and noise
  int robot_dim = 0;    // of the actions that come out
  int state_dim = 0;    // of the robot's state; 0: any up to the network's
  int network_state = 0;  // values of state that the network takes at most
  bool takes_state = false;  // the network reads the state; else the prompt may hold it
  bool sees_state = false;   // one of the two
  bool takes_prefix = false;  // Observation::action_prefix
  int embodiments = 0;  // that an observation may name; 0: there is one kind of robot
  int embodiment = -1;  // one of those that are loaded
  int image_token = -1; // groot: what stands for an image in a prompt
  int64_t image_height = 224, image_width = 224;  // of the largest frame, or of one whose size is the network's own
};

/// A camera's image: RGB rows of `stride` bytes, u8. Without data the camera is off: its tokens are dropped.
struct Frame {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0, stride = 0;
  int64_t plane = 0;  // bytes from red to green and from green to blue; 0: they lie side by side
  bool page_locked = false;  // it lies in memory of the policy's host_pool(): a device reads it there, without a copy
};

/// Memory stays the caller's and is read during the call alone.
struct Observation {
  std::span<const Frame> views;        // a camera slot each
  std::span<const int32_t> tokens;     // the prompt, without padding; may be empty
  std::span<const float> state;        // the robot's own units
  std::span<const float> noise;        // [horizon, action_dim]; empty: drawn from `seed`
  uint64_t seed = 0;
  int32_t end_token = 1;               // pi0fast: the answer ends with it; -1: at the most tokens
  std::span<const float>
      action_prefix;  // [n, action_dim], n < horizon: first actions of the chunk, normalised, that the rest must follow
  int32_t embodiment = -1;             // groot: whose encoders and decoder; -1: that of the load
  std::span<const float> prev_actions =
      {};  // groot: [n, action_dim], the chunk that runs, normalised, whose last `overlap` actions this one begins with
  int32_t overlap = 0, frozen = 0;  // ... of which the first `frozen` stay as they are and the others less and less so
};

class PolicyModel : public Model {
 public:
  virtual PolicyLimits limits() const = 0;
  /// One chunk an observation, 1 to limits().batch of them: actions [observations, horizon, robot_dim] in the robot's
  /// units. After load this neither allocates nor compiles, but for images of a size that was not seen before.
  /// Errors: InvalidArgument, InvalidShape, LimitExceeded name what is wrong with an observation, and nothing ran;
  /// CorruptData where an action is not finite, the network's own or in the robot's units. After an error `actions` is
  /// not written.
  virtual Status predict(std::span<const Observation> observations, std::span<float> actions) = 0;
  /// pi0fast: the tokens alone, which need no codec. Errors: Unsupported elsewhere, and predict()'s.
  virtual Status generate(std::span<const Observation> observations);
  /// The tokens of observation `i` of the last run, the end token too.
  virtual Result<std::span<const int32_t>> tokens(int i) const;
  /// The network's own actions of the last predict(): [horizon, action_dim] of observation `i`, normalised.
  virtual Result<std::span<const float>> normalized(int i) const = 0;
  /// The state as the network, or the words of the prompt, take it. Errors: InvalidShape.
  virtual Result<std::vector<float>> normalized_state(std::span<const float> state) const = 0;
  /// Sees values by name while a predict() runs op by op: what they are is in docs/models/pi05.md. `step` counts the
  /// flow's steps, -1 outside them. Setup phase.
  using Probe = std::function<Status(const char* name, int step, const Tensor& value)>;
  virtual Status observe(std::span<const Observation> observations, const Probe& probe) = 0;
  /// PolicyOptions::act_scales from what observations bring to each activation quantization point: over all
  /// steps the largest magnitude an observation, of which the percentile counts (100: the largest). Of plans that do
  /// not quantize activations. Setup phase. Errors: FailedPrecondition for other plans, InvalidArgument, predict()'s;
  /// Unsupported of a family without such scales, also of set_act_scales().
  virtual Result<std::vector<float>> calibrate(std::span<const Observation> observations, double percentile);
  /// Other scales of a plan that has fixed ones, from the next run on; nothing is captured anew. Setup phase. Errors:
  /// FailedPrecondition for other plans, InvalidArgument (how many, which values), and the old ones stay.
  virtual Status set_act_scales(std::span<const float> scales);
  /// Microseconds from where the device began with the last predict()'s graphs to where it ended, on its own clock; 0
  /// on the host, before the first call, and of pi0fast.
  virtual double device_us() const { return 0; }
  /// Of a call: the two graphs, one by one or one after the other. An answer of codes counts as its first and one more.
  enum class Stage : uint8_t { context, actions, whole };
  /// Times a stage and its launches, see engine::profile. Setup phase.
  virtual Result<Profile> profile(Stage stage, bool in_step = false) = 0;
  /// Of a policy with PolicyOptions::gates: times the launches of a call like the last one, has gates between them
  /// wherever they would run on for longer than the site's stretch, and captures anew. Bits of answers stay. What it
  /// says of the longest call is the sum of its launches. Setup phase. Errors: FailedPrecondition without gates;
  /// Unsupported.
  virtual Result<WorkTimes> place_gates();
  /// Whether calls run on the whole device from the next one on, or, as after load, in its partition: of a policy with
  /// PolicyOptions::switches, on one thread with predict(). Work that is queued stays before that of calls to come,
  /// nothing is captured, and answers have the same bits. Errors: Unsupported without that option, or of a family
  /// that has no such graphs.
  virtual Status use_whole(bool whole);
};

}  // namespace vivace::engine
