// CallReader: one call of a tool, as a family writes it, byte by byte: its name, and its arguments as JSON that grows.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vivace/serve/reply_format.h"

namespace vivace::serve {

/// How a parameter's value that is written without quotes is read (xml).
enum class ValueKind : uint8_t {
  string,  // as it is
  other,   // JSON where it is one, a string where it is none
  either,  // null, else a string
};

struct Tool {
  std::string name;
  std::vector<std::pair<std::string, ValueKind>> parameters;
};

class CallReader {
 public:
  virtual ~CallReader() = default;

  enum class Step : uint8_t {
    more,
    whole,  // the call ended with this byte
    bad,    // this byte, which was not taken, cannot stand here
  };
  virtual Step put(char c) = 0;
  /// Once the name is known and the arguments have begun: from then on it is a call, whatever comes.
  bool begun() const { return begun_; }
  const std::string& name() const { return name_; }
  /// Arguments that were read and not taken yet.
  std::string& arguments() { return arguments_; }
  /// Whether the arguments are over, so that whatever comes takes nothing from the call.
  virtual bool complete() const { return false; }
  /// Taken bytes that are in neither: of a call that is cut off or breaks.
  virtual std::string rest() const = 0;

 protected:
  std::string name_, arguments_;
  bool begun_ = false;
};

/// `bare`: the call has no marker, so only a name in `tools` makes it one.
std::unique_ptr<CallReader> read_json_call(const std::vector<Tool>& tools, bool bare);
/// `named`: its <function= was read already.
std::unique_ptr<CallReader> read_xml_call(const std::vector<Tool>& tools, bool named);
std::unique_ptr<CallReader> read_braces_call(const char* quote);

/// Characters of a function's name: what stands in no form for anything else.
bool may_name(char c);
inline constexpr size_t kMostName = 256;

}  // namespace vivace::serve
