// Measured streams: distinct (device, stream) pairs that carry kernels, memcpys or memsets of one launch.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace cglint::analysis {

using StreamKey =
    std::pair<std::int32_t, std::uint64_t>;  // device, stream: stream numbers repeat across devices

struct ReplayStreams {
  bool available = false;                 // the input tells replay streams and has operations
  std::vector<std::uint32_t> per_replay;  // streams of each launch, in replay order
  std::vector<std::uint32_t> per_replay_kernels_only;
  std::uint32_t max = 0, max_kernels_only = 0;
  std::uint32_t max_replay = 0;  // index of the first replay with `max` streams
  // streams -> launches. Launches without a recorded operation are left out: nothing was measured. Launches
  // that lost records are in, with the lower bound that they show, and are counted in `incomplete_replays`.
  std::map<std::int64_t, std::int64_t> histogram;
  std::uint32_t empty_replays = 0;       // launches without a recorded operation
  std::uint32_t incomplete_replays = 0;  // launches with operations, of which records were lost
  // Of the replay with most streams: how many lifetimes (first start to last end of a stream's operations)
  // contain one instant at most, and how many operations run at once at most (overlaps within the clock's
  // tolerance are none). A stream whose life is over could have been reused. 0 where the input has no replay
  // times.
  std::uint32_t max_live = 0;
  std::uint32_t max_concurrent = 0;
};

ReplayStreams replay_streams(const ir::Graph& graph);

}  // namespace cglint::analysis
