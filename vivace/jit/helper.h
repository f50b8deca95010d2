// Compiles in processes of their own. NVRTC lets one thread of a process through its front end at a time, so that many
// kernels at once need many processes: 20 a second by 4 threads and by 64 of an H200 host of 64 cores
// (docs/design/065).
#pragma once
#include <string>
#include <vector>

#include "vivace/jit/binary.h"

namespace vivace::jit {

/// The program, with its arguments, that a helper process runs: one that calls serve_compiles(0). None (the default):
/// every compile is this process's. Call before the first compile.
void set_helper_command(std::vector<std::string> command);

/// One helper process; for one thread at a time. It ends with its Helper, or with this process.
class Helper {
 public:
  /// Errors: NotFound without a command; IoError, also where the program cannot be started.
  static Result<Helper> start();
  Helper(Helper&& o) noexcept;
  Helper& operator=(Helper&&) = delete;
  ~Helper();
  /// As jit::compile(). Errors: its own, and IoError once the process has ended: compile here instead.
  Result<Binary> compile(const Source& source) const;

 private:
  Helper(int socket, int process) : socket_(socket), process_(process) {}
  int socket_, process_;
};

/// The helper's side: compiles what comes in until the other end closes. Nothing else may use the socket.
void serve_compiles(int socket);

}  // namespace vivace::jit
