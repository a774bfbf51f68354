#include "capture/eager_book.h"

#include <algorithm>
#include <tuple>

namespace cglint::capture {
namespace {

std::uint64_t hash_of(std::span<const unsigned char> bytes, std::uint64_t hash) {
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

}  // namespace

bool EagerBook::wants_stack(Handle function) const {
  const auto known = functions_.find(function);
  if (known == functions_.end()) return functions_.size() < kEagerFunctions;
  return known->second.launches < (known->second.periods == 0 ? kEagerStacksFirst : kEagerStacksLater);
}

void EagerBook::describe(Handle function, FunctionRecord record) {
  if (functions_.size() >= kEagerFunctions) return;
  functions_[function].record = std::move(record);
}

void EagerBook::add(Handle handle, const EagerLaunch& launch) {
  const auto place = functions_.find(handle);
  if (place == functions_.end()) {
    ++folded_;
    return;
  }
  Function& function = place->second;
  ++function.launches;
  if (function.launches > kEagerCompared && !function.rows.empty()) {
    ++function.rows.back().launches;
    ++folded_;
    return;
  }
  scratch_.clear();
  if (function.record.has_params) {
    for (std::size_t i = 0; i < function.record.params.size(); ++i) {
      const auto [offset, size] = function.record.params[i];
      const unsigned char* bytes = nullptr;
      if (launch.params != nullptr) {
        bytes = static_cast<const unsigned char*>(launch.params[i]);
      } else if (std::size_t{offset} + size <= launch.packed.size()) {
        bytes = launch.packed.data() + offset;
      }
      if (bytes == nullptr) {
        scratch_.clear();
        break;
      }
      scratch_.insert(scratch_.end(), bytes, bytes + size);
    }
  }
  const auto bytes_of = [](const std::array<std::uint32_t, 3>& value) {
    return std::span(reinterpret_cast<const unsigned char*>(value.data()), sizeof value);
  };
  const std::uint64_t hash =
      hash_of(scratch_, hash_of(bytes_of(launch.grid), hash_of(bytes_of(launch.block), 0xcbf29ce484222325)));
  const std::uint32_t site = launch.origin.stack;
  Row* first_of_site = nullptr;
  std::uint32_t rows_of_site = 0, rows_of_stream = 0;
  for (Row& row : function.rows) {
    if (site != kNone && row.launch.origin.stack != site) continue;
    const bool is_same_stream = row.launch.origin.stream == launch.origin.stream;
    if (is_same_stream && row.hash == hash) {
      ++row.launches;
      return;
    }
    if (first_of_site == nullptr || (is_same_stream && rows_of_stream == 0)) first_of_site = &row;
    ++rows_of_site;
    if (is_same_stream) ++rows_of_stream;
  }
  const bool has_room = rows_of_stream < kEagerArguments && rows_of_site < kEagerArguments * kEagerStreams &&
                        bytes_ + scratch_.size() <= kEagerBytes;
  if (!has_room && first_of_site == nullptr && !function.rows.empty()) first_of_site = &function.rows.front();
  if (!has_room && first_of_site != nullptr) {
    ++first_of_site->launches;
    ++folded_;
    return;
  }
  Row row;
  row.launch = launch;
  row.launch.params = nullptr;
  row.launch.packed = {};
  row.hash = hash;
  if (has_room) row.arguments = scratch_;
  bytes_ += row.arguments.size();
  function.rows.push_back(std::move(row));
}

void EagerBook::add_copy(const char* kind, const NodeOrigin& origin) {
  for (Copy& copy : copies_) {
    if (copy.kind != kind || copy.origin.stack != origin.stack || copy.origin.stream != origin.stream) continue;
    ++copy.launches;
    return;
  }
  if (copies_.size() < kEagerCopies) {
    copies_.push_back({kind, origin, 1});
  } else {
    ++folded_;
  }
}

GraphRecord EagerBook::take() {
  GraphRecord graph;
  graph.role = "eager";
  graph.edges_known = false;
  std::vector<std::tuple<std::uint64_t, Function*, Row*>> rows;
  for (auto& [handle, function] : functions_)
    for (Row& row : function.rows) rows.emplace_back(row.launch.origin.sequence, &function, &row);
  std::sort(rows.begin(), rows.end());
  std::unordered_map<const Function*, std::uint32_t> numbers;
  for (const auto& [sequence, function, row] : rows) {
    const auto [number, is_new] = numbers.try_emplace(function, static_cast<std::uint32_t>(graph.functions.size()));
    if (is_new) graph.functions.push_back(function->record);
    NodeRecord node;
    node.kind = "kernel";
    node.function = number->second;
    node.grid = row->launch.grid;
    node.block = row->launch.block;
    node.dynamic_shared_bytes = row->launch.dynamic_shared_bytes;
    node.details_known = true;
    node.origin = row->launch.origin;
    node.has_origin = true;
    node.launches = row->launches;
    std::size_t total = 0;
    for (const auto& [offset, size] : function->record.params) total += size;
    node.words_known = function->record.has_params && row->arguments.size() == total;
    if (node.words_known) {
      const std::span<const unsigned char> bytes(row->arguments);
      std::size_t at = 0;
      for (std::size_t i = 0; i < function->record.params.size() && i <= 0xffff; ++i) {
        const std::size_t size = function->record.params[i].second;
        append_words(static_cast<std::uint16_t>(i), bytes.subspan(at, size), node.words);
        at += size;
      }
    }
    graph.nodes.push_back(std::move(node));
  }
  for (const Copy& copy : copies_) {
    NodeRecord node;
    node.kind = copy.kind;
    node.origin = copy.origin;
    node.has_origin = true;
    node.launches = copy.launches;
    graph.nodes.push_back(std::move(node));
  }
  if (!copies_.empty())
    std::stable_sort(graph.nodes.begin(), graph.nodes.end(),
                     [](const NodeRecord& a, const NodeRecord& b) { return a.origin.sequence < b.origin.sequence; });
  copies_.clear();
  for (auto& [handle, function] : functions_) {
    if (function.launches != 0) ++function.periods;
    function.launches = 0;
    function.rows.clear();
    function.rows.shrink_to_fit();
  }
  bytes_ = 0;
  return graph;
}

}  // namespace cglint::capture
