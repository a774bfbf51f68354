// A kernel argument that is an address elsewhere is null in the graph: what it pointed to was released before the capture.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "rules/common/arguments.h"
#include "rules/common/describe.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::kernel_params}};
constexpr std::array<engine::RuleOption, 1> kOptions = {{
    {engine::RuleOption::Type::integer, "near_null_bytes", "65536",
     "an address below this is a null base with an offset (a slice of a released buffer)", 1, 16777216},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG301",
    .slug = "null-address",
    .family = "addresses",
    .summary = "A kernel argument that is an address elsewhere is null in the graph: what it pointed to was released before the capture.",
    .severity = engine::Severity::error,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .scope = engine::RuleScope::recording,
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::eager_launches, Fact::allocations, Fact::measured_access, Fact::source_frames},
    .options = kOptions,
};

constexpr std::uint64_t kLowestAddress = std::uint64_t{1} << 40, kHighestAddress = std::uint64_t{1} << 57;  // of what looks like one
constexpr std::size_t kMaxSites = 2'000'000;  // about 400 MB; beyond, the rest is not checked

// How often a word was seen as what.
struct Seen {
  std::uint32_t null = 0;       // zero, or below near_null_bytes
  std::uint32_t address = 0;    // in memory that is known to the recording
  std::uint32_t other = 0;      // in none
  std::uint32_t large = 0;      // of these, as large as an address
  [[nodiscard]] std::uint32_t non_null() const { return address + other; }
  void add(const Seen& more) {
    null += more.null;
    address += more.address;
    other += more.other;
    large += more.large;
  }
};

// A launch place: a kernel and the stack that launched it; without stacks the node's position in graphs of one kernel sequence.
struct SiteKey {
  ir::ProcessId process;
  ir::FunctionId function;
  ir::StackId stack;
  std::uint64_t position = 0;
  friend bool operator==(const SiteKey&, const SiteKey&) = default;
};
struct SiteHash {
  std::size_t operator()(const SiteKey& key) const {
    std::uint64_t h = key.position + (std::uint64_t{key.function.index()} << 32 | key.stack.index());
    h = (h ^ key.process.index()) * 0x9e3779b97f4a7c15U;
    return static_cast<std::size_t>(h ^ h >> 29);
  }
};

struct Config {
  ir::Dim3 grid, block;
  friend bool operator==(const Config&, const Config&) = default;
};

// Launches outside capture at one place with one launch configuration.
struct EagerSite {
  ir::StackId stack;
  bool allocations_known = false;
  Config config;
  // Recorders keep the arguments of the first launches at a place and count the rest.
  std::uint64_t rows = 0, launches = 0;
  std::uint32_t period = 0, rows_of_period = 0, most_rows = 0;  // rows between two captures: layers that were kept
  std::vector<Seen> words;
};

struct Node {
  NodeId id;
  std::uint64_t source_id = 0;
  std::int32_t layer = -1;
};

// What the other nodes of the graph say about a null argument.
enum class Peers : std::uint8_t { none, some, clear };

// A word that is null in some graph.
struct NullWord {
  std::size_t site = 0;
  std::size_t word = 0;
  std::uint16_t slot = 0, offset_bytes = 0;
  WordType type = WordType::unknown;
  Config config;
  engine::Finding finding;           // names the first graph in which it is null
  std::vector<Node> nodes;           // there, at most kMaxOccurrences
  std::size_t node_count = 0;
  Seen in_graph;                     // there, at this site; without stacks: of the kernel
  std::uint64_t value = 0;
  std::size_t last_place = 0;        // of the null nodes, the last one's number among the launches of the site
  Peers peers = Peers::none;
  bool faults = false;               // an isolated run touched the null page, through this word or another null one
  bool is_dereferenced = false;      // an isolated run touched it through this word
  std::uint64_t null_words = 0;      // which words of the first node are null
  std::vector<std::pair<std::uint16_t, std::uint16_t>> rivals;  // the null words of the node that may be addresses, this one included
  std::uint32_t graphs_null = 0;
  std::vector<std::string> also_in;
};

struct Site {
  SiteKey key;
  std::vector<Seen> words;
  // Graphs in which the word is an address at every node of this site, with the configuration of the last of them.
  std::vector<std::uint32_t> graphs_with_address;
  std::vector<Config> address_config;
};

// A site in one graph: its nodes there, and what their words are.
struct Here {
  std::size_t site = 0;
  std::vector<NodeId> nodes;
  std::vector<Seen> words;
  bool any_null = false;
  void begin(std::size_t of_site) {
    site = of_site;
    nodes.clear();
    words.clear();
    any_null = false;
  }
};

class Check final : public engine::RecordingCheck {
 public:
  explicit Check() = default;

  void see(const engine::GraphContext& context) override {
    near_null_ = static_cast<std::uint64_t>(context.config.integer(kInfo, "near_null_bytes"));
    if (!context.graph.facts.contains(Fact::kernel_params)) return;
    history_.see(context.graph, context.analyses.argument_words());
    if (context.graph.info.role == ir::GraphRole::eager) return see_eager(context);
    if (context.graph.facts.contains(Fact::eager_launches)) eager_expected_ = true;
    see_graph(context);
  }

  void finish(const engine::RecordingContext& context, engine::FindingSink& sink) override {
    // What a word of a function was anywhere: tells addresses from numbers where types are unknown.
    for (const Site& site : sites_)
      for (std::size_t i = 0; i < site.words.size(); ++i) anywhere_[{site.key.function, i}].add(site.words[i]);
    for (const auto& [key, eager] : eager_)
      for (const EagerSite& site : eager)
        for (std::size_t i = 0; i < site.words.size(); ++i) anywhere_[{key.second, i}].add(site.words[i]);

    // What an isolated run of one node proves holds for the other launches of the kernel; of one argument, for those with the same null
    // words: another one may say that it is not given.
    std::set<std::pair<ir::FunctionId, std::size_t>> faulting;
    std::set<std::tuple<ir::FunctionId, std::size_t, std::uint64_t>> dereferenced;
    for (const NullWord& word : nulls_) {
      if (word.faults) faulting.insert({sites_[word.site].key.function, word.word});
      if (word.is_dereferenced) dereferenced.insert({sites_[word.site].key.function, word.word, word.null_words});
    }
    for (NullWord& word : nulls_) {
      word.faults = faulting.contains({sites_[word.site].key.function, word.word});
      word.is_dereferenced = dereferenced.contains({sites_[word.site].key.function, word.word, word.null_words});
    }

    for (const auto& [key, eager] : eager_) families_[{key.first, context.identities.of(key.second).normalised}].push_back(key.second);

    std::size_t open = 0;
    std::string example;
    // Without stacks every node is a place of its own: one cause is one finding all the same.
    std::map<std::tuple<ir::GraphId, ir::FunctionId, ir::StackId, std::size_t, std::string>, std::pair<NullWord*, Verdict>> found;
    std::vector<std::pair<NullWord*, Verdict>*> in_order;
    for (NullWord& word : nulls_) {
      const Site& site = sites_[word.site];
      Verdict verdict = judge(context, word, site);
      if (verdict.kind == Verdict::Kind::silent) continue;
      // Elsewhere an address may be in it because the caller's stack had one there.
      if (verdict.confidence == engine::Confidence::likely && word.type != WordType::pointer && !is_named(context, word, site) &&
          history_.holds_leftovers(context.recording, site.key.function, word.word))
        verdict.confidence = engine::Confidence::possible;
      const analysis::KernelIdentity& identity = context.identities.of(site.key.function);
      if (verdict.kind == Verdict::Kind::open) {
        if (open++ == 0) example = fmt::format("{} of {}", argument_name(identity, word.slot, word.offset_bytes), identity.short_name);
        continue;
      }
      const auto [it, inserted] = found.try_emplace({word.finding.graph, site.key.function, site.key.stack, word.word, verdict.because}, &word, verdict);
      if (inserted) {
        in_order.push_back(&it->second);
        continue;
      }
      NullWord& first = *it->second.first;
      for (const Node& node : word.nodes)
        if (first.nodes.size() < kMaxOccurrences) first.nodes.push_back(node);
      first.node_count += word.node_count;
      it->second.second.confidence = std::max(it->second.second.confidence, verdict.confidence);
    }
    for (const auto* entry : in_order) report(context, sink, *entry->first, sites_[entry->first->site], context.identities.of(sites_[entry->first->site].key.function), entry->second);
    if (open > 0) {
      ir::FactSet missing;
      if (!eager_expected_ && eager_.empty()) missing.insert(Fact::eager_launches);
      sink.not_checked(missing, fmt::format("{} may be null addresses (first: {}) and could not be judged: no launch of the kernel outside capture, no other graph "
                                            "and no other node passes an address there",
                                            base::count_of(open, "zero argument word"), example));
    }
    if (sites_.size() >= kMaxSites) sink.not_checked({}, "more launch places than can be compared");
  }

 private:
  struct Verdict {
    enum class Kind : std::uint8_t { silent, open, finding } kind = Kind::silent;
    engine::Confidence confidence = engine::Confidence::likely;
    std::string because;
    Fact fact = Fact::kernel_params;
    ir::StackId other_stack;
  };

  [[nodiscard]] Seen classify(const ir::ParamWord& word) const {
    Seen seen;
    if (word.value < near_null_) seen.null = 1;
    else if (word.allocation.is_valid()) seen.address = 1;
    else seen.other = 1;
    if (seen.other != 0 && word.value >= kLowestAddress && word.value < kHighestAddress) seen.large = 1;
    return seen;
  }

  void see_eager(const engine::GraphContext& context) {
    const ir::Graph& graph = context.graph;
    ++period_;
    for (const NodeId node : graph.nodes()) {
      const ir::KernelNode* const kernel = graph.kernel(node);
      if (kernel == nullptr || !kernel->function.is_valid()) continue;
      const std::span<const ir::ParamWord> words = graph.params_of(*kernel);
      if (words.empty()) continue;
      std::vector<EagerSite>& sites = eager_[{graph.info.process, kernel->function}];
      const ir::StackId stack = graph.stack.empty() ? ir::StackId() : graph.stack[node];
      const Config config{kernel->grid, kernel->block};
      const bool known = graph.facts.contains(Fact::allocations);
      auto site = std::find_if(sites.begin(), sites.end(), [&](const EagerSite& s) { return s.stack == stack && s.config == config && s.allocations_known == known; });
      if (site == sites.end()) site = sites.insert(sites.end(), EagerSite{stack, known, config, 0, 0, 0, 0, 0, {}});
      ++site->rows;
      if (site->period != period_) site->period = period_, site->rows_of_period = 0;
      site->most_rows = std::max(site->most_rows, ++site->rows_of_period);
      site->launches += graph.launches.empty() ? 1 : graph.launches[node];
      if (site->words.size() < words.size()) site->words.resize(words.size());
      for (std::size_t i = 0; i < words.size(); ++i)
        if (words[i].size_bytes == 8) site->words[i].add(classify(words[i]));
    }
  }

  std::size_t site_of(const SiteKey& key) {
    if (sites_.size() >= kMaxSites) {
      const auto it = site_index_.find(key);
      return it == site_index_.end() ? ~std::size_t{0} : it->second;
    }
    const auto [it, inserted] = site_index_.try_emplace(key, sites_.size());
    if (inserted) sites_.push_back({key, {}, {}, {}});
    return it->second;
  }

  // The same. With stacks, launches of one kernel mostly come from one place.
  std::size_t site_of_launch(const SiteKey& key) {
    if (!key.stack.is_valid()) return site_of(key);
    if (last_site_.size() <= key.function.index()) last_site_.resize(std::size_t{key.function.index()} + 1, ~std::size_t{0});
    std::size_t& last = last_site_[key.function.index()];
    if (last == ~std::size_t{0} || !(sites_[last].key == key)) last = site_of(key);
    return last;
  }

  static std::uint64_t sequence_hash(const ir::Graph& graph) {
    std::uint64_t hash = graph.node_count();
    for (const NodeId node : graph.nodes()) {
      const ir::KernelNode* const kernel = graph.kernel(node);
      const std::uint64_t what = kernel != nullptr ? kernel->function.index() : 0xffff0000U + static_cast<std::uint64_t>(graph.kind[node]);
      hash = (hash ^ what) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 31;
    }
    return hash;
  }

  void see_graph(const engine::GraphContext& context) {
    const ir::Graph& graph = context.graph;
    const bool has_stacks = graph.facts.contains(Fact::source_frames) && !graph.stack.empty();
    std::uint64_t sequence = 0;
    std::size_t sites_here = 0;  // of here_
    for (const NodeId node : graph.nodes()) {
      const ir::KernelNode* const kernel = graph.kernel(node);
      if (kernel == nullptr || !kernel->function.is_valid()) continue;
      const std::span<const ir::ParamWord> words = graph.params_of(*kernel);
      if (words.empty() || (!graph.enabled.empty() && graph.enabled[node] == 0)) continue;
      SiteKey key{graph.info.process, kernel->function, has_stacks ? graph.stack[node] : ir::StackId(), 0};
      if (!key.stack.is_valid()) {
        if (sequence == 0) sequence = sequence_hash(graph) | 1;
        key.position = sequence ^ (std::uint64_t{node.index()} << 1);
      }
      const std::size_t site = site_of_launch(key);
      if (site == ~std::size_t{0}) continue;
      if (place_here_.size() <= site) place_here_.resize(sites_.size(), 0);
      if (place_here_[site] == 0) {
        if (here_.size() == sites_here) here_.emplace_back();
        here_[sites_here].begin(site);
        place_here_[site] = static_cast<std::uint32_t>(++sites_here);
      }
      Here& at = here_[place_here_[site] - 1];
      at.nodes.push_back(node);
      if (at.words.size() < words.size()) at.words.resize(words.size());
      for (std::size_t i = 0; i < words.size(); ++i) {
        if (words[i].size_bytes != 8) continue;
        const Seen seen = classify(words[i]);
        at.words[i].add(seen);
        at.any_null |= seen.null != 0;
      }
    }
    std::map<std::pair<ir::FunctionId, std::size_t>, Seen> of_kernel;
    if (sequence != 0)
      for (const Here& at : std::span(here_).first(sites_here))
        for (std::size_t i = 0; i < at.words.size(); ++i) of_kernel[{sites_[at.site].key.function, i}].add(at.words[i]);
    Faults faults;
    for (const ir::MeasuredAccess& access : graph.measured_accesses)
      if (access.begin < near_null_ && access.begin < access.end) faults[access.node].emplace_back(access.slot, access.offset_bytes);
    for (const Here& at : std::span(here_).first(sites_here)) {
      const std::size_t index = at.site;
      place_here_[index] = 0;
      Site& site = sites_[index];
      if (site.words.size() < at.words.size()) {
        site.words.resize(at.words.size());
        site.graphs_with_address.resize(at.words.size(), 0);
        site.address_config.resize(at.words.size());
      }
      const ir::KernelNode& first = *graph.kernel(at.nodes.front());
      const Config config{first.grid, first.block};
      for (std::size_t i = 0; i < at.words.size(); ++i) {
        site.words[i].add(at.words[i]);
        if (at.words[i].null == 0 && at.words[i].non_null() > 0) {
          ++site.graphs_with_address[i];
          site.address_config[i] = config;
        }
      }
      if (!at.any_null) continue;
      const std::size_t first_new = nulls_.size();
      note_nulls(context, index, at.nodes, at.words, faults, config);
      if (!site.key.stack.is_valid())
        for (std::size_t k = first_new; k < nulls_.size(); ++k) nulls_[k].in_graph = of_kernel[{site.key.function, nulls_[k].word}];
    }
  }

  // Null arguments through which isolated runs touched the null page; without a slot: one of them.
  using Faults = std::map<NodeId, std::vector<std::pair<std::uint16_t, std::uint16_t>>>;
  static bool faults_through(const Faults& faults, NodeId node, std::pair<std::uint16_t, std::uint16_t> place) {
    const auto found = faults.find(node);
    return found != faults.end() && std::find(found->second.begin(), found->second.end(), place) != found->second.end();
  }
  [[nodiscard]] std::uint64_t null_words_of(std::span<const ir::ParamWord> words) const {
    std::uint64_t hash = 0;
    for (const ir::ParamWord& word : words)
      if (word.size_bytes == 8 && word.value < near_null_) hash = (hash ^ (std::uint64_t{word.slot} << 16 | word.offset_bytes) ^ hash >> 29) * 0x9e3779b97f4a7c15U + 1;
    return hash;
  }

  void note_nulls(const engine::GraphContext& context, std::size_t site, const std::vector<NodeId>& nodes, const std::vector<Seen>& words,
                  const Faults& faults, const Config& config) {
    const ir::Graph& graph = context.graph;
    const ir::FunctionId function = sites_[site].key.function;
    const analysis::KernelIdentity& identity = context.analyses.identities().of(function);
    std::vector<std::pair<std::uint16_t, std::uint16_t>> candidates;
    const std::size_t first_new = nulls_.size();
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i].null == 0) continue;
      const ir::ParamWord* example = nullptr;
      for (const NodeId node : nodes) {
        const auto params = graph.params_of(*graph.kernel(node));
        if (i < params.size() && params[i].size_bytes == 8 && params[i].value < near_null_) {
          example = &params[i];
          break;
        }
      }
      if (example == nullptr) continue;
      const WordType type = word_type(context.recording, identity, function, *example);
      const bool is_dereferenced = std::any_of(nodes.begin(), nodes.end(), [&](NodeId node) { return faults_through(faults, node, {example->slot, example->offset_bytes}); });
      if (type == WordType::scalar && !is_dereferenced) continue;
      candidates.emplace_back(example->slot, example->offset_bytes);
      const auto [it, inserted] = null_index_.try_emplace({site, i}, nulls_.size());
      if (!inserted) {
        NullWord& known = nulls_[it->second];
        ++known.graphs_null;
        for (const NodeId node : nodes)
          if (faults_through(faults, node, {example->slot, example->offset_bytes})) {
            known.is_dereferenced = true;
            known.null_words = null_words_of(graph.params_of(*graph.kernel(node)));
          }
        if (known.also_in.size() < 5) known.also_in.emplace_back(context.recording.text(graph.info.name));
        continue;
      }
      NullWord entry;
      entry.site = site;
      entry.word = i;
      entry.slot = example->slot;
      entry.offset_bytes = example->offset_bytes;
      entry.type = type;
      entry.config = config;
      entry.value = example->value;
      entry.in_graph = words[i];
      entry.graphs_null = 1;
      entry.is_dereferenced = is_dereferenced;
      engine::name_graph(entry.finding, context);
      for (std::size_t place = 0; place < nodes.size(); ++place) {
        const NodeId node = nodes[place];
        const auto params = graph.params_of(*graph.kernel(node));
        if (i >= params.size() || params[i].size_bytes != 8 || params[i].value >= near_null_) continue;
        entry.last_place = place;
        if (faults_through(faults, node, {ir::MeasuredAccess::kNoSlot, 0})) entry.faults = true;
        if (entry.node_count == 0 || faults_through(faults, node, {entry.slot, entry.offset_bytes})) entry.null_words = null_words_of(params);
        if (entry.node_count++ < kMaxOccurrences)
          entry.nodes.push_back({node, graph.source_id.empty() ? node.index() : graph.source_id[node], layer_of(context, node)});
      }
      entry.peers = peers_of(context, function, nodes, i, type);
      nulls_.push_back(std::move(entry));
    }
    for (std::size_t k = first_new; k < nulls_.size(); ++k) nulls_[k].rivals = candidates;
  }

  // The other nodes of the same graph: those of the same place; where places are unknown, those at the same position among the
  // launches of the kernel in their layer. The first or the last of a row may lack an input (a first layer has no residual).
  [[nodiscard]] Peers peers_of(const engine::GraphContext& context, ir::FunctionId function, const std::vector<NodeId>& at_site, std::size_t i,
                               WordType type) const {
    const ir::Graph& graph = context.graph;
    std::vector<NodeId> row = at_site;
    bool comparable = true;
    if (at_site.size() == 1) {
      std::map<std::int32_t, std::uint32_t> launches;   // of the kernel, per layer
      std::vector<std::pair<NodeId, std::uint32_t>> all;
      std::uint32_t own = 0;
      for (const NodeId node : graph.nodes()) {
        const ir::KernelNode* const kernel = graph.kernel(node);
        if (kernel == nullptr || kernel->function != function) continue;
        const std::int32_t layer = layer_of(context, node);
        comparable = comparable && layer >= 0;
        const std::uint32_t ordinal = launches[layer]++;
        if (node == at_site.front()) own = ordinal;
        all.emplace_back(node, ordinal);
      }
      row.clear();
      for (const auto& [node, ordinal] : all)
        if (!comparable || ordinal == own) row.push_back(node);
    }
    std::size_t null = 0, non_null = 0;
    bool addresses = true, at_the_ends = false;
    for (std::size_t k = 0; k < row.size(); ++k) {
      const auto params = graph.params_of(*graph.kernel(row[k]));
      if (i >= params.size() || params[i].size_bytes != 8) continue;
      const Seen seen = classify(params[i]);
      null += seen.null;
      non_null += seen.non_null();
      addresses = addresses && seen.other == 0;
      at_the_ends = at_the_ends || (seen.null != 0 && (k == 0 || k + 1 == row.size()));
    }
    if (non_null == 0 || (!addresses && type != WordType::pointer)) return Peers::none;
    return comparable && !at_the_ends && non_null >= 3 && 3 * null <= non_null ? Peers::clear : Peers::some;
  }

  // Whether a known-kernel table says that an address is at that place.
  static bool is_named(const engine::RecordingContext& context, const NullWord& word, const Site& site) {
    const analysis::KernelIdentity& identity = context.identities.of(site.key.function);
    return identity.known != nullptr && std::any_of(identity.known->accesses.begin(), identity.known->accesses.end(), [&](const analysis::KnownAccess& access) {
             return access.slot == word.slot && access.offset_bytes == word.offset_bytes && access.mode != analysis::AccessMode::none;
           });
  }

  // Whether `seen` shows an address that is never null.
  [[nodiscard]] static bool always_address(const Seen& seen, WordType type) {
    return seen.null == 0 && seen.non_null() > 0 && (type == WordType::pointer || seen.other == 0);
  }

  using EagerSites = std::map<std::pair<ir::ProcessId, ir::FunctionId>, std::vector<EagerSite>>;

  // The kernel's launches outside capture; if there are none, those of another instance of its template: a capture may choose one
  // with other tiles or without programmatic launch, whose arguments mean the same.
  [[nodiscard]] EagerSites::const_iterator eager_of(const engine::RecordingContext& context, const Site& site) const {
    if (const auto own = eager_.find({site.key.process, site.key.function}); own != eager_.end()) return own;
    const auto family = families_.find({site.key.process, context.identities.of(site.key.function).normalised});
    if (family == families_.end()) return eager_.end();
    for (const ir::FunctionId function : family->second) {
      const auto other = eager_.find({site.key.process, function});
      if (other != eager_.end() && !other->second.empty() && other->second.front().words.size() == site.words.size()) return other;
    }
    return eager_.end();
  }

  Verdict judge(const engine::RecordingContext& context, const NullWord& word, const Site& site) const {
    using Kind = Verdict::Kind;
    using engine::Confidence;
    const auto known = anywhere_.find({site.key.function, word.word});
    const bool was_address = known != anywhere_.end() && known->second.address > 0;
    if (word.is_dereferenced) return {Kind::finding, Confidence::certain, "an isolated run of the kernel reads or writes through it", Fact::measured_access, {}};
    if (word.faults && (word.type == WordType::pointer || was_address || word.rivals.size() == 1))
      return {Kind::finding, Confidence::certain, "an isolated run of the kernel reads or writes through it", Fact::measured_access, {}};

    // Launches of the kernel outside capture: those with most frames in common, and of them those of the same configuration.
    if (const auto eager = eager_of(context, site); eager != eager_.end()) {
      std::size_t best = 0;
      for (const EagerSite& other : eager->second) best = std::max(best, common_frames(context.recording, site.key.stack, other.stack));
      const bool same = same_place(context.recording, site.key.stack, best);
      Seen all, same_config;
      bool all_kept = true;
      std::uint32_t kept = 0;
      ir::StackId stack;
      for (const EagerSite& other : eager->second) {
        // Without the allocations an address cannot be told from a number.
        if (word.type != WordType::pointer && !other.allocations_known) continue;
        if (word.word >= other.words.size() || (same && common_frames(context.recording, site.key.stack, other.stack) != best)) continue;
        all.add(other.words[word.word]);
        all_kept = all_kept && other.launches <= other.rows;
        kept = std::max(kept, other.most_rows);
        if (other.config == word.config) same_config.add(other.words[word.word]);
        if (!stack.is_valid()) stack = other.stack;
      }
      const Seen& outside = same_config.null + same_config.non_null() > 0 ? same_config : all;
      // Not all arguments were kept, and the graph passes an address in other layers: a layer may lack it outside capture too.
      // The kept ones are the first.
      const bool may_be_mixed = !all_kept && word.in_graph.non_null() > 0 && (!same || word.last_place >= kept);
      if (always_address(outside, word.type) && !may_be_mixed) {
        // Stacks that are known and share no place: another caller. Lines within a function of optimised code say little: the compiler may
        // have put the function that launches into it, at each of its calls.
        const bool other_caller =
            !same && best == 0 && site.key.stack.is_valid() && stack.is_valid() && !same_native_function(context.recording, site.key.stack, stack);
        return {Kind::finding, other_caller ? Confidence::possible : Confidence::likely,
                same ? "launched outside capture at the same place it gets an address" : "launched outside capture the kernel always gets an address there",
                Fact::eager_launches, stack};
      }
      if (word.type != WordType::pointer && outside.address == 0 && outside.other > 0) {
        // A number; or what the stack held before, in the padding of a struct.
        if (outside.large == 0 || !history_.is_pointer(context.recording, context.identities.of(site.key.function), site.key.function, word.word)) return {};
        if (outside.null == 0)
          return {Kind::finding, Confidence::possible, "launched outside capture it gets what looks like an address", Fact::eager_launches, stack};
      }
      // Null outside capture too: optional. Where places are unknown some launches are of other callers, and prove it only if the
      // graph passes both as well.
      if (outside.null > 0 && (same || outside.non_null() == 0 || word.in_graph.non_null() > 0)) return {};
      if (outside.null > 0 && (word.type == WordType::pointer || outside.other == 0))
        return {Kind::finding, Confidence::possible, "launched outside capture the kernel gets an address there at times", Fact::eager_launches, stack};
    }
    // Other graphs at the same place.
    if (site.graphs_with_address[word.word] > 0 && (word.type == WordType::pointer || site.words[word.word].other == 0)) {
      const bool clear = site.address_config[word.word] == word.config || (word.graphs_null == 1 && site.graphs_with_address[word.word] >= 2);
      return {Kind::finding, clear ? Confidence::likely : Confidence::possible,
              fmt::format("{} {} an address at the same place", base::count_of(site.graphs_with_address[word.word], "other graph"),
                          site.graphs_with_address[word.word] == 1 ? "passes" : "pass"),
              Fact::kernel_params, {}};
    }
    if (word.peers != Peers::none)
      return {Kind::finding, word.peers == Peers::clear ? Confidence::likely : Confidence::possible,
              "other launches of the kernel in the same graph get an address there", Fact::kernel_params, {}};
    // The isolated run does not tell which of several arguments it was: said once.
    if (word.faults) {
      if (word.rivals.front() != std::pair(word.slot, word.offset_bytes)) return {};
      std::string others;
      for (std::size_t i = 1; i < word.rivals.size(); ++i)
        others += (others.empty() ? "" : ", ") + argument_name(context.identities.of(site.key.function), word.rivals[i].first, word.rivals[i].second);
      return {Kind::finding, Confidence::certain, fmt::format("an isolated run of the kernel reads or writes address 0 through it or another null argument ({})", others),
              Fact::measured_access, {}};
    }
    return {Kind::open, Confidence::possible, {}, Fact::kernel_params, {}};
  }

  static void report(const engine::RecordingContext& context, engine::FindingSink& sink, const NullWord& word, const Site& site,
                     const analysis::KernelIdentity& identity, const Verdict& verdict) {
    engine::Finding finding = word.finding;
    finding.severity = kInfo.severity;
    finding.confidence = verdict.confidence;
    finding.rests_on = {Fact::nodes, Fact::kernel_params, verdict.fact};
    finding.graph_instances += word.graphs_null - 1;
    finding.also_in = word.also_in;
    const std::string argument = argument_name(identity, word.slot, word.offset_bytes);
    finding.message = fmt::format("{} of {} is {} in {}; {}", argument, identity.short_name,
                                  word.value == 0 ? std::string("null") : fmt::format("null plus {} bytes", word.value),
                                  base::count_of(word.node_count, "node"), verdict.because);
    finding.evidence = {{"argument", std::int64_t{word.slot}}, {"byte", std::int64_t{word.offset_bytes}},
                        {"null_nodes", static_cast<std::int64_t>(word.node_count)},
                        {"nodes_with_address", std::int64_t{word.in_graph.non_null()}}};
    const auto entity = [&](const Node& node) {
      engine::Entity result;
      result.id = node.id.index();
      result.source_id = node.source_id;
      result.label = identity.short_name;
      result.role = "launch";
      result.layer = node.layer;
      return result;
    };
    set_occurrences(finding, word.nodes, [&](const Node& node) { return engine::Occurrence{node.layer, {entity(node)}}; });
    finding.occurrence_count = static_cast<std::uint32_t>(word.node_count);
    finding.primary = {entity(word.nodes.front())};
    finding.sources = sources_of(context.recording, site.key.stack, "launch");
    for (engine::SourceLocation& place : sources_of(context.recording, verdict.other_stack, "launch outside capture"))
      if (finding.sources.empty() || place.file != finding.sources.front().file || place.line != finding.sources.front().line)
        finding.sources.push_back(std::move(place));
    finding.fix.text =
        "the tensor's storage was given back before this launch was captured: take a reference to the storage before the call that "
        "releases it, or do not release while a stream is capturing; then capture again";
    finding.fix.side_effects = {"the memory stays in use until the end of the capture"};
    finding.threads = {"sgl-project/sglang#29463", "sgl-project/sglang#30460"};
    sink.report(std::move(finding), fmt::format("{}:{}+{}", identity.normalised, word.slot, word.offset_bytes));
  }

  std::uint64_t near_null_ = 65536;
  bool eager_expected_ = false;
  std::uint32_t period_ = 0;
  WordHistory history_;
  std::vector<Site> sites_;
  std::unordered_map<SiteKey, std::size_t, SiteHash> site_index_;
  std::vector<std::size_t> last_site_;       // by function
  std::vector<Here> here_;                   // of the graph that is looked at; the memory of earlier ones is used again
  std::vector<std::uint32_t> place_here_;    // by site: its place in here_, counted from 1; all 0 between graphs
  EagerSites eager_;
  std::map<std::pair<ir::ProcessId, std::string>, std::vector<ir::FunctionId>> families_;  // of eager_, by normalised name
  std::vector<NullWord> nulls_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> null_index_;  // (site, word)
  std::map<std::pair<ir::FunctionId, std::size_t>, Seen> anywhere_;
};

class NullAddress final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }
  [[nodiscard]] std::unique_ptr<engine::RecordingCheck> begin_recording() const override { return std::make_unique<Check>(); }
};

}  // namespace

std::unique_ptr<engine::Rule> make_null_address() { return std::make_unique<NullAddress>(); }

}  // namespace cglint::rules
