#include "vivace/cpu/map/instances.h"

namespace vivace::cpu {

Loop wide_loop(Func f, Elem e) {
  switch (e) {
    case Elem::u32:
      return column<Elem::u32>(f);
    case Elem::i32:
      return column<Elem::i32>(f);
    case Elem::u64:
      return column<Elem::u64>(f);
    case Elem::i64:
      return column<Elem::i64>(f);
    default:
      return nullptr;
  }
}

}  // namespace vivace::cpu
