// The structures of XLA's foreign function interface (C ABI 0.x) that a handler is called with, and what it calls back.
// A struct grows at its end alone: `size` says how much of it the caller knows.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vivace::python::ffi {

struct Error;    // XLA's own
struct Context;  // likewise: one execution

struct Extension {
  size_t size;
  int32_t type;
  Extension* next;
};
inline constexpr int32_t kMetadataExtension = 1;

/// How every struct that crosses begins.
struct Head {
  size_t size;
  Extension* extensions;
};

struct Version : Head {
  int32_t major, minor;
};
/// What is written here: later minor versions call it as this one does.
inline constexpr int32_t kMajor = 0, kMinor = 3;

struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
  int64_t state_type;  // since 0.2
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};
/// The trait that a call may be captured: always the same launches, which depend on attributes and shapes alone.
inline constexpr uint32_t kCommandBufferCompatible = 1;

/// XLA's PrimitiveType.
enum class Type : int32_t {
  boolean = 1,
  s8 = 2,
  s16 = 3,
  s32 = 4,
  s64 = 5,
  u8 = 6,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16,
  f8e5m2 = 19,
  f8e4m3fn = 20,
};

/// Always dense in the layout that the call site asked for.
struct Buffer : Head {
  Type type;
  void* data;
  int64_t rank;
  int64_t* dims;
};
inline constexpr int32_t kBuffer = 1;  // the one type of arguments and results

struct Span {
  const char* data;
  size_t size;
};
struct Scalar {
  Type type;
  void* value;
};
enum : int32_t { kScalar = 3, kString = 4 };  // types of attributes; others are arrays and dictionaries

/// `count` entries: types[i] says what items[i] points at.
struct Operands : Head {
  int64_t count;
  int32_t* types;
  void** items;
};
struct Attributes : Head {
  int64_t count;
  int32_t* types;
  Span** names;  // sorted
  void** items;
};

enum class Stage : int32_t { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

struct ErrorCreate : Head {
  const char* message;
  int32_t code;  // absl's
};
struct ErrorDestroy : Head {
  Error* error;
};
struct StreamGet : Head {
  Context* context;
  void* stream;  // out
};

/// Functions of XLA in their order. Those that nobody here calls are there for their place.
struct Api : Head {
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void (*error_get_message)(void*);
  void (*error_destroy)(ErrorDestroy*);
  Error* (*handler_register)(void*);
  Error* (*stream_get)(StreamGet*);
};

struct CallFrame : Head {
  const Api* api;
  Context* context;
  Stage stage;
  Operands arguments, results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

}  // namespace vivace::python::ffi
