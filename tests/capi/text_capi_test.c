/* Tokenizers through the C ABI, as a C99 program sees them. Usage: vivace_text_c FOLDER, an empty one that this
 * program puts a tokenizer.json into. Prints and counts what differs. */
#include <stdio.h>
#include <string.h>

#include "tests/capi/check.h"
#include "vivace/capi/text.h"

static const char kFile[] =
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"h\": 0, \"i\": 1, \"hi\": 2, \"\\u0120\": 3}, \"merges\": [\"h "
    "i\"]},"
    " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true},"
    " \"added_tokens\": [{\"id\": 4, \"content\": \"<|h|>\", \"special\": true}]}";

int main(int argc, char** argv) {
  char path[4096], text[16];
  vv_tokenizer* t = NULL;
  int32_t ids[8] = {0}, id = -1;
  size_t n = 0;
  FILE* f;
  if (argc != 2) return 2;
  EXPECT_ERROR(vv_tokenizer_load("/nowhere/at/all", &t), VV_NOT_FOUND, "tokenizer.json");
  EXPECT_ERROR(vv_tokenizer_load(NULL, &t), VV_INVALID_ARGUMENT, "checkpoint is NULL");
  snprintf(path, sizeof path, "%s/tokenizer.json", argv[1]);
  f = fopen(path, "wb");
  if (f == NULL) return 2;
  fputs(kFile, f);
  fclose(f);
  EXPECT(vv_tokenizer_load(argv[1], &t) == VV_OK);
  if (t == NULL) return 1;
  EXPECT(vv_tokenizer_encode(t, "hi hi", 5, 0, ids, 8, &n) == VV_OK && n == 3 && ids[0] == 2 && ids[1] == 3 &&
         ids[2] == 2);
  EXPECT(vv_tokenizer_encode(t, "hi<|h|>", 7, 1, ids, 8, &n) == VV_OK && n == 2 && ids[1] == 4);
  EXPECT(vv_tokenizer_encode(t, "hi<|h|>", 7, 0, ids, 8, &n) == VV_OK && n == 2 &&
         ids[1] == 0); /* '<', '|', '>' have no token */
  ids[1] = -7;
  EXPECT(vv_tokenizer_encode(t, "hi hi", 5, 0, ids, 1, &n) == VV_OK && n == 3 && ids[1] == -7);
  EXPECT(vv_tokenizer_encode(t, "hi hi", 5, 0, NULL, 0, &n) == VV_OK && n == 3);
  EXPECT(vv_tokenizer_encode(t, NULL, 0, 0, NULL, 0, &n) == VV_OK && n == 0);
  ids[0] = 2, ids[1] = 3, ids[2] = 4, ids[3] = 1;
  EXPECT(vv_tokenizer_decode(t, ids, 4, text, sizeof text, &n) == VV_OK && n == 4 && memcmp(text, "hi i", 4) == 0);
  EXPECT(vv_tokenizer_find(t, "<|h|>", &id) == VV_OK && id == 4);
  EXPECT_ERROR(vv_tokenizer_find(t, "zz", &id), VV_NOT_FOUND, "no token 'zz'");
  EXPECT_ERROR(vv_tokenizer_encode(t, "a\xff", 2, 0, ids, 8, &n), VV_INVALID_ARGUMENT, "byte 1 of the text");
  ids[0] = 5;
  EXPECT_ERROR(vv_tokenizer_decode(t, ids, 1, text, sizeof text, &n), VV_INVALID_ARGUMENT, "outside [0, 5)");
  EXPECT_ERROR(vv_tokenizer_encode(NULL, "a", 1, 0, ids, 8, &n), VV_INVALID_ARGUMENT, "tokenizer is NULL");
  vv_tokenizer_destroy(t);
  vv_tokenizer_destroy(NULL);
  printf("%d failures\n", failures);
  return failures != 0;
}
