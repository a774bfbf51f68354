#include "stream_probe/cupti_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace cglint::gpu {
namespace {

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::string load_cupti(CuptiApi& api) {
  std::vector<std::string> names;
  if (const char* given = std::getenv("CGLINT_CUPTI"); given != nullptr && *given != '\0')
    names.push_back(given);
  // The major version must be the one whose record layouts this was compiled with.
  const std::string soname = "libcupti.so." + std::to_string(CUPTI_API_VERSION >= 130000 ? 13 : 12);
  std::vector<std::string> folders{"/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64",
                                   "/usr/local/cuda/lib", "/usr/local/cuda/targets/x86_64-linux/lib"};
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
    folders.insert(folders.begin(),
                   {std::string(home) + "/extras/CUPTI/lib64", std::string(home) + "/lib64"});
  }
  names.push_back(soname);
  for (const std::string& folder : folders) names.push_back(folder + '/' + soname);
  void* library = nullptr;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) return soname + " not found (set CGLINT_CUPTI to its path)";
  const bool all = find(library, "cuptiActivityRegisterCallbacks", api.register_callbacks) &&
                   find(library, "cuptiActivityEnable", api.enable) &&
                   find(library, "cuptiActivityFlushAll", api.flush_all) &&
                   find(library, "cuptiActivityGetNextRecord", api.next_record) &&
                   find(library, "cuptiActivityGetNumDroppedRecords", api.dropped_records) &&
                   find(library, "cuptiGetStreamIdEx", api.stream_id) &&
                   find(library, "cuptiGetVersion", api.version) &&
                   find(library, "cuptiGetResultString", api.result_string);
  return all ? "" : soname + " lacks a function";
}

}  // namespace cglint::gpu
