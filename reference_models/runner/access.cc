#include "runner/access.h"

#include <cuda.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/common/buffer.h"
#include "runner/access_kernels.h"
#include "runner/access_ranges.h"
#include "runner/events.h"
#include "runner/kernel_node.h"
#include "runner/owners.h"

namespace cglint::models {
namespace {

using kernels::DeviceBuffer;

// Changed bytes with so few equal ones between them are one write: values that happen to be what was there.
constexpr std::uint64_t kGap = 16;
constexpr std::uint32_t kMaxGranules = 1U << 20;  // that one node may change: 256 MB

struct Node {
  std::uint32_t number = 0;
  bool is_kernel = false;
  std::vector<Word> words;
  std::vector<std::uint64_t> reach;  // bases of the allocations that words point into, ascending
  GraphOwner graph;
  ExecOwner exec;
  std::vector<ByteRange> writes;
};

struct Allocation {
  std::size_t bytes = 0;
  DeviceBuffer<std::uint8_t> before;
};

// Cells of these ranges, packed one after the other; `shift_of` says how far from the range a cell's memory lies.
template <typename Shift>
std::vector<Cell> packed_cells(const std::vector<ByteRange>& ranges, const Shift& shift_of) {
  std::vector<Cell> cells;
  std::uint64_t at = 0;
  for (const ByteRange& range : ranges) {
    at = (at + 7) / 8 * 8 + range.begin % 8;
    cells.push_back({range.begin + shift_of(range), at, range.end - range.begin});
    at += range.end - range.begin;
  }
  return cells;
}
std::size_t packed_bytes(const std::vector<Cell>& cells) {
  return cells.empty() ? 8 : static_cast<std::size_t>(cells.back().at + cells.back().bytes);
}

class Measurement {
 public:
  Measurement(Model& model, cudaStream_t stream) : model_(model), stream_(stream) {}

  void run(cudaGraph_t graph) {
    prepare(graph);
    need(model_.reset(), "resetting the model");
    for (Node& node : nodes_) measure_writes(node);
    std::vector<std::vector<ByteRange>> sets;
    for (const Node& node : nodes_) sets.push_back(node.writes);
    make_cells(cut_at_borders(sets));
    need(model_.reset(), "resetting the model");
    measure_reads();
  }

 private:
  // ---- the nodes

  void prepare(cudaGraph_t graph) {
    const std::vector<cudaGraphNode_t> handles = nodes_of(graph);
    for (std::size_t i = 0; i < handles.size(); ++i) {
      Node node;
      node.number = static_cast<std::uint32_t>(i);
      cudaGraph_t alone = nullptr;
      need(cudaGraphCreate(&alone, 0), "cudaGraphCreate");
      node.graph.reset(alone);
      cudaGraphNodeType type{};
      need(cudaGraphNodeGetType(handles[i], &type), "cudaGraphNodeGetType");
      cudaGraphNode_t added = nullptr;
      if (type == cudaGraphNodeTypeKernel) {
        add_kernel(handles[i], node);
      } else if (type == cudaGraphNodeTypeMemcpy) {
        cudaMemcpy3DParms parameters{};
        need(cudaGraphMemcpyNodeGetParams(handles[i], &parameters), "cudaGraphMemcpyNodeGetParams");
        need(cudaGraphAddMemcpyNode(&added, alone, nullptr, 0, &parameters), "cudaGraphAddMemcpyNode");
        note_address(node, reinterpret_cast<std::uint64_t>(parameters.srcPtr.ptr));
        note_address(node, reinterpret_cast<std::uint64_t>(parameters.dstPtr.ptr));
      } else if (type == cudaGraphNodeTypeMemset) {
        cudaMemsetParams parameters{};
        need(cudaGraphMemsetNodeGetParams(handles[i], &parameters), "cudaGraphMemsetNodeGetParams");
        need(cudaGraphAddMemsetNode(&added, alone, nullptr, 0, &parameters), "cudaGraphAddMemsetNode");
        note_address(node, reinterpret_cast<std::uint64_t>(parameters.dst));
      } else if (type != cudaGraphNodeTypeEmpty) {
        throw Problem{"node " + std::to_string(i) + " is neither a kernel nor a copy nor a fill"};
      }
      cudaGraphExec_t exec = nullptr;
      need(cudaGraphInstantiate(&exec, alone, 0), "cudaGraphInstantiate");
      node.exec.reset(exec);
      nodes_.push_back(std::move(node));
    }
    need(granules_.allocate(kMaxGranules), "memory for the measurement");
    need(count_.allocate(1), "memory for the measurement");
  }

  void add_kernel(cudaGraphNode_t handle, Node& node) {
    const KernelNode kernel = read_kernel_node(driver_, handle, node.number);
    add_copy(driver_, kernel, node.graph.get());
    node.is_kernel = true;
    for (const Word& word : words_of(kernel))
      if (note_address(node, word.value)) node.words.push_back(word);
  }

  // Whether it lies in device memory; then the node reaches that allocation.
  bool note_address(Node& node, std::uint64_t address) {
    constexpr std::uint64_t kLowest = 1U << 20;
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    if (address < kLowest || driver_.address_range(&base, &bytes, address) != CUDA_SUCCESS) return false;
    const auto place = std::lower_bound(node.reach.begin(), node.reach.end(), base);
    if (place == node.reach.end() || *place != base) node.reach.insert(place, base);
    allocations_[base].bytes = bytes;
    return true;
  }

  void launch(const Node& node) {
    need(cudaGraphLaunch(node.exec.get(), stream_), "a node alone");
    need(cudaStreamSynchronize(stream_), "a node alone");
  }

  // Ordered before what is enqueued on the stream afterwards.
  template <typename T>
  void upload(DeviceBuffer<T>& buffer, const std::vector<T>& values) {
    if (buffer.size() != values.size()) need(buffer.allocate(std::max<std::size_t>(values.size(), 1)), "memory for the measurement");
    if (!values.empty())
      need(cudaMemcpyAsync(buffer.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_), "an upload");
  }

  // ---- writes

  Allocation& shadowed(std::uint64_t base) {
    Allocation& allocation = allocations_.at(base);
    if (allocation.before.size() == 0) need(allocation.before.allocate(allocation.bytes), "memory for what was there before");
    return allocation;
  }

  // The bytes that differ from the shadow copies.
  std::vector<ByteRange> changed(const Node& node, std::uint64_t gap) {
    std::vector<ByteRange> ranges;
    for (const std::uint64_t base : node.reach) {
      const Allocation& allocation = allocations_.at(base);
      need(cudaMemsetAsync(count_.get(), 0, sizeof(std::uint32_t), stream_), "cudaMemset");
      need(enqueue_diff(reinterpret_cast<const void*>(base), allocation.before.get(), allocation.bytes, granules_.get(), kMaxGranules,
                        count_.get(), stream_),
           "comparing memory");
      std::uint32_t count = 0;
      need(cudaMemcpyAsync(&count, count_.get(), sizeof count, cudaMemcpyDeviceToHost, stream_), "comparing memory");
      need(cudaStreamSynchronize(stream_), "comparing memory");
      if (count > kMaxGranules) throw Problem{"node " + std::to_string(node.number) + " changes more than 256 MB"};
      std::vector<ChangedGranule> list(count);
      if (count > 0)
        need(cudaMemcpy(list.data(), granules_.get(), count * sizeof(ChangedGranule), cudaMemcpyDeviceToHost), "comparing memory");
      const std::vector<ByteRange> here = changed_ranges(std::move(list), base, gap);
      ranges.insert(ranges.end(), here.begin(), here.end());
    }
    return merged(std::move(ranges), gap);
  }

  // The same ranges of the shadow copies and of memory.
  struct Cells {
    std::vector<Cell> memory, before;
    DeviceBuffer<Cell> on_device;
    DeviceBuffer<std::uint8_t> values;
  };
  Cells cells_of(const std::vector<ByteRange>& ranges) {
    Cells cells;
    cells.memory = packed_cells(ranges, [](const ByteRange&) { return std::uint64_t{0}; });
    cells.before = packed_cells(ranges, [&](const ByteRange& range) {  // modulo 2^64; both bases are multiples of 256
      const auto owner = std::prev(allocations_.upper_bound(range.begin));
      return reinterpret_cast<std::uint64_t>(owner->second.before.get()) - owner->first;
    });
    need(cells.values.allocate(packed_bytes(cells.memory)), "memory for the measurement");
    return cells;
  }
  void move(CellMove move, Cells& cells, const std::vector<Cell>& where) {
    upload(cells.on_device, where);
    need(enqueue_cells(move, cells.on_device.get(), static_cast<std::uint32_t>(where.size()), nullptr, cells.values.get(), stream_),
         "moving memory");
    need(cudaStreamSynchronize(stream_), "moving memory");
  }

  void measure_writes(Node& node) {
    for (const std::uint64_t base : node.reach) {
      Allocation& allocation = shadowed(base);
      need(cudaMemcpyAsync(allocation.before.get(), reinterpret_cast<const void*>(base), allocation.bytes, cudaMemcpyDeviceToDevice,
                           stream_),
           "a copy of memory");
    }
    launch(node);
    const std::vector<ByteRange> first = changed(node, sizeof(std::uint64_t));
    node.writes = first;
    if (first.empty() || !node.is_kernel) return;
    // Once more, with other bytes where it wrote. Afterwards memory is as the first run left it.
    Cells cells = cells_of(first);
    move(CellMove::pack, cells, cells.memory);  // what the first run left
    move(CellMove::flip, cells, cells.before);
    Cells old = cells_of(first);
    move(CellMove::pack, old, old.before);
    move(CellMove::unpack, old, old.memory);
    launch(node);
    std::vector<ByteRange> both = changed(node, sizeof(std::uint64_t));
    Cells again = cells_of(both);
    move(CellMove::pack, again, again.before);
    move(CellMove::unpack, again, again.memory);
    move(CellMove::unpack, cells, cells.memory);
    both.insert(both.end(), first.begin(), first.end());
    node.writes = merged(std::move(both), kGap);
  }

  // ---- reads

  void make_cells(const std::vector<ByteRange>& ranges) {
    cells_ = packed_cells(ranges, [](const ByteRange&) { return std::uint64_t{0}; });
    upload(device_cells_, cells_);
    for (DeviceBuffer<std::uint8_t>* const buffer : {&here_, &there_, &after_, &next_})
      need(buffer->allocate(packed_bytes(cells_)), "memory for two states");
    for (DeviceBuffer<std::uint8_t>* const flags : {&chosen_, &differs_})
      need(flags->allocate(std::max<std::size_t>(cells_.size(), 1)), "memory for two states");
  }

  void move_cells(CellMove move, DeviceBuffer<std::uint8_t>& buffer, const std::uint8_t* chosen = nullptr) {
    need(enqueue_cells(move, device_cells_.get(), static_cast<std::uint32_t>(cells_.size()), chosen, buffer.get(), stream_),
         "moving a state");
  }
  // Which cells differ; of memory where `a` is null.
  std::vector<std::uint8_t> compare(const std::uint8_t* a, const DeviceBuffer<std::uint8_t>& b) {
    need(enqueue_compare(device_cells_.get(), static_cast<std::uint32_t>(cells_.size()), a, b.get(), differs_.get(), stream_),
         "comparing states");
    std::vector<std::uint8_t> differs(cells_.size());
    need(cudaMemcpyAsync(differs.data(), differs_.get(), differs.size(), cudaMemcpyDeviceToHost, stream_), "comparing states");
    need(cudaStreamSynchronize(stream_), "comparing states");
    return differs;
  }

  [[nodiscard]] bool reaches(const Node& node, const Cell& cell) const {
    const auto owner = std::prev(allocations_.upper_bound(cell.address));
    return std::binary_search(node.reach.begin(), node.reach.end(), owner->first);
  }

  void measure_reads() {
    if (cells_.empty()) return;
    move_cells(CellMove::pack, here_);
    move_cells(CellMove::pack, there_);
    std::size_t reads = 0, same = 0, kernels = 0;
    for (Node& node : nodes_) {
      // One step on in both worlds; `here_` and `there_` stay before the node until it is measured.
      need(model_.use_input(1), "the other input");
      move_cells(CellMove::unpack, there_);
      launch(node);
      move_cells(CellMove::pack, next_);
      need(cudaStreamSynchronize(stream_), "a node alone");
      need(model_.use_input(0), "the input");
      move_cells(CellMove::unpack, here_);
      launch(node);
      move_cells(CellMove::pack, after_);
      const std::vector<std::uint8_t> differs = compare(here_.get(), there_);
      std::vector<std::uint32_t> candidates, written, read;
      for (std::uint32_t i = 0; i < cells_.size(); ++i) {
        const bool in_reach = reaches(node, cells_[i]);
        if (in_reach && differs[i] != 0) candidates.push_back(i);
        if (in_reach && differs[i] == 0) ++same;
        if (is_written(node, cells_[i])) written.push_back(i);
      }
      if (node.is_kernel && !written.empty()) find_reads(node, written, candidates, read);
      if (node.is_kernel) tell(node, written, read);
      reads += read.size();
      kernels += node.is_kernel ? 1 : 0;
      std::swap(here_, after_);
      std::swap(there_, next_);
    }
    Event("accesses")
        .integer("nodes", static_cast<std::int64_t>(nodes_.size()))
        .integer("kernels", static_cast<std::int64_t>(kernels))
        .integer("cells", static_cast<std::int64_t>(cells_.size()))
        .integer("cells_read", static_cast<std::int64_t>(reads))
        .integer("cells_not_tried", static_cast<std::int64_t>(same))
        .integer("runs", runs_);
  }

  static bool is_written(const Node& node, const Cell& cell) {
    const auto after = std::upper_bound(node.writes.begin(), node.writes.end(), cell.address,
                                        [](std::uint64_t address, const ByteRange& range) { return address < range.begin; });
    return after != node.writes.begin() && cell.address < std::prev(after)->end;
  }

  // Halves the candidates until single cells are left.
  void find_reads(const Node& node, const std::vector<std::uint32_t>& written, const std::vector<std::uint32_t>& candidates,
                  std::vector<std::uint32_t>& read) {
    if (candidates.empty() || !depends_on(node, written, candidates)) return;
    if (candidates.size() == 1) {
      read.push_back(candidates.front());
      return;
    }
    const auto middle = candidates.begin() + static_cast<std::ptrdiff_t>(candidates.size() / 2);
    find_reads(node, written, {candidates.begin(), middle}, read);
    find_reads(node, written, {middle, candidates.end()}, read);
  }

  // Whether what the node writes is another with these cells from the other world.
  bool depends_on(const Node& node, const std::vector<std::uint32_t>& written, const std::vector<std::uint32_t>& cells) {
    std::vector<std::uint8_t> flags(cells_.size(), 0);
    for (const std::uint32_t cell : cells) flags[cell] = 1;
    need(cudaMemcpyAsync(chosen_.get(), flags.data(), flags.size(), cudaMemcpyHostToDevice, stream_), "choosing cells");
    move_cells(CellMove::unpack, here_);
    move_cells(CellMove::unpack, there_, chosen_.get());
    launch(node);
    ++runs_;
    const std::vector<std::uint8_t> differs = compare(nullptr, after_);
    return std::any_of(written.begin(), written.end(), [&](std::uint32_t cell) { return differs[cell] != 0; });
  }

  void tell(const Node& node, const std::vector<std::uint32_t>& written, const std::vector<std::uint32_t>& read) const {
    struct Row {
      ByteRange range;
      bool reads = false, writes = false;
    };
    std::vector<Row> rows;
    for (std::uint32_t i = 0; i < cells_.size(); ++i) {
      const Row row{{cells_[i].address, cells_[i].address + cells_[i].bytes},
                    std::binary_search(read.begin(), read.end(), i),
                    std::binary_search(written.begin(), written.end(), i)};
      if (!row.reads && !row.writes) continue;
      if (!rows.empty() && rows.back().range.end == row.range.begin && rows.back().reads == row.reads && rows.back().writes == row.writes) {
        rows.back().range.end = row.range.end;
      } else {
        rows.push_back(row);
      }
    }
    std::string words, ranges;
    for (const Word& word : node.words) add_row(words, {word.slot, word.offset, word.value, base_of(word.value)}, "");
    for (const Row& row : rows)
      add_row(ranges, {row.range.begin, row.range.end, base_of(row.range.begin)}, row.reads ? (row.writes ? "rw" : "r") : "w");
    Event("access").integer("node", node.number).raw("words", '[' + words + ']').raw("ranges", '[' + ranges + ']');
  }
  // Appends [numbers..., "word"] to a list, without an empty word.
  static void add_row(std::string& list, std::initializer_list<std::uint64_t> numbers, std::string_view word) {
    if (!list.empty()) list += ',';
    char before = '[';
    for (const std::uint64_t number : numbers) {
      list += std::exchange(before, ',');
      list += std::to_string(number);
    }
    if (!word.empty()) list.append(",").append(json_quoted(word));
    list += ']';
  }
  [[nodiscard]] std::uint64_t base_of(std::uint64_t address) const { return std::prev(allocations_.upper_bound(address))->first; }

  Driver driver_;
  Model& model_;
  cudaStream_t stream_;
  std::vector<Node> nodes_;
  std::map<std::uint64_t, Allocation> allocations_;  // by base
  DeviceBuffer<ChangedGranule> granules_;
  DeviceBuffer<std::uint32_t> count_;
  std::vector<Cell> cells_;  // bytes that some node writes, ascending
  DeviceBuffer<Cell> device_cells_;
  DeviceBuffer<std::uint8_t> here_, there_, after_, next_;  // states of all cells
  DeviceBuffer<std::uint8_t> chosen_, differs_;
  std::int64_t runs_ = 0;
};

}  // namespace

std::string measure_accesses(cudaGraph_t graph, Model& model, cudaStream_t stream) {
  try {
    Measurement(model, stream).run(graph);
    return {};
  } catch (const Problem& problem) {
    return problem.what;
  }
}

}  // namespace cglint::models
