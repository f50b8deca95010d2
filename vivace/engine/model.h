// What a loaded model looks like to the layers above: options in, a typed model out.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"
#include "vivace/engine/host_pool.h"
#include "vivace/engine/kv_blocks.h"
#include "vivace/engine/moved.h"
#include "vivace/engine/profile.h"
#include "vivace/engine/urgent.h"

namespace vivace::engine {

/// How to load. Every "auto" is resolved once, at load, and named in Model::report().
struct LoadOptions {
  std::string device = "auto";     // auto | cpu | cuda | cuda:N
  std::string precision = "auto";  // a precision plan of the model's family: auto | f32 | q8 | bf16 | native | w8a16 |
                                   // w4a16 | int4 | fp8 | fp8_static
  std::string kv_dtype = "auto";   // auto | f32 | f16 | bf16 | e4m3
  int threads = 0;                 // CPU backend: 0 = one a physical core
  int context = 0;                 // positions a sequence may hold; 0 = the model's own, capped at 4096
  int max_batch = 1;               // sequences that can be live at once
  int prefill_chunk = 0;           // prompt rows a step may take; 0 = as suits: 128 on the host and of a scheduler's
                                   // tenant, else 1,024 with one sequence and 256 with several
  bool eager = false;              // issue ops one by one instead of replaying a graph: for debugging, same bits
  int max_in_flight_steps = 0;                   // steps that may be queued at once; 0 = as suits the device
  bool random_weights = false;     // of the shapes that config.json says, drawn where the model runs: for timing
  bool logit_bias = false;         // steps add set_bias()'s rows to the logits: one more launch
  static constexpr int kPagesFull = -1, kPagesAuto = -2;
  int num_kv_blocks =
      0;  // pages of 64 positions that all sequences share; 0: each has the whole context to itself; kPagesFull: as
          // many as the whole context of each needs; kPagesAuto: so on the host, none on a device
  int gpu_layers =
      -1;  // layers whose weights stay where ops read them; the others come from host memory in every step; -1: all
  std::vector<float> act_scales = {};  // of fp8_static and no other plan: what calibrate() gave
  std::string invariance = "class";    // class: bits of a row depend on its class, see issue(); strict: there is one
                                       // class, and prompts take smaller steps
  std::string lm_head_dtype =
      "auto";  // what the head becomes: auto (as the plan says) | plain (as the embedding) | e4m3 | e2m1 | q8_0 | q4_0
  GateSite gates = {};             // of a scheduler's tenant: where its steps stand back
  int max_image_tokens = 0;        // of models that see: most tokens of an image; 0: 1280
  int64_t most_bytes = 0;          // of the device's memory that it may take; 0: as many as there are
  static constexpr int64_t kStatesAuto = -1;
  int64_t state_cache_bytes = kStatesAuto;  // of models with recurrent layers and blocks: memory for states that are
                                            // kept beside them; 0: none; kStatesAuto: 16 and 4 a sequence, in at most
                                            // 1 GiB
  int mtp = 0;  // tokens that the checkpoint's draft layer guesses a step, up to kMostDrafts; 0: it is not loaded
  static constexpr int kMostDrafts = 4;
  std::string decode_layers = "auto";  // of a decoder with one sequence: whether a step's layers are one launch: auto
                                       // (where that was seen to win) | on | off
};

/// One line of what `plan` prints: a named region and its exact size.
struct MemoryLine {
  std::string name;
  int64_t bytes = 0;
};

/// Key-value facts for reports, in order. Values are JSON literals.
using Report = std::vector<std::pair<std::string, std::string>>;

class Model {
 public:
  virtual ~Model() = default;
  virtual const std::string& family() const = 0;
  virtual Report report() const = 0;
  /// Exact memory by region: mapped weights, arena regions. Known before the first step.
  virtual std::vector<MemoryLine> memory() const = 0;
  /// Moves its device memory, weights and caches, to page-locked host memory, contents intact, and gives the device's
  /// back; wake() brings it back to the same addresses. Nobody uses the model meanwhile: work that is asked of it until
  /// then answers FailedPrecondition. Errors: Runtime::sleep()'s and wake()'s; Unsupported.
  virtual Result<Moved> sleep();
  virtual Result<Moved> wake();
  /// Host memory that its device reads and writes without a copy between, where it has a device; it outlives the model.
  /// Thread-safe.
  virtual HostPool& host_pool();
};

/// One token that enters a step.
struct TokenRow {
  int32_t token = 0;
  int32_t pos = 0;    // its position in its sequence, from 0
  int32_t slot = 0;   // whose sequence
  bool sample = false;  // the next token after this one is wanted
  bool prompt = false;  // of a prompt: its step is of the prefill class, also where all rows sample
  bool guess = false;   // of a recurrent model: what may follow; behind all other rows, and a state does not go over it
  int32_t image = -1;   // row of the images that see() took, which comes in the token's place; -1: the token itself
  std::array<int32_t, 3> shift = {};  // of models that see: what angles add to pos, by time, line and column
};

/// An image as models take it: RGB in rows, one behind the other.
struct Image {
  const uint8_t* data = nullptr;
  int32_t height = 0, width = 0;
};

/// What a model takes of images; of one that takes none, tokens is 0.
struct ImageLimits {
  int token = -1;  // stands in a prompt for each of an image's tokens
  int side = 0;    // pixels of a token's side: height and width of an image are multiples of it
  int tokens = 0;  // most of an image
  int places = 0;  // images that steps may read
};

/// Per-sequence sampling parameters. temperature 0 is greedy.
struct Sampling {
  float temperature = 0, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  float repetition = 1, presence = 0, frequency = 0;
  int64_t seed = 0;
};

/// Checks every field; InvalidArgument names the first that is out of range.
Status check(const Sampling& sampling);

/// What a step drew for a row that asked: token -1 means its logits were NaN.
struct Sampled {
  int32_t token = -1;
  int32_t slot = 0;
  float logprob = 0;
};

struct TextLimits {
  int vocab = 0, context = 0, max_batch = 0, prefill_chunk = 0;
  int max_in_flight_steps = 1;      // steps that may be queued before the first is collected
  bool mixed = true;  // whether rows that answer and rows of prompts belong in one step
  bool biased = false;  // whether set_bias() works
  int page = 0;         // positions of a page; 0: no pages
  int pages = 0;        // that all sequences share
  bool one_class = false;  // whether rows of prompts and of answers have the same bits
  ImageLimits images = {};
  bool recurrent = false;  // a sequence has a state besides keys and values: its positions only go forward, by one
  int states = 0;          // places for states that are kept beside blocks
  int mtp = 0;             // guesses a step of the model's own draft layer; 0: it has none
};

/// A decoder: rows of tokens in, next tokens out, state kept in slots.
class TextModel : public Model {
 public:
  virtual TextLimits limits() const = 0;
  /// Sets the parameters of `slot`, forgets its sequence and takes pages for `positions` of the next one, where there
  /// are pages; 0: the whole context. Not on the hot path. Errors: InvalidArgument names the value, and nothing
  /// changed; LimitExceeded when too few pages are free.
  virtual Status start(int slot, const Sampling& sampling, int positions = 0) = 0;
  /// Ends the sequence of `slot`: pages that start() took are free. Steps of it that are queued already do no harm.
  virtual void release(int slot);

  // Where sequences share blocks and somebody above keeps account of them. What follows answers Unsupported without.
  /// Who has which block; null where each slot has its whole context to itself.
  virtual KvBlocks* blocks();
  /// start() without a block: map() gives it those it has. `fed`: tokens that are in blocks it will get; penalties
  /// count them.
  virtual Status resume(int slot, const Sampling& sampling, std::span<const int32_t> fed);
  /// From block `first` on, at most as many as it has, the sequence of `slot` lies in `blocks`, and nothing lies behind
  /// them; for steps that are queued from now on.
  virtual Status map(int slot, int first, std::span<const int32_t> blocks);
  /// Bytes of a block in all layers.
  virtual int64_t block_bytes() const;
  /// Copies a block's keys and values to another, behind the steps that are queued.
  virtual Status copy_block(int32_t from, int32_t to);
  /// Copies of whole blocks in host memory, block_bytes() each, in whatever order write_blocks() of as many takes them;
  /// waits for what is queued.
  virtual Status read_blocks(std::span<const int32_t> blocks, std::span<std::byte> to);
  virtual Status write_blocks(std::span<const int32_t> blocks, std::span<const std::byte> from);

  // Of models whose sequences carry a state besides. State i below max_batch is that of slot i; those behind it,
  // limits().states of them, are kept ones. What follows answers Unsupported of any other model.
  /// Bytes of a state; 0 of any other model.
  virtual int64_t state_bytes() const;
  /// State `to` becomes `from` as the steps that are queued leave it, and is at the same position; behind them.
  virtual Status copy_state(int from, int to);
  /// A copy in host memory; waits for what is queued.
  virtual Status read_state(int state, std::span<std::byte> to);
  /// The same back: the state is at `position`.
  virtual Status write_state(int state, int position, std::span<const std::byte> from);

  /// What is added to the logits of `slot` from the next queued step on, a value a token, -inf to forbid one;
  /// empty: nothing, as after start(). Log-probabilities are those of the biased logits. Errors:
  /// FailedPrecondition without LoadOptions::logit_bias, InvalidShape.
  virtual Status set_bias(int slot, std::span<const float> bias) = 0;
  /// Which tokens `slot` may draw from the next queued step on, bit v % 32 of word v / 32 for token v; empty: all, as
  /// after start(). Log-probabilities are those without it. Errors: InvalidShape; Unsupported of a model without masks.
  virtual Status set_mask(int slot, std::span<const uint32_t> words);
  // Of models with a draft layer, limits().mtp above 0. What follows answers Unsupported of any other model.
  /// Positions [first, past) of `slot` that the last step had and that draft() can go on from.
  struct Heard {
    int32_t first = 0, past = 0;
  };
  virtual Heard heard(int slot) const;
  /// The draft layer over positions that heard() has, each with the token *behind* it, queued behind the step. A row
  /// that samples asks for guesses: `count` of them, 1 to limits().mtp, drawn as that slot's tokens will be, the first
  /// of what follows its token. `out`: all first guesses in row order, then all second ones, and so on; -1: none. Waits
  /// where rows sample. A guess may be anything. Errors: as issue()'s.
  virtual Status draft(std::span<const TokenRow> rows, int count, std::span<int32_t> out);
  /// For reports: guesses that a step has checked, and how many of them were right.
  virtual void note_drafts(int64_t checked, int64_t right);

  /// Queues an image's way to place `place`, behind the steps that are queued: its tokens are rows from place *
  /// limits().images.tokens on, for steps that are queued later. Setup's cost, but for what is computed: nothing is
  /// allocated. Errors: InvalidArgument, InvalidShape; Unsupported of a model that takes none.
  virtual Status see(int place, const Image& image);
  /// Queues a step over 1..prefill_chunk rows, at most max_batch of which sample. After load this neither
  /// allocates nor compiles. Rows of one slot must be in position order. A step all of whose rows
  /// sample, max_batch at most, and none of which is a prompt's, is of the decode class, any other of the prefill
  /// class: bits of a row depend on its class, never on the other rows. Errors: LimitExceeded with
  /// limits().max_in_flight_steps steps queued.
  virtual Status issue(std::span<const TokenRow> rows) = 0;
  /// Queues the last decode step once more: each of its rows with the token that it drew, at the next
  /// position, without the host having seen that token. Errors: FailedPrecondition where no decode step came
  /// before, LimitExceeded at the end of the context or with limits().max_in_flight_steps steps queued.
  virtual Status repeat() = 0;
  /// Waits for the oldest queued step; `out` gets its draws in row order and must have their number.
  virtual Status collect(std::span<Sampled> out) = 0;
  /// Times a step of `rows` rows and its launches, in the decode class (a row a slot, all at position `pos`)
  /// or the prefill class (rows of one prompt that ends at `pos`). `in_step`: see engine::profile(). Forgets all
  /// sequences. Setup phase.
  virtual Result<Profile> profile(int rows, int pos, bool decode, bool in_step = false) = 0;
  /// Of a model that was loaded with gates: its longest step and stretch, as timed at load. Errors: FailedPrecondition
  /// of any other.
  virtual Result<WorkTimes> work_times() const;
  /// Sees an output of an op of a step, in host memory, as the op left it; rows beyond the step's are of older steps.
  using Observer = std::function<Status(const char* op, const char* port, const Tensor& value)>;
  /// Whether an observer wants this output: one that it does not want is not copied from a device. Empty: all are.
  using Wanted = std::function<bool(const char* op, const char* port)>;
  /// A step like issue() and collect(), op by op, whose every value `observer` sees. Its draws are dropped. Setup
  /// phase. Errors: FailedPrecondition with steps queued; the observer's.
  virtual Status observe(std::span<const TokenRow> rows, const Observer& observer, const Wanted& wanted = {});
  /// LoadOptions::act_scales from what `prompts` bring to each activation quantization point: the magnitude
  /// that `percentile` (above 50, to 100) of the values do not exceed, over e4m3's largest. Forgets slot 0. Setup
  /// phase. Errors: Unsupported for plans whose activations are codes already, and where values are NaN;
  /// InvalidArgument.
  virtual Result<std::vector<float>> calibrate(std::span<const std::vector<int32_t>> prompts, double percentile);
  /// Steps that were queued and not collected.
  virtual int queued() const = 0;
  /// issue() and collect() of one step. Errors: FailedPrecondition with steps queued, and theirs.
  Status step(std::span<const TokenRow> rows, std::span<Sampled> out);
  /// The logits [sampled rows, vocab] f32 of the last step, in host memory; valid until the next one.
  /// Errors: FailedPrecondition with steps queued.
  virtual Result<Tensor> logits() = 0;
};

}  // namespace vivace::engine
