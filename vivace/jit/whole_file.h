// Files that appear whole or not at all.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "vivace/base/status.h"

namespace vivace::jit {

/// Writes `parts` to a file of a name that nobody else has, waits until the disk has it, and renames it to `name`,
/// which it replaces; on a failure nothing of it stays. `name` is below the folder `dir`, a descriptor (AT_FDCWD for a
/// path). Safe between threads and processes: the last rename wins. Errors: IoError.
Status write_whole(int dir, const std::string& name, std::span<const std::string_view> parts);

/// The steps of a write, in order. A test kills the process at each.
enum class WriteStep { locked, created, half_written, written, synced, renamed, done };
/// Called at each step if set; for tests.
extern void (*g_write_step_hook)(WriteStep step);
void write_step(WriteStep step);

/// An IoError of the call that has just set errno.
Status io_error(const char* call, const std::string& what);

}  // namespace vivace::jit
