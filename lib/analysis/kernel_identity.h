// Kernel identity: demangled and normalised names, parameter types from signatures, and the role a kernel plays (gemm,
// norm, attention...). Roles come from known-kernel tables: data files that ship with cglint and that users extend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ir/recording.h"

namespace cglint::analysis {

enum class KernelRole : std::uint8_t {
  unknown, gemm, moe_gemm, attention, norm, router, topk, activation, elementwise, cast, fill, copy, reduce, rope,
  kv_write, quantise, permute, sampling, rng, collective, embedding, convolution, scan, scatter_gather,
};
std::string_view kernel_role_name(KernelRole role);

struct KernelIdentity {
  std::string demangled;               // the recorded name where it is not mangled
  std::string normalised;              // no template arguments, no hashes, no anonymous namespaces, no tile numbers
  std::string short_name;              // last component of `normalised`, for messages
  KernelRole role = KernelRole::unknown;
  struct Param {
    std::string type;                  // as in the signature
    bool is_pointer = false, points_to_const = false;
  };
  std::vector<Param> params;           // empty when the signature is unknown
  bool params_known = false;
};

// One rule of a known-kernel table: first match wins.
struct KnownKernel {
  std::string pattern;                 // ECMAScript regular expression, searched in the normalised name
  KernelRole role = KernelRole::unknown;
  std::string note;
};

class KernelTable {
 public:
  // The table that ships with cglint (lib/analysis/data/kernels.toml, embedded at build time).
  static const KernelTable& builtin();
  // Reads a user's TOML table; its entries go before the built-in ones.
  static base::Result<KernelTable> with_user_table(const std::string& path);
  [[nodiscard]] KernelRole role_of(std::string_view normalised) const;

 private:
  friend base::Result<KernelTable> parse_kernel_table(std::string_view, std::string_view);
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

KernelIdentity identify_kernel(std::string_view recorded_name, const KernelTable& table);
// "_Z..." names through the C++ ABI demangler; others as they are. Names over 64 KiB are not demangled.
std::string demangle(std::string_view name);

// Identities of all functions of a recording; grows with it.
class KernelIdentities {
 public:
  KernelIdentities(const ir::Recording& recording, const KernelTable& table) : recording_(recording), table_(table) {}
  const KernelIdentity& of(ir::FunctionId function) const;
  // For a node that is no kernel: "memcpy", "memset"...; for a kernel its short name.
  std::string label(const ir::Graph& graph, ir::NodeId node) const;

 private:
  const ir::Recording& recording_;
  const KernelTable& table_;
  mutable std::vector<std::unique_ptr<KernelIdentity>> cache_;
};

}  // namespace cglint::analysis
