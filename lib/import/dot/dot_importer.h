// Reads what cudaGraphDebugDotPrint / cuGraphDebugDotPrint write (also through torch.cuda.CUDAGraph.debug_dump).
#pragma once

#include <memory>

#include "import/common/importer.h"

namespace cglint::import {

std::unique_ptr<Importer> make_dot_importer();

}  // namespace cglint::import
