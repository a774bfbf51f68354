// Facts: what an input can tell. Importers say which facts a graph carries, rules say which they need, and whatever
// is missing or spoiled is reported as "not checked". Nothing may be called clean on a fact that is not here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

namespace cglint::ir {

enum class Fact : std::uint8_t {
  nodes,               // the graph's nodes with their kinds (false for a trace of graph launches without node rows)
  creation_order,      // node order is creation (= capture) order
  edges,               // the dependency edges
  edge_data,           // ports and types of the edges (programmatic, launch-order)
  kernel_names,        // function names of kernel nodes
  launch_config,       // grid, block, shared memory of kernel nodes
  kernel_attributes,   // PDL, cluster, priority, cooperative
  copy_params,         // addresses and sizes of memcpy and memset nodes
  kernel_params,       // parameter words of kernel nodes
  allocations,         // the allocation timeline of the process (ranges, alloc and free moments)
  allocator_state,     // block states of a caching allocator (which cached blocks are free, which pool)
  capture_streams,     // the stream on which each node was captured
  sync_ops,            // event records, waits and stream joins of the capture
  nvtx,                // NVTX range stack per node
  source_frames,       // source frames per node
  node_identity,       // replay operations are tied to nodes by id, not by position in the launch
  replay_streams,      // device and stream of each operation of a replay
  replay_times,        // start and end of each operation of a replay
  untraced_times,      // replay times taken without a tracer
  eager_launches,      // launches outside capture (warm-up, eager steps)
  kernel_images,       // facts from the kernel's machine code (grid-dependency wait and trigger)
  measured_access,     // read and write sets measured by isolated runs
  instantiate_info,    // instantiate flags, time, memory
  graph_key,           // what the engine keys the graph by (batch size, ...)
  capture_status,      // how the capture ended, and what broke it
  peer_ranks,          // captures of the other ranks of the same job
  moe_config_table,    // a user-given table of tuned launch configurations
};
inline constexpr int kFactCount = static_cast<int>(Fact::moe_config_table) + 1;

// snake_case name, stable: it appears in JSON reports and --capabilities.
std::string_view fact_name(Fact fact);
std::optional<Fact> fact_from_name(std::string_view name);
// A phrase for "not checked: <phrase>", for example "the input has no dependency edges".
std::string_view fact_missing_phrase(Fact fact);

class FactSet {
 public:
  constexpr FactSet() = default;
  constexpr FactSet(std::initializer_list<Fact> facts) {
    for (const Fact fact : facts) insert(fact);
  }
  constexpr void insert(Fact fact) { bits_ |= bit(fact); }
  constexpr void erase(Fact fact) { bits_ &= ~bit(fact); }
  [[nodiscard]] constexpr bool contains(Fact fact) const { return (bits_ & bit(fact)) != 0; }
  [[nodiscard]] constexpr bool contains_all(FactSet other) const { return (other.bits_ & ~bits_) == 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  [[nodiscard]] constexpr FactSet minus(FactSet other) const { return FactSet(bits_ & ~other.bits_); }
  [[nodiscard]] constexpr FactSet intersect(FactSet other) const { return FactSet(bits_ & other.bits_); }
  [[nodiscard]] constexpr FactSet unite(FactSet other) const { return FactSet(bits_ | other.bits_); }
  [[nodiscard]] constexpr std::uint64_t bits() const { return bits_; }
  friend constexpr bool operator==(FactSet, FactSet) = default;

 private:
  explicit constexpr FactSet(std::uint64_t bits) : bits_(bits) {}
  static constexpr std::uint64_t bit(Fact fact) { return std::uint64_t{1} << static_cast<int>(fact); }
  std::uint64_t bits_ = 0;
};

}  // namespace cglint::ir
