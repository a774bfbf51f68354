// Kernel identity: demangled and normalised names, parameter types from signatures, and the role a kernel
// plays (gemm, norm, attention...). Roles come from known-kernel tables: data files that ship with cglint and
// that users extend (format: docs/kernel-table.md).
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ir/recording.h"

namespace cglint::analysis {

class AllocatorIndex;

enum class KernelRole : std::uint8_t {
  unknown,
  gemm,
  moe_gemm,
  attention,
  norm,
  router,
  topk,
  activation,
  elementwise,
  cast,
  fill,
  copy,
  reduce,
  rope,
  kv_write,
  quantise,
  permute,
  sampling,
  rng,
  collective,
  embedding,
  convolution,
  scan,
  scatter_gather,
  sort,
  metadata,
};
inline constexpr int kKernelRoleCount = static_cast<int>(KernelRole::metadata) + 1;
std::string_view kernel_role_name(KernelRole role);  // "moe_gemm", ...; stable
std::optional<KernelRole> kernel_role_from_name(std::string_view name);

// How memory behind a pointer is used. `unknown`: it may be read, written, both or neither.
enum class AccessMode : std::uint8_t { none, read, write, read_write, unknown };
std::string_view access_mode_name(AccessMode mode);

// What a table says about the memory behind one parameter.
struct KnownAccess {
  static constexpr std::uint32_t kWholeSlot = ~std::uint32_t{0};
  static constexpr std::uint16_t kEveryMutable =
      0xffff;  // every pointer parameter to non-const that no other entry names
  std::uint16_t slot = 0;
  std::uint32_t offset_bytes =
      kWholeSlot;  // of the pointer word inside a by-value struct; kWholeSlot: every word
  AccessMode mode = AccessMode::unknown;
  bool writes_all = false;  // every byte of the extent is written before any is read
  std::string bytes;        // size from the pointer on, an expression (size_expression.h); "" = unknown
  std::string span;         // like bytes, but a bound: rows with gaps between them lie within
  std::string all_if;       // an expression: writes_all is true where it is not 0; "" = writes_all as it is
};

// How to read the configuration of a fused mixture-of-experts kernel off its launch: expressions (size_expression.h), ""
// where the launch does not tell. Names of tiles as in vLLM's configuration files (tables/moe_config.h).
struct KnownMoe {
  std::string grouped;          // 0: this launch is a plain product, without experts; "" = always grouped
  std::string experts;          // local experts
  std::string n, k;             // rows and columns of one expert's weights
  std::string pairs;            // (token, expert) pairs
  std::string pairs_per_token;  // pairs that share one row of the input: top-k in the first product, 1 in the second
  std::string dtype;            // index into dtypes
  std::vector<std::string> dtypes;  // "", "fp8_w8a8", "fp8_w8a8,block_shape=[128,128]": as in the files' names
  std::string block_m, block_n, block_k, group_m, split_k, num_warps, num_stages;
};

// One entry of a known-kernel table: first match wins.
struct KnownKernel {
  std::string pattern;  // regular expression (pattern.h), searched in the normalised name
  KernelRole role = KernelRole::unknown;
  std::string note;
  std::vector<std::string> params;  // parameter types, for kernels whose name carries none
  std::vector<KnownAccess> accesses;
  std::optional<KnownMoe> moe;
};

struct KernelIdentity {
  std::string demangled;   // the recorded name where it is not mangled
  std::string normalised;  // no data types, hashes, anonymous namespaces, architectures or tile numbers;
                           // kernels that run an operation given as template argument end in "[operation]"
  std::string short_name;  // last component of `normalised`, or the operation; for messages
  KernelRole role = KernelRole::unknown;
  const KnownKernel* known = nullptr;  // the table entry that matched; lives as long as the table
  struct Param {
    std::string type;  // as in the signature
    bool is_pointer = false, points_to_const = false;
    bool points_to_pointer = false;  // memory behind the inner pointers is unknown
    bool is_scalar = false;          // arithmetic by value: holds no address
    std::uint8_t element_bytes = 0;  // of what a pointer points at, or of the scalar; 0: unknown
  };
  std::vector<Param> params;  // by parameter slot; empty when the signature is unknown
  bool params_known = false;
  // Template arguments of the kernel itself, where they are numbers, booleans or enumerators.
  std::vector<std::optional<std::int64_t>> template_numbers;
};

class KernelTable {
 public:
  // The table that ships with cglint (lib/analysis/data/kernels.toml, embedded at build time).
  static const KernelTable& builtin();
  // Reads a user's TOML table; its entries go before the built-in ones.
  static base::Result<KernelTable> with_user_table(const std::string& path);
  // First matching entry, or nullptr. Valid as long as some copy of this table lives.
  [[nodiscard]] const KnownKernel* find(std::string_view normalised) const;
  [[nodiscard]] KernelRole role_of(std::string_view normalised) const;
  [[nodiscard]] std::size_t size() const;

 private:
  friend base::Result<KernelTable> parse_kernel_table(std::string_view text, std::string_view file,
                                                      const KernelTable* fallback);
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

// A table from TOML text, followed by the entries of `fallback` (may be null). Errors name `file` and the
// line.
base::Result<KernelTable> parse_kernel_table(std::string_view text, std::string_view file,
                                             const KernelTable* fallback);

KernelIdentity identify_kernel(std::string_view recorded_name, const KernelTable& table);
// "_Z..." names in the spelling of the C++ ABI demangler; others, and names that are no valid mangling, as
// they are.
std::string demangle(std::string_view name);

// Identities of all functions of a recording; grows with it. Safe to use from several threads as long as the
// recording does not change; references stay valid. What is known already is read without a lock.
class KernelIdentities {
 public:
  KernelIdentities(const ir::Recording& recording, const KernelTable& table)
      : recording_(recording), table_(table) {}
  KernelIdentities(const KernelIdentities&) = delete;
  KernelIdentities& operator=(const KernelIdentities&) = delete;
  const KernelIdentity& of(ir::FunctionId function) const {
    const Slot* const slot = find_slot(function.index());
    const KernelIdentity* const known = slot == nullptr ? nullptr : slot->load(std::memory_order_acquire);
    return known != nullptr ? *known : identify(function);
  }
  // For a node that is no kernel: "memcpy", "memset"...; for a kernel its short name.
  std::string label(const ir::Graph& graph, ir::NodeId node) const;
  [[nodiscard]] const ir::Recording& recording() const { return recording_; }
  // The blocks of the recording's allocators, sorted once for all graphs; made again where the recording has got more of them.
  [[nodiscard]] std::shared_ptr<const AllocatorIndex> allocator_index() const;

 private:
  using Slot = std::atomic<const KernelIdentity*>;
  // Blocks never move; block k holds kFirstBlock << k slots, behind those of the blocks before it.
  static constexpr std::uint64_t kFirstBlock = 64;
  static constexpr std::size_t kBlocks = 27;  // enough for every id
  static std::size_t block_of(std::uint32_t index) { return static_cast<std::size_t>(std::bit_width(index / kFirstBlock + 1)) - 1; }
  static std::uint64_t first_of(std::size_t block) { return kFirstBlock * ((std::uint64_t{1} << block) - 1); }
  // Null where there is no block yet.
  [[nodiscard]] Slot* find_slot(std::uint32_t index) const {
    const std::size_t block = block_of(index);
    Slot* const slots = blocks_[block].load(std::memory_order_acquire);
    return slots == nullptr ? nullptr : slots + (index - first_of(block));
  }
  const KernelIdentity& identify(ir::FunctionId function) const;

  const ir::Recording& recording_;
  const KernelTable& table_;
  mutable std::array<std::atomic<Slot*>, kBlocks> blocks_{};
  mutable std::mutex mutex_;  // of those who add
  mutable std::vector<std::unique_ptr<Slot[]>> block_memory_;
  mutable std::deque<KernelIdentity> identities_;
  mutable std::mutex index_mutex_;
  mutable std::shared_ptr<const AllocatorIndex> allocator_index_;
};

}  // namespace cglint::analysis
