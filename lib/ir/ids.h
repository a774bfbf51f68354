// The ids of the intermediate representation. Node, edge, side-table, sync and replay ids are local to one Graph;
// the others belong to the Recording that holds the graph.
#pragma once

#include "base/id.h"
#include "base/interner.h"

namespace cglint::ir {

using base::StringId;
using base::kEmptyString;

// Per graph.
using NodeId = base::Id<struct NodeTag>;
using EdgeId = base::Id<struct EdgeTag>;
using SyncOpId = base::Id<struct SyncOpTag>;
using ReplayId = base::Id<struct ReplayTag>;  // one launch of the executable graph

// Per recording.
using GraphId = base::Id<struct GraphTag>;
using ProcessId = base::Id<struct ProcessTag>;      // index into Recording::processes, not an OS pid
using FunctionId = base::Id<struct FunctionTag>;    // a kernel function (host functions use names)
using StreamId = base::Id<struct StreamTag>;        // a capture-time stream
using StackId = base::Id<struct StackTag>;          // an interned list of source frames
using NvtxId = base::Id<struct NvtxTag>;            // an interned NVTX range stack
using AllocationId = base::Id<struct AllocationTag>;

}  // namespace cglint::ir
