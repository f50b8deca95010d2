#include "vivace/jit/helper.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/jit/nvrtc.h"

extern char** environ;

namespace vivace::jit {
namespace {

constexpr uint32_t kMostBytes = 256u << 20;  // of a message

struct Command {
  std::mutex mutex;
  std::vector<std::string> words;
};
Command& command() {
  static Command* c = new Command;  // outlives every static that might compile
  return *c;
}

bool send_all(int socket, const char* p, size_t n) {
  while (n > 0) {
    const ssize_t sent = send(socket, p, n, MSG_NOSIGNAL);  // an end that has closed is an answer, no signal
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    p += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}
bool receive_all(int socket, char* p, size_t n) {
  while (n > 0) {
    const ssize_t got = recv(socket, p, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    p += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

// A message: four bytes of length, then so many.
bool put_message(int socket, const std::string& text) {
  const uint32_t n = static_cast<uint32_t>(text.size());
  return text.size() <= kMostBytes && send_all(socket, reinterpret_cast<const char*>(&n), sizeof(n)) &&
         send_all(socket, text.data(), n);
}
bool get_message(int socket, std::string* text) {
  uint32_t n = 0;
  if (!receive_all(socket, reinterpret_cast<char*>(&n), sizeof(n)) || n > kMostBytes) return false;
  text->resize(n);
  return receive_all(socket, text->data(), n);
}

Status ended() { return Status(Code::kIoError, "the process that compiles has ended"); }

}  // namespace

void set_helper_command(std::vector<std::string> words) {
  const std::lock_guard lock(command().mutex);
  command().words = std::move(words);
}

Result<Helper> Helper::start() {
  std::vector<std::string> words;
  {
    const std::lock_guard lock(command().mutex);
    words = command().words;
  }
  if (words.empty()) return Status(Code::kNotFound, "no helper command is set");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Status(Code::kIoError, strf("socketpair failed: %s", std::strerror(errno)));
  std::vector<char*> raw;
  for (std::string& w : words) raw.push_back(w.data());
  raw.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], 0);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  pid_t process = 0;
  const int error = posix_spawn(&process, raw[0], &files, nullptr, raw.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return Status(Code::kIoError, strf("%s could not be started: %s", raw[0], std::strerror(error)));
  }
  Helper h(ends[0], process);
  std::string paths;
  for (const std::string& p : search_paths()) paths += p + '\n';
  if (!put_message(h.socket_, paths)) return ended();
  return h;
}

Helper::Helper(Helper&& o) noexcept : socket_(std::exchange(o.socket_, -1)), process_(o.process_) {}

Helper::~Helper() {
  if (socket_ < 0) return;
  close(socket_);  // it reads an end, and goes
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<Binary> Helper::compile(const Source& source) const {
  std::string answer;
  if (!put_message(socket_, serialize(source)) || !get_message(socket_, &answer) || answer.empty()) return ended();
  const Code code = static_cast<Code>(answer[0]);
  if (code != Code::kOk) return Status(code, answer.substr(1));
  return parse_binary(std::string_view(answer).substr(1));
}

void serve_compiles(int socket) {
  signal(SIGINT, SIG_IGN);  // an interrupt from the terminal goes to all: the other end decides, and closes
  std::string text;
  if (!get_message(socket, &text)) return;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    add_search_path(text.substr(at, end - at));
  while (get_message(socket, &text)) {
    const Result<Source> source = parse_source(text);
    const Result<Binary> binary = source.ok() ? jit::compile(*source) : source.status();
    const std::string answer = binary.ok() ? static_cast<char>(Code::kOk) + serialize(*binary)
                                           : static_cast<char>(binary.status().code()) + binary.status().message();
    if (!put_message(socket, answer)) return;
  }
}

}  // namespace vivace::jit
