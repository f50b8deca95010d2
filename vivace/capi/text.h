/* Text in and out of token ids through the C ABI, without Python: byte-level BPE of a .gguf file or of a
 * tokenizer.json, SentencePiece (BPE, unigram) of these or of its own tokenizer.model. C99, on top of vivace.h, whose
 * rules on statuses, out parameters and handles hold here. A tokenizer is immutable: threads may share one. */
#ifndef VIVACE_TEXT_H
#define VIVACE_TEXT_H

#include "vivace/capi/vivace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vv_tokenizer vv_tokenizer;

/* `checkpoint`: a .gguf file, a hub folder, a tokenizer.model or tokenizer.json, or a .safetensors file with one of
 * the two beside it, of which tokenizer.model counts. Errors:
 * VV_NOT_FOUND, VV_CORRUPT_DATA, VV_UNSUPPORTED (says what this tokenizer needs that is not done here). */
VV_API vv_status vv_tokenizer_load(const char* checkpoint, vv_tokenizer** out);
VV_API void vv_tokenizer_destroy(vv_tokenizer* tokenizer);

/* The ids of `bytes` bytes of UTF-8. `special`: 1 lets names of control tokens in the text become these tokens,
 * 0 leaves them text, so that a user's words cannot forge a turn. *count is how many ids there are; the first
 * `capacity` of them are written, none where ids is NULL. Errors: VV_INVALID_ARGUMENT (no UTF-8), VV_UNSUPPORTED. */
VV_API vv_status vv_tokenizer_encode(const vv_tokenizer* tokenizer, const char* text, size_t bytes, int special,
                                     int32_t* ids, size_t capacity, size_t* count);
/* The text of the ids, control tokens left out, and no 0 at its end; likewise. Bytes that are no UTF-8 become U+FFFD.
 */
VV_API vv_status vv_tokenizer_decode(const vv_tokenizer* tokenizer, const int32_t* ids, size_t count, char* text,
                                     size_t capacity, size_t* bytes);
/* The id of a token by its text, control tokens included. VV_NOT_FOUND: there is none. */
VV_API vv_status vv_tokenizer_find(const vv_tokenizer* tokenizer, const char* token, int32_t* id);

#ifdef __cplusplus
}
#endif

#endif
