// Policy: what vivace._core.Policy holds.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>

#include "gil.h"
#include "vivace/engine/policy.h"

namespace vivace::python {

struct Policy {
  Policy(std::unique_ptr<engine::PolicyModel> m, std::string p) : model(std::move(m)), path(std::move(p)) {}
  ~Policy() { let_go(&model); }
  std::unique_ptr<engine::PolicyModel> model;
  std::string path;     // of its checkpoint
  std::mutex turn;      // of the caller whose step it is
  bool served = false;  // a policy host has it for itself; written and read with `turn`
};

void add_policy_host(nanobind::module_& m);
void add_robot(nanobind::module_& m);
void add_robot_client(nanobind::module_& m);

}  // namespace vivace::python
