// Greedy generation from C++: token ids in, token ids out.
//     generate_ids MODEL MAX_TOKENS ID...
#include <cstdio>
#include <cstdlib>

#include "vivace/models/models.h"
#include "vivace/serve/batcher.h"

using namespace vivace;

int fail(const Status& s) {
  std::fprintf(stderr, "%s\n", s.to_string().c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 4) return fail(Status(Code::kInvalidArgument, "usage: generate_ids MODEL MAX_TOKENS ID..."));
  auto loaded = models::load_model(argv[1], {.max_batch = 1});
  if (!loaded.ok()) return fail(loaded.status());
  auto* model = dynamic_cast<engine::TextModel*>(loaded->get());
  if (model == nullptr) return fail(Status(Code::kUnsupported, "not a text model"));

  serve::Request request;
  request.max_tokens = std::atoi(argv[2]);
  for (int i = 3; i < argc; ++i) request.prompt.push_back(std::atoi(argv[i]));
  serve::Batcher batcher(*model);
  if (auto id = batcher.submit(std::move(request)); !id.ok()) return fail(id.status());

  std::vector<serve::Event> events;
  while (!batcher.idle()) {
    if (Status s = batcher.step(&events); !s.ok()) return fail(s);
    for (const serve::Event& e : events)
      if (e.token >= 0) std::printf("%d ", e.token);
  }
  std::printf("\n");
  return 0;
}
