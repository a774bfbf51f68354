// Reads PyTorch profiler (Kineto) traces in the Chrome trace JSON form, of CUDA and ROCm, old and new.
#pragma once

#include <memory>

#include "import/common/importer.h"

namespace cglint::import {

std::unique_ptr<Importer> make_kineto_importer();

}  // namespace cglint::import
