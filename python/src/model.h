// Models and checkpoints for Python; see model.cc, policy.cc, control.cc, audio.cc and checkpoint.cc.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "vivace/engine/model.h"

namespace vivace::python {

/// {step_us, groups: [{op, launches, bytes, flops, us}], order: [group of each launch]}
nanobind::dict profile_dict(const engine::Profile& profile);
std::vector<std::pair<std::string, int64_t>> memory_lines(const engine::Model& model);

void add_model(nanobind::module_& m);
void add_request(nanobind::module_& m);
void add_bpe(nanobind::module_& m);
void add_reply(nanobind::module_& m);
void add_outbox(nanobind::module_& m);
void add_checkpoint(nanobind::module_& m);
void add_policy(nanobind::module_& m);
void add_control(nanobind::module_& m);
void add_audio(nanobind::module_& m);
void add_speech(nanobind::module_& m);

}  // namespace vivace::python
