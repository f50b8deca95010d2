// forks(): whether this is still the process in which something was made. A child of fork() has its parent's memory,
// not its threads: what waits for one of those would wait for ever.
#pragma once

namespace vivace {

/// How many calls of fork() lie between this process and the first call of forks(). Cheap.
int forks();

}  // namespace vivace
