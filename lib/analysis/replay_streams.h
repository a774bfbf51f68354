// Measured streams: distinct (device, stream) pairs that carry kernels, memcpys or memsets of one launch.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace cglint::analysis {

using StreamKey = std::pair<std::int32_t, std::uint64_t>;  // device, stream

struct ReplayStreams {
  bool available = false;
  std::vector<std::uint32_t> per_replay;               // streams of each launch, in replay order
  std::vector<std::uint32_t> per_replay_kernels_only;
  std::uint32_t max = 0, max_kernels_only = 0;
  std::uint32_t max_replay = 0;                        // index of the first replay with `max` streams
  std::map<std::int64_t, std::int64_t> histogram;      // streams -> launches
  // Of the replay with most streams: how many lifetimes (first start to last end of a stream's operations) contain one
  // instant at most, and how many operations run at once at most. A stream whose life is over could have been reused.
  std::uint32_t max_live = 0;
  std::uint32_t max_concurrent = 0;
};

ReplayStreams replay_streams(const ir::Graph& graph);

}  // namespace cglint::analysis
