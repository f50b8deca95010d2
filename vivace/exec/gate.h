// Gate: words that hold streams back. A stream passes a gate once every word that it asks about is 0.
#pragma once
#include <cstdint>

#include "vivace/base/status.h"

namespace vivace::exec {

/// Words, all 0 (open) when made: the first `stream_words` are written by streams in their order (Stream::set), the
/// others by the host at once (set). A word has one writer; who that is and why it shuts is decided above. Must outlive
/// every stream and executable that passes or sets it. Thread-safe.
class Gate {
 public:
  static constexpr int kMaxWords = 32;

  virtual ~Gate() = default;
  int stream_words() const { return stream_words_; }
  int host_words() const { return host_words_; }
  int words() const { return stream_words_ + host_words_; }

  /// Shuts or opens one of the host's words; streams that wait see it at once. Errors: InvalidArgument for any other
  /// word.
  virtual Status set(int word, bool shut) = 0;
  /// Opens every word, also those of streams: for a watchdog whose stream was lost. What is queued runs on.
  virtual Status open_all() = 0;
  /// What the word is now. Reports and tests: on a GPU this waits for a copy. Errors: InvalidArgument.
  virtual Result<bool> shut(int word) = 0;

 protected:
  Gate(int stream_words, int host_words) : stream_words_(stream_words), host_words_(host_words) {}
  Gate(const Gate&) = delete;

 private:
  const int stream_words_, host_words_;
};

/// For backends: checks of make_gate(), pass() and set(), the same in all of them. `call` names the call in the
/// message.
Status check_gate_words(const char* backend, int stream_words, int host_words);
Status check_mask(const char* backend, const Gate& gate, uint32_t mask);
Status check_word(const char* backend, const char* call, const Gate& gate, int word, bool of_host);

}  // namespace vivace::exec
