#include "analysis/normalise.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/signature.h"

namespace cglint::analysis {
namespace {

constexpr int kMaxOperationDepth = 12;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f');
}
bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

template <std::size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

// "64x8", "128x128x64", "2x1x1"
bool is_tile(std::string_view token) {
  bool seen_x = false, digit_before = false;
  for (const char c : token) {
    if (is_digit(c)) {
      digit_before = true;
    } else if (c == 'x' && digit_before) {
      seen_x = true;
      digit_before = false;
    } else {
      return false;
    }
  }
  return seen_x && digit_before;
}

// "stage3", "ldg8", "s4": `word` followed by digits, tiles allowed ("tilesize128x128x64").
bool is_counted(std::string_view token, std::string_view word) {
  if (!token.starts_with(word)) return false;
  std::string_view rest = token.substr(word.size());
  const std::size_t unroll = rest.find('u');  // "t128x8x512u2"
  if (unroll != std::string_view::npos && unroll > 0 && all_digits(rest.substr(unroll + 1)))
    rest = rest.substr(0, unroll);
  return all_digits(rest) || is_tile(rest);
}

// sm90, sm90a, sm100f, SM80; not "smem".
bool is_architecture(std::string_view token) {
  if (!token.starts_with("sm") && !token.starts_with("Sm") && !token.starts_with("SM")) return false;
  token.remove_prefix(2);
  if (!token.empty() && (token.back() == 'a' || token.back() == 'f')) token.remove_suffix(1);
  return token.size() >= 2 && token.size() <= 3 && all_digits(token);
}

// Eight or more hexadecimal digits with a decimal one among them: a content hash.
bool is_hash(std::string_view token) {
  return token.size() >= 8 && std::all_of(token.begin(), token.end(), is_hex) &&
         std::any_of(token.begin(), token.end(), is_digit);
}

std::vector<std::string_view> split_tokens(std::string_view text) {
  std::vector<std::string_view> tokens;
  std::size_t first = 0;
  while (true) {
    const std::size_t at = text.find('_', first);
    tokens.push_back(text.substr(first, at == std::string_view::npos ? at : at - first));
    if (at == std::string_view::npos) return tokens;
    first = at + 1;
  }
}

std::string join_tokens(const std::vector<std::string_view>& tokens) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += '_';
    text += tokens[i];
  }
  return text;
}

// Names of generated GEMM, convolution and attention kernels: tiles, stages, schedules and architectures are
// picked per shape and do not make another operation.
bool is_tuned_family(std::string_view name) {
  constexpr auto kPrefixes = std::to_array<std::string_view>(
      {"nvjet", "cutlass", "ampere_", "volta_", "turing_", "maxwell_", "hopper_", "blackwell_", "pascal_",
       "bmm_", "gemm_", "fmha_v2_", "cudnn_", "xqa_"});
  for (const std::string_view prefix : kPrefixes)
    if (name.starts_with(prefix)) return true;
  return name.find("xmma") != std::string_view::npos;
}

bool is_tuning_token(std::string_view token) {
  constexpr auto kWords =
      std::to_array<std::string_view>({"ampere",      "volta",      "turing",  "maxwell",   "hopper",
                                       "blackwell",   "pascal",     "v",       "h",         "bz",
                                       "splitK",      "coopA",      "coopB",   "2cta",      "warpspecialized",
                                       "cooperative", "pingpong",   "epi",     "tma",       "stages",
                                       "f2f",         "execute",    "segment", "k",         "off",
                                       "kernel",      "5x",         "cublas",  "cutlass3x", "wgmma",
                                       "ffma",        "fort",       "native",  "knob",      "nosmem",
                                       "warpgroup",   "persistent", "streamK", "sliced",    "ldgsts",
                                       "noalign",     "aligna4",    "alignc4", "u2",        "u4",
                                       "16dp256b",    "nn_n_never"});
  if (token.empty() || all_digits(token) || is_tile(token) || is_architecture(token) ||
      is_one_of(token, kWords))
    return true;
  for (const std::string_view word :
       {"tilesize", "warpgroupsize", "warpsize",  "stage", "stages", "ldg", "align", "aligna",
        "alignc",   "sliced",        "tensor",    "cga",   "et",     "t",   "m",     "s",
        "splitK",   "kernel",        "blocksize", "wg"})
    if (is_counted(token, word)) return true;
  return false;
}

// "s16816gemm", "s64x128x16gemm", "h884gemm" and "i16832gemm" name the instruction shape.
std::string_view strip_instruction_shape(std::string_view token) {
  for (const std::string_view word : {"gemm", "fprop", "dgrad", "wgrad"}) {
    if (!token.ends_with(word) || token.size() <= word.size() + 1) continue;
    const std::string_view shape = token.substr(1, token.size() - word.size() - 1);
    if (std::all_of(shape.begin(), shape.end(), [](char c) { return is_digit(c) || c == 'x'; }) &&
        is_digit(shape[0]))
      return word;
  }
  return token;
}

// The specialisation suffix of Triton before 3: "_0d1d2de3d", "_0d1d2d3c4".
bool is_triton_signature(std::string_view token) {
  if (token.size() < 2 || !is_digit(token[0])) return false;
  bool marked = false;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const char c = token[i];
    if (is_digit(c)) continue;
    if (c != 'd' && c != 'e' && c != 'c') return false;
    if (i == 0) return false;
    marked = true;
  }
  // "3d" ends "kernel_unified_attention_3d" too: ask for two arguments at least.
  const auto marks = std::count(token.begin(), token.end(), 'd');
  return marked && (marks >= 2 || (marks == 1 && token.starts_with("0d") && token.size() > 2));
}

std::string normalise_flat(std::string_view name) {
  // CuTe DSL: everything from the first mangled argument on describes layouts.
  for (const std::string_view cut : {"_object_at_", "_tensorptr", "__TiledMMA_"}) {
    const std::size_t at = name.find(cut);
    if (at != std::string_view::npos && at > 0) name = name.substr(0, at);
  }
  if (name.starts_with("Cijk_")) {  // Tensile
    for (const std::string_view cut : {"_UserArgs", "_MT"}) {
      const std::size_t at = name.find(cut);
      if (at != std::string_view::npos) name = name.substr(0, at);
    }
    return std::string(name);
  }
  if (name.starts_with("ncclDevKernel") || name.starts_with("ncclKernel")) {
    // "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclKernel_AllReduce_TREE_LL_Sum_float": protocol,
    // algorithm and type follow size; the collective and its operation stay.
    constexpr auto kReductions = std::to_array<std::string_view>(
        {"Sum", "Prod", "Max", "Min", "MinMax", "PreMulSum", "SumPostDiv", "Avg"});
    const std::vector<std::string_view> tokens = split_tokens(name);
    std::string text = "ncclDevKernel";
    for (std::size_t i = 1; i < tokens.size(); ++i)
      if (i == 1 || is_one_of(tokens[i], kReductions)) text.append("_").append(tokens[i]);
    return text;
  }
  const bool tuned = is_tuned_family(name);
  const bool triton = name.starts_with("triton_");
  std::vector<std::string_view> tokens = split_tokens(name), kept;
  bool in_signature = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::string_view token = tokens[i];
    if (tuned) {
      token = strip_instruction_shape(token);
      if (i > 0 && is_tuning_token(token)) continue;
      if (i == 0 && (is_architecture(token) || is_tuning_token(token)) && tokens.size() > 1) continue;
    } else {
      if (is_architecture(token) && tokens.size() > 1) continue;
      if (i > 0 && (is_hash(token) || (is_tile(token) && std::count(token.begin(), token.end(), 'x') >= 2)))
        continue;
      if (i > 0 && i + 1 == tokens.size() && is_triton_signature(token)) in_signature = true;
      if (in_signature) continue;
    }
    kept.push_back(token);
  }
  // Inductor numbers the kernels of a module: the number differs from one compilation to the next.
  while (triton && kept.size() > 2 && all_digits(kept.back())) kept.pop_back();
  if (kept.empty() || std::all_of(kept.begin(), kept.end(), [](std::string_view t) { return t.empty(); }))
    return std::string(name);
  return join_tokens(kept);
}

// "FlashAttnFwdSm90" -> "FlashAttnFwd".
std::string strip_architecture_words(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    if ((text.substr(at, 2) == "Sm" || text.substr(at, 2) == "SM") && at > 0) {
      std::size_t end = at + 2;
      while (end < text.size() && is_digit(text[end])) ++end;
      const std::size_t digits = end - at - 2;
      if (digits >= 2 && digits <= 3) {
        at = end;
        continue;
      }
    }
    result += text[at++];
  }
  return result;
}

// Namespaces that say nothing about the kernel.
bool is_noise_component(std::string_view base) {
  if (base.empty() || base == "(anonymous namespace)" || base == "<unnamed>" || base == "(anonymous)" ||
      base == "{anonymous}" || base == "<unnamed namespace>" || base == "`anonymous namespace'" ||
      base == "unnamed namespace" || base == "__1" || base == "__cxx11")
    return true;
  if (base.starts_with("_GLOBAL__N_") || base.starts_with("_GLOBAL__N__") || base.starts_with("_INTERNAL_"))
    return true;
  if (base.ends_with("_NS") &&
      (base.starts_with("CUB_") || base.starts_with("THRUST_") || base.starts_with("ROCPRIM_")))
    return true;
  return base.starts_with("_V") && base.size() > 2 && all_digits(base.substr(2));
}

bool is_lambda(std::string_view base) {
  return base.starts_with("{lambda") || base.starts_with("[lambda") || base.starts_with("<lambda") ||
         base.starts_with("'lambda") || base.starts_with("{unnamed") || base.starts_with("{default");
}

std::string_view strip_static_prefix(std::string_view base) {
  // "__nv_static_NN__<hash>_NN_file_cu_<hash>__Z3foov": what follows the last "__" is the name.
  if (base.starts_with("__nv_static_")) {
    const std::size_t at = base.find("_cu_");
    if (at != std::string_view::npos) {
      const std::size_t end = base.find("__", at + 4);
      if (end != std::string_view::npos && end + 2 < base.size()) return base.substr(end + 2);
    }
  }
  return base;
}

// Kernels that run an operation given as a template argument.
bool is_wrapper(std::string_view base) {
  constexpr auto kWrappers = std::to_array<std::string_view>({"vectorized_elementwise_kernel",
                                                              "unrolled_elementwise_kernel",
                                                              "elementwise_kernel",
                                                              "elementwise_kernel_manual_unroll",
                                                              "legacy_elementwise_kernel",
                                                              "vectorized_templated_elementwise_kernel",
                                                              "unrolled_elementwise_kernel_for_multi_outputs",
                                                              "elementwise_kernel_with_index",
                                                              "index_elementwise_kernel",
                                                              "_scatter_gather_elementwise_kernel",
                                                              "reduce_kernel",
                                                              "multi_tensor_apply_kernel",
                                                              "distribution_elementwise_grid_stride_kernel",
                                                              "kernelPointwiseApply1",
                                                              "kernelPointwiseApply2",
                                                              "act_and_mul_kernel",
                                                              "activation_kernel",
                                                              "device_kernel",
                                                              "Kernel",
                                                              "Kernel2",
                                                              "k_bin_bcast",
                                                              "k_bin_bcast_unravel",
                                                              "unary_op_kernel",
                                                              "unary_gated_op_kernel",
                                                              "cuda_kernel",
                                                              "trampoline_kernel",
                                                              "act_and_mul_kernel_with_param",
                                                              "kentry"});
  return is_one_of(base, kWrappers);
}

// The variants of ATen's elementwise kernel differ in vector width and stride handling alone.
std::string_view wrapper_name(std::string_view base) {
  constexpr auto kElementwise = std::to_array<std::string_view>(
      {"vectorized_elementwise_kernel", "unrolled_elementwise_kernel", "elementwise_kernel_manual_unroll",
       "legacy_elementwise_kernel", "vectorized_templated_elementwise_kernel",
       "unrolled_elementwise_kernel_for_multi_outputs"});
  if (is_one_of(base, kElementwise)) return "elementwise_kernel";
  if (base == "k_bin_bcast_unravel") return "k_bin_bcast";
  return base;
}

// Templates between the wrapper and its operation.
bool is_transparent(std::string_view base) {
  constexpr auto kTransparent = std::to_array<std::string_view>(
      {"gpu_kernel_impl", "gpu_kernel_impl_nocast", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor",
       "func_wrapper_t", "ReduceOp", "opmath_gpu_kernel_with_scalars",
       "opmath_symmetric_gpu_kernel_with_scalars", "gpu_kernel", "gpu_kernel_with_scalars",
       "gpu_kernel_with_index", "gpu_index_kernel", "UnaryOpFunctor", "BinaryOpScalarFunctor",
       "BinaryOpListAlphaFunctor", "PointwiseOpScalarFunctor", "CachingReduceOp"});
  // "enable_sm90_or_later", "enable_3x_kernel_for_sm9x": architecture guards around a CUTLASS kernel.
  return is_one_of(base, kTransparent) ||
         (base.starts_with("enable_") && base.find("sm") != std::string_view::npos);
}

// Arguments that never name the operation.
bool is_plumbing(std::string_view base) {
  constexpr auto kPlumbing = std::to_array<std::string_view>({"array",
                                                              "Array",
                                                              "TensorListMetadata",
                                                              "FusedOptimizerTensorListMetadata",
                                                              "TensorListScalarListMetadata",
                                                              "TrivialOffsetCalculator",
                                                              "OffsetCalculator",
                                                              "LoadWithCast",
                                                              "StoreWithCast",
                                                              "LoadWithoutCast",
                                                              "StoreWithoutCast",
                                                              "integral_constant",
                                                              "function_traits",
                                                              "TensorInfo",
                                                              "OpaqueType",
                                                              "Fp8KVCacheDataType",
                                                              "ScalarType",
                                                              "tuple",
                                                              "bool_constant",
                                                              "true_type",
                                                              "false_type",
                                                              "enable_if",
                                                              "conditional",
                                                              "Layout",
                                                              "Stride",
                                                              "Int",
                                                              "Shape",
                                                              "C",
                                                              "Type",
                                                              "numeric_limits",
                                                              "nullptr_t",
                                                              "Policy1000",
                                                              "result_type",
                                                              "value_type"});
  return is_one_of(base, kPlumbing);
}

std::string operation_of_arguments(const std::vector<std::string_view>& arguments, int depth);

// "(&(float vllm::silu_kernel<float>(float const&)))", "&op_add" -> the function; casts "(Type)3" and numbers
// -> "".
std::string_view strip_address(std::string_view argument) {
  while (true) {
    while (!argument.empty() && argument.front() == ' ') argument.remove_prefix(1);
    if (argument.starts_with("&")) {
      argument.remove_prefix(1);
    } else if (argument.starts_with("(") && argument.ends_with(")") && argument != "(anonymous namespace)" &&
               !argument.starts_with("(anonymous namespace)")) {
      argument = argument.substr(1, argument.size() - 2);
    } else {
      return argument;
    }
  }
}

// The operation that a template argument names; "" if it is a number, a data type or plumbing.
std::string operation_of(std::string_view argument, int depth) {
  if (depth > kMaxOperationDepth) return {};
  argument = strip_address(argument);
  if (argument.empty() || is_digit(argument.front()) || argument.front() == '-' || argument == "true" ||
      argument == "false" || element_bytes(argument) != 0)
    return {};
  if (argument.front() == '(' && !argument.starts_with("(anonymous namespace)")) return {};  // a cast value
  if (argument.ends_with("*") || argument.ends_with("&")) return {};
  const SplitName split = split_name(argument);
  const NameComponent* last = nullptr;
  std::string called;  // template arguments of an inner operator()
  for (const NameComponent& component : split.components) {
    if (is_noise_component(component.base) || is_lambda(component.base)) continue;
    if (component.base.starts_with("operator")) {
      const std::string inner = operation_of_arguments(component.template_arguments, depth + 1);
      if (!inner.empty()) called += "." + inner;
      continue;
    }
    // A nested type of a plumbing template ("function_traits<...>::result_type") is plumbing.
    if (is_plumbing(component.base)) return {};
    last = &component;
  }
  if (last == nullptr) return {};
  if (is_transparent(last->base)) return operation_of_arguments(last->template_arguments, depth + 1);
  std::string text = strip_architecture_words(normalise_flat(last->base));
  if (text == "GemmUniversal" || text == "GemmUniversalAdapter")
    for (const std::string_view inner : last->template_arguments)
      if (inner.find("GroupProblemShape") != std::string_view::npos ||
          inner.find("PtrArray") != std::string_view::npos) {
        text += ".grouped";
        break;
      }
  return text + called;
}

std::string operation_of_arguments(const std::vector<std::string_view>& arguments, int depth) {
  for (const std::string_view argument : arguments) {
    std::string operation = operation_of(argument, depth);
    if (!operation.empty()) return operation;
  }
  return {};
}

bool is_generic_name(std::string_view name) {
  constexpr auto kGeneric = std::to_array<std::string_view>(
      {"kernel", "Kernel", "run", "device_kernel", "operator()", "impl", "main", "kernel_impl", "fwd"});
  return is_one_of(name, kGeneric);
}

}  // namespace

NormalisedName normalise_kernel_name(std::string_view demangled) {
  const SplitName split = split_name(demangled);
  NormalisedName result;
  std::vector<std::string> parts;
  const NameComponent* last = nullptr;
  for (const NameComponent& component : split.components) {
    const std::string_view base = strip_static_prefix(component.base);
    if (is_noise_component(base) || is_lambda(base)) continue;
    if (base.starts_with("operator") && !parts.empty()) continue;
    parts.push_back(strip_architecture_words(normalise_flat(wrapper_name(base))));
    last = &component;
  }
  if (last == nullptr) {
    result.name = result.short_name = std::string(demangled);
    return result;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) result.name += "::";
    result.name += parts[i];
  }
  result.short_name = parts.back();
  if (is_generic_name(result.short_name) && parts.size() > 1)
    result.short_name = parts[parts.size() - 2] + "::" + parts.back();
  if (is_wrapper(strip_static_prefix(last->base))) {
    const std::string operation = operation_of_arguments(last->template_arguments, 0);
    if (!operation.empty()) {
      result.name += "[" + operation + "]";
      result.short_name = operation;
    }
  }
  return result;
}

}  // namespace cglint::analysis
