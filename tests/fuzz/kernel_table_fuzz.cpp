// libFuzzer entry for known-kernel tables (TOML, given with --kernel-table): any bytes must give a table or an error that names a
// place, and a table must be able to identify kernels.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "analysis/kernel_identity.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cglint;
  const auto table = analysis::parse_kernel_table({reinterpret_cast<const char*>(data), size}, "fuzz.toml", nullptr);
  if (!table) {
    CGLINT_CHECK(!table.error().message.empty() && table.error().file == "fuzz.toml");
    return 0;
  }
  for (const std::string_view name : {"", "_ZN4vllm14rms_norm_kernelIN3c108BFloat16EEEvPT_PKS3_S6_fi", "void k<float>(float*, int)", "\xff"})
    (void)analysis::identify_kernel(name, *table);
  return 0;
}
