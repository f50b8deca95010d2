// Fixed-width integers for code that g++, nvcc and NVRTC all read. NVRTC has no std headers.
#pragma once
#ifdef __CUDACC_RTC__
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;  // LP64, as the host's: mangled names and struct layouts agree
using uint64_t = unsigned long;
using size_t = unsigned long;
using uintptr_t = unsigned long;
#else
#include <cstddef>
#include <cstdint>
#endif

#ifdef __CUDACC__
#define VV_HD __host__ __device__
#else
#define VV_HD
#endif
