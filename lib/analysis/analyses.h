// Everything that rules and reports may ask about one graph, computed once, lazily, and shared. Each analysis
// is a pure function in a header of its own; this class only remembers results. Not thread safe: one per
// graph per thread.
#pragma once

#include <memory>
#include <optional>

#include "analysis/access_table.h"
#include "analysis/argument_words.h"
#include "analysis/critical_path.h"
#include "analysis/fork_join.h"
#include "analysis/kernel_identity.h"
#include "analysis/layers.h"
#include "analysis/node_times.h"
#include "analysis/overlap.h"
#include "analysis/predicted_streams.h"
#include "analysis/reachability.h"
#include "analysis/replay_streams.h"
#include "analysis/topology.h"
#include "analysis/width.h"
#include "ir/recording.h"

namespace cglint::analysis {

class Analyses {
 public:
  Analyses(const ir::Recording& recording, ir::GraphId graph_id, const KernelIdentities& identities);
  ~Analyses();
  Analyses(const Analyses&) = delete;
  Analyses& operator=(const Analyses&) = delete;

  [[nodiscard]] const ir::Recording& recording() const;
  [[nodiscard]] const ir::Graph& graph() const;
  [[nodiscard]] const KernelIdentities& identities() const;

  const TopologicalOrder& topology();
  const Reachability& starts_after();          // every edge
  const Reachability& memory_ordered_after();  // edges as far as they prove completion
  // The same, where kernels of unknown image are taken not to wait.
  const Reachability& certainly_memory_ordered_after();
  const Width& width();                            // of the activity nodes, by `starts after`
  const std::vector<ir::EdgeId>& implied_edges();  // edges beside a longer path; ids ascending
  // Of the graph without its implied edges: a side stream that is kept over all layers gives an edge from each side
  // block to the next, which would else hide every join but the last.
  const std::vector<ForkJoinRegion>& fork_join_regions();
  const NodeTimes& node_times();  // median duration per node over the replays
  const CriticalPath& critical_path();
  const Layers& layers();
  const AccessTable& access_table();            // node x byte range x direction x trust
  const ReplayStreams& replay_streams();                // measured
  const PredictedStreams& predicted_streams();          // from the graph alone
  const std::optional<StreamRun>& stream_run();         // that they are from
  const std::vector<FunctionWords>& argument_words();   // of its kernels
  const std::vector<RegionOverlap>& region_overlaps();  // one per fork/join region

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cglint::analysis
