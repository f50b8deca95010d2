// What a model that goes to sleep, or wakes, has moved.
#pragma once
#include <cstdint>

namespace vivace::engine {

struct Moved {
  int64_t bytes = 0;   // of device memory that was given back, or taken again
  double seconds = 0;  // that it took
};

}  // namespace vivace::engine
