// What a robot's port may be sent: heads of HTTP, websocket frames in any packets, messages, and what a robot makes of
// their fields.
#include <algorithm>
#include <cstring>

#include "tests/fuzz/fuzz.h"
#include "vivace/models/vla/robots.h"
#include "vivace/serve/wire/http.h"
#include "vivace/serve/wire/msgpack.h"
#include "vivace/serve/wire/websocket.h"

using namespace vivace;
using namespace vivace::serve::wire;

namespace {

constexpr size_t kMost = 1 << 16;  // of a message here

/// Values below and including `at`; every text and array lies in the message.
uint32_t walk(const Message& m, uint32_t at, std::span<const std::byte> all, int depth) {
  fuzz::require(depth <= kMostDepth, "depth is bounded");
  const Value& v = m[at];
  const auto inside = [&](const void* p, size_t n) {
    const auto* b = static_cast<const std::byte*>(p);
    fuzz::require(n == 0 || (b >= all.data() && b + n <= all.data() + all.size()), "values lie in the message");
  };
  inside(v.text.data(), v.text.size());
  if (v.kind == Value::Kind::array) {
    inside(v.array.data, static_cast<size_t>(v.array.elements() * info(v.array.dtype).bytes));
    for (int64_t i = 0; i < v.array.elements(); ++i) static_cast<void>(engine::value_at(v.array, i));
  }
  uint32_t next = at + 1;
  if (v.kind == Value::Kind::list || v.kind == Value::Kind::map)
    for (uint32_t i = 0; i < v.count * (v.kind == Value::Kind::map ? 2 : 1); ++i) next = walk(m, next, all, depth + 1);
  fuzz::require(next == v.end, "ends are ends");
  return next;
}

void message(std::span<const std::byte> bytes) {
  Message m;
  if (const Status s = m.read(bytes); !s.ok())
    return fuzz::require(s.message().starts_with("msgpack: byte "), "errors name the byte");
  walk(m, 0, bytes, 0);
  std::vector<engine::Field> fields;
  const Value& root = m.root();
  for (uint32_t e = 1, i = 0; root.kind == Value::Kind::map && i < root.count; ++i, e = m[e + 1].end) {
    engine::Field f;
    f.name = m[e].text;
    const Value& v = m[e + 1];
    if (v.kind == Value::Kind::array) f.kind = engine::Field::Kind::array, f.array = v.array;
    else if (v.kind == Value::Kind::text) f.kind = engine::Field::Kind::text, f.text = v.text;
    else if (v.kind == Value::Kind::number) f.kind = engine::Field::Kind::number, f.number = v.number;
    fields.push_back(f);
  }
  engine::PolicyLimits limits;
  limits.views = 3, limits.robot_dim = 14, limits.action_dim = 32;
  for (const char* name : {"aloha", "droid", "libero", "any"}) {
    const auto robot = models::vla::Robot::named(
        name, false, std::string_view(name) == "any" ? std::vector<std::string>{"a"} : std::vector<std::string>{});
    fuzz::require(robot.ok(), "the table's robots are there");
    models::vla::RobotInputs in;
    if (!robot->read(fields, limits, &in).ok()) continue;
    fuzz::require(in.views.size() == 3, "a view each slot");
    for (const engine::Frame& f : in.views) {
      uint64_t sum = 0;  // every byte can be read
      for (int64_t p = 0; f.data != nullptr && p < (f.plane == 0 ? 1 : 3); ++p)
        for (int64_t y = 0; y < f.height; ++y)
          for (int64_t x = 0; x < (f.plane == 0 ? f.width * 3 : f.width); ++x)
            sum += f.data[p * f.plane + y * f.stride + x];
      fuzz::require(sum <= 255u * (1u << 26), "pixels are bytes");
    }
  }
}

/// The same bytes in packets of one size and of another make the same events.
std::vector<std::pair<int, std::vector<std::byte>>> events(std::span<const std::byte> bytes, Receiver::End end,
                                                           size_t packet) {
  Receiver r(end, kMost);
  std::vector<std::pair<int, std::vector<std::byte>>> seen;
  while (true) {
    const auto e = r.next();
    if (!e.ok()) {
      seen.emplace_back(100 + static_cast<int>(e.status().code()), std::vector<std::byte>());
      return seen;
    }
    const auto keep = [&](std::span<const std::byte> b) {
      seen.emplace_back(static_cast<int>(*e), std::vector<std::byte>(b.begin(), b.end()));
    };
    switch (*e) {
      case Receiver::Event::none: {
        if (bytes.empty()) return seen;
        const std::span<std::byte> room = r.room();
        fuzz::require(!room.empty(), "there is room where nothing waits");
        const size_t n = std::min({room.size(), bytes.size(), packet});
        std::memcpy(room.data(), bytes.data(), n);
        r.wrote(n);
        bytes = bytes.subspan(n);
        break;
      }
      case Receiver::Event::binary:
      case Receiver::Event::text:
        fuzz::require(r.message().size() <= kMost, "messages are bounded");
        keep(r.message());
        r.release();
        break;
      default: keep(r.control());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 4) {
    case 0: message(bytes); break;
    case 1: {
      const auto length = head_length(text);
      if (!length.ok() || *length == 0) break;
      for (const auto& head : {read_request(text.substr(0, *length)), read_response(text.substr(0, *length))})
        if (head.ok()) fuzz::require(head->headers.size() <= kMostHeaders, "headers are bounded");
      break;
    }
    default: {
      const auto end = data[0] % 4 == 2 ? Receiver::End::server : Receiver::End::client;
      fuzz::require(events(bytes, end, 1 << 20) == events(bytes, end, 1 + data[0] / 4 % 7), "packets do not matter");
    }
  }
  return 0;
}
