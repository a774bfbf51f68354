#include "analysis/kernel_identity.h"

#include <cxxabi.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "analysis/normalise.h"
#include "analysis/signature.h"

namespace cglint::analysis {
namespace {

std::string runtime_demangle(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : "";
}

std::string normalised(std::string_view name) {
  return identify_kernel(name, KernelTable::builtin()).normalised;
}
std::string short_name(std::string_view name) {
  return identify_kernel(name, KernelTable::builtin()).short_name;
}
KernelRole role(std::string_view name) {
  return identify_kernel(name, KernelTable::builtin()).role;
}

const std::vector<std::string> kMangled = {
    "_ZN2at6native53_GLOBAL__N__21739cd4_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_"
    "kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_",
    "_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_25bfloat16_copy_kernel_cudaERNS_"
    "18TensorIteratorBaseEEUlfE_St5arrayIPcLm2EEEEviT0_T1_",
    "_ZN2at6native29vectorized_elementwise_kernelILi8EZZZNS0_62_GLOBAL__N__7d4ed096_23_ActivationSiluKernel_"
    "cu_751192d7_1559511silu_kernelERNS_18TensorIteratorBaseEENKUlvE_clEvENKUlvE4_clEvEUlN3c108BFloat16EE_"
    "St5arrayIPcLm2EEEEviT0_T1_",
    "_ZN2at6native44_GLOBAL__N__50c743a2_11_Indexing_cu_"
    "89862edb21indexSelectSmallIndexIN3c108BFloat16EljLi2ELi2ELin2EEEvNS_4cuda6detail10TensorInfoIT_T1_EENS7_"
    "IKS8_S9_EENS7_IKT0_S9_EEiiS9_l",
    "_ZN50_GLOBAL__N__fa15d16e_17_RangeFactories_cu_38772b0829elementwise_kernel_with_"
    "indexIiZZZN2at6native15arange_cuda_outERKN3c106ScalarES6_S6_RNS1_6TensorEENKUlvE_clEvENKUlvE2_clEvEUllE_"
    "EEvT_T0_PN15function_traitsISD_E11result_typeE",
    "_ZN2at6native29vectorized_elementwise_kernelILi2ENS0_15CUDAFunctor_addIlEESt5arrayIPcLm3EEEEviT0_T1_",
    "_ZN2at6native29vectorized_elementwise_kernelILi4EZNS0_51_GLOBAL__N__b1108092_12_PowKernel_cu_751192d7_"
    "2139629pow_tensor_scalar_kernel_implIffEEvRNS_18TensorIteratorBaseET0_EUlfE_St5arrayIPcLm2EEEEviS6_T1_",
    "_ZN4vllm15rms_norm_kernelIN3c108BFloat16EEEvPT_PKS3_S6_fii",
    "_ZN4vllm18act_and_mul_kernelIfXadL_ZNS_11silu_kernelIfEET_RKS2_EELb1EEEvPS2_PKS2_i",
    "_Z12rms_norm_f32ILi1024ELb0ELb0EEvPKfPfillliiil",
    "_Z9mul_mat_qIL9ggml_type8ELi64ELb1EEvPKcPKiS4_S4_PfS5_iiiiii",
    "_Z3fooPFviEPA4_fRKiOjM1AFvvEDn",
    "_ZNK3foo3barIiE3bazEv",
    "_Z1fIJifdEEvDpT_",
    "_ZN1aplERKS_S1_",
    "_ZN1aC1Ei",
    "_Z1fDv4_f",
    "_Z16advance_positionPlPKim",
};

TEST(Demangle, SpellsAsTheRuntimeDoes) {
  for (const std::string& name : kMangled) {
    const std::string expected = runtime_demangle(name);
    ASSERT_FALSE(expected.empty()) << name;
    std::string got = demangle(name);
    // "&(f)" or "&f": two spellings of a function as template argument.
    if (name.find("XadL") == std::string::npos) {
      EXPECT_EQ(got, expected);
    } else {
      EXPECT_NE(got, name);
    }
  }
}

TEST(Demangle, ReadsWhatTheRuntimeCannot) {
  EXPECT_EQ(
      demangle("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_"
               "S4_diiiiiiib"),
      "void aiter::add_rmsnorm_quant_kernel<std::bfloat16_t, std::bfloat16_t, 256, 16, true, false, true, "
      "1>(std::bfloat16_t*, std::bfloat16_t*, float*, std::bfloat16_t*, std::bfloat16_t*, std::bfloat16_t*, "
      "double, int, int, int, int, int, int, int, bool)");
  EXPECT_EQ(demangle("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_"
                     "ES3_S5_EEEEvPS3_PS4_i"),
            "void sgl_hip::activation::act_and_mul_kernel<__hip_bfloat16, &(__hip_bfloat16 "
            "silu<__hip_bfloat16>(__hip_bfloat16 "
            "const&))>(__hip_bfloat16*, __hip_bfloat16 const*, int)");
  // Over 1024 bytes.
  std::string name = "_ZN7cutlass6KernelINS_4gemm6kernel13GemmUniversalI";
  for (int i = 0; i < 400; ++i) name += "N4cute1CILi" + std::to_string(i) + "EEE";
  name += "EEEEvNT_6ParamsE";
  const std::string text = demangle(name);
  EXPECT_EQ(text.substr(0, 75),
            "void cutlass::Kernel<cutlass::gemm::kernel::GemmUniversal<cute::C<0>, cute:");
  EXPECT_TRUE(text.ends_with("::Params)")) << text.substr(text.size() - 40);
}

TEST(Demangle, LeavesOtherNamesAlone) {
  for (const char* name : {"", "_Z", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", "_Z1", "_ZZZZZZ", "_Z3fo",
                           "_ZN", "_ZTV3foo", "triton_poi_fused_add_0", "_Z1fT_", "_Z1fS_", "_ZN1a1borDt",
                           "_ZN4llvm3orcorDtorRCnner3runEv14CtorDtorRunner3runEv", "_Z99999999999999999999f"})
    EXPECT_EQ(demangle(name), name);
}

TEST(Demangle, HostileNamesCostLittle) {
  const auto start = std::chrono::steady_clock::now();
  // Each substitution doubles the text: 250 bytes that would spell gigabytes.
  const auto substitution = [](int index) {
    if (index == 0) return std::string("S_");
    std::string digits;
    for (int value = index - 1;; value /= 36) {
      digits.insert(digits.begin(), "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[value % 36]);
      if (value < 36) break;
    }
    return "S" + digits + "_";
  };
  std::string bomb = "_Z1f1PIiiE";
  for (int i = 0; i < 60; ++i) bomb += "S_I" + substitution(i + 1) + substitution(i + 1) + "E";
  EXPECT_EQ(demangle(bomb), bomb);
  // The same through template parameters that are read again.
  std::string params = "_Z1fI1AEvT_";
  for (int i = 0; i < 400; ++i) params += "PFS" + std::string(i == 0 ? "_" : "0_") + "S0_E";
  demangle(params);
  const std::string deep = "_Z1f" + std::string(60000, 'P') + "i";
  EXPECT_EQ(demangle(deep), deep);
  const std::string nested = "_Z" + std::string(30000, 'Z');
  EXPECT_EQ(demangle(nested), nested);
  std::string arguments = "_Z1fI";
  for (int i = 0; i < 20000; ++i) arguments += "1aI";
  EXPECT_EQ(demangle(arguments), arguments);
  const std::string huge = "_Z1f" + std::string(1 << 20, 'i');
  EXPECT_EQ(demangle(huge), huge);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Demangle, MutatedNamesDoNotCrash) {
  std::mt19937 random(7);
  constexpr std::string_view kAlphabet = "_0123456789ABCDEFIJKLNPRSTUVXZabcdefijklmnopstvxyz";
  std::size_t read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string name = kMangled[random() % kMangled.size()];
    for (auto edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = 2 + random() % (name.size() - 2);
      switch (random() % 3) {
        case 0:
          name[at] = kAlphabet[random() % kAlphabet.size()];
          break;
        case 1:
          name.erase(at, 1 + random() % 3);
          break;
        default:
          name.insert(at, name.substr(2 + random() % (name.size() - 2), random() % 12));
          break;
      }
      if (name.size() < 4) name = "_Z1fv";
    }
    const KernelIdentity identity = identify_kernel(name, KernelTable::builtin());
    read += identity.demangled != name ? 1 : 0;
    EXPECT_FALSE(identity.normalised.empty() && !name.empty());
  }
  EXPECT_GT(read, 1000U);  // some mutations are valid names
}

TEST(Signature, MutatedDemangledNamesDoNotCrash) {
  std::mt19937 random(11);
  constexpr std::string_view kAlphabet = "<>()[]{}:,*& constoperator->=#1'\"";
  for (int round = 0; round < 20000; ++round) {
    std::string name = demangle(kMangled[random() % kMangled.size()]);
    for (auto edits = 1 + random() % 5; edits > 0 && !name.empty(); --edits) {
      const std::size_t at = random() % name.size();
      if (random() % 2 == 0) {
        name[at] = kAlphabet[random() % kAlphabet.size()];
      } else {
        name = name.substr(0, at) +
               (random() % 4 == 0 ? "" : name.substr(std::min(name.size(), at + random() % 5)));
      }
    }
    const SplitName split = split_name(name);
    for (const std::string_view type : split.parameters) parse_parameter_type(type);
    EXPECT_EQ(normalise_kernel_name(name).name.empty(), name.empty()) << name;
  }
}

TEST(Signature, ParameterTypes) {
  struct Case {
    const char* type;
    bool pointer, to_const, to_pointer, scalar;
    const char* pointee;
  };
  for (const Case& c : std::vector<Case>{
           {"float const*", true, true, false, false, "float"},
           {"const float *", true, true, false, false, "float"},
           {"const float*", true, true, false, false, "float"},
           {"float*", true, false, false, false, "float"},
           {"float* const", true, false, false, false, "float"},
           {"float const* __restrict__", true, true, false, false, "float"},
           {"c10::BFloat16 const* restrict", true, true, false, false, "c10::BFloat16"},
           {"void const*", true, true, false, false, "void"},
           {"float**", true, false, true, false, "float*"},
           {"float const**", true, false, true, false, "float const*"},
           {"const float**", true, false, true, false, "float*"},
           {"float const* const*", true, true, true, false, "float const*"},
           {"int", false, false, false, true, ""},
           {"unsigned long", false, false, false, true, ""},
           {"float const", false, false, false, true, ""},
           {"Params", false, false, false, false, ""},
           {"std::array<char*, 2ul>", false, false, false, false, ""},
           {"void (*)(int)", false, false, false, false, ""},
           {"at::cuda::detail::TensorInfo<float const, unsigned int>", false, false, false, false, ""},
           {"foo<int*>", false, false, false, false, ""},
           {"", false, false, false, false, ""},
       }) {
    const ParameterType type = parse_parameter_type(c.type);
    EXPECT_EQ(type.is_pointer, c.pointer) << c.type;
    EXPECT_EQ(type.points_to_const, c.to_const) << c.type;
    EXPECT_EQ(type.points_to_pointer, c.to_pointer) << c.type;
    EXPECT_EQ(type.is_scalar, c.scalar) << c.type;
    EXPECT_EQ(type.pointee, c.pointee) << c.type;
  }
}

TEST(Signature, ParameterLists) {
  const KernelIdentity norm = identify_kernel(kMangled[0], KernelTable::builtin());
  ASSERT_TRUE(norm.params_known);
  ASSERT_EQ(norm.params.size(), 8U);
  EXPECT_TRUE(norm.params[0].is_scalar);
  EXPECT_TRUE(norm.params[2].points_to_const);
  EXPECT_EQ(norm.params[2].element_bytes, 2);
  EXPECT_TRUE(norm.params[5].is_pointer && !norm.params[5].points_to_const);
  EXPECT_EQ(norm.params[5].element_bytes, 4);

  // Parameters of an inner scope, of a functor type and of "operator()" are not the kernel's.
  const KernelIdentity silu = identify_kernel(kMangled[2], KernelTable::builtin());
  ASSERT_EQ(silu.params.size(), 3U);
  EXPECT_EQ(silu.params[0].type, "int");
  EXPECT_EQ(silu.params[2].type, "std::array<char*, 2ul>");

  const KernelIdentity none = identify_kernel("_Z9emptykernv", KernelTable::builtin());
  EXPECT_TRUE(none.params_known);
  EXPECT_TRUE(none.params.empty());
  EXPECT_FALSE(
      identify_kernel("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", KernelTable::builtin()).params_known);
  EXPECT_FALSE(identify_kernel("void foo<int>(float const*, std::array<in", KernelTable::builtin())
                   .params_known);  // cut off

  const KernelIdentity nsys = identify_kernel(
      "void vllm::rms_norm_kernel<c10::BFloat16>(T1 *, const T1 *, const T1 *, float, int, int)",
      KernelTable::builtin());
  ASSERT_EQ(nsys.params.size(), 6U);
  EXPECT_FALSE(nsys.params[0].points_to_const);
  EXPECT_TRUE(nsys.params[1].points_to_const);
}

TEST(Normalise, SameKernelOfAnotherShapeTypeOrArchitecture) {
  const std::vector<std::vector<std::string>> families = {
      {"nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", "nvjet_sm90_tst_128x8_64x12_2x1_v_bz_NNT",
       "nvjet_sm100_tst_64x8_64x16_1x1_h_bz_NNT", "nvjet_tst_192x64_64x5_2x1_v_bz_coopA_NNT",
       "nvjet_sm90_tst_64x8_64x16_1x1_h_bz_splitK_NNT"},
      {"void "
       "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass_80_"
       "tensorop_bf16_s16816gemm_relu_"
       "bf16_256x128_32x3_tn_align8::Params)",
       "void "
       "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(cutlass_80_"
       "tensorop_bf16_s16816gemm_relu_"
       "bf16_64x64_64x6_tn_align8::Params)"},
      {"ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
       "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn"},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_"
       "kernel__5x_cublas",
       "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1_tensor16x8x16_execute_"
       "kernel__5x_cublas"},
      {"triton_poi_fused_add_mul_silu_3", "triton_poi_fused_add_mul_silu_17",
       "triton_poi_fused_add_mul_silu_0d1d2de", "triton_poi_fused_add_mul_silu_3_0d1d2d3de"},
      {"fused_moe_kernel", "fused_moe_kernel_0d1d2d3d4d5d6d7c8c9d10d11c"},
      {kMangled[2],
       "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous "
       "namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() "
       "const::{lambda()#5}::operator()() const::{lambda(c10::Half)#1}, std::array<char*, 2ul> >(int, "
       "at::native::(anonymous namespace)::silu_kernel(at::"
       "TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#5}::operator()() "
       "const::{lambda(c10::Half)#1}, std::array<char*, 2ul>)",
       "void at::native::elementwise_kernel<128, 4, "
       "at::native::gpu_kernel_impl_nocast<at::native::(anonymous "
       "namespace)::silu_kernel(at::TensorIteratorBase&)"
       "::{lambda()#1}::operator()() const::{lambda()#6}::operator()() "
       "const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&, at::native::(anonymous "
       "namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() "
       "const::{lambda()#6}::operator()() const::{lambda(c10::BFloat16)#1} const&)"
       "::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<int>(at::TensorIteratorBase&, int "
       "const&)::{lambda(int)#1})",
       "void at::native::vectorized_elementwise_kernel<(int)4, "
       "at::native::<unnamed>::silu_kernel(at::TensorIteratorBase &)::[lambda() (instance 1)]::operator "
       "()() const::[lambda() (instance 4)]::operator ()() const::[lambda(c10::Half) (instance 1)], "
       "std::array<char *, (unsigned long)2>>(int, T2, T3)"},
      {"_ZN4vllm15rms_norm_kernelIN3c108BFloat16EEEvPT_PKS3_S6_fii",
       "_ZN4vllm15rms_norm_kernelIfEEvPT_PKS1_S4_fii",
       "void vllm::rms_norm_kernel<c10::Half>(c10::Half*, c10::Half const*, c10::Half const*, float, int, "
       "int)"},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
       "ncclDevKernel_AllReduce_Sum_f32_TREE_LL128(ncclDevKernelArgsStorage<4096ul>)",
       "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"},
      {"_ZN50_INTERNAL_7f3a9bc1_9_marlin_cu_12345678_36mul_kernelEPf",
       "_ZN50_INTERNAL_00000001_9_marlin_cu_87654321_36mul_kernelEPf"},
      {"void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int> > >(int)",
       "void cutlass::device_kernel<flash::enable_sm80_to_sm89<flash::FlashAttnFwdSm80<float> > >(int)"},
      {"bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512u2_s4_et64x8_m64x8x64_cga1x1x1_16dp256b_TN_transOut_schedS_"
       "sm100f",
       "bmm_Bfloat16_E2m1E2m1_Fp32_t128x16x512_s5_et128x16_m128x16x64_cga2x1x1_16dp256b_TN_transOut_schedS_"
       "sm100a"},
  };
  for (const auto& family : families)
    for (const std::string& name : family) EXPECT_EQ(normalised(name), normalised(family[0])) << name;
  // And no two families share a name.
  for (std::size_t i = 0; i < families.size(); ++i)
    for (std::size_t j = i + 1; j < families.size(); ++j)
      EXPECT_NE(normalised(families[i][0]), normalised(families[j][0]));
}

TEST(Normalise, DifferentKernelsStayApart) {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"},
      {"nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", "nvjet_sm90_qqtst_64x8_64x16_4x1_v_bz_NNT"},
      {kMangled[1], kMangled[2]},
      {"void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>, "
       "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, "
       "std::array<char*, 3ul>)",
       "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<float>, std::array<char*, "
       "1ul> >(int, at::native::FillFunctor<float>, "
       "std::array<char*, 1ul>)"},
      {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, "
       "unsigned int, long, 4, 4> >(int)",
       "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
       "float, float>, unsigned int, float, 4, 4> >(int)"},
      {"void vllm::act_and_mul_kernel<c10::BFloat16, (&(c10::BFloat16 "
       "vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&))), true>(c10::BFloat16*, "
       "c10::BFloat16 const*, int)",
       "void vllm::act_and_mul_kernel<c10::BFloat16, (&(c10::BFloat16 "
       "vllm::gelu_kernel<c10::BFloat16>(c10::BFloat16 const&))), true>(c10::BFloat16*, "
       "c10::BFloat16 const*, int)"},
      {"void k_bin_bcast<&(op_mul(float, float)), float, float, float>(float const*)",
       "void k_bin_bcast<&(op_add(float, float)), float, float, float>(float const*)"},
      {"kernel_unified_attention_2d", "kernel_unified_attention_3d"},
      {"_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"},
      {"triton_poi_fused_add_0", "triton_red_fused_add_0"},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)", "ncclDevKernel_AllGather_RING_LL(int)"},
      {"void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > "
       ">(int)",
       "void "
       "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::"
       "tuple<int, int, int> > > >(int)"},
      {"void at::native::_scatter_gather_elementwise_kernel<128, 8, "
       "at::native::_cuda_scatter_gather_internal_kernel<true, at::native::OpaqueType<2>, "
       "long>::operator()<at::native::TensorAssign>(at::TensorIterator&)::{lambda(int)#1}>(int, int)",
       "void at::native::_scatter_gather_elementwise_kernel<128, 8, "
       "at::native::_cuda_scatter_gather_internal_kernel<true, at::native::OpaqueType<2>, "
       "long>::operator()<at::native::ReduceAdd>(at::TensorIterator&)::{lambda(int)#1}>(int, int)"},
  };
  for (const auto& [a, b] : pairs) EXPECT_NE(normalised(a), normalised(b)) << a;
}

TEST(Normalise, Spelling) {
  EXPECT_EQ(normalised("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT"), "nvjet_tst_NNT");
  EXPECT_EQ(normalised(kMangled[2]), "at::native::elementwise_kernel[silu_kernel]");
  EXPECT_EQ(short_name(kMangled[2]), "silu_kernel");
  EXPECT_EQ(normalised(kMangled[0]), "at::native::vectorized_layer_norm_kernel");
  EXPECT_EQ(
      short_name(
          "void (anonymous namespace)::softmax_warp_forward<float, float, float, 3, false, false>(float*)"),
      "softmax_warp_forward");
  EXPECT_EQ(normalised("void cub::CUB_200802_SM_900::DeviceScanKernel<int>(int)"),
            "cub::CUB_200802_SM_900::DeviceScanKernel");
  EXPECT_EQ(normalised("void cub::CUB_200500_800_900_NS::DeviceScanKernel<int>(int)"),
            "cub::DeviceScanKernel");
  EXPECT_EQ(short_name("void gemvx::kernel<int, float>(int)"), "gemvx::kernel");
  EXPECT_EQ(normalised("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1_SN"),
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV");
  EXPECT_EQ(normalised("void "
                       "cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::"
                       "kernel::GemmUniversal<cutlass::gemm::"
                       "GroupProblemShape<int> > > >(int)"),
            "cutlass::device_kernel[GemmUniversal.grouped]");
  EXPECT_EQ(normalised("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_"
                       "at__tensorptrbf16gmem"),
            "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForward");
  EXPECT_EQ(normalised(""), "");
  EXPECT_EQ(normalised("sm90"), "sm90");
}

TEST(Roles, PublicKernels) {
  const std::vector<std::pair<const char*, KernelRole>> cases = {
      {"nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", KernelRole::gemm},
      {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(int)",
       KernelRole::gemm},
      {"ampere_sgemm_128x64_nn", KernelRole::gemm},
      {"void gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float>(int)",
       KernelRole::gemm},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)", KernelRole::gemm},
      {"void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 1u, 64u, 128u, 128u>(float*)",
       KernelRole::gemm},
      {"void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u, 128u, 64u>(int)", KernelRole::attention},
      {"void "
       "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::"
       "tuple<int, int, int> > > >(int)",
       KernelRole::moe_gemm},
      {"bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512u2_s4_et64x8_m64x8x64_cga1x1x1_16dp256b_TN_transOut_schedS_"
       "sm100f",
       KernelRole::moe_gemm},
      {"fused_moe_kernel", KernelRole::moe_gemm},
      {"void marlin_moe_wna16::Marlin<__nv_bfloat16, 4, 256, 1, 8, 8, false, 4, 8, false>(int4 const*)",
       KernelRole::moe_gemm},
      {"void marlin::Marlin<__nv_bfloat16, 4, 256, 1, 8, 8>(int4 const*)", KernelRole::gemm},
      {"_ZN4vllm15rms_norm_kernelIN3c108BFloat16EEEvPT_PKS3_S6_fii", KernelRole::norm},
      {"std::enable_if<((8)>(0)) && vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
       "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, "
       "c10::BFloat16*, c10::BFloat16 const*, float, int, int)",
       KernelRole::norm},
      {"void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, "
       "__nv_bfloat16*, unsigned int)",
       KernelRole::norm},
      {"void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)", KernelRole::norm},
      {"void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, "
       "c10::BFloat16 const*, int, long, long, int, int, int)",
       KernelRole::rope},
      {"void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 64u, 8u, 8u, __nv_bfloat16, "
       "long>(int)",
       KernelRole::rope},
      {"void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, "
       "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)",
       KernelRole::kv_write},
      {"void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "
       "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)",
       KernelRole::kv_write},
      {"set_mla_kv_buffer_kernel", KernelRole::kv_write},
      {"void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16, unsigned char, "
       "(vllm::Fp8KVCacheDataType)1>(__nv_bfloat16 const*)",
       KernelRole::kv_write},
      {"void vllm::moe::topkGatingSoftmax<8, 256, 4, 16, int>(float const*, bool const*, float*, int, int*, "
       "int*, int, int, int)",
       KernelRole::router},
      {"void vllm::moe::grouped_topk_fused_kernel<float, float, int>(float*, float*)", KernelRole::router},
      {"void moe_fused_gate_kernel<bfloat16_t, cutlass::Array<bfloat16_t, 32>, 32, 8, 8, 6, 1, 8>(void*)",
       KernelRole::router},
      {"void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, int, int, "
       "unsigned long, int*)",
       KernelRole::permute},
      {"void vllm::moe::count_and_sort_expert_tokens_kernel<int>(int const*, int*, int*, unsigned long)",
       KernelRole::permute},
      {"void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16 const*, int)",
       KernelRole::reduce},
      {"void "
       "moe::dev::routing::routingDeepSeek::routingMainKernel<moe::dev::routing::routingDeepSeek::"
       "KernelParams<float> >(int)",
       KernelRole::router},
      {"void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams<cutlass::bfloat16_t> >(int)",
       KernelRole::permute},
      {"void vllm::act_and_mul_kernel<c10::BFloat16, (&(c10::BFloat16 "
       "vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&))), true>(c10::BFloat16*, c10::BFloat16 "
       "const*, int)",
       KernelRole::activation},
      {"void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &(silu(float "
       "const&))>(__nv_bfloat16*, __nv_bfloat16 const*, int)",
       KernelRole::activation},
      {"void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 128, 16, 128, "
       "(vllm::Fp8KVCacheDataType)0, false>(unsigned short*)",
       KernelRole::attention},
      {"void vllm::merge_attn_states_kernel<float, 128u>(float*)", KernelRole::attention},
      {"void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8> "
       ">(Flash_fwd_mla_params)",
       KernelRole::attention},
      {"void "
       "cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>"
       " > > >(int)",
       KernelRole::attention},
      {"void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::DefaultAttention<false, false, false, "
       "false> >(int)",
       KernelRole::attention},
      {"void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<int>(int)", KernelRole::attention},
      {"fmhaSm100fKernel_"
       "QkvE4m3OBfloat16HQk576HV512HVPerCta256PagedKvDenseP64VarSeqQ16Kv128StaticSwapsAbForGen",
       KernelRole::attention},
      {"get_mla_metadata_kernel(Mla_metadata_params)", KernelRole::metadata},
      {"fused_recurrent_kda_fwd_kernel", KernelRole::attention},
      {"_causal_conv1d_update_kernel", KernelRole::convolution},
      {"void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, "
       "vllm::Signal*, __nv_bfloat16*, int, int)",
       KernelRole::collective},
      {"void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<int>(int)",
       KernelRole::collective},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", KernelRole::collective},
      {"void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", KernelRole::collective},
      {"void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*, float const*, "
       "unsigned int*, unsigned int*)",
       KernelRole::quantise},
      {"void vllm::scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*, "
       "c10::BFloat16 const*, float const*, long)",
       KernelRole::quantise},
      {"_per_token_group_quant_fp8", KernelRole::quantise},
      {"void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>(float*)", KernelRole::sampling},
      {"rejection_greedy_sample_kernel", KernelRole::sampling},
      {"void mul_mat_q<(ggml_type)12, 64, true>(char const*, int const*, int const*, int const*, float*, "
       "float*, int, int)",
       KernelRole::gemm},
      {"void mul_mat_vec_q<(ggml_type)12, 1, false, false>(void const*, void const*)", KernelRole::gemm},
      {"_Z12rms_norm_f32ILi1024ELb0ELb0EEvPKfPfillliiil", KernelRole::norm},
      {"quantize_q8_1(float const*, void*, long, long, long, long, long, int, int)", KernelRole::quantise},
      {"void rope_neox<true, false, float>(float const*, float*)", KernelRole::rope},
      {"void flash_attn_ext_vec<128, 1, (ggml_type)1, (ggml_type)1, false>(char const*)",
       KernelRole::attention},
      {"void topk_moe_cuda<128, true>(float const*, float*, int*, int, int)", KernelRole::router},
      {"void k_set_rows<float, long, __half>(float const*, long const*, __half*)", KernelRole::kv_write},
      {"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", KernelRole::norm},
      {"triton_poi_fused_mul_silu_1", KernelRole::activation},
      {"triton_poi_fused_zeros_4", KernelRole::fill},
      {"triton_poi_fused__to_copy_0", KernelRole::cast},
      {"triton_tem_fused_mm_3", KernelRole::gemm},
      {"triton_per_fused_sum_0", KernelRole::reduce},
      {kMangled[0].c_str(), KernelRole::norm},
      {kMangled[1].c_str(), KernelRole::cast},
      {kMangled[2].c_str(), KernelRole::activation},
      {"void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16>, "
       "std::array<char*, 1ul> >(int)",
       KernelRole::fill},
      {"void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<unsigned int, unsigned int, 2, "
       "64, 64>(unsigned int*)",
       KernelRole::copy},
      {"void at::native::sbtopk::gatherTopK<c10::BFloat16, unsigned int, 2, false>(int)", KernelRole::topk},
      {"void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long, int, unsigned int>(int)",
       KernelRole::sort},
      {"some_kernel_nobody_knows", KernelRole::unknown},
      {"", KernelRole::unknown},
  };
  for (const auto& [name, expected] : cases)
    EXPECT_EQ(kernel_role_name(role(name)), kernel_role_name(expected))
        << name << "\n  normalised " << normalised(name);
}

TEST(KernelTable, RoleNamesRoundTrip) {
  for (int i = 0; i < kKernelRoleCount; ++i) {
    const auto role = static_cast<KernelRole>(i);
    EXPECT_EQ(kernel_role_from_name(kernel_role_name(role)), role);
  }
  EXPECT_FALSE(kernel_role_from_name("gem").has_value());
}

TEST(KernelTable, UserEntriesGoFirst) {
  const char* text = R"(
format = 1
[[kernel]]
match = '^my::norm$'
role = "norm"
note = "ours"
params = ["float*", "const float*", "int"]
access = { 0 = { mode = "write_all", bytes = "p2 * e0" }, "1+0" = "read", mutable = "none" }
[[kernel]]
match = 'rms_norm'
role = "copy"
)";
  const base::Result<KernelTable> table = parse_kernel_table(text, "user.toml", &KernelTable::builtin());
  ASSERT_TRUE(table.has_value()) << table.error().to_string();
  EXPECT_EQ(table->size(), KernelTable::builtin().size() + 2);
  EXPECT_EQ(table->role_of("vllm::rms_norm_kernel"), KernelRole::copy);
  EXPECT_EQ(table->role_of("nvjet_tst_NNT"), KernelRole::gemm);
  const KernelIdentity identity = identify_kernel("void my::norm<3>", *table);
  ASSERT_NE(identity.known, nullptr);
  EXPECT_EQ(identity.known->note, "ours");
  ASSERT_EQ(identity.known->accesses.size(), 3U);
  ASSERT_TRUE(identity.params_known);  // from the table: the name has none
  EXPECT_TRUE(identity.params[1].points_to_const);
  EXPECT_EQ(identity.params[0].element_bytes, 4);
}

TEST(KernelTable, ErrorsNameTheLine) {
  const auto error = [](const char* text) {
    const base::Result<KernelTable> table = parse_kernel_table(text, "t.toml", nullptr);
    return table ? std::string("ok") : table.error().to_string();
  };
  EXPECT_EQ(error("format = 1"), "ok");
  EXPECT_NE(error("").find("format"), std::string::npos);
  EXPECT_EQ(error("# ours\n\nformat = 2"), "t.toml: line 3: kernel table format 2 is not 1");
  EXPECT_EQ(error("\nformat = '1'"), "t.toml: line 2: 'format' must be the number 1");
  EXPECT_EQ(error("\nformat = 1.0"), "t.toml: line 2: 'format' must be the number 1");
  EXPECT_NE(error("format = 1\nkernel = 3").find("line 2"), std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nrole = 'norm'").find("needs 'match'"), std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = '('").find("missing )"), std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\nrole = 'gem'").find("line 4: unknown role 'gem'"),
            std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\nrolle = 'gemm'").find("unknown key 'rolle'"),
            std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess = { x = 'read' }").find("access key"),
            std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess = { 0 = 'reads' }").find("access must be"),
            std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess = { 0 = { mode = 'read', bytes = 'p1 *' } }")
                .find("size expression"),
            std::string::npos);
  EXPECT_EQ(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess.0 = 'read'\naccess.1 = { mode = 'read', bytes = 'gx / 0' }"),
            "t.toml: line 5: size expression 'gx / 0' divides by 0: it never gives a size");
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess = { 0 = { mode = 'read', span = 'gx / (1 - 1)' } }").find("line 4: size expression 'gx / (1 - 1)' divides by 0"),
            std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess = { 0 = { mode = 'write', all_if = '1 / (1 - 2)' } }").find("divides by -1"), std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\nmoe = { n = 'p1 / 0' }").find("divides by 0"), std::string::npos);
  EXPECT_EQ(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess = { 0 = { mode = 'read', bytes = 'gx / (1 - p1)' } }"), "ok");
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\naccess = { 0 = { mode = 'read', all_if = '1' } }").find("goes with mode"),
            std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\nmoe = { tiles = '1' }").find("unknown key 'tiles'"), std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\nmoe = { n = 'p0@' }").find("size expression"), std::string::npos);
  EXPECT_NE(error("format = 1\n[[kernel]]\nmatch = 'a'\nmoe = { dtypes = [1] }").find("list of texts"), std::string::npos);
  EXPECT_NE(error("format = ").find("line 1"), std::string::npos);
  EXPECT_FALSE(KernelTable::with_user_table("/nonexistent/table.toml").has_value());
}

TEST(KernelIdentity, TemplateNumbers) {
  const auto numbers = [](std::string_view name) { return identify_kernel(name, KernelTable()).template_numbers; };
  using Numbers = std::vector<std::optional<std::int64_t>>;
  EXPECT_EQ(numbers("_ZN6cglint7kernels3moe15moe_gemm_kernelILNS1_10WeightTypeE1ELi16ELi128ELi256ELi4ELi1EEEvNS1_13MoeGemmParamsE"),
            (Numbers{1, 16, 128, 256, 4, 1}));
  EXPECT_EQ(numbers("void k<float, (int)7, true, -3, 4u, 12ul>(float*)"), (Numbers{std::nullopt, 7, 1, -3, 4, 12}));
  EXPECT_EQ(numbers("void outer<3>::k<false>(int)"), (Numbers{0}));
  EXPECT_TRUE(numbers("plain").empty());
}

// The fuzzer's seeds and what it found: a table or an error, nothing else.
TEST(KernelTableCorpus, EveryFileIsReadOrRefused) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CGLINT_TEST_DATA "/../corpus/kernel-table")) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const auto table = parse_kernel_table(text, "t.toml", nullptr);
    if (!table) {
      EXPECT_FALSE(table.error().message.empty()) << entry.path();
    }
    ++files;
  }
  EXPECT_GT(files, 3U);
}

TEST(KernelIdentities, LabelsNodes) {
  ir::Recording recording;
  const KernelIdentities identities(recording, KernelTable::builtin());
  const ir::FunctionId first = recording.intern_function(kMangled[0]);
  const KernelIdentity* pointer = &identities.of(first);
  EXPECT_EQ(pointer->short_name, "vectorized_layer_norm_kernel");
  for (int i = 0; i < 100; ++i) identities.of(recording.intern_function("kernel_" + std::to_string(i)));
  EXPECT_EQ(pointer, &identities.of(first));  // stays where it is while the recording grows
  EXPECT_EQ(identities.of(ir::FunctionId()).normalised, "");
}

}  // namespace
}  // namespace cglint::analysis
