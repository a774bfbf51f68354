// Runs the selected rules over recordings and collects one Report. Deterministic: findings are sorted by input, graph,
// code and first node, and the report is the same for any number of threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/kernel_identity.h"
#include "base/result.h"
#include "engine/config.h"
#include "engine/finding.h"
#include "ir/recording.h"

namespace cglint::engine {

// What the report says about one graph, findings or not.
struct GraphSummary {
  std::string name;
  ir::GraphId graph;
  std::uint32_t instances = 1;
  std::size_t nodes = 0, edges = 0;
  bool has_edges = false;
  std::size_t replays = 0;
  std::optional<std::uint32_t> streams_measured;       // maximum over launches; kernels, memcpys and memsets
  std::optional<std::uint32_t> streams_kernels_only;
  std::map<std::int64_t, std::int64_t> stream_histogram;  // streams per launch -> launches
  std::optional<std::uint32_t> streams_predicted;
  std::string prediction_note;                         // "" or why a prediction is missing or weak
  std::optional<std::uint32_t> width;
  std::optional<std::uint32_t> layers;
  bool checkable = true;                               // false: nothing in it that a rule could check
};

struct InputSummary {
  std::string file, format;
  std::size_t graphs = 0;
  std::size_t graph_launches = 0;
  std::size_t loose_kernels = 0;                       // GPU kernels that belong to no graph
  std::vector<GraphSummary> graph_summaries;
  struct LossLine {
    std::string severity, what;
    std::uint64_t count = 1;
    std::uint64_t offset_bytes = ~std::uint64_t{0};
    ir::FactSet facts;
  };
  std::vector<LossLine> losses;
  bool has_error_loss = false, has_data_loss = false;
  // How the replays of another input were tied to this one's graphs.
  struct JoinLine {
    std::string timeline_file, timeline_graph, graph;
    bool by_id = false;
    std::size_t replays = 0, operations = 0, matched = 0, ambiguous = 0, out_of_order = 0;
    std::string doubt;                                 // why the two may be no pair; empty: nothing says so
  };
  std::vector<JoinLine> joins;
  std::string join_problem;                            // "" or why nothing was joined although it was asked for
  bool nothing_to_check = false;
  std::string nothing_reason;                          // why, when nothing_to_check
};

struct Report {
  std::vector<InputSummary> inputs;
  std::vector<Finding> findings;       // at or above Config::min_confidence, consequences included (causes set)
  std::vector<NotChecked> not_checked;
  std::size_t hidden_possible = 0;     // findings below min_confidence
  std::vector<base::Error> errors;     // inputs that could not be read
  std::vector<std::string> rules_run;      // codes that were selected
  std::vector<std::string> rules_checked;  // of them, those that could look at one graph at least

  // 3 internal failure, 2 usage or unreadable input, 1 findings at or above the threshold, 4 nothing to check or
  // something asked for could not be checked or part of an input was lost, 0 clean; the first that applies in that order.
  [[nodiscard]] int exit_code(const Config& config) const;
};

// The checks of one input. Used by one thread; inputs are merged by merge_inputs().
//
// Graphs are checked in rounds: they wait until there are about 32 MB of them, then several threads check them while the recording
// stands still. What rules see of the recording (allocations, functions, eager launches) is thus what was known at the end of the
// graph's round. Rounds do not depend on the number of threads, rules of scope `recording` see the graphs in file order, and results
// are added up in file order: the report is the same for any number.
class InputChecker {
 public:
  // `file` is the input as the user named it; `threads` work at once, the caller's included.
  InputChecker(const Config& config, const analysis::KernelTable& kernels, std::string file, unsigned threads = 1);
  ~InputChecker();
  InputChecker(InputChecker&&) noexcept;

  // Checks the graph in this call or a later one and then drops it, so that the caller is done with it; bodies and eager launches
  // stay, since other graphs look them up. Results own their strings. Call in file order.
  void add_graph(ir::Recording& recording, ir::GraphId graph);
  // Checks what is still held and was not checked before, and what concerns the input as a whole.
  void finish(const ir::Recording& recording);
  void fail(base::Error error);
  // Shown with the input's summary.
  void add_join(InputSummary::JoinLine line);
  void set_join_problem(std::string problem);
  // The input's graphs were all moved into another input: having none left is no reason to exit 4.
  void joined_elsewhere();

 private:
  friend Report merge_inputs(const Config& config, std::vector<InputChecker> inputs);
  struct State;
  std::unique_ptr<State> state_;
};

// One report over all inputs, in the order given. Within an input, findings with one fingerprint become one finding.
Report merge_inputs(const Config& config, std::vector<InputChecker> inputs);

}  // namespace cglint::engine
