#include <array>

#include "stack/model.h"

namespace cglint::models {

// models.inc is generated from CGLINT_MODELS of reference_models/CMakeLists.txt: one CGLINT_MODEL(name) a
// model that this build has.
#define CGLINT_MODEL(name) const ModelInfo& name##_model();
#include "models.inc"
#undef CGLINT_MODEL

namespace {
const auto& models() {
#define CGLINT_MODEL(name) &name##_model(),
  static const std::array list = {
#include "models.inc"
  };
#undef CGLINT_MODEL
  return list;
}
}  // namespace

std::span<const ModelInfo* const> all_models() {
  return models();
}

const ModelInfo* find_model(std::string_view name) {
  for (const ModelInfo* model : models())
    if (model->name == name) return model;
  return nullptr;
}

}  // namespace cglint::models
