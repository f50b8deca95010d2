// Checks that return a Status and print both sides. Never abort, never vanish in release builds.
#pragma once
#include <sstream>

#include "vivace/base/status.h"

namespace vivace::detail {
template <class A, class B>
Status check_failed(Code code, const char* expr, const A& a, const B& b) {
  std::ostringstream s;
  s << expr << " failed: " << a << " vs " << b;
  return Status(code, s.str());
}
}  // namespace vivace::detail

#define VV_CONCAT_(a, b) a##b
#define VV_CONCAT(a, b) VV_CONCAT_(a, b)

/// Returns from the enclosing function if `expr` (a Status) is an error.
#define VV_TRY(expr)                                         \
  do {                                                       \
    if (::vivace::Status vv_s_ = (expr); !vv_s_.ok()) return vv_s_; \
  } while (0)

/// `VV_ASSIGN(auto x, f())`: unwraps a Result or returns its Status.
#define VV_ASSIGN(decl, expr) VV_ASSIGN_(VV_CONCAT(vv_r_, __LINE__), decl, expr)
#define VV_ASSIGN_(tmp, decl, expr)          \
  auto tmp = (expr);                         \
  if (!tmp.ok()) return std::move(tmp).status(); \
  decl = std::move(tmp).value()

#define VV_CHECK_OP_(op, code, a, b)                                                              \
  do {                                                                                            \
    const auto& vv_a_ = (a);                                                                      \
    const auto& vv_b_ = (b);                                                                      \
    if (!(vv_a_ op vv_b_))                                                                        \
      return ::vivace::detail::check_failed(::vivace::Code::code, #a " " #op " " #b, vv_a_, vv_b_); \
  } while (0)
#define VV_CHECK_EQ(code, a, b) VV_CHECK_OP_(==, code, a, b)
#define VV_CHECK_NE(code, a, b) VV_CHECK_OP_(!=, code, a, b)
#define VV_CHECK_LE(code, a, b) VV_CHECK_OP_(<=, code, a, b)
#define VV_CHECK_LT(code, a, b) VV_CHECK_OP_(<, code, a, b)
#define VV_CHECK_GE(code, a, b) VV_CHECK_OP_(>=, code, a, b)
#define VV_CHECK_GT(code, a, b) VV_CHECK_OP_(>, code, a, b)
