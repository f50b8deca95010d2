#include "vivace/models/policies.h"

#include "vivace/models/groot/model.h"
#include "vivace/models/vla/model.h"

namespace vivace::models {
namespace {

void register_all() {
  static const bool once = [] {
    static constexpr engine::PolicyRow kRows[] = {{vla::kNames, &vla::policy_family, &vla::load_policy},
                                                  {groot::kFamilies, &groot::family_of, &groot::load_groot}};
    engine::add_policies(kRows);
    return true;
  }();
  (void)once;
}

}  // namespace

Result<std::unique_ptr<engine::PolicyModel>> load_policy(const std::string& path,
                                                         const engine::PolicyOptions& options) {
  register_all();
  return engine::load_policy(path, options);
}

Result<std::string> policy_family(const std::string& path) {
  register_all();
  return engine::policy_family(path);
}

}  // namespace vivace::models
