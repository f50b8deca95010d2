// RobotClient for Python; vivace/robot_client.py has loop, episodes and records.
#include "vivace/serve/robot_client.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstring>

#include "errors.h"
#include "gil.h"
#include "messages.h"
#include "policy.h"
#include "vivace/base/check.h"

namespace vivace::python {
namespace {

using serve::ChunkOptions;
using serve::RobotClient;

std::vector<float> floats(const nb::bytes& b) {
  std::vector<float> values(b.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), b.c_str(), values.size() * sizeof(float));
  return values;
}

nb::bytes bytes_of(std::span<const std::byte> b) { return nb::bytes(b.data(), b.size()); }

std::unique_ptr<RobotClient> start(const std::string& host, int port, const std::string& key, const std::string& join,
                                   nb::object blend, int ask_after, nb::bytes max_step, double max_action_age,
                                   double watchdog, double deadline, double connect, double answer, double wait,
                                   double most_wait, bool future_steps, uint64_t recorded) {
  serve::RobotClientOptions o;
  o.link.host = host, o.link.port = port, o.link.key = key;
  o.connect_s = connect, o.answer_s = answer, o.wait_s = wait, o.most_wait_s = most_wait, o.most_recorded = recorded;
  o.future_steps = future_steps;
  o.chunks.horizon = 0, o.chunks.ask_after = ask_after, o.chunks.max_step = floats(max_step),
  o.chunks.max_action_age = max_action_age, o.chunks.watchdog = watchdog, o.chunks.deadline = deadline;
  if (!blend.is_none()) o.chunks.blend = nb::cast<int>(blend);
  if (join == "blend") o.chunks.join = ChunkOptions::Join::blend;
  else if (join == "prefix") o.chunks.join = ChunkOptions::Join::prefix;
  else if (join == "future") o.chunks.join = ChunkOptions::Join::future;
  else if (join != "swap")
    check(Status(Code::kInvalidArgument, "join: wanted swap, blend, prefix or future, got '" + join + "'"));
  auto made = [&] {
    const NoGil release;
    return RobotClient::start(o);
  }();
  check(made.status());
  return std::move(made).value();
}

void ask(RobotClient& c, double now, nb::dict observation) {
  std::vector<std::byte> packed;
  check(pack(observation, &packed));
  const auto entries = static_cast<uint32_t>(nb::len(observation));
  serve::RobotMessage m;
  m.packed(entries, std::span<const std::byte>(packed).subspan(entries < 16 ? 1 : 3));
  check(c.ask(now, m));
}

nb::tuple next(RobotClient& c, double now) {
  constexpr const char* kSources[] = {"chunk", "blend", "hold", "stopped"};
  std::vector<float> action(static_cast<size_t>(c.chunks().dims));
  serve::Tick t;
  check(c.next(now, action, &t));
  return nb::make_tuple(nb::bytes(action.data(), action.size() * sizeof(float)), kSources[static_cast<int>(t.source)],
                        t.clamped, t.chunk_index, t.age);
}

}  // namespace

void add_robot_client(nb::module_& m) {
  nb::class_<RobotClient>(m, "RobotClient")
      .def_static("start", &start, nb::kw_only(), nb::arg("host"), nb::arg("port"), nb::arg("key"), nb::arg("join"),
                  nb::arg("blend").none(), nb::arg("ask_after"), nb::arg("max_step"), nb::arg("max_action_age"),
                  nb::arg("watchdog"), nb::arg("deadline"), nb::arg("connect"), nb::arg("answer"), nb::arg("wait"),
                  nb::arg("most_wait"), nb::arg("future_steps"), nb::arg("recorded"))
      .def("metadata", [](const RobotClient& c) { return unpack(c.metadata()); })
      .def("sizes",
           [](const RobotClient& c) {
             return nb::make_tuple(c.chunks().horizon, c.chunks().dims, c.chunks().network_dims);
           })
      .def("begin", [](RobotClient& c, nb::bytes position, double now, const std::string& episode,
                       uint64_t seed) { check(c.begin(floats(position), now, episode, seed)); })
      .def("next", &next)
      .def("wants", &RobotClient::wants)
      .def("ask", &ask)
      .def("interrupt", &RobotClient::interrupt)
      .def("counts",
           [](const RobotClient& c) {
             return nb::make_tuple(c.asked(), c.answered(), c.failed(), c.connections(), c.dropped_records());
           })
      .def("error", &RobotClient::error)
      .def("take_records",
           [](RobotClient& c) {
             nb::list out;
             for (const serve::RobotRecord& r : c.take_records())
               out.append(nb::make_tuple(bytes_of(r.question),
                                         r.answer.empty() ? nb::none() : nb::object(bytes_of(r.answer)), r.error,
                                         r.asked, r.answered));
             return out;
           })
      .def("close", [](RobotClient& c) {
        const NoGil release;
        c.close();
      });
}

}  // namespace vivace::python
