/* What a sound file says, from C.
 *     transcribe_c FOLDER talk.wav */
#include <stdio.h>
#include <stdlib.h>

#include "vivace/capi/speech.h"

static int fail(void) {
  fprintf(stderr, "%s\n", vv_last_error());
  return 1;
}

/* The whole file, to be freed; NULL where it cannot be read. */
static unsigned char* contents(const char* path, size_t* bytes) {
  FILE* f = fopen(path, "rb");
  unsigned char* held = NULL;
  size_t room = 0;
  *bytes = 0;
  if (f == NULL) return NULL;
  do {
    unsigned char* more = realloc(held, room += 1 << 20);
    if (more == NULL) break;
    held = more;
    *bytes += fread(held + *bytes, 1, room - *bytes, f);
  } while (*bytes == room);
  fclose(f);
  return held;
}

int main(int argc, char** argv) {
  vv_speech_options options = {0};
  vv_speech* speech = NULL;
  vv_transcript* said = NULL;
  vv_transcript_info info = {0};
  unsigned char* file;
  size_t bytes, i;
  int status = 0;
  if (argc != 3 || (file = contents(argv[2], &bytes)) == NULL) {
    fprintf(stderr, "usage: transcribe_c FOLDER talk.wav\n");
    return 2;
  }
  options.struct_size = sizeof options;
  info.struct_size = sizeof info;
  options.path = argv[1];
  if (vv_speech_load(&options, &speech) != VV_OK ||
      vv_speech_transcribe_file(speech, file, bytes, NULL, &said) != VV_OK ||
      vv_transcript_get_info(said, &info) != VV_OK)
    status = fail();
  for (i = 0; i < info.segments && status == 0; ++i) {
    vv_segment_info s = {0};
    s.struct_size = sizeof s;
    if (vv_transcript_get_segment(said, i, &s) != VV_OK) status = fail();
    else printf("%7.2f %7.2f%s\n", s.start, s.end, s.text);
  }
  vv_transcript_destroy(said);
  vv_speech_destroy(speech);
  free(file);
  return status;
}
