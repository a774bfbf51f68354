// Searches an order of recording that needs fewer streams: the same nodes and the same dependencies, created
// in another order. Every order is judged by the stream model (analysis/stream_model.h), never by guessing
// which branch is the main one.
//
// Where streams are lost: two tails lead to one join; the tail that was created first takes it, the other one
// hands its stream to nobody, and the next branch pays with a new stream. The cure is to create the losing
// tail first, that is to record the block that holds the winning tail later. The search collects such losses,
// groups those that look alike (one per layer, usually), tries to mend whole groups, and keeps what the model
// says is better.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/stream_model.h"

namespace cglint::analysis {

struct OrderSearchInput {
  StreamGraph graph;  // with bodies of child graphs, whose nodes are never moved one by one
  const StreamPrediction* as_given = nullptr;  // the model's prediction for `graph`, if it is there already
  // Optional columns, empty or one entry per node (of the graph itself).
  std::span<const std::int32_t>
      capture_stream;                    // any number per stream; -1 unknown. Blocks are runs on one stream
  std::span<const std::uint32_t> label;  // equal for nodes that look alike (kernel name): helps grouping
  std::uint32_t needed_streams = 1;      // what the graph's width asks for; the search stops there
  std::uint32_t max_evaluations = 400;   // predictions, each O(nodes + edges)
  std::uint64_t max_work = 200'000'000;  // nodes and edges walked to find and mend losses, beside the predictions
};

// One block that is to be recorded later. Nodes are creation indices of the graph as it is.
struct OrderMove {
  std::vector<std::uint32_t> nodes;  // the block, in creation order
  std::vector<std::uint32_t>
      crossed;  // nodes that were created after (some of) the block and are now created before it
  std::uint32_t after =
      kNoNode;  // the last node to record before the block: the tail that used to be left without heir
  std::uint32_t before = kNoNode;  // the join that waits for the block: the latest place for it
  std::uint32_t winner = kNoNode;  // the tail in the block that took the join
};

// Moves that look alike, one per layer or region.
struct OrderPattern {
  std::vector<OrderMove> moves;  // by position; never empty
};

// One literal change of the order: the nodes, in this order, are created right before `before`. Applied one
// after another to the order as it is, the edits give OrderSearchResult::order.
struct OrderEdit {
  std::vector<std::uint32_t> nodes;
  std::uint32_t before = kNoNode;  // kNoNode: at the end
};

struct OrderSearchResult {
  enum class Verdict : std::uint8_t {
    invalid,         // cyclic or out of range
    not_needed,      // no more streams than needed
    improved,        // `order` needs fewer streams
    no_order_helps,  // no order was found that does; see fresh_heads
  };
  Verdict verdict = Verdict::invalid;
  std::uint32_t streams_before = 0, streams_after = 0;
  std::uint32_t evaluations = 0;
  std::uint64_t work = 0;  // of max_work; what was found by then is still applied, so that it may be a little more
  bool cut_short = false;  // max_evaluations or max_work ended the search: there may be a better order
  // Largest first. Empty where nodes were created before nodes that they wait for and no loss had to be mended.
  std::vector<OrderPattern> patterns;
  std::vector<OrderEdit> edits;        // verified: they keep every dependency and give streams_after
  // Each move of the patterns, put right before its join, is an edit. If not (branches that depend on each
  // other half way, moves that share a join), the patterns only name the causes, and `edits` is the advice.
  bool moves_are_edits = false;
  std::vector<std::uint32_t> order;  // order[i]: the node to create as the i-th; the given order if nothing
                                     // is better. Without bodies
  // Programmatic edges (indices into graph.edges). Assumption: such an edge does what it is for only where
  // its consumer directly follows its producer on one stream, before the move and after it.
  std::vector<std::uint32_t> programmatic_lost, programmatic_gained;
  // First nodes of branches that no order can put on an existing stream: all their parents lie behind the
  // same fork, so the stream of an earlier branch has no way to them. They need a dependency on the tail of
  // that branch (one side stream that persists over the layers). Filled for what remains above
  // `needed_streams`.
  std::vector<std::uint32_t> fresh_heads;
};

OrderSearchResult search_order(const OrderSearchInput& input);

}  // namespace cglint::analysis
