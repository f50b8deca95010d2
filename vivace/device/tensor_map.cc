#include "vivace/device/tensor_map.h"

#include "vivace/device/driver.h"

namespace vivace::device {

Status encode_map(const MapShape& s, void* map) {
  const uint64_t dims[] = {static_cast<uint64_t>(s.columns), static_cast<uint64_t>(s.rows)},
                 pitches[] = {static_cast<uint64_t>(s.pitch)};
  const unsigned box[] = {static_cast<unsigned>(s.box_bytes / s.element_bytes), static_cast<unsigned>(s.box_rows)},
                 steps[] = {1, 1};
  const int swizzle = s.box_bytes == 32   ? cu::kMapSwizzle32
                      : s.box_bytes == 64 ? cu::kMapSwizzle64
                                          : cu::kMapSwizzle128;
  const int type = s.element_bytes == 1 ? cu::kMapU8 : s.element_bytes == 2 ? cu::kMapU16 : cu::kMapU32;
  const Status status = VV_CU_STATUS(cuTensorMapEncodeTiled, map, type, 2u, const_cast<void*>(s.data), dims, pitches,
                                     box, steps, cu::kMapNoInterleave, swizzle, cu::kMapFetch256, cu::kMapZeros);
  if (status.ok()) return status;
  return Status(status).with_context(strf("tensor map of %ld rows x %ld columns, pitch %ld bytes, boxes of %d rows",
                                          static_cast<long>(s.rows), static_cast<long>(s.columns),
                                          static_cast<long>(s.pitch), s.box_rows));
}

Status encode_map(const WordMapShape& s, void* map) {
  const uint64_t words = static_cast<uint64_t>(s.words), rows = static_cast<uint64_t>(s.rows),
                 pitch = static_cast<uint64_t>(s.pitch);
  const unsigned box_words = static_cast<unsigned>(s.box_words), box_rows = static_cast<unsigned>(s.box_rows),
                 steps[] = {1, 1, 1, 1};
  const uint64_t dims[] = {words, s.paired ? 8 : rows, 2, rows / 16},
                 pitches[] = {s.paired ? 2 * pitch : pitch, pitch, 16 * pitch};
  const unsigned box[] = {box_words, s.paired ? 8 : box_rows, 2, box_rows / 16};
  const Status status = VV_CU_STATUS(cuTensorMapEncodeTiled, map, s.word_bytes == 8 ? cu::kMapU64 : cu::kMapU32,
                                     s.paired ? 4u : 2u, const_cast<void*>(s.data), dims, pitches, box, steps,
                                     cu::kMapNoInterleave, cu::kMapNoSwizzle, cu::kMapFetch256, cu::kMapZeros);
  if (status.ok()) return status;
  return Status(status).with_context(
      strf("tensor map of %ld rows x %ld words, pitch %ld bytes, boxes of %d rows x %d words",
           static_cast<long>(s.rows), static_cast<long>(s.words), static_cast<long>(s.pitch), s.box_rows, s.box_words));
}

Status encode_paired_map(const MapShape& s, void* map) {
  const uint64_t dims[] = {static_cast<uint64_t>(s.columns), 8, 2, static_cast<uint64_t>(s.rows / 16)};
  const uint64_t pitch = static_cast<uint64_t>(s.pitch), pitches[] = {2 * pitch, pitch, 16 * pitch};
  const unsigned box[] = {static_cast<unsigned>(128 / s.element_bytes), 8, 2, static_cast<unsigned>(s.box_rows / 16)},
                 steps[] = {1, 1, 1, 1};
  const int type = s.element_bytes == 1 ? cu::kMapU8 : s.element_bytes == 2 ? cu::kMapU16 : cu::kMapU32;
  const Status status =
      VV_CU_STATUS(cuTensorMapEncodeTiled, map, type, 4u, const_cast<void*>(s.data), dims, pitches, box, steps,
                   cu::kMapNoInterleave, cu::kMapSwizzle128, cu::kMapFetch256, cu::kMapZeros);
  if (status.ok()) return status;
  return Status(status).with_context(
      strf("tensor map of %ld rows x %ld columns in pairs, pitch %ld bytes, boxes of %d rows",
           static_cast<long>(s.rows), static_cast<long>(s.columns), static_cast<long>(s.pitch), s.box_rows));
}

Status encode_halved_map(const MapShape& s, int head_rows, void* map) {
  const uint64_t head = static_cast<uint64_t>(head_rows), pitch = static_cast<uint64_t>(s.pitch);
  const uint64_t dims[] = {static_cast<uint64_t>(s.columns), 8, 2, head / 16, static_cast<uint64_t>(s.rows) / head},
                 pitches[] = {pitch, head / 2 * pitch, 8 * pitch, head * pitch};
  const unsigned box[] = {static_cast<unsigned>(128 / s.element_bytes), 8, 2, static_cast<unsigned>(s.box_rows / 16),
                          1},
                 steps[] = {1, 1, 1, 1, 1};
  const int type = s.element_bytes == 1 ? cu::kMapU8 : s.element_bytes == 2 ? cu::kMapU16 : cu::kMapU32;
  const Status status =
      VV_CU_STATUS(cuTensorMapEncodeTiled, map, type, 5u, const_cast<void*>(s.data), dims, pitches, box, steps,
                   cu::kMapNoInterleave, cu::kMapSwizzle128, cu::kMapFetch256, cu::kMapZeros);
  if (status.ok()) return status;
  return Status(status).with_context(
      strf("tensor map of %ld rows x %ld columns in heads of %d rows, pitch %ld bytes, boxes of %d rows",
           static_cast<long>(s.rows), static_cast<long>(s.columns), head_rows, static_cast<long>(s.pitch), s.box_rows));
}

Status encode_map(const BoxShape& s, void* map) {
  uint64_t dims[5], pitches[4];
  unsigned box[5] = {64, static_cast<unsigned>(s.box_rows), 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
  for (int i = 0; i < s.axes; ++i) dims[i] = static_cast<uint64_t>(s.dim[i]);
  for (int i = 0; i + 1 < s.axes; ++i) pitches[i] = static_cast<uint64_t>(s.pitch[i]);
  const Status status = VV_CU_STATUS(cuTensorMapEncodeTiled, map, cu::kMapU16, static_cast<unsigned>(s.axes),
                                     const_cast<void*>(s.data), dims, pitches, box, steps, cu::kMapNoInterleave,
                                     cu::kMapSwizzle128, cu::kMapFetch256, cu::kMapZeros);
  if (status.ok()) return status;
  std::string shape;
  for (int i = 0; i < s.axes; ++i)
    shape += strf(i > 0 ? " x %ld, pitch %ld" : "%ld", static_cast<long>(s.dim[i]),
                  i > 0 ? static_cast<long>(s.pitch[i - 1]) : 0l);
  return Status(status).with_context(strf("tensor map of %s, boxes of %d rows", shape.c_str(), s.box_rows));
}

}  // namespace vivace::device
