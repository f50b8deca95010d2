// Robots for Python: fields by name become an observation, actions become the robot's.
#include "vivace/models/vla/robots.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "errors.h"
#include "policy.h"
#include "tensor.h"
#include "vivace/base/check.h"

namespace vivace::python {
namespace {

using engine::Field;
using models::vla::Robot;

struct RobotOf {
  Robot robot;
  engine::PolicyLimits limits;
};

std::unique_ptr<RobotOf> named(const Policy& p, const std::string& name, const std::vector<std::string>& cameras) {
  const models::vla::Family* const family = models::vla::find_family(p.model->family());
  auto robot = Robot::named(name, family != nullptr && family->has(models::vla::kCodes), cameras);
  check(robot.status());
  check(robot->fits(p.model->limits()));
  return std::make_unique<RobotOf>(RobotOf{std::move(robot).value(), p.model->limits()});
}

nb::object bytes_or_none(const std::vector<float>& v) {
  return v.empty() ? nb::none() : nb::object(nb::bytes(v.data(), v.size() * sizeof(float)));
}

/// (frames, state, prompt) of (name, value) pairs: frames [(bytes, height, width)] or None a slot, state as bytes of
/// f32 or None.
nb::tuple read(const RobotOf& r, nb::list pairs) {
  std::vector<Field> fields(nb::len(pairs));
  std::vector<std::string> names(fields.size()), texts(fields.size());
  Borrowed from;
  for (size_t i = 0; i < fields.size(); ++i) {
    const nb::tuple pair = nb::cast<nb::tuple>(pairs[i]);
    const nb::handle value = pair[1];
    Field& f = fields[i];
    f.name = names[i] = nb::cast<std::string>(pair[0]);
    if (value.is_none()) continue;
    if (nb::isinstance<nb::str>(value)) {
      f.kind = Field::Kind::text, f.text = texts[i] = nb::cast<std::string>(value);
      continue;
    }
    if (PyFloat_Check(value.ptr())) {
      f.kind = Field::Kind::number, f.number = nb::cast<double>(value);
      continue;
    }
    Tensor t;
    check(to_tensor(value.ptr(), false, &t, &from).with_context(names[i]));
    if (t.shape.rank > engine::HostArray::kMostRank)
      check(Status(Code::kInvalidShape, strf("%s: an array of %d axes, at most %d", names[i].c_str(), t.shape.rank,
                                             engine::HostArray::kMostRank)));
    f.kind = Field::Kind::array;
    f.array = {static_cast<const std::byte*>(t.data), t.dtype, t.shape.rank, {}};
    for (int k = 0; k < t.shape.rank; ++k) f.array.shape[static_cast<size_t>(k)] = t.shape[k];
  }
  models::vla::RobotInputs in;
  check(r.robot.read(fields, r.limits, &in));
  nb::list frames;
  for (const engine::Frame& f : in.views) {
    if (f.data == nullptr) {
      frames.append(nb::none());
      continue;
    }
    std::vector<uint8_t> pixels(static_cast<size_t>(f.height * f.width * 3));
    for (int64_t y = 0; y < f.height; ++y)
      for (int64_t x = 0; x < f.width; ++x)
        for (int64_t c = 0; c < 3; ++c)
          pixels[static_cast<size_t>((y * f.width + x) * 3 + c)] =
              f.plane == 0 ? f.data[y * f.stride + x * 3 + c] : f.data[c * f.plane + y * f.stride + x];
    frames.append(nb::make_tuple(nb::bytes(pixels.data(), pixels.size()), f.height, f.width));
  }
  return nb::make_tuple(frames, bytes_or_none(in.state),
                        in.has_prompt ? nb::object(nb::str(in.prompt.data(), in.prompt.size())) : nb::none());
}

std::vector<float> floats(const nb::bytes& b) {
  std::vector<float> values(b.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), b.c_str(), values.size() * sizeof(float));
  return values;
}

/// Where a state that read() gave is after actions [n, dims()].
nb::bytes roll(const RobotOf& r, nb::bytes state, nb::bytes actions, bool steps) {
  models::vla::RobotInputs in;
  in.state = floats(state);
  check(r.robot.roll(floats(actions), r.robot.dims(r.limits.robot_dim), steps, &in));
  return nb::bytes(in.state.data(), in.state.size() * sizeof(float));
}

/// Actions [rows, robot_dim] as bytes of f32 -> [rows, dims()].
nb::bytes to_robot(const RobotOf& r, nb::bytes actions) {
  const auto wide = static_cast<size_t>(r.limits.robot_dim),
             dims = static_cast<size_t>(r.robot.dims(r.limits.robot_dim));
  std::vector<float> in = floats(actions), out;
  for (size_t row = 0; row + wide <= in.size(); row += wide) {
    const auto action = std::span(in).subspan(row, wide);
    r.robot.to_robot(action);
    out.insert(out.end(), action.begin(), action.begin() + static_cast<ptrdiff_t>(dims));
  }
  return nb::bytes(out.data(), out.size() * sizeof(float));
}

}  // namespace

void add_robot(nb::module_& m) {
  nb::class_<RobotOf>(m, "Robot")
      .def_static("named", &named, nb::arg("policy"), nb::arg("name"), nb::arg("cameras"))
      .def("read", &read, nb::arg("fields"))
      .def("to_robot", &to_robot, nb::arg("actions"))
      .def("roll", &roll, nb::arg("state"), nb::arg("actions"), nb::arg("steps"))
      .def_prop_ro("dims", [](const RobotOf& r) { return r.robot.dims(r.limits.robot_dim); });
  m.def("robot_names", &Robot::names);
}

}  // namespace vivace::python
