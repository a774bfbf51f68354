// What each kernel of a captured graph reads and writes, measured: its nodes run one at a time, in the order in which they were
// recorded.
//
// Writes: memory that the node's arguments point into is compared before and after. The node then runs a second time on what it
// changed with other bytes there, so that a byte that gets the value it had is seen too.
//
// Reads, of bytes that some node of the graph writes: the step runs in two worlds, with two inputs (Model::use_input). A node that
// gives another output where some bytes are taken from the other world reads them. Bytes that are the same in both worlds, and
// all that no node writes (weights), are not looked at: reads measured are some of the reads, writes measured are all.
//
// Not seen: memory that no argument points into (through pointers in memory, device globals).
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "stack/model.h"

namespace cglint::models {

// `graph` was captured from model's step. Tells one event "access" for each kernel node, with the number of the node in the order of
// recording, the words of its arguments that are addresses, and ranges [begin, end, "r" | "w" | "rw"]; then "accesses". Returns ""
// or why it could not be measured; the model's state is undefined then.
std::string measure_accesses(cudaGraph_t graph, Model& model, cudaStream_t stream);

}  // namespace cglint::models
