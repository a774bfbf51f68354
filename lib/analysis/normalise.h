// Normalised kernel names: the same kernel built for another shape, data type, architecture or tile size has
// the same normalised name, another kernel has another one. docs/kernel-table.md lists the steps.
#pragma once

#include <string>
#include <string_view>

namespace cglint::analysis {

struct NormalisedName {
  std::string
      name;  // "at::native::elementwise_kernel[silu_kernel]", "nvjet_tst_NNT", "vllm::rms_norm_kernel"
  std::string short_name;  // "silu_kernel", "nvjet_tst_NNT", "rms_norm_kernel"
};

NormalisedName normalise_kernel_name(std::string_view demangled);

}  // namespace cglint::analysis
