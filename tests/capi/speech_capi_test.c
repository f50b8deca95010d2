/* Speech through the C ABI, as a C99 program sees it. Usage: vivace_speech_c FOLDER, an empty one that this program
 * puts a Whisper of one layer without weights into. Prints and counts what differs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/capi/check.h"
#include "vivace/capi/model.h"
#include "vivace/capi/speech.h"

static const char kConfig[] =
    "{\"architectures\": [\"WhisperForConditionalGeneration\"], \"d_model\": 32, \"num_mel_bins\": 80, \"vocab_size\": "
    "1515, \"eos_token_id\": 4, \"max_source_positions\": 1500,"
    " \"max_target_positions\": 64, \"encoder_layers\": 1, \"decoder_layers\": 1, \"encoder_attention_heads\": 2, "
    "\"decoder_attention_heads\": 2, \"encoder_ffn_dim\": 64, \"decoder_ffn_dim\": 64}";
static const char kTokenizer[] =
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"\\u0120\": 3}, \"merges\": []},"
    " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true},"
    " \"added_tokens\": [{\"id\": 4, \"content\": \"<|end|>\", \"special\": true}, {\"id\": 5, \"content\": "
    "\"<|sot|>\", \"special\": true},"
    " {\"id\": 6, \"content\": \"<|en|>\", \"special\": true}, {\"id\": 7, \"content\": \"<|de|>\", \"special\": "
    "true}]}";

static int put(const char* folder, const char* name, const char* text) {
  char path[4096];
  FILE* f;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  f = fopen(path, "wb");
  if (f == NULL) return 0;
  fputs(text, f);
  return fclose(f) == 0;
}

static vv_transcribe_options transcribe_options(void) {
  vv_transcribe_options o;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  return o;
}

/* Text of the letters that there are, times that rise; the same each time. */
static void test_text(vv_speech* speech, const float* samples, size_t count) {
  vv_transcribe_options o = transcribe_options();
  vv_transcript *t = NULL, *again = NULL;
  vv_transcript_info info, other;
  size_t i;
  double before = 0;
  info.struct_size = other.struct_size = sizeof info;
  o.language = "de", o.beams = 2;
  EXPECT_OK(vv_speech_transcribe(speech, samples, count, &o, &t));
  EXPECT_OK(vv_speech_transcribe(speech, samples, count, &o, &again));
  if (t == NULL || again == NULL) return;
  EXPECT_OK(vv_transcript_get_info(t, &info));
  EXPECT_OK(vv_transcript_get_info(again, &other));
  EXPECT(strcmp(info.language, "de") == 0 && info.segments == other.segments);
  for (i = 0; i < info.segments; ++i) {
    vv_segment_info s, same;
    s.struct_size = same.struct_size = sizeof s;
    EXPECT_OK(vv_transcript_get_segment(t, i, &s));
    EXPECT_OK(vv_transcript_get_segment(again, i, &same));
    /* What the network says of the silence behind the sound is put at its end. */
    EXPECT(s.start >= before && (s.end > s.start || s.end == (double)count / 16000) && s.end <= 31 &&
           strspn(s.text, "abc ") == strlen(s.text) && s.token_count > 0 && s.tokens[0] >= 0);
    EXPECT(strcmp(s.text, same.text) == 0 && s.token_count == same.token_count &&
           memcmp(s.tokens, same.tokens, s.token_count * sizeof *s.tokens) == 0);
    EXPECT(s.avg_logprob < 0 && s.no_speech >= 0 && s.no_speech <= 1);
    before = s.start;
  }
  {
    vv_segment_info s;
    s.struct_size = sizeof s;
    EXPECT_ERROR(vv_transcript_get_segment(t, info.segments, &s), VV_INVALID_ARGUMENT, "there are");
    s.struct_size = 1;
    EXPECT_ERROR(vv_transcript_get_segment(t, 0, &s), VV_INVALID_ARGUMENT, "");
  }
  vv_transcript_destroy(t);
  vv_transcript_destroy(again);
}

static void test_refused(vv_speech* speech, float* samples, size_t count) {
  vv_transcribe_options o = transcribe_options();
  vv_transcript* t = NULL;
  vv_transcript_info info;
  info.struct_size = sizeof info;
  EXPECT_ERROR(vv_speech_transcribe(NULL, samples, count, &o, &t), VV_INVALID_ARGUMENT, "speech is NULL");
  EXPECT_ERROR(vv_speech_transcribe(speech, samples, count, &o, NULL), VV_INVALID_ARGUMENT, "out is NULL");
  EXPECT_ERROR(vv_speech_transcribe(speech, NULL, 3, &o, &t), VV_INVALID_ARGUMENT, "samples is NULL");
  EXPECT_ERROR(vv_speech_transcribe(speech, samples, (size_t)-1, &o, &t), VV_INVALID_ARGUMENT, "no memory has so many");
  o.language = "xx";
  EXPECT_ERROR(vv_speech_transcribe(speech, samples, count, &o, &t), VV_INVALID_ARGUMENT, "'xx'");
  o.language = "en", o.beams = -1;
  EXPECT_ERROR(vv_speech_transcribe(speech, samples, count, &o, &t), VV_INVALID_ARGUMENT, "beams");
  o.beams = 3;
  EXPECT_ERROR(vv_speech_transcribe(speech, samples, count, &o, &t), VV_LIMIT_EXCEEDED, "2 rows");
  o.struct_size = 4;
  EXPECT_ERROR(vv_speech_transcribe(speech, samples, count, &o, &t), VV_INVALID_ARGUMENT, "struct_size");
  samples[7] = (float)NAN;
  EXPECT_ERROR(vv_speech_transcribe(speech, samples, count, NULL, &t), VV_INVALID_ARGUMENT, "not finite");
  samples[7] = 0;
  EXPECT_ERROR(vv_speech_transcribe_file(speech, "RIFF", 4, NULL, &t), VV_CORRUPT_DATA, "");
  EXPECT_ERROR(vv_speech_transcribe_file(speech, NULL, 4, NULL, &t), VV_INVALID_ARGUMENT, "file is NULL");
  EXPECT(t == NULL);
  EXPECT_OK(vv_speech_transcribe(speech, NULL, 0, NULL, &t));
  if (t != NULL) EXPECT(vv_transcript_get_info(t, &info) == VV_OK && info.segments == 0 && strlen(info.language) == 2);
  EXPECT_ERROR(vv_transcript_get_info((const vv_transcript*)(const void*)speech, &info), VV_INVALID_ARGUMENT,
               "another kind");
  EXPECT_ERROR(vv_speech_transcribe((vv_speech*)(void*)t, samples, count, NULL, &t), VV_INVALID_ARGUMENT,
               "another kind");
  EXPECT_ERROR(vv_transcript_get_info(NULL, &info), VV_INVALID_ARGUMENT, "transcript is NULL");
}

static void test_wav(vv_speech* speech, const float* samples, size_t count) {
  static unsigned char file[44 + 2 * 16000];
  static const unsigned char head[44] = {
      'R', 'I', 'F',  'F',  0x24, 0x7d, 0, 0,    'W', 'A', 'V', 'E', 'f', 'm', 't', ' ', 16,  0,   0, 0,    1, 0,
      1,   0,   0x80, 0x3e, 0,    0,    0, 0x7d, 0,   0,   2,   0,   16,  0,   'd', 'a', 't', 'a', 0, 0x7d, 0, 0};
  vv_transcript* t = NULL;
  size_t i;
  memcpy(file, head, sizeof head);
  for (i = 0; i < 16000 && i < count; ++i) {
    const int v = (int)(samples[i] * 32767);
    file[44 + 2 * i] = (unsigned char)(v & 255);
    file[45 + 2 * i] = (unsigned char)((v >> 8) & 255);
  }
  EXPECT_OK(vv_speech_transcribe_file(speech, file, sizeof file, NULL, &t));
  vv_transcript_destroy(t);
  t = NULL;
  file[24] = 0x40, file[25] = 0x1f, file[28] = 0x80, file[29] = 0x3e; /* 8000 samples a second */
  EXPECT_OK(vv_speech_transcribe_file(speech, file, sizeof file, NULL, &t)); /* of any rate */
  vv_transcript_destroy(t);
  t = NULL;
  memcpy(file, "fLaC", 4); /* and nothing of FLAC behind it: refused by libsndfile, or there is none */
  EXPECT(vv_speech_transcribe_file(speech, file, sizeof file, NULL, &t) != VV_OK && t == NULL);
}

/* Scales of a layer that hears and one that writes, and what takes them; NULL with a count and other numbers are
 * refused. */
static void test_calibrated(const char* folder, vv_speech* speech, const float* samples, size_t count) {
  static float scales[64];
  vv_speech_options o;
  vv_speech* fixed = NULL;
  vv_transcript* t = NULL;
  size_t n = 0, again = 0, i;
  EXPECT_OK(vv_speech_calibrate(speech, samples, count, 100, NULL, 0, &n));
  EXPECT(n == 12);
  EXPECT_OK(vv_speech_calibrate(speech, samples, count, 100, scales, 64, &again));
  EXPECT(again == n);
  for (i = 0; i < n; ++i) EXPECT(scales[i] > 0 && scales[i] < 1e6f);
  EXPECT_ERROR(vv_speech_calibrate(NULL, samples, count, 100, scales, 64, &again), VV_INVALID_ARGUMENT,
               "speech is NULL");
  EXPECT_ERROR(vv_speech_calibrate(speech, NULL, 3, 100, scales, 64, &again), VV_INVALID_ARGUMENT, "samples is NULL");
  EXPECT_ERROR(vv_speech_calibrate(speech, samples, count, 100, scales, 64, NULL), VV_INVALID_ARGUMENT, "is NULL");
  EXPECT_ERROR(vv_speech_calibrate(speech, samples, 9, 100, scales, 64, &again), VV_INVALID_ARGUMENT, "shorter");
  EXPECT_ERROR(vv_speech_calibrate(speech, samples, count, 0, scales, 64, &again), VV_INVALID_ARGUMENT, "percentile");
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  o.path = folder, o.device = "cpu", o.threads = 1, o.random_weights = 1, o.precision = "fp8_static";
  EXPECT_ERROR(vv_speech_load(&o, &fixed), VV_INVALID_ARGUMENT, "takes 12 of them");
  o.act_scale_count = 12;
  EXPECT_ERROR(vv_speech_load(&o, &fixed), VV_INVALID_ARGUMENT, "act_scales: NULL");
  o.act_scales = scales, o.act_scale_count = -1;
  EXPECT_ERROR(vv_speech_load(&o, &fixed), VV_INVALID_ARGUMENT, "act_scales");
  o.act_scale_count = (int)n;
  EXPECT_OK(vv_speech_load(&o, &fixed));
  EXPECT_OK(vv_speech_transcribe(fixed, samples, count, NULL, &t));
  EXPECT_ERROR(vv_speech_calibrate(fixed, samples, count, 100, scales, 64, &again), VV_FAILED_PRECONDITION,
               "bf16 or f32");
  vv_transcript_destroy(t);
  vv_speech_destroy(fixed);
}

int main(int argc, char** argv) {
  static float samples[16000 * 3];
  vv_speech_options o;
  vv_speech* speech = NULL;
  size_t i;
  if (argc != 2 || !put(argv[1], "config.json", kConfig) || !put(argv[1], "tokenizer.json", kTokenizer)) return 2;
  for (i = 0; i < sizeof samples / sizeof *samples; ++i)
    samples[i] = 0.3f * (float)sin((double)i * 0.05) * (float)((i / 1600) % 3);
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  EXPECT_ERROR(vv_speech_load(&o, &speech), VV_INVALID_ARGUMENT, "path is NULL");
  o.path = "/nowhere/at/all", o.device = "cpu", o.threads = 1, o.most_beams = 2, o.random_weights = 1;
  EXPECT_ERROR(vv_speech_load(&o, &speech), VV_NOT_FOUND, "nowhere");
  EXPECT_ERROR(vv_speech_load(NULL, &speech), VV_INVALID_ARGUMENT, "NULL");
  o.path = argv[1], o.precision = "int3";
  EXPECT_ERROR(vv_speech_load(&o, &speech), VV_INVALID_ARGUMENT, "precision");
  o.precision = NULL;
  EXPECT_OK(vv_speech_load(&o, &speech));
  if (speech == NULL) return 1;
  test_text(speech, samples, sizeof samples / sizeof *samples);
  test_refused(speech, samples, sizeof samples / sizeof *samples);
  test_wav(speech, samples, sizeof samples / sizeof *samples);
  test_calibrated(argv[1], speech, samples, sizeof samples / sizeof *samples);
  vv_speech_destroy(speech);
  vv_speech_destroy(NULL);
  vv_transcript_destroy(NULL);
  printf("%d failures\n", failures);
  return failures != 0;
}
