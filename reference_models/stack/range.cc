// Ranges go to the default NVTX domain, where engines' own ranges are.
#include <nvtx3/nvToolsExt.h>

#include <string>

#include "stack/model.h"

namespace cglint::models {

Range::Range(const char* name) {
  nvtxRangePushA(name);
}

Range::Range(std::string_view name, int index) {
  const std::string text = std::string(name) + ' ' + std::to_string(index);
  nvtxRangePushA(text.c_str());
}

Range::~Range() {
  nvtxRangePop();
}

}  // namespace cglint::models
