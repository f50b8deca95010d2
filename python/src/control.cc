// ChunkRunner for Python; vivace/control.py has the threads.
#include <cstring>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "model.h"
#include "vivace/serve/chunks.h"

namespace vivace::python {
namespace {

namespace nb = nanobind;
using serve::ChunkOptions;
using serve::ChunkRequest;
using serve::ChunkRunner;

std::unique_ptr<ChunkRunner> make(int horizon, int dims, int network_dims, const std::string& join,
                                  std::optional<int> blend, int ask_after, std::vector<float> max_step,
                                  double max_action_age, double watchdog, double deadline) {
  ChunkOptions o{horizon,  dims,      network_dims,        ChunkOptions::Join::swap,
                 blend,    ask_after, std::move(max_step), max_action_age,
                 watchdog, deadline};
  if (join == "blend") o.join = ChunkOptions::Join::blend;
  else if (join == "prefix") o.join = ChunkOptions::Join::prefix;
  else if (join == "future") o.join = ChunkOptions::Join::future;
  else if (join != "swap")
    check(Status(Code::kInvalidArgument, "join: wanted swap, blend, prefix or future, got '" + join + "'"));
  auto made = ChunkRunner::make(o);
  check(made.status());
  return std::move(made).value();
}

std::vector<float> floats(const nb::bytes& b) {
  std::vector<float> values(b.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), b.c_str(), values.size() * sizeof(float));
  return values;
}

nb::tuple next(ChunkRunner& r, double now, int dims) {
  constexpr const char* kSources[] = {"chunk", "blend", "hold", "stopped"};
  std::vector<float> action(static_cast<size_t>(std::max(dims, 0)));
  serve::Tick t;
  check(r.next(now, action, &t));
  return nb::make_tuple(nb::bytes(action.data(), action.size() * sizeof(float)), kSources[static_cast<int>(t.source)],
                        t.clamped, t.chunk_index, t.age);
}

nb::tuple start_request(ChunkRunner& r, double now, int values) {
  auto request = std::make_unique<ChunkRequest>();
  std::vector<float> actions(static_cast<size_t>(std::max(values, 0)));
  check(r.start_request(now, request.get(), actions));
  return nb::make_tuple(nb::cast(std::move(request)), nb::bytes(actions.data(), actions.size() * sizeof(float)));
}

}  // namespace

void add_control(nb::module_& m) {
  // A policy that never answers keeps its thread and what that holds until the process ends, which is no mistake in
  // counting references.
  m.def("expect_live_objects", [] { nb::set_leak_warnings(false); });
  nb::class_<ChunkRequest>(m, "ChunkRequest")
      .def_ro("id", &ChunkRequest::id)
      .def_ro("tick", &ChunkRequest::tick)
      .def_ro("observed", &ChunkRequest::observed)
      .def_ro("prefix_length", &ChunkRequest::prefix_length)
      .def_ro("ahead", &ChunkRequest::ahead);
  nb::class_<ChunkRunner>(m, "ChunkRunner")
      .def_static("make", &make, nb::kw_only(), nb::arg("horizon"), nb::arg("dims"), nb::arg("network_dims"),
                  nb::arg("join"), nb::arg("blend").none(), nb::arg("ask_after"), nb::arg("max_step"),
                  nb::arg("max_action_age"), nb::arg("watchdog"), nb::arg("deadline"))
      .def("start", [](ChunkRunner& r, nb::bytes position, double now) { check(r.start(floats(position), now)); })
      .def("next", &next)
      .def("needs_inference", &ChunkRunner::needs_inference)
      .def("ticks_to_request", &ChunkRunner::ticks_to_request)
      .def("start_request", &start_request)
      .def("complete", [](ChunkRunner& r, const ChunkRequest& q, nb::bytes actions,
                          nb::bytes normalized) { check(r.complete(q, floats(actions), floats(normalized))); })
      .def("cancel", [](ChunkRunner& r, const ChunkRequest& q) { check(r.cancel(q)); })
      .def("delay", &ChunkRunner::delay);
}

}  // namespace vivace::python
