#include "vivace/exec/gate.h"

#include "vivace/base/check.h"

namespace vivace::exec {

Status check_gate_words(const char* backend, int stream_words, int host_words) {
  if (stream_words >= 0 && host_words >= 0 && stream_words + host_words >= 1 &&
      stream_words + host_words <= Gate::kMaxWords)
    return {};
  return Status(Code::kInvalidArgument,
                strf("%s backend: gate of %d stream words and %d host words: wanted 1 to %d words in all", backend,
                     stream_words, host_words, Gate::kMaxWords));
}

Status check_mask(const char* backend, const Gate& gate, uint32_t mask) {
  if (mask != 0 && (gate.words() == 32 || mask >> gate.words() == 0)) return {};
  return Status(Code::kInvalidArgument,
                strf("%s stream: pass: mask 0x%x: the gate has words 0 to %d, and a pass asks about one at least",
                     backend, mask, gate.words() - 1));
}

Status check_word(const char* backend, const char* call, const Gate& gate, int word, bool of_host) {
  const int first = of_host ? gate.stream_words() : 0, end = of_host ? gate.words() : gate.stream_words();
  if (word >= first && word < end) return {};
  return Status(Code::kInvalidArgument, strf("%s gate: %s: word %d: words that %s writes are %d to %d", backend, call,
                                             word, of_host ? "the host" : "a stream", first, end - 1));
}

}  // namespace vivace::exec
