/* Sound to text through the C ABI: a Whisper with its tokenizer. C99, on top of vivace.h, whose rules on statuses, out
 * parameters, handles and struct_size hold here. Threads may share a vv_speech: their transcriptions take turns. */
#ifndef VIVACE_SPEECH_H
#define VIVACE_SPEECH_H

#include "vivace/capi/vivace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vv_speech vv_speech;
typedef struct vv_transcript vv_transcript;

typedef struct vv_speech_options {
  size_t struct_size;
  const char* path;      /* a hub folder: config.json, safetensors, tokenizer.json */
  const char* device;    /* NULL = "auto"; "cpu", "cuda", "cuda:N" */
  const char* precision; /* NULL = "auto"; "f32", "bf16", "f16", "w8a16", "fp8", "fp8_static", "q8" */
  int threads;           /* CPU: 0 picks one a physical core */
  int most_beams;        /* or draws, that a transcription may ask for; 0 = 1 */
  int random_weights;    /* 1: of the shapes that config.json says */
  const float* act_scales; /* of precision "fp8_static" alone: what vv_speech_calibrate() gave of this checkpoint */
  int act_scale_count;
} vv_speech_options;

/* Errors: as vv_model_load and vv_tokenizer_load; VV_INVALID_SHAPE: model and tokenizer do not belong together. */
VV_API vv_status vv_speech_load(const vv_speech_options* options, vv_speech** out);
VV_API void vv_speech_destroy(vv_speech* speech);

/* Setup. Scales for vv_speech_options.act_scales from what `count` samples of one channel, full scale 1, 16,000 a
 * second, and their text bring to each activation quantization point, of a model loaded as "f32" or "bf16";
 * `percentile` in (0, 100] of their windows' largest magnitudes counts. *scale_count is how many scales there are; the
 * first `capacity` are written, none where scales is NULL. Errors: VV_FAILED_PRECONDITION, VV_INVALID_ARGUMENT,
 * VV_CORRUPT_DATA. */
VV_API vv_status vv_speech_calibrate(vv_speech* speech, const float* samples, size_t count, double percentile,
                                     float* scales, size_t capacity, size_t* scale_count);

typedef struct vv_transcribe_options {
  size_t struct_size;
  const char* language; /* a code such as "en"; NULL: that of the first 30 seconds */
  int translate;        /* 1: into English */
  int beams;            /* 0 = 1: greedy */
  int no_condition;     /* 1: text so far is no prompt for what follows */
  int no_timestamps;    /* 1: a segment a window */
  int words;            /* 1: when each word was said */
  const char* prompt;   /* UTF-8, before all; NULL: none */
  const char* hotwords; /* UTF-8, before every window; NULL: none */
  const float* temperatures; /* 0 to 10, tried in turn while text repeats itself or is unlikely; NULL: 0 alone */
  size_t temperature_count;  /* at most 64 */
  int best_of;               /* draws at temperatures above 0, of which the likeliest counts; 0 = most_beams */
  uint64_t seed;             /* of the draws */
} vv_transcribe_options;

/* `count` samples of one channel, full scale 1, 16,000 a second. `options` may be NULL. Errors: VV_INVALID_ARGUMENT (a
 * sample that is not finite, a language that the model does not know, text that is no UTF-8), VV_LIMIT_EXCEEDED (beams,
 * best_of, a prompt that is too long), VV_UNSUPPORTED (translating with a model of English). */
VV_API vv_status vv_speech_transcribe(vv_speech* speech, const float* samples, size_t count,
                                      const vv_transcribe_options* options, vv_transcript** out);
/* The same of a sound file in memory, of any rate and number of channels: WAV, and where libsndfile is found (the
 * system's, or VIVACE_SNDFILE), FLAC, MP3, Ogg and others. Errors: also VV_CORRUPT_DATA, VV_LIMIT_EXCEEDED;
 * VV_UNSUPPORTED: another coding, or no libsndfile. */
VV_API vv_status vv_speech_transcribe_file(vv_speech* speech, const void* file, size_t bytes,
                                           const vv_transcribe_options* options, vv_transcript** out);
VV_API void vv_transcript_destroy(vv_transcript* transcript);

/* Texts and tokens are valid as long as the transcript. */
typedef struct vv_transcript_info {
  size_t struct_size;
  const char* language;
  size_t segments;
} vv_transcript_info;
typedef struct vv_segment_info {
  size_t struct_size;
  double start, end; /* seconds */
  const char* text;  /* UTF-8, with the space before it */
  const int32_t* tokens;
  size_t token_count;
  double avg_logprob, no_speech; /* of its window */
  double compression_ratio, temperature; /* the same: how often it repeats itself, and at which it was decoded */
  const float* logprobs;                 /* of each token, among all that might follow */
  size_t words;                          /* 0 unless asked for */
} vv_segment_info;
typedef struct vv_word_info {
  size_t struct_size;
  double start, end; /* seconds */
  double probability;
  const char* text; /* UTF-8, with the space before it and the marks that belong to it */
} vv_word_info;
VV_API vv_status vv_transcript_get_info(const vv_transcript* transcript, vv_transcript_info* info);
VV_API vv_status vv_transcript_get_segment(const vv_transcript* transcript, size_t segment, vv_segment_info* info);
VV_API vv_status vv_transcript_get_word(const vv_transcript* transcript, size_t segment, size_t word,
                                        vv_word_info* info);

#ifdef __cplusplus
}
#endif

#endif
