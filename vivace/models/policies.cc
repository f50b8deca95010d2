#include "vivace/models/policies.h"

#include "vivace/base/check.h"
#include "vivace/models/groot/config.h"
#include "vivace/models/groot/model.h"
#include "vivace/models/vla/model.h"

namespace vivace::models {

Result<std::unique_ptr<engine::PolicyModel>> load_policy(const std::string& path,
                                                         const engine::PolicyOptions& options) {
  const auto build = [&]() -> Result<std::unique_ptr<engine::PolicyModel>> {
    VV_ASSIGN(engine::Checkpoint checkpoint,
              options.random_weights ? engine::Checkpoint::open_config(path) : engine::Checkpoint::open(path));
    const bool find = options.config.empty() || options.config == "auto", groot = groot::is_groot(checkpoint);
    if (groot && !find && options.config != groot::kFamily)
      return Status(Code::kInvalidArgument,
                    strf("config %s: the checkpoint's config.json is that of %s; load it with that config",
                         options.config.c_str(), groot::kFamily));
    if (groot) return groot::load_groot(std::move(checkpoint), options);
    if (options.config == groot::kFamily)
      return Status(Code::kInvalidArgument,
                    strf("config %s: the checkpoint's config.json has neither model_type Gr00tN1d7 nor type groot",
                         groot::kFamily));
    return vla::load_policy(std::move(checkpoint), options);
  };
  auto built = build();
  if (!built.ok()) return std::move(built).status().with_context(path);
  return built;
}

Result<std::string> policy_family(const std::string& path) {
  VV_ASSIGN(const engine::Checkpoint checkpoint, engine::Checkpoint::open(path));
  return groot::is_groot(checkpoint) ? std::string(groot::kFamily) : vla::policy_family(checkpoint);
}

}  // namespace vivace::models
