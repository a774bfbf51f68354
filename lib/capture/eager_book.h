// Kernel launches outside capture (warm-up, eager steps), folded: a row per function, stream, call site and
// set of argument values, with the number of launches that it stands for. Memory is bounded; launches are always
// counted. Copies and fills only where a capture misses them. Not thread safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capture/graph_record.h"

namespace cglint::capture {

// Between two calls of take():
inline constexpr std::uint32_t kEagerStacksFirst = 16;  // launches of a function whose call site is looked up,
inline constexpr std::uint32_t kEagerStacksLater = 4;   // in the first period and in each later one
inline constexpr std::uint32_t kEagerArguments = 4;     // argument sets that are kept per function, call site and stream
inline constexpr std::uint32_t kEagerStreams = 4;       // that many times as many of a call site at most, on all streams
inline constexpr std::uint32_t kEagerCompared = 4096;   // launches of a function that are compared, then only counted
inline constexpr std::size_t kEagerBytes = std::size_t{8} << 20;  // of all rows' arguments
inline constexpr std::size_t kEagerFunctions = 16384;             // of the process
inline constexpr std::size_t kEagerCopies = 1024;                 // kinds and call sites of copies and fills

struct EagerLaunch {
  std::array<std::uint32_t, 3> grid{}, block{};
  std::uint32_t dynamic_shared_bytes = 0;
  NodeOrigin origin;
  void** params = nullptr;                  // one pointer a parameter, or null
  std::span<const unsigned char> packed;    // or all of them, at their offsets
};

class EagerBook {
 public:
  // Is the call site of the next launch of this function wanted?
  [[nodiscard]] bool wants_stack(Handle function) const;
  // Has describe() been called for it?
  [[nodiscard]] bool knows(Handle function) const { return functions_.contains(function); }
  void describe(Handle function, FunctionRecord record);
  // Of a function that is known.
  void add(Handle function, const EagerLaunch& launch);
  // A copy or fill ("memcpy", "memset"), put on a stream that does not capture by a thread whose capture is open.
  void add_copy(const char* kind, const NodeOrigin& origin);
  // A graph of the launches since the last call, in the order of each row's first launch; no nodes if there
  // were none.
  GraphRecord take();
  // Launches that were counted with another row because there was no room for theirs, or whose function
  // was one too many.
  [[nodiscard]] std::uint64_t folded() const { return folded_; }

 private:
  struct Row {
    EagerLaunch launch;
    std::vector<unsigned char> arguments;  // all parameters, one after the other
    std::uint64_t hash = 0;
    std::uint32_t launches = 1;
  };
  struct Function {
    FunctionRecord record;
    std::uint32_t launches = 0, periods = 0;  // launches of this period
    std::vector<Row> rows;
  };
  struct Copy {
    const char* kind;
    NodeOrigin origin;
    std::uint32_t launches = 1;
  };
  std::unordered_map<Handle, Function> functions_;
  std::vector<Copy> copies_;
  std::vector<unsigned char> scratch_;
  std::size_t bytes_ = 0;
  std::uint64_t folded_ = 0;
};

}  // namespace cglint::capture
