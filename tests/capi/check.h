/* Checks of the C99 programs: what is not so is printed and counted, and main() returns the count. */
#ifndef TESTS_CAPI_CHECK_H_
#define TESTS_CAPI_CHECK_H_
#include <stdio.h>
#include <string.h>

#include "vivace/capi/vivace.h"

static int failures = 0;

#define EXPECT(condition)                                                                             \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      printf("%s:%d: not so: %s; last error: %s\n", __FILE__, __LINE__, #condition, vv_last_error()); \
      ++failures;                                                                                     \
    }                                                                                                 \
  } while (0)
#define EXPECT_OK(call) EXPECT((call) == VV_OK)
/* The status, and that vv_last_error() holds `part`. */
#define EXPECT_ERROR(call, status, part) EXPECT((call) == (status) && strstr(vv_last_error(), (part)) != NULL)

#endif  /* TESTS_CAPI_CHECK_H_ */
