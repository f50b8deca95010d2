#include "vivace/serve/wire/websocket.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "vivace/base/check.h"

namespace vivace::serve::wire {
namespace {

Status broken(const std::string& what) { return Status(Code::kCorruptData, "websocket: " + what); }
constexpr size_t kFirstRoom = 64 << 10;  // of a message

}  // namespace

void mask(std::span<std::byte> data, const uint8_t key[4], uint64_t offset) {
  uint8_t turned[8];
  for (size_t i = 0; i < 8; ++i) turned[i] = key[(offset + i) % 4];
  uint64_t word;
  std::memcpy(&word, turned, 8);
  size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    uint64_t v;
    std::memcpy(&v, data.data() + i, 8);
    v ^= word;
    std::memcpy(data.data() + i, &v, 8);
  }
  for (; i < data.size(); ++i) data[i] ^= static_cast<std::byte>(turned[i % 8]);
}

void write_header(Opcode opcode, uint64_t bytes, std::vector<std::byte>* out) {
  const auto byte = [&](uint64_t v) { out->push_back(static_cast<std::byte>(v)); };
  byte(0x80 | static_cast<uint64_t>(opcode));
  const int size = bytes < 126 ? 0 : bytes <= 0xffff ? 2 : 8;
  byte(size == 0 ? bytes : size == 2 ? 126 : 127);
  for (int i = size - 1; i >= 0; --i) byte(bytes >> (8 * i) & 0xff);
}

void write_frame(Opcode opcode, std::span<const std::byte> payload, const uint8_t* key, std::vector<std::byte>* out) {
  const size_t begin = out->size();
  write_header(opcode, payload.size(), out);
  if (key != nullptr) {
    (*out)[begin + 1] |= std::byte{0x80};
    for (size_t i = 0; i < 4; ++i) out->push_back(static_cast<std::byte>(key[i]));
  }
  const size_t at = out->size();
  out->insert(out->end(), payload.begin(), payload.end());
  if (key != nullptr) mask(std::span(*out).subspan(at), key, 0);
}

void write_close(int code, std::string_view reason, const uint8_t* key, std::vector<std::byte>* out) {
  std::byte payload[kMostControl];
  payload[0] = static_cast<std::byte>(code >> 8), payload[1] = static_cast<std::byte>(code & 0xff);
  const size_t n = std::min(reason.size(), kMostControl - 2);
  std::memcpy(payload + 2, reason.data(), n);
  write_frame(Opcode::close, {payload, n + 2}, key, out);
}

std::span<std::byte> Receiver::room() {
  direct_ = in_frame_ && begin_ == end_ && !whole_;
  if (direct_) {
    if (have_ == message_.size() && !grow(have_ + 1).ok()) direct_ = false;
    else return {message_.data() + have_, static_cast<size_t>(std::min<uint64_t>(left_, message_.size() - have_))};
  }
  if (begin_ == end_) begin_ = end_ = 0;
  else if (end_ == raw_.size() && begin_ > 0) {
    std::memmove(raw_.data(), raw_.data() + begin_, end_ - begin_);
    end_ -= begin_, begin_ = 0;
  }
  return std::span(raw_).subspan(end_);
}

void Receiver::wrote(size_t bytes) {
  if (!direct_) {
    end_ += bytes;
    return;
  }
  if (masked_) mask({message_.data() + have_, bytes}, key_, offset_);
  have_ += bytes, offset_ += bytes, left_ -= bytes;
}

/// Room for `need` bytes of the message: at least twice what there was, so that all copies together are linear in what
/// came.
Status Receiver::grow(size_t need) {
  if (need <= message_.size()) return {};
  const size_t want = std::min(most_, std::max({need, 2 * message_.size(), kFirstRoom}));
  if (want < need) return Status(Code::kLimitExceeded, strf("websocket: a message of more than %zu bytes", most_));
  VV_ASSIGN(engine::HostBytes more, pool_->take(want));
  if (have_ > 0) std::memcpy(more.data(), message_.data(), have_);
  message_ = std::move(more);
  return {};
}

void Receiver::take(std::span<const std::byte> from) {
  std::memcpy(message_.data() + have_, from.data(), from.size());
  if (masked_) mask({message_.data() + have_, from.size()}, key_, offset_);
  have_ += from.size(), offset_ += from.size(), left_ -= from.size();
}

Result<Receiver::Event> Receiver::next() {
  while (true) {
    if (!in_frame_) {
      VV_ASSIGN(const Event e, header());
      if (e != Event::none || !in_frame_) return e;
    }
    if (left_ > 0) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(left_, end_ - begin_));
      if (n == 0) return Event::none;
      VV_TRY(grow(have_ + n));
      take(std::span<const std::byte>(raw_).subspan(begin_, n));
      begin_ += n;
      if (left_ > 0) return Event::none;
    }
    in_frame_ = false;
    open_ = !last_;
    if (!last_) continue;
    whole_ = true;
    return kind_ == Opcode::text ? Event::text : Event::binary;
  }
}

/// Reads a frame's header, and all of a control frame. none: more must come, or a data frame has begun.
Result<Receiver::Event> Receiver::header() {
  const std::byte* const p = raw_.data() + begin_;
  const size_t there = end_ - begin_;
  if (there < 2) return Event::none;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(p[i]); };
  const bool last = (at(0) & 0x80) != 0;
  if ((at(0) & 0x70) != 0) return broken("reserved bits are set, and no extension was agreed on");
  const uint8_t code = at(0) & 0x0f;
  if (((at(1) & 0x80) != 0) != masked_)
    return broken(masked_ ? "a client's frame is not masked" : "a server's frame is masked");
  const uint8_t small = at(1) & 0x7f;
  const size_t wide = small == 126 ? 2 : small == 127 ? 8 : 0, bytes = 2 + wide + (masked_ ? 4 : 0);
  const bool control = code >= 8;
  if (control && (!last || wide > 0)) return broken("a control frame is in parts, or longer than 125 bytes");
  if (control ? code > 10 : code > 2) return broken(strf("opcode %d is none", code));
  if (there < bytes) return Event::none;
  uint64_t length = wide == 0 ? small : 0;
  for (size_t i = 0; i < wide; ++i) length = length << 8 | at(2 + i);
  if ((wide == 2 && length < 126) || (wide == 8 && (length <= 0xffff || length >> 63 != 0)))
    return broken("a length is not in its shortest form");
  uint8_t key[4] = {};
  if (masked_) std::memcpy(key, p + bytes - 4, 4);
  if (control) {
    if (there < bytes + length) return Event::none;
    std::memcpy(control_, p + bytes, length);
    control_bytes_ = length;
    if (masked_) mask({control_, control_bytes_}, key, 0);
    begin_ += bytes + length;
    if (code == 8 && length == 1) return broken("a close has no code");
    return code == 8 ? Event::close : code == 9 ? Event::ping : Event::pong;
  }
  if ((code == 0) != open_) return broken(open_ ? "a message begins inside another" : "a part of no message");
  if (whole_) return Event::none;  // waits for release()
  if (code != 0) {
    if (std::exchange(renew_, false)) message_ = {};
    have_ = 0, kind_ = static_cast<Opcode>(code);
  }
  if (length > most_ - have_)
    return Status(Code::kLimitExceeded, strf("websocket: a message of more than %zu bytes", most_));
  std::memcpy(key_, key, 4);
  left_ = length, offset_ = 0, last_ = last, in_frame_ = true;
  begin_ += bytes;
  return Event::none;
}

void Receiver::release() { whole_ = false, have_ = 0; }

}  // namespace vivace::serve::wire
