#include "vivace/serve/policy_metrics.h"

#include "vivace/base/status.h"

namespace vivace::serve {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
unsigned long long of(const std::atomic<uint64_t>& n) { return n.load(kRelaxed); }

}  // namespace

void Histogram::add(double seconds) {
  size_t i = 0;
  while (i < kBounds.size() && seconds > kBounds[i]) ++i;
  counts_[i].fetch_add(1, kRelaxed);
  nanoseconds_.fetch_add(static_cast<uint64_t>(seconds * 1e9), kRelaxed);
}

void Histogram::write(const char* name, const char* help, std::string* out) const {
  *out += strf("# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
  unsigned long long below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += of(counts_[i]);
    *out += strf("%s_bucket{le=\"%g\"} %llu\n", name, kBounds[i], below);
  }
  below += of(counts_.back());
  *out += strf("%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, below, name,
               static_cast<double>(of(nanoseconds_)) * 1e-9, name, below);
}

std::string PolicyMetrics::text(bool ready) const {
  std::string out;
  const auto gauge = [&](const char* name, const char* help, long long value) {
    out += strf("# HELP %s %s\n# TYPE %s gauge\n%s %lld\n", name, help, name, name, value);
  };
  const auto counter = [&](const char* name, const char* help, unsigned long long value) {
    out += strf("# HELP %s %s\n# TYPE %s counter\n%s %llu\n", name, help, name, name, value);
  };
  gauge("vivace_policy_ready", "1 once the policy answers.", ready);
  gauge("vivace_policy_clients", "Robots that are connected.", clients.load(kRelaxed));
  gauge("vivace_policy_waiting", "Requests that wait or are answered.", waiting.load(kRelaxed));
  counter("vivace_policy_connections_total", "Websockets that were opened.", of(connections));
  counter("vivace_policy_refused_total", "Connections that were turned away: key, origin, too many.", of(refused));
  out += "# HELP vivace_policy_requests_total Requests by outcome.\n# TYPE vivace_policy_requests_total counter\n";
  const std::pair<const char*, const Count*> outcomes[] = {
      {"answered", &answered}, {"failed", &failed}, {"missed", &missed}, {"abandoned", &abandoned}};
  for (const auto& [name, count] : outcomes)
    out += strf("vivace_policy_requests_total{outcome=\"%s\"} %llu\n", name, of(*count));
  out +=
      "# HELP vivace_policy_closed_total Connections that the host closed, by cause.\n# TYPE "
      "vivace_policy_closed_total counter\n";
  const std::pair<const char*, const Count*> causes[] = {
      {"slow_reader", &slow_readers}, {"silent", &silent}, {"broken", &broken}};
  for (const auto& [name, count] : causes)
    out += strf("vivace_policy_closed_total{cause=\"%s\"} %llu\n", name, of(*count));
  counter("vivace_policy_calls_total", "Calls of the policy; requests that share one count once.", of(calls));
  counter("vivace_policy_bytes_in_total", "Bytes that came.", of(bytes_in));
  counter("vivace_policy_bytes_out_total", "Bytes that went.", of(bytes_out));
  queue.write("vivace_policy_queue_seconds", "From the whole request to the policy's beginning with it.", &out);
  infer.write("vivace_policy_infer_seconds", "In the policy.", &out);
  total.write("vivace_policy_total_seconds", "From the whole request to its answer on the way.", &out);
  return out;
}

}  // namespace vivace::serve
