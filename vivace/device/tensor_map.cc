#include "vivace/device/tensor_map.h"

#include "vivace/device/driver.h"

namespace vivace::device {

Status encode_map(const MapShape& s, void* map) {
  const uint64_t dims[] = {static_cast<uint64_t>(s.columns), static_cast<uint64_t>(s.rows)}, pitches[] = {static_cast<uint64_t>(s.pitch)};
  const unsigned box[] = {static_cast<unsigned>(128 / s.element_bytes), static_cast<unsigned>(s.box_rows)}, steps[] = {1, 1};
  const int type = s.element_bytes == 1 ? cu::kMapU8 : s.element_bytes == 2 ? cu::kMapU16 : cu::kMapU32;
  const Status status = VV_CU_STATUS(cuTensorMapEncodeTiled, map, type, 2u, const_cast<void*>(s.data), dims, pitches, box, steps, cu::kMapNoInterleave,
                                     cu::kMapSwizzle128, cu::kMapFetch256, cu::kMapZeros);
  if (status.ok()) return status;
  return Status(status).with_context(strf("tensor map of %ld rows x %ld columns, pitch %ld bytes, boxes of %d rows", static_cast<long>(s.rows),
                                          static_cast<long>(s.columns), static_cast<long>(s.pitch), s.box_rows));
}

}  // namespace vivace::device
