// Any bytes as norm_stats.json: an error, or statistics that turn numbers into numbers.
#include <cmath>

#include "tests/fuzz/files.h"
#include "vivace/models/vla/statistics.h"

using namespace vivace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  static const auto checkpoint = [] {
    const std::string_view header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    file.append(header).append(4, '\0');
    folder.write("model.safetensors", file);
    return engine::Checkpoint::open(folder.path());
  }();
  fuzz::require(checkpoint.ok(), "the checkpoint beside it is good");
  folder.write("norm_stats.json", {reinterpret_cast<const char*>(data), size});
  for (const bool quantiles : {false, true}) {
    const auto read = models::vla::read_statistics(*checkpoint, "", quantiles);
    if (!read.ok()) {
      fuzz::require(!read.status().message().empty(), "errors say why");
      continue;
    }
    for (const models::vla::Scaler* s : {&read->state, &read->actions}) {
      fuzz::require(s->low.size() == s->high.size(), "a pair a dimension");
      for (size_t i = 0; i < s->low.size(); ++i)
        for (const float x : {-1.0f, 0.0f, 1.0f})
          fuzz::require(!std::isnan(s->unnormalize(x, i)), "a number stays a number");
    }
  }
  return 0;
}
