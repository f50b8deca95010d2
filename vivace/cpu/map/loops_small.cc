#include "vivace/cpu/map/instances.h"

namespace vivace::cpu {

Loop small_loop(Func f, Elem e) {
  switch (e) {
    case Elem::boolean:
      return column<Elem::boolean>(f);
    case Elem::u8:
      return column<Elem::u8>(f);
    case Elem::i8:
      return column<Elem::i8>(f);
    case Elem::u16:
      return column<Elem::u16>(f);
    case Elem::i16:
      return column<Elem::i16>(f);
    default:
      return nullptr;
  }
}

}  // namespace vivace::cpu
