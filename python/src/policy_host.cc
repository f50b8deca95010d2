// PolicyHost for Python: it runs on threads of its own, which never touch Python.
#include "vivace/serve/policy_host.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "model.h"
#include "policy.h"
#include "vivace/base/check.h"
#include "vivace/models/groot/prompt.h"
#include "vivace/models/vla/prompt.h"

namespace vivace::python {
namespace {

using serve::PolicyHostOptions;

/// The host and the policy that it has; Python keeps the policy's own object alive as long.
struct Host {
  explicit Host(std::unique_ptr<serve::PolicyHost> h) : host(std::move(h)) {}
  ~Host() { close(); }
  void close() {
    const NoGil release;
    host->close();
    if (policy == nullptr) return;
    const std::lock_guard hold(policy->turn);
    policy->served = false;
    policy = nullptr;
  }
  std::unique_ptr<serve::PolicyHost> host;
  Policy* policy = nullptr;
  nb::object keep;
};

std::unique_ptr<Host> start(const std::string& address, int port, const std::string& key, const std::string& prompt,
                            int most_clients, double deadline, double idle, uint64_t seed) {
  auto host = serve::PolicyHost::start({address, port, key, prompt, most_clients, deadline, idle, seed});
  check(host.status());
  return std::make_unique<Host>(std::move(host).value());
}

/// How requests' tasks become token ids. Robots of GR00T have all cameras on.
Result<serve::PolicyDoor::Encode> encoder_of(const engine::PolicyModel& model, const std::string& tokenizer,
                                             bool state_words) {
  if (model.limits().image_token >= 0) {
    VV_ASSIGN(auto prompter, models::groot::Prompter::open(tokenizer, model.family()));
    auto shared = std::make_shared<models::groot::Prompter>(std::move(prompter));
    return serve::PolicyDoor::Encode(
        [shared, images = model.limits().views](std::string_view task, std::span<const float>) {
          return shared->tokens(task, images);
        });
  }
  VV_ASSIGN(auto prompter, models::vla::Prompter::open(tokenizer, model.family(), state_words));
  auto shared = std::make_shared<models::vla::Prompter>(std::move(prompter));
  return serve::PolicyDoor::Encode(
      [shared](std::string_view task, std::span<const float> state) { return shared->tokens(task, state); });
}

Status serve_with(Host& h, Policy& p, const std::string& robot_name, const std::vector<std::string>& cameras,
                  const std::string& tokenizer, bool state_words, std::span<const std::byte> metadata) {
  const models::vla::Family* const family = models::vla::find_family(p.model->family());
  VV_ASSIGN(models::vla::Robot robot,
            models::vla::Robot::named(robot_name, family != nullptr && family->has(models::vla::kCodes), cameras));
  VV_ASSIGN(serve::PolicyDoor::Encode encode, encoder_of(*p.model, tokenizer, state_words));
  const std::lock_guard hold(p.turn);  // whoever is in a call of the policy ends it first
  if (p.served)
    return Status(Code::kFailedPrecondition, "serve: another host serves this policy; close that one first");
  VV_TRY(h.host->serve(*p.model, std::move(robot), std::move(encode), metadata));
  p.served = true;
  h.policy = &p;
  return {};
}

}  // namespace

void add_policy_host(nb::module_& m) {
  nb::class_<Host>(m, "PolicyHost")
      .def_static("start", &start, nb::kw_only(), nb::arg("address"), nb::arg("port"), nb::arg("key"),
                  nb::arg("prompt"), nb::arg("max_clients"), nb::arg("deadline"), nb::arg("idle"), nb::arg("seed"))
      .def(
          "serve",
          [](Host& h, nb::object policy, const std::string& robot, const std::vector<std::string>& cameras,
             const std::string& tokenizer, bool state_words, nb::bytes metadata) {
            Policy& p = nb::cast<Policy&>(policy);
            const Status s = [&] {
              const NoGil release;
              return serve_with(h, p, robot, cameras, tokenizer, state_words,
                                {reinterpret_cast<const std::byte*>(metadata.c_str()), metadata.size()});
            }();
            check(s);
            h.keep = policy;
          },
          nb::kw_only(), nb::arg("policy"), nb::arg("robot"), nb::arg("cameras"), nb::arg("tokenizer"),
          nb::arg("state_words"), nb::arg("metadata"))
      .def(
          "fail",
          [](Host& h, const std::string& why) {
            h.host->fail(Status(Code::kFailedPrecondition, "the policy could not be loaded: " + why));
          },
          nb::arg("why"))
      .def("close",
           [](Host& h) {
             h.close();
             h.keep = nb::object();
           })
      .def(
          "metrics", [](const Host& h, bool ready) { return h.host->metrics().text(ready); }, nb::arg("ready"))
      .def_prop_ro("port", [](const Host& h) { return h.host->port(); });
}

}  // namespace vivace::python
