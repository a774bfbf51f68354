#include "cuda/cupti_api.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace cglint::cuda {
namespace {

int find_cupti(dl_phdr_info* info, std::size_t, void* result) {
  const char* const slash = std::strrchr(info->dlpi_name, '/');
  const char* const name = slash == nullptr ? info->dlpi_name : slash + 1;
  if (std::strncmp(name, "libcupti.so", 11) != 0) return 0;
  *static_cast<std::string*>(result) = info->dlpi_name;
  return 1;
}

}  // namespace

std::string load_cupti(CuptiApi& api, int driver_version) {
  std::string mapped;
  dl_iterate_phdr(find_cupti, &mapped);
  std::vector<std::string> names;
  if (!mapped.empty()) {
    names.push_back(mapped);
  } else {
    if (const char* given = std::getenv("CGLINT_CUPTI"); given != nullptr && *given != '\0')
      names.emplace_back(given);
    // Node ids and clones are the same in CUPTI 12 and 13; a CUPTI newer than the driver does not start.
    for (int major = driver_version / 1000; major >= 12; --major) {
      const std::string soname = "libcupti.so." + std::to_string(major);
      names.push_back(soname);
      std::vector<std::string> folders;
      if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
        folders.push_back(std::string(home) + "/extras/CUPTI/lib64");
        folders.push_back(std::string(home) + "/lib64");
      }
      for (const char* folder : {"/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64",
                                 "/usr/local/cuda/lib", "/usr/local/cuda/targets/x86_64-linux/lib"})
        folders.emplace_back(folder);
      for (const std::string& folder : folders) names.push_back(folder + '/' + soname);
    }
  }
  void* library = nullptr;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    api.path = name;
    break;
  }
  if (library == nullptr) return "no CUPTI library was found (CGLINT_CUPTI=<path of libcupti.so> names one)";
  std::string missing;
  const auto load = [&](auto& function, const char* name, bool needed = true) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && needed && missing.empty()) missing = api.path + " has no " + name;
  };
  load(api.subscribe, "cuptiSubscribe");
  load(api.unsubscribe, "cuptiUnsubscribe");
  load(api.enable_callback, "cuptiEnableCallback");
  load(api.get_version, "cuptiGetVersion");
  load(api.get_result_string, "cuptiGetResultString");
  load(api.get_graph_node_id, "cuptiGetGraphNodeId");
  load(api.get_graph_id, "cuptiGetGraphId");
  load(api.get_device_id, "cuptiGetDeviceId");
  load(api.activity_enable, "cuptiActivityEnable");
  load(api.activity_disable, "cuptiActivityDisable");
  load(api.activity_register_callbacks, "cuptiActivityRegisterCallbacks");
  load(api.activity_get_next_record, "cuptiActivityGetNextRecord");
  load(api.activity_get_num_dropped_records, "cuptiActivityGetNumDroppedRecords");
  load(api.activity_flush_all, "cuptiActivityFlushAll");
  load(api.finalize, "cuptiFinalize", false);
  load(api.subscribe_v2, "cuptiSubscribe_v2", false);
  if (missing.empty() && api.get_version(&api.version) != CUPTI_SUCCESS)
    missing = api.path + " does not tell its version";
  return missing;
}

}  // namespace cglint::cuda
