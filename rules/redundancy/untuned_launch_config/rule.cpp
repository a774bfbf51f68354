// A fused mixture-of-experts kernel runs with other tiles than the table of tuned configurations names.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "analysis/launch_value.h"
#include "base/text.h"
#include "rules/common/describe.h"
#include "rules/common/memory.h"
#include "tables/moe_config.h"

namespace cglint::rules {
namespace {

using analysis::Access;
using analysis::KernelIdentity;
using analysis::KnownMoe;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {
    ir::FactSet{Fact::nodes, Fact::kernel_names, Fact::launch_config, Fact::kernel_params, Fact::moe_config_table}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG605",
    .slug = "untuned-launch-config",
    .family = "redundancy",
    .summary = "A fused mixture-of-experts kernel runs with other tiles than the table of tuned configurations names.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::edges, Fact::replay_times, Fact::source_frames},
};

// One product of a layer, as its launch tells it.
struct Product {
  NodeId node;
  const KnownMoe* moe = nullptr;
  std::int64_t n = 0, k = 0, pairs = 0, pairs_per_token = 0;
  std::string dtype;                        // as in the files' names
  std::set<std::uint64_t> lists;            // what it reads: products of one layer share their block lists
  std::optional<std::int64_t> experts;
  std::int64_t tokens = 0, intermediate = 0;  // 0: not known
};

struct Difference {
  NodeId node;
  std::int64_t tokens = 0, table_tokens = 0;
  std::string name;                         // of the file
  std::string runs, tuned;                  // "BLOCK_SIZE_M 64, num_warps 8"
};

class UntunedLaunchConfig final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    std::set<std::string> reasons;
    std::vector<Product> products;
    for (const NodeId node : graph.nodes()) {
      const ir::KernelNode* kernel = graph.kernel(node);
      if (kernel == nullptr || !kernel->function.is_valid() || !analysis::is_active_work(graph, node)) continue;
      const KernelIdentity& identity = context.analyses.identities().of(kernel->function);
      if (identity.role != analysis::KernelRole::moe_gemm) continue;
      if (identity.known != nullptr && identity.known->moe && !identity.known->moe->grouped.empty() &&
          analysis::launch_value(identity.known->moe->grouped, graph, *kernel, identity) == 0U)
        continue;
      std::optional<Product> product = read_product(context, node, *kernel, identity);
      if (product) products.push_back(std::move(*product));
      else reasons.insert(fmt::format("the recording or the kernel table does not tell shape and tiles of {}", base::printable(identity.short_name, 80)));
    }
    if (products.empty() && reasons.empty()) return sink.not_checked({}, "no fused mixture-of-experts kernel was recognised in the graph");
    name_tokens(products);
    std::map<std::string, std::vector<Difference>> patterns;
    for (const Product& product : products) {
      if (product.tokens == 0) {
        reasons.insert("a product whose token count cannot be told: the other product of its layer is not in the graph");
        continue;
      }
      if (!product.experts) {
        reasons.insert("the number of experts cannot be told: no known kernel writes the block lists");
        continue;
      }
      const std::string device = device_of(context, product.node);
      if (device.empty()) {
        reasons.insert("the recording does not name the GPU");
        continue;
      }
      const std::string name = fmt::format("E={},N={},device_name={}{}.json", *product.experts, product.intermediate, tables::moe_config_device(device),
                                           product.dtype.empty() ? "" : ",dtype=" + product.dtype);
      const std::optional<tables::MoeConfigKey> key = tables::parse_moe_config_file_name(name);
      const tables::MoeConfigDirectory::File* file = key ? context.config.moe_configs->find(*key) : nullptr;
      if (file == nullptr) {
        reasons.insert("no table named " + base::printable(name));
        continue;
      }
      const auto* entry = tables::nearest_moe_config(file->configs, product.tokens);
      Difference difference{product.node, product.tokens, entry->first, name, {}, {}};
      compare(context, product, entry->second, difference);
      if (!difference.runs.empty())
        patterns[fmt::format("{};{};{}", stable_name(context, product.node), name, product.tokens)].push_back(difference);
    }
    // Tables are given for this rule alone: where there are such kernels, they ask for it as its name would.
    for (const std::string& reason : reasons) sink.not_checked_although_asked_for(reason);
    for (const auto& [basis, members] : patterns) report(context, sink, basis, members);
  }

 private:
  static std::optional<Product> read_product(const engine::GraphContext& context, NodeId node, const ir::KernelNode& kernel, const KernelIdentity& identity) {
    if (identity.known == nullptr || !identity.known->moe) return std::nullopt;
    const KnownMoe& moe = *identity.known->moe;
    const auto value = [&](const std::string& expression) -> std::optional<std::int64_t> {
      if (expression.empty()) return std::nullopt;
      const std::optional<std::uint64_t> number = analysis::launch_value(expression, context.graph, kernel, identity);
      return number && *number <= (std::uint64_t{1} << 40) ? std::optional(static_cast<std::int64_t>(*number)) : std::nullopt;
    };
    Product product;
    product.node = node;
    product.moe = &moe;
    const auto n = value(moe.n), k = value(moe.k), pairs = value(moe.pairs), per_token = value(moe.pairs_per_token);
    if (!n || !k || !pairs || !per_token || *n == 0 || *k == 0 || *pairs == 0 || *per_token == 0) return std::nullopt;
    product.n = *n, product.k = *k, product.pairs = *pairs, product.pairs_per_token = *per_token;
    if (!moe.dtypes.empty()) {
      const std::optional<std::int64_t> index = value(moe.dtype);
      if (!index || *index >= static_cast<std::int64_t>(moe.dtypes.size())) return std::nullopt;
      product.dtype = moe.dtypes[static_cast<std::size_t>(*index)];
    }
    product.experts = value(moe.experts);
    const analysis::AccessTable& table = context.analyses.access_table();
    NodeId producer;
    for (const Access& row : table.of(node)) {
      if (row.may_write()) continue;
      product.lists.insert(row.begin);
      if (product.experts && !producer.is_valid()) continue;
      for (const NodeId writer : table.writers(row.begin, row.begin + 1, true)) {
        const ir::KernelNode* list_kernel = context.graph.kernel(writer);
        if (list_kernel == nullptr || !list_kernel->function.is_valid() || !recorded_before(context.graph, writer, node)) continue;
        const KernelIdentity& of_list = context.analyses.identities().of(list_kernel->function);
        if (of_list.known == nullptr || !of_list.known->moe || of_list.known->moe->experts.empty()) continue;
        if (producer.is_valid() && recorded_before(context.graph, writer, producer)) continue;
        if (const auto number = analysis::launch_value(of_list.known->moe->experts, context.graph, *list_kernel, of_list)) {
          product.experts = static_cast<std::int64_t>(*number);
          producer = writer;
        }
      }
    }
    return product;
  }

  // The first product of a layer (gate and up) reads each token's row top-k times; the second (down) has a row for each pair and
  // takes its token count from the first: same pairs, half its rows, shared block lists, the nearest before it.
  static void name_tokens(std::vector<Product>& products) {
    for (std::size_t i = 0; i < products.size(); ++i) {
      Product& product = products[i];
      if (product.pairs_per_token > 1) {
        product.tokens = product.pairs / product.pairs_per_token;
        product.intermediate = product.n / 2;
        continue;
      }
      for (std::size_t j = i; j-- > 0;) {
        const Product& first = products[j];
        if (first.pairs_per_token <= 1 || first.pairs != product.pairs || first.n != 2 * product.k) continue;
        if (std::none_of(product.lists.begin(), product.lists.end(), [&](std::uint64_t list) { return first.lists.contains(list); })) continue;
        product.tokens = first.tokens;
        product.intermediate = product.k;
        if (!product.experts) product.experts = first.experts;
        break;
      }
    }
  }

  static std::string device_of(const engine::GraphContext& context, NodeId node) {
    const ir::Graph& graph = context.graph;
    const std::int32_t ordinal = graph.device.empty() ? -1 : graph.device[node];
    for (const ir::ProcessId id : context.recording.processes.ids()) {
      if (graph.info.process.is_valid() && id != graph.info.process) continue;
      for (const ir::Gpu& gpu : context.recording.processes[id].gpus)
        if (ordinal < 0 || gpu.device == ordinal) return std::string(context.recording.text(gpu.name));
    }
    return {};
  }

  static void compare(const engine::GraphContext& context, const Product& product, const tables::MoeTileConfig& tuned, Difference& difference) {
    const ir::KernelNode& kernel = *context.graph.kernel(product.node);
    const KernelIdentity& identity = context.analyses.identities().of(kernel.function);
    const auto check_one = [&](const std::string& expression, std::string_view name, std::int64_t wanted, std::int64_t or_wanted = -1) {
      if (expression.empty()) return;
      const std::optional<std::uint64_t> runs = analysis::launch_value(expression, context.graph, kernel, identity);
      if (!runs || static_cast<std::int64_t>(*runs) == wanted || static_cast<std::int64_t>(*runs) == or_wanted) return;
      const std::string_view comma = difference.runs.empty() ? "" : ", ";
      difference.runs += fmt::format("{}{} {}", comma, name, *runs);
      difference.tuned += fmt::format("{}{} {}", comma, name, wanted);
    };
    // A product whose K has fewer steps than stages may take as many stages as steps, and may keep two steps in every split.
    const std::int64_t steps = (product.k + tuned.block_k - 1) / tuned.block_k;
    const std::int64_t split = std::max<std::int64_t>(1, std::min<std::int64_t>(tuned.split_k, steps / 2));
    check_one(product.moe->block_m, "BLOCK_SIZE_M", tuned.block_m);
    check_one(product.moe->block_n, "BLOCK_SIZE_N", tuned.block_n);
    check_one(product.moe->block_k, "BLOCK_SIZE_K", tuned.block_k);
    check_one(product.moe->group_m, "GROUP_SIZE_M", tuned.group_m);
    check_one(product.moe->split_k, "SPLIT_K", tuned.split_k, split);
    check_one(product.moe->num_warps, "num_warps", tuned.num_warps);
    check_one(product.moe->num_stages, "num_stages", tuned.num_stages, std::min<std::int64_t>(tuned.num_stages, (steps + split - 1) / split));
  }

  static void report(const engine::GraphContext& context, engine::FindingSink& sink, const std::string& basis, const std::vector<Difference>& members) {
    const Difference& first = members.front();
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = engine::Confidence::certain;
    finding.rests_on = kNeeds.front();
    finding.message = fmt::format("{} runs with {} for {}, the table for this shape has {}{}", context.analyses.identities().label(context.graph, first.node),
                                  first.runs, base::count_of(static_cast<std::size_t>(first.tokens), "token"), first.tuned,
                                  members.size() == 1 ? std::string() : fmt::format(": {} times", members.size()));
    finding.evidence = {{"table", first.name},
                        {"tokens", first.tokens},
                        {"tokens_in_table", first.table_tokens},
                        {"runs", first.runs},
                        {"tuned", first.tuned},
                        {"launches", static_cast<std::int64_t>(members.size())}};
    std::int64_t time_ns = 0;
    const analysis::NodeTimes& times = context.analyses.node_times();
    for (const Difference& member : members) {
      if (times.available) time_ns += times.median_ns[member.node];
      if (finding.occurrences.size() < 256) finding.occurrences.push_back({layer_of(context, member.node), {entity_of(context, member.node, "untuned")}});
    }
    if (time_ns > 0) finding.evidence.emplace_back("us_per_replay_in_these_kernels", to_us(time_ns));
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.primary = {entity_of(context, first.node, "untuned")};
    finding.sources = sources_of(context, first.node, "launch");
    finding.fix.text = "let the engine find the table (its file name must match experts, shard width, GPU, data type and block shape), or tune for this shape";
    finding.threads = {"vllm-project/vllm#54668", "vllm-project/vllm#44830"};
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_untuned_launch_config() { return std::make_unique<UntunedLaunchConfig>(); }

}  // namespace cglint::rules
