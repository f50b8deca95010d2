// What a sound file says, from C++.
//     transcribe FOLDER talk.wav
#include <cstdio>

#include "vivace/engine/checkpoint/mapped_file.h"
#include "vivace/models/whisper/transcriber.h"

using namespace vivace;

int fail(const Status& s) {
  std::fprintf(stderr, "%s\n", s.to_string().c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return fail(Status(Code::kInvalidArgument, "usage: transcribe FOLDER talk.wav"));
  auto loaded = models::whisper::Transcriber::load(argv[1], {});
  if (!loaded.ok()) return fail(loaded.status());
  auto file = engine::MappedFile::open(argv[2]);
  if (!file.ok()) return fail(file.status());
  auto said = loaded->transcribe_file(file->bytes(), {});
  if (!said.ok()) return fail(said.status());
  for (const models::whisper::TextSegment& s : said->segments)
    std::printf("%7.2f %7.2f%s\n", s.start, s.end, s.text.c_str());
  return 0;
}
