#include "vivace/cpu/map/instances.h"

namespace vivace::cpu {

Loop real_loop(Func f, Elem e) {
  switch (e) {
    case Elem::f16:
      return column<Elem::f16>(f);
    case Elem::bf16:
      return column<Elem::bf16>(f);
    case Elem::f32:
      return column<Elem::f32>(f);
    case Elem::f64:
      return column<Elem::f64>(f);
    default:
      return nullptr;
  }
}

}  // namespace vivace::cpu
