// What a rule reports, and what it could not check. Findings are data: reporters print them, gates count them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ir/facts.h"
#include "ir/ids.h"

namespace cglint::engine {

enum class Severity : std::uint8_t { info, warning, error };
std::string_view severity_name(Severity severity);
std::optional<Severity> severity_from_name(std::string_view name);

// certain: follows from recorded facts alone. likely: one named inference. possible: needs a look; hidden unless asked.
enum class Confidence : std::uint8_t { possible, likely, certain };
std::string_view confidence_name(Confidence confidence);
std::optional<Confidence> confidence_from_name(std::string_view name);

// A place in somebody's source.
struct SourceLocation {
  std::string file, function;
  std::uint32_t line = 0;            // 0: unknown
  bool generated = false;            // the file is compiler output, not somebody's source
  std::string role;                  // what happened there: "wait", "launch", "fork", "allocation", ...
};

// A node, edge or synchronisation call, named so that a reader can find it without the file.
struct Entity {
  enum class Kind : std::uint8_t { node, edge, sync_op, stream } kind = Kind::node;
  std::uint32_t id = 0;              // NodeId, EdgeId or SyncOpId index in its graph; stream number for streams
  std::uint64_t source_id = 0;       // id in the input file, where it differs
  std::string label;                 // short name: "rms_norm", "gemm -> silu", "stream 61"
  std::string role;                  // why it is listed: "join", "main tail", "side tail", "fork", ...
  std::int32_t layer = -1;           // -1: not in a layer, or layers unknown
};

// One place where the same cause shows (one per layer, usually).
struct Occurrence {
  std::int32_t layer = -1;
  std::vector<Entity> entities;      // primary first
};

struct Cost {
  enum class Basis : std::uint8_t { none, estimate, measured } basis = Basis::none;
  double us = 0;                     // per replay
  double of_us = 0;                  // replay span it is part of
  double spread_us = 0;              // half-width between the 10th and 90th percentile over replays
};
std::string_view cost_basis_name(Cost::Basis basis);

// A change of the graph that a tool could apply and measure.
struct Edit {
  enum class Kind : std::uint8_t { move_later, drop_node, drop_edge, add_edge, set_attribute } kind = Kind::move_later;
  std::vector<std::uint32_t> nodes;  // NodeIds moved, dropped, or the edge's two ends
  std::uint32_t before = ~0U;        // move_later: the node before which `nodes` are created
  std::string attribute;             // set_attribute: "programmatic_stream_serialization=1"
};
std::string_view edit_kind_name(Edit::Kind kind);

struct Fix {
  std::string text;                  // in the engineer's terms; "" if none is known
  std::vector<Edit> edits;           // empty if not machine-applicable
  std::vector<std::string> side_effects;
};

enum class Verification : std::uint8_t { not_tried, verified, no_gain, wrong, refused };
std::string_view verification_name(Verification verification);

// Typed evidence, in the order in which it should be read.
using EvidenceValue =
    std::variant<std::int64_t, double, bool, std::string, std::vector<std::string>, std::map<std::int64_t, std::int64_t>>;
using Evidence = std::vector<std::pair<std::string, EvidenceValue>>;

struct Finding {
  std::string code;                  // "CG101"
  std::string slug;                  // "stream-explosion"
  Severity severity = Severity::warning;
  Confidence confidence = Confidence::certain;
  ir::FactSet rests_on;              // the facts the verdict used
  std::string message;               // one line, lower case, no final dot: what, where, the measured evidence
  Evidence evidence;
  std::string file;                  // input file
  ir::GraphId graph;
  std::string graph_name;
  std::uint32_t graph_instances = 1; // equal graphs (stored once, or linted once) that show the same finding
  std::vector<std::string> also_in;  // names of the other graphs, at most a few
  std::vector<Entity> primary, related;
  std::vector<Occurrence> occurrences;
  std::uint32_t occurrence_count = 1;  // may exceed occurrences.size(), which is capped
  std::vector<SourceLocation> sources; // best first
  Cost cost;
  Fix fix;
  Verification verification = Verification::not_tried;
  std::vector<std::string> causes;   // fingerprints of findings that explain this one: it is then a consequence
  std::string fingerprint;           // 16 hex digits; stable over runs, addresses, node numbers and layer counts
  bool suppressed = false;
  std::string suppression_reason;
  std::vector<std::string> threads;  // public threads, "owner/repo#number"
};

struct NotChecked {
  std::string code, slug;
  std::string file;
  std::string graph_name;            // "" when it holds for the whole input
  ir::FactSet missing;
  std::vector<std::string> reasons;  // phrases, all of which hold: "the input has no dependency edges"
  [[nodiscard]] std::string reason() const {  // the phrases in one
    std::string all;
    for (const std::string& each : reasons) all += (all.empty() ? "" : "; ") + each;
    return all;
  }
  std::uint32_t graph_count = 1;     // graphs of the file for which the same holds
  bool requested = false;            // the user asked for this rule or limit by name
};

}  // namespace cglint::engine
