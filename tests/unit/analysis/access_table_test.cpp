#include "analysis/access_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/allocator_index.h"
#include "ir/graph_builder.h"

namespace cglint::analysis {
namespace {

constexpr std::uint64_t kBase = 0x7f0000000000;

class AccessTableTest : public ::testing::Test {
 protected:
  AccessTableTest() {
    builder_.graph().facts = {ir::Fact::nodes, ir::Fact::copy_params, ir::Fact::kernel_params,
                              ir::Fact::allocations, ir::Fact::kernel_names};
    for (int i = 0; i < 4; ++i) allocate(kBase + static_cast<std::uint64_t>(i) * 0x10000, 0x8000);
  }
  ir::AllocationId allocate(std::uint64_t base, std::uint64_t size) {
    ir::Allocation allocation;
    allocation.base = base;
    allocation.size_bytes = size;
    return recording_.allocations.push_back(allocation);
  }
  ir::ParamWord word(std::uint16_t slot, std::uint64_t value, std::uint16_t offset = 0,
                     std::uint8_t size = 8) {
    ir::ParamWord result;
    result.slot = slot;
    result.offset_bytes = offset;
    result.size_bytes = size;
    result.value = value;
    for (const ir::AllocationId id : recording_.allocations.ids()) {
      const ir::Allocation& allocation = recording_.allocations[id];
      if (size == 8 && value >= allocation.base && value < allocation.base + allocation.size_bytes)
        result.allocation = id;
    }
    return result;
  }
  ir::NodeId kernel(const char* name, const std::vector<ir::ParamWord>& words, std::uint32_t grid = 1) {
    ir::KernelNode node;
    node.function = recording_.intern_function(name);
    node.grid.x = grid;
    const ir::NodeId id = builder_.add_kernel(recording_.functions[node.function].name, node);
    builder_.add_params(id, words);
    return id;
  }
  ir::NodeId memset(std::uint64_t dst, std::uint64_t bytes, std::uint64_t height = 1,
                    std::uint64_t pitch = 0) {
    ir::MemsetNode node;
    node.dst = dst;
    node.width = bytes / 4;
    node.element_bytes = 4;
    node.height = height;
    node.pitch_bytes = pitch;
    return builder_.add_memset(ir::kEmptyString, node);
  }
  ir::NodeId memcpy(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes) {
    ir::MemcpyNode node;
    node.dst = dst;
    node.src = src;
    node.width_bytes = bytes;
    return builder_.add_memcpy(ir::kEmptyString, node);
  }
  AccessTable build(const KernelTable& table = KernelTable::builtin()) {
    auto built = builder_.finish();
    CGLINT_CHECK(built.has_value());
    graph_ = std::move(*built);
    identities_ = std::make_unique<KernelIdentities>(recording_, table);
    return build_access_table(recording_, *graph_, *identities_);
  }
  static KernelTable user_table(const char* text) {
    base::Result<KernelTable> table = parse_kernel_table(text, "t.toml", nullptr);
    CGLINT_CHECK(table.has_value());
    return std::move(*table);
  }
  ir::Recording recording_;
  ir::GraphBuilder builder_;
  std::unique_ptr<ir::Graph> graph_;
  std::unique_ptr<KernelIdentities> identities_;
};

TEST_F(AccessTableTest, CopiesAndFillsAreExact) {
  const ir::NodeId copy = memcpy(kBase + 0x10000, kBase, 256);
  const ir::NodeId fill = memset(kBase + 0x20000, 64, 3, 128);
  const ir::NodeId tall = memset(kBase + 0x20000, 16, 1000, 32);
  const ir::NodeId unknown_pitch = memset(kBase, 16, 4, 0);
  const ir::NodeId nothing = memcpy(kBase, kBase, 0);
  const AccessTable table = build();
  ASSERT_EQ(table.of(copy).size(), 2U);
  EXPECT_EQ(table.of(copy)[0].mode, AccessMode::read);
  EXPECT_EQ(table.of(copy)[0].end, kBase + 256);
  EXPECT_EQ(table.of(copy)[1].mode, AccessMode::write);
  EXPECT_TRUE(table.of(copy)[1].exact() && table.of(copy)[1].writes_all);
  EXPECT_EQ(table.of(copy)[1].trust, AccessTrust::parameter);
  EXPECT_EQ(table.coverage(copy), AccessCoverage::complete);
  ASSERT_EQ(table.of(fill).size(), 3U);  // row by row
  EXPECT_EQ(table.of(fill)[1].begin, kBase + 0x20000 + 128);
  EXPECT_EQ(table.of(fill)[1].end, kBase + 0x20000 + 192);
  ASSERT_EQ(table.of(tall).size(), 1U);
  EXPECT_EQ(table.of(tall)[0].extent, AccessExtent::bounding);
  EXPECT_EQ(table.of(tall)[0].end, kBase + 0x20000 + 999 * 32 + 16);
  ASSERT_EQ(table.of(unknown_pitch).size(), 1U);
  EXPECT_EQ(table.of(unknown_pitch)[0].extent, AccessExtent::start_only);
  EXPECT_TRUE(table.of(nothing).empty());
}

TEST_F(AccessTableTest, WithoutParametersNothingIsClaimed) {
  builder_.graph().facts = {ir::Fact::nodes};
  const ir::NodeId copy = memcpy(kBase + 0x10000, kBase, 256);
  const ir::NodeId node = kernel("_Z1kPKf", {});
  const AccessTable table = build();
  EXPECT_TRUE(table.rows().empty());
  EXPECT_EQ(table.coverage(copy), AccessCoverage::none);
  EXPECT_EQ(table.coverage(node), AccessCoverage::none);
}

TEST_F(AccessTableTest, SignaturesGiveDirection) {
  // void k(float const*, float*, long, int): the long looks like an address and is none.
  const ir::NodeId node = kernel("_Z1kPKfPfli", {word(0, kBase + 16), word(1, kBase + 0x10000),
                                                 word(2, kBase + 0x20000), word(3, 7, 0, 4)});
  const ir::NodeId reads = kernel("_Z1rPKfPKi", {word(0, kBase), word(1, 0)});
  const ir::NodeId none = kernel("_Z1nv", {});
  const ir::NodeId indirect = kernel("_Z1iPKPKf", {word(0, kBase)});
  const AccessTable table = build(user_table("format = 1"));
  ASSERT_EQ(table.of(node).size(), 2U);
  const Access& in = table.of(node)[0];
  EXPECT_EQ(in.mode, AccessMode::read);
  EXPECT_EQ(in.trust, AccessTrust::signature);
  EXPECT_EQ(in.begin, kBase + 16);
  EXPECT_EQ(in.end, kBase + 0x8000);  // to the end of the allocation
  EXPECT_EQ(in.extent, AccessExtent::bounding);
  const Access& out = table.of(node)[1];
  EXPECT_EQ(out.mode, AccessMode::unknown);
  EXPECT_EQ(out.trust, AccessTrust::pointer);
  EXPECT_TRUE(out.may_read() && out.may_write());
  EXPECT_EQ(table.coverage(node), AccessCoverage::partial);
  EXPECT_EQ(table.of(reads).size(), 1U);  // the null pointer is no access
  EXPECT_EQ(table.coverage(reads), AccessCoverage::complete);
  EXPECT_EQ(table.coverage(none), AccessCoverage::complete);
  EXPECT_EQ(table.coverage(indirect),
            AccessCoverage::partial);  // what lies behind the inner pointers is unknown
}

// What is worked out for one launch is used for the next: only where its words have the same form.
TEST_F(AccessTableTest, LaunchesOfOneKernelMayDifferInForm) {
  const auto typed = [](ir::ParamWord word, ir::ParamWord::Type type) { return word.type = type, word; };
  const auto outside = word(0, 0x7fff00000000);
  const ir::NodeId is_const = kernel("k", {typed(outside, ir::ParamWord::Type::const_pointer)});
  const ir::NodeId is_mutable = kernel("k", {typed(outside, ir::ParamWord::Type::pointer)});
  const ir::NodeId is_scalar = kernel("k", {typed(outside, ir::ParamWord::Type::scalar)});
  const ir::NodeId is_short = kernel("k", {word(0, kBase, 0, 4)});
  const ir::NodeId is_unknown = kernel("k", {outside, word(1, kBase)});
  const ir::NodeId is_const_again = kernel("k", {typed(outside, ir::ParamWord::Type::const_pointer)});
  const AccessTable table = build();
  for (const ir::NodeId node : {is_const, is_const_again}) {
    ASSERT_EQ(table.of(node).size(), 1U);
    EXPECT_EQ(table.of(node)[0].mode, AccessMode::read);
  }
  ASSERT_EQ(table.of(is_mutable).size(), 1U);
  EXPECT_EQ(table.of(is_mutable)[0].mode, AccessMode::unknown);
  EXPECT_TRUE(table.of(is_scalar).empty());
  EXPECT_TRUE(table.of(is_short).empty());
  ASSERT_EQ(table.of(is_unknown).size(), 1U);
  EXPECT_EQ(table.of(is_unknown)[0].slot, 1);
}

TEST_F(AccessTableTest, ManyRowsAreSortedByAddress) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 6000; ++i) memset(kBase + (random() % (std::uint64_t{1} << 45)) * 64 + (i % 3 == 0 ? 8 : 0), 64);
  const AccessTable table = build();
  ASSERT_EQ(table.by_begin().size(), 6000U);
  for (std::size_t i = 1; i < table.by_begin().size(); ++i) {
    const std::uint32_t a = table.by_begin()[i - 1], b = table.by_begin()[i];
    EXPECT_LT(std::pair(table.rows()[a].begin, a), std::pair(table.rows()[b].begin, b));
  }
}

TEST_F(AccessTableTest, UnknownKernelsAndStructs) {
  const ir::NodeId flat = kernel("mystery", {word(0, kBase), word(1, 42)});
  const ir::NodeId by_value =
      kernel("_Z1s6Params", {word(0, kBase, 0), word(0, 3, 8), word(0, kBase + 0x10000, 16)});
  const ir::NodeId unresolved = kernel("_Z1uPKf", {word(0, 0x1234560000)});
  const AccessTable table = build();
  ASSERT_EQ(table.of(flat).size(), 1U);
  EXPECT_EQ(table.of(flat)[0].mode, AccessMode::unknown);
  EXPECT_EQ(table.coverage(flat), AccessCoverage::partial);
  ASSERT_EQ(table.of(by_value).size(), 2U);
  EXPECT_EQ(table.of(by_value)[1].offset_bytes, 16);
  EXPECT_EQ(table.coverage(by_value), AccessCoverage::partial);
  ASSERT_EQ(table.of(unresolved).size(), 1U);
  EXPECT_EQ(table.of(unresolved)[0].extent, AccessExtent::start_only);
}

TEST_F(AccessTableTest, KnownKernelsGiveDirectionAndSize) {
  const KernelTable known = user_table(R"(
format = 1
[[kernel]]
match = '^norm$'
access = { 0 = { mode = "write_all", bytes = "p2 * gx * e0" }, 3 = "none" }
[[kernel]]
match = '^pack$'
access = { 0 = "read", "0+16" = "write_all" }
[[kernel]]
match = '^strided$'
access = { 0 = { mode = "write", span = "p1 * 10" } }
[[kernel]]
match = '^inplace$'
access = { mutable = "read_write" }
[[kernel]]
match = '^flat$'
params = ["const float*", "float*", "int"]
access = { 1 = "write" }
)");
  const ir::NodeId norm =
      kernel("_Z4normP6__halfPKS_iPf",
             {word(0, kBase), word(1, kBase + 0x10000), word(2, 64, 0, 4), word(3, kBase + 0x20000)}, 8);
  const ir::NodeId too_big =
      kernel("_Z4normP6__halfPKS_iPf",
             {word(0, kBase), word(1, kBase + 0x10000), word(2, 1 << 20, 0, 4), word(3, 0)}, 8);
  const ir::NodeId pack = kernel("_Z4pack4Args", {word(0, kBase, 0), word(0, kBase + 0x10000, 16)});
  const ir::NodeId inplace = kernel("_Z7inplacePfPKf", {word(0, kBase), word(1, kBase + 0x10000)});
  const ir::NodeId flat = kernel("flat", {word(0, kBase), word(1, kBase + 0x10000), word(2, 5, 0, 4)});
  const ir::NodeId strided = kernel("_Z7stridedPfi", {word(0, kBase), word(1, 30, 0, 4)});
  const ir::NodeId too_wide = kernel("_Z7stridedPfi", {word(0, kBase), word(1, 1 << 20, 0, 4)});
  const AccessTable table = build(known);
  EXPECT_EQ(table.of(strided)[0].end, kBase + 300);
  EXPECT_EQ(table.of(strided)[0].extent, AccessExtent::bounding);
  EXPECT_EQ(table.of(too_wide)[0].end, kBase + 0x8000);
  ASSERT_EQ(table.of(norm).size(), 2U);  // parameter 3 is not used
  EXPECT_EQ(table.of(norm)[0].mode, AccessMode::write);
  EXPECT_EQ(table.of(norm)[0].trust, AccessTrust::table);
  EXPECT_TRUE(table.of(norm)[0].writes_all && table.of(norm)[0].exact());
  EXPECT_EQ(table.of(norm)[0].end, kBase + 64 * 8 * 2);
  EXPECT_EQ(table.coverage(norm), AccessCoverage::complete);
  EXPECT_EQ(table.of(too_big)[0].extent,
            AccessExtent::bounding);  // a size beyond the allocation is not believed
  ASSERT_EQ(table.of(pack).size(), 2U);
  EXPECT_EQ(table.of(pack)[0].mode, AccessMode::read);
  EXPECT_EQ(table.of(pack)[1].mode, AccessMode::write);
  EXPECT_EQ(table.coverage(pack), AccessCoverage::complete);
  EXPECT_EQ(table.of(inplace)[0].mode, AccessMode::read_write);
  EXPECT_EQ(table.of(inplace)[1].mode, AccessMode::read);
  EXPECT_EQ(table.of(flat)[0].mode, AccessMode::read);
  EXPECT_EQ(table.of(flat)[1].mode, AccessMode::write);
  EXPECT_EQ(table.coverage(flat), AccessCoverage::complete);
}

TEST_F(AccessTableTest, BuiltInTableKnowsPublicKernels) {
  const ir::NodeId fill = kernel(
      "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
      {word(0, 100, 0, 4), word(1, 0, 0, 4), word(2, kBase)});
  const ir::NodeId silu =
      kernel("_ZN4vllm18act_and_mul_kernelIfXadL_ZNS_11silu_kernelIfEET_RKS2_EELb1EEEvPS2_PKS2_i",
             {word(0, kBase + 0x10000), word(1, kBase), word(2, 64, 0, 4)});
  const AccessTable table = build();
  ASSERT_EQ(table.of(fill).size(), 1U);
  EXPECT_EQ(table.of(fill)[0].mode, AccessMode::write);
  EXPECT_TRUE(table.of(fill)[0].writes_all);
  ASSERT_EQ(table.of(silu).size(), 2U);
  EXPECT_EQ(table.of(silu)[0].mode, AccessMode::read);
  EXPECT_EQ(table.of(silu)[1].mode, AccessMode::write);
  EXPECT_EQ(table.coverage(silu), AccessCoverage::complete);
}

// A grouped GEMM whose arguments are one struct: sizes from its fields, element size from a template argument.
TEST_F(AccessTableTest, StructsByValueGiveSizes) {
  const auto words = [&](std::uint64_t out_fp32, std::uint64_t pairs, std::uint64_t divisor) {
    std::vector<ir::ParamWord> list;
    for (const auto& [offset, value] : std::vector<std::pair<std::uint16_t, std::uint64_t>>{
             {0, kBase},
             {8, 0},
             {16, kBase + 0x10000},
             {24, 0},
             {32, kBase + 0x20000},
             {40, out_fp32},
             {48, kBase + 0x30000},
             {56, kBase + 0x30400},
             {64, kBase + 0x30800},
             {72, 4 | pairs << 32},      // max_blocks, num_pairs
             {80, divisor | 64ULL << 32},  // row_divisor, n
             {88, 256},                  // k
         })
      list.push_back(word(0, value, offset));
    return list;
  };
  const char* const fp8 =
      "_ZN6cglint7kernels3moe15moe_gemm_kernelILNS1_10WeightTypeE1ELi16ELi128ELi256ELi4ELi1EEEvNS1_13MoeGemmParamsE";
  const char* const bf16 =
      "_ZN6cglint7kernels3moe15moe_gemm_kernelILNS1_10WeightTypeE0ELi16ELi128ELi256ELi4ELi1EEEvNS1_13MoeGemmParamsE";
  const ir::NodeId first = kernel(fp8, words(0, 16, 8)), second = kernel(bf16, words(1, 16, 1));
  const AccessTable table = build();
  const auto row_at = [&](ir::NodeId node, std::uint64_t begin) {
    for (const Access& row : table.of(node))
      if (row.begin == begin) return row;
    return Access{};
  };
  EXPECT_EQ(row_at(first, kBase).end, kBase + 2 * 256);   // two rows of one byte a value
  EXPECT_EQ(row_at(second, kBase).end, kBase + 16 * 256 * 2);
  EXPECT_EQ(row_at(first, kBase + 0x20000).end, kBase + 0x20000 + 16 * 64 * 2);
  EXPECT_EQ(row_at(second, kBase + 0x20000).end, kBase + 0x20000 + 16 * 64 * 4);
  EXPECT_EQ(row_at(first, kBase + 0x20000).mode, AccessMode::write);
  EXPECT_FALSE(row_at(first, kBase + 0x20000).writes_all);
  EXPECT_EQ(row_at(first, kBase + 0x30800).end, kBase + 0x30804);
  EXPECT_EQ(table.coverage(first), AccessCoverage::complete);
}

// The fp8 kernel without tiles takes the same arguments.
TEST_F(AccessTableTest, DirectExpertProductHasTheSameArguments) {
  const ir::NodeId node = kernel(
      "_ZN6cglint7kernels3moe51_GLOBAL__N__eb6acaa1_18_moe_gemm_direct_cu_71a4be4922moe_gemm_direct_kernelINS2_6DirectILi4ELi1ELi4E"
      "LNS2_4LoadE1ELi7EEELb0EEEvNS1_19MoeGemmDirectParamsE",
      {word(0, kBase, 0), word(0, kBase + 0x1000, 8), word(0, kBase + 0x10000, 16), word(0, kBase + 0x14000, 24), word(0, kBase + 0x20000, 32),
       word(0, 0, 40), word(0, kBase + 0x30000, 48), word(0, kBase + 0x30400, 56), word(0, kBase + 0x30800, 64), word(0, 8 | 8ULL << 32, 72),
       word(0, 1 | 128ULL << 32, 80), word(0, 256, 88)});
  const AccessTable table = build();
  const auto row_at = [&](std::uint64_t begin) {
    for (const Access& row : table.of(node))
      if (row.begin == begin) return row;
    return Access{};
  };
  EXPECT_EQ(row_at(kBase).end, kBase + 8 * 256);
  EXPECT_EQ(row_at(kBase + 0x1000).end, kBase + 0x1000 + 8 * 2 * 4);
  EXPECT_EQ(row_at(kBase + 0x20000).end, kBase + 0x20000 + 8 * 128 * 2);
  EXPECT_EQ(row_at(kBase + 0x20000).mode, AccessMode::write);
  EXPECT_EQ(row_at(kBase + 0x30000).end, kBase + 0x30000 + 8 * 8 * 4);
  EXPECT_EQ(table.coverage(node), AccessCoverage::complete);
  EXPECT_EQ(identities_->of(graph_->kernel(node)->function).role, KernelRole::moe_gemm);
}

// A tensor map is a struct whose first word is an address; its other words are the driver's.
TEST_F(AccessTableTest, AttentionThroughATensorMap) {
  const ir::NodeId split = kernel(
      "_ZN6cglint7kernels53_GLOBAL__N__38037c9e_20_mla_decode_tensor_cu_d9e644ae30mla_decode_split_tensor_kernelINS1_8GeometryILi1ELi32ELi8E"
      "Li1ELi5EEEEEv14CUtensorMap_stPK13__nv_bfloat16S8_PKiSA_PfP6float2iifbb",
      {word(0, kBase, 0), word(0, 0x2a10'0000'1234, 8), word(0, kBase + 0x20000, 16), word(1, kBase + 0x10000), word(2, kBase),
       word(3, kBase + 0x14000), word(4, kBase + 0x15000), word(5, kBase + 0x30000), word(6, kBase + 0x35000), word(7, 8, 0, 4),
       word(8, 64, 0, 4), word(9, 0, 0, 4), word(10, 0, 0, 1), word(11, 0, 0, 1)});
  const ir::NodeId combine = kernel(
      "_ZN6cglint7kernels53_GLOBAL__N__38037c9e_20_mla_decode_tensor_cu_d9e644ae32mla_decode_combine_tensor_kernelILi16ELi128ELi4EEEvPKfPK6"
      "float2P13__nv_bfloat16iibb",
      {word(0, kBase + 0x30000), word(1, kBase + 0x35000), word(2, kBase + 0x20000), word(3, 8, 0, 4), word(4, 1, 0, 4), word(5, 0, 0, 1),
       word(6, 0, 0, 1)},
      32);
  const AccessTable table = build();
  const auto row_at = [&](ir::NodeId node, std::uint64_t begin) {
    for (const Access& row : table.of(node))
      if (row.begin == begin) return row;
    return Access{};
  };
  EXPECT_EQ(row_at(split, kBase).mode, AccessMode::read);  // the cache, to the end of its allocation
  EXPECT_EQ(row_at(split, kBase).end, kBase + 0x8000);
  EXPECT_EQ(row_at(split, kBase + 0x10000).end, kBase + 0x10000 + 8 * 1152);
  EXPECT_EQ(row_at(split, kBase + 0x20000).begin, 0U);  // a word of the map that looks like an address
  EXPECT_EQ(row_at(split, kBase + 0x30000).mode, AccessMode::write);
  EXPECT_EQ(row_at(split, kBase + 0x30000).end, kBase + 0x30000 + 8 * 2048);
  EXPECT_EQ(row_at(split, kBase + 0x35000).end, kBase + 0x35000 + 8 * 8);
  EXPECT_EQ(table.coverage(split), AccessCoverage::complete);
  EXPECT_EQ(row_at(combine, kBase + 0x30000).end, kBase + 0x30000 + 8 * 2048);
  EXPECT_EQ(row_at(combine, kBase + 0x20000).end, kBase + 0x20000 + 8 * 1024);
  EXPECT_TRUE(row_at(combine, kBase + 0x20000).writes_all);
  EXPECT_EQ(table.coverage(combine), AccessCoverage::complete);
  EXPECT_EQ(identities_->of(graph_->kernel(split)->function).role, KernelRole::attention);
}

TEST_F(AccessTableTest, AttentionThroughTwoTensorMaps) {
  const ir::NodeId split = kernel(
      "_ZN6cglint7kernels52_GLOBAL__N__234aed20_19_mla_decode_pages_cu_68e3f0b429mla_decode_split_pages_kernelINS1_8GeometryILi2ELi512EEEEEv14"
      "CUtensorMap_stS5_PK13__nv_bfloat16S8_PKiSA_P6__halfP6float2iifb",
      {word(0, kBase, 0), word(0, 0x2a10'0000'1234, 8), word(1, kBase + 0x10000, 0), word(1, 0x2a10'0000'1234, 8), word(2, kBase + 0x10000),
       word(3, kBase), word(4, kBase + 0x18000), word(5, kBase + 0x19000), word(6, kBase + 0x20000), word(7, kBase + 0x35000),
       word(8, 16, 0, 4), word(9, 64, 0, 4), word(10, 0, 0, 4), word(11, 0, 0, 1)});
  const ir::NodeId combine = kernel(
      "_ZN6cglint7kernels52_GLOBAL__N__234aed20_19_mla_decode_pages_cu_68e3f0b431mla_decode_combine_pages_kernelILi8ELi9EEEvPK6__halfPK6float2"
      "P13__nv_bfloat16ii",
      {word(0, kBase + 0x20000), word(1, kBase + 0x35000), word(2, kBase + 0x30000), word(3, 8, 0, 4), word(4, 1, 0, 4)}, 16);
  const AccessTable table = build();
  const auto row_at = [&](ir::NodeId node, std::uint64_t begin) {
    for (const Access& row : table.of(node))
      if (row.begin == begin) return row;
    return Access{};
  };
  EXPECT_EQ(row_at(split, kBase).mode, AccessMode::read);
  EXPECT_EQ(row_at(split, kBase + 0x10000).mode, AccessMode::read);
  EXPECT_EQ(row_at(split, kBase + 0x20000).mode, AccessMode::write);
  EXPECT_EQ(row_at(split, kBase + 0x20000).end, kBase + 0x20000 + 16 * 1024);
  EXPECT_EQ(row_at(split, kBase + 0x35000).end, kBase + 0x35000 + 16 * 8);
  EXPECT_EQ(table.coverage(split), AccessCoverage::complete);
  EXPECT_EQ(row_at(combine, kBase + 0x20000).end, kBase + 0x20000 + 8192);
  EXPECT_EQ(row_at(combine, kBase + 0x30000).end, kBase + 0x30000 + 8192);
  EXPECT_TRUE(row_at(combine, kBase + 0x30000).writes_all);
  EXPECT_EQ(table.coverage(combine), AccessCoverage::complete);
  EXPECT_EQ(identities_->of(graph_->kernel(split)->function).role, KernelRole::attention);
}

TEST_F(AccessTableTest, WritesAllMayDependOnTheLaunch) {
  const auto words = [&](std::uint64_t layout, std::uint64_t zero_padding) {
    return std::vector<ir::ParamWord>{word(0, kBase, 0),
                                      word(0, 2 | 64ULL << 32, 8),
                                      word(0, kBase + 0x10000, 16),
                                      word(0, layout | zero_padding << 8, 24),
                                      word(0, kBase + 0x20000, 32),
                                      word(0, kBase + 0x30000, 40)};
  };
  const char* const name = "_ZN6cglint7kernels3moe21quantize_nvfp4_kernelENS1_17QuantizeNvfp4ArgsEi";
  const ir::NodeId row_major = kernel(name, words(0, 0)), tiled = kernel(name, words(1, 0)), padded = kernel(name, words(1, 1));
  const AccessTable table = build();
  const auto scales = [&](ir::NodeId node) {
    return table.of(node).back();
  };
  EXPECT_EQ(scales(row_major).end - scales(row_major).begin, 2U * 4);
  EXPECT_TRUE(scales(row_major).writes_all);
  EXPECT_EQ(scales(tiled).end - scales(tiled).begin, 128U * 4);
  EXPECT_FALSE(scales(tiled).writes_all);
  EXPECT_TRUE(scales(padded).writes_all);
}

TEST_F(AccessTableTest, AllocatorBlocksBoundRanges) {
  recording_.allocator_blocks.push_back({kBase, 0x8000, ir::AllocatorBlock::State::active, {}, 0, 1, 0, {}});
  recording_.allocator_blocks.push_back(
      {kBase + 0x1000, 0x200, ir::AllocatorBlock::State::active, {}, 0, 2, 0, {}});
  const ir::NodeId inside = kernel("_Z1rPKf", {word(0, kBase + 0x1100)});
  const ir::NodeId outside = kernel("_Z1rPKf", {word(0, kBase + 0x1200)});
  const AccessTable table = build();
  EXPECT_EQ(table.of(inside)[0].end, kBase + 0x1200);
  EXPECT_EQ(table.of(outside)[0].end, kBase + 0x8000);
  EXPECT_FALSE(table.conflict(inside, outside));
}

// Against a search through all blocks, with an index that grows with its recording.
TEST(AllocatorIndexTest, GrowsAndFindsWhatASearchFinds) {
  ir::Recording recording;
  const KernelTable& table = KernelTable::builtin();
  const KernelIdentities identities(recording, table);
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 5; ++i) {  // nested by halves, as an allocator splits; some without bytes
      const std::uint64_t size = random() % 6 == 0 ? 0 : std::uint64_t{64} << (random() % 4);
      const std::uint64_t base = 0x1000 + random() % 16 * 512;
      recording.allocator_blocks.push_back({base, size, ir::AllocatorBlock::State::active, {}, 0, static_cast<std::uint64_t>(round), 0, {}});
    }
    const std::shared_ptr<const AllocatorIndex> index = identities.allocator_index();
    EXPECT_EQ(index, identities.allocator_index());
    EXPECT_EQ(index->seen(), recording.allocator_blocks.size());
    for (std::uint64_t address = 0xff0; address < 0x3200; address += 16) {
      std::uint64_t end = 0, base = 0;
      bool begins = false;
      for (const ir::AllocatorBlock& block : recording.allocator_blocks) {
        if (block.size_bytes == 0) continue;
        begins = begins || block.base == address;
        if (address < block.base || address - block.base >= block.size_bytes) continue;
        if (end == 0 || block.base > base || (block.base == base && block.base + block.size_bytes < end)) {
          base = block.base;
          end = base + block.size_bytes;
        }
      }
      ASSERT_EQ(index->end_around(address), end) << address;
      ASSERT_EQ(index->begins_at(address), begins) << address;
    }
  }
}

TEST_F(AccessTableTest, MeasurementsReplaceInference) {
  const ir::NodeId node = kernel("_Z1kPKfPf", {word(0, kBase), word(1, kBase + 0x10000)});
  const ir::NodeId both = kernel("_Z1kPKfPf", {word(0, kBase), word(1, kBase + 0x10000)});
  builder_.graph().measured_accesses = {{node, kBase + 0x10000, kBase + 0x10100, false, true},
                                        {both, kBase + 0x10000, kBase + 0x10100, false, true},
                                        {both, kBase + 0x40, kBase + 0x80, true, false}};
  const AccessTable table = build(user_table("format = 1"));
  // Only writes were looked for: the const parameter is still read, and the other one may be read where it
  // was not written.
  ASSERT_EQ(table.of(node).size(), 3U);
  EXPECT_EQ(table.of(node)[0].mode, AccessMode::read);
  EXPECT_EQ(table.of(node)[1].mode, AccessMode::write);
  EXPECT_EQ(table.of(node)[1].trust, AccessTrust::measured);
  EXPECT_EQ(table.of(node)[1].end, kBase + 0x10100);
  EXPECT_EQ(table.of(node)[2].mode, AccessMode::read);
  EXPECT_EQ(table.coverage(node), AccessCoverage::complete);
  ASSERT_EQ(table.of(both).size(), 2U);
  EXPECT_EQ(table.of(both)[0].begin, kBase + 0x40);
}

// A run that ended at null has measured nothing else.
TEST_F(AccessTableTest, ADereferencedNullChangesNothing) {
  const ir::NodeId plain = kernel("_Z1kPKfPf", {word(0, 0), word(1, kBase + 0x10000)});
  const ir::NodeId null = kernel("_Z1kPKfPf", {word(0, 0), word(1, kBase + 0x10000)});
  builder_.graph().measured_accesses = {{null, 0, 1, false, false, 0, 0}, {null, 0x40, 0x41, true, false}};
  const AccessTable table = build(user_table("format = 1"));
  ASSERT_EQ(table.of(null).size(), 1U);
  ASSERT_EQ(table.of(plain).size(), 1U);
  EXPECT_EQ(table.of(null)[0].mode, AccessMode::unknown);
  EXPECT_EQ(table.of(null)[0].trust, table.of(plain)[0].trust);
  EXPECT_EQ(table.coverage(null), AccessCoverage::partial);
  EXPECT_EQ(table.coverage(plain), AccessCoverage::partial);
}

// A table that is right is confirmed: its row stays, with what it says beyond the bytes.
TEST_F(AccessTableTest, MeasurementsConfirmExactRows) {
  const KernelTable known = user_table(R"(format = 1
[[kernel]]
match = '^fill$'
params = ["float*", "int"]
access = { 0 = { mode = "write_all", bytes = "p1 * 4" } }
)");
  const ir::NodeId right = kernel("fill", {word(0, kBase), word(1, 16, 0, 4)});
  const ir::NodeId beyond = kernel("fill", {word(0, kBase + 0x1000), word(1, 16, 0, 4)});
  builder_.graph().measured_accesses = {{right, kBase, kBase + 64, false, true}, {beyond, kBase + 0x1000, kBase + 0x1080, false, true}};
  const AccessTable table = build(known);
  ASSERT_EQ(table.of(right).size(), 1U);
  EXPECT_EQ(table.of(right)[0].trust, AccessTrust::measured);
  EXPECT_EQ(table.of(right)[0].slot, 0);
  EXPECT_TRUE(table.of(right)[0].writes_all);
  ASSERT_EQ(table.of(beyond).size(), 2U);  // more than the table knows
  EXPECT_EQ(table.of(beyond)[0].trust, AccessTrust::table);
  EXPECT_EQ(table.of(beyond)[1].end, kBase + 0x1080);
}

// Some reads were found: those that are inferred stay beside them.
TEST_F(AccessTableTest, SomeMeasuredReadsAddToTheInferredOnes) {
  const ir::NodeId node = kernel("_Z1kPKfPf", {word(0, kBase), word(1, kBase + 0x10000)});
  builder_.graph().measured_accesses = {{node, kBase + 0x10000, kBase + 0x10100, false, true}, {node, kBase + 0x40, kBase + 0x80, true, false}};
  builder_.graph().measured_reads_are_some = true;
  const AccessTable table = build(user_table("format = 1"));
  ASSERT_EQ(table.of(node).size(), 4U);
  EXPECT_EQ(table.of(node)[0].begin, kBase);
  EXPECT_EQ(table.of(node)[0].mode, AccessMode::read);
  EXPECT_EQ(table.of(node)[0].trust, AccessTrust::signature);
  EXPECT_EQ(table.of(node)[1].begin, kBase + 0x40);
  EXPECT_EQ(table.of(node)[1].trust, AccessTrust::measured);
  EXPECT_TRUE(table.of(node)[1].exact());
  EXPECT_EQ(table.of(node)[2].mode, AccessMode::write);
  EXPECT_EQ(table.of(node)[3].mode, AccessMode::read);
  EXPECT_EQ(table.coverage(node), AccessCoverage::complete);
}

TEST_F(AccessTableTest, BodiesAndDisabledNodes) {
  ir::GraphBuilder body;
  body.graph().facts = builder_.graph().facts;
  ir::MemsetNode fill;
  fill.dst = kBase;
  fill.width = 64;
  body.add_memset(ir::kEmptyString, fill);
  auto built = body.finish();
  ASSERT_TRUE(built.has_value());
  const ir::GraphId id = recording_.graphs.push_back(std::move(*built));
  const ir::GraphId dropped = recording_.graphs.push_back(nullptr);
  const ir::NodeId child = builder_.add_child_graph(ir::kEmptyString, {id});
  const ir::NodeId gone = builder_.add_child_graph(ir::kEmptyString, {dropped});
  const ir::NodeId maybe = builder_.add_conditional(ir::kEmptyString, {}, std::vector<ir::GraphId>{id});
  const ir::NodeId disabled = memset(kBase, 64);
  builder_.set_enabled(disabled, false);
  const AccessTable table = build();
  ASSERT_EQ(table.of(child).size(), 1U);
  EXPECT_EQ(table.of(child)[0].node, child);
  EXPECT_TRUE(table.of(child)[0].writes_all);
  EXPECT_EQ(table.coverage(gone), AccessCoverage::none);
  ASSERT_EQ(table.of(maybe).size(), 1U);
  EXPECT_FALSE(table.of(maybe)[0].writes_all);
  EXPECT_TRUE(table.of(disabled).empty());
}

TEST_F(AccessTableTest, ConflictStrength) {
  const ir::NodeId fill = memset(kBase, 64);
  const ir::NodeId copy = memcpy(kBase + 0x10000, kBase + 32, 64);
  const ir::NodeId reader = kernel("_Z1rPKf", {word(0, kBase)});
  const ir::NodeId unknown = kernel("mystery", {word(0, kBase)});
  const ir::NodeId apart = memset(kBase + 0x20000, 64);
  const AccessTable table = build();
  const auto strongest = [&](ir::NodeId a, ir::NodeId b) {
    const auto found = table.conflicts(a, b);
    EXPECT_EQ(found.empty(), !table.conflict(a, b));
    return found.empty() ? -1 : static_cast<int>(found[0].strength);
  };
  EXPECT_EQ(strongest(fill, copy), static_cast<int>(AccessConflict::Strength::certain));
  EXPECT_EQ(table.conflicts(fill, copy)[0].begin, kBase + 32);
  EXPECT_EQ(table.conflicts(fill, copy)[0].end, kBase + 64);
  EXPECT_EQ(strongest(fill, reader), static_cast<int>(AccessConflict::Strength::likely));
  EXPECT_EQ(strongest(fill, unknown), static_cast<int>(AccessConflict::Strength::possible));
  EXPECT_EQ(strongest(copy, reader), -1);  // both read
  EXPECT_EQ(strongest(fill, apart), -1);
  EXPECT_EQ(strongest(fill, fill), -1);
  EXPECT_EQ(table.writers(kBase, kBase + 8), (std::vector{fill, unknown}));
  EXPECT_EQ(table.writers(kBase, kBase + 8, true), (std::vector{fill}));
  EXPECT_EQ(table.readers(kBase, kBase + 33), (std::vector{copy, reader, unknown}));
  EXPECT_TRUE(table.readers(kBase + 8, kBase + 8).empty());
}

TEST_F(AccessTableTest, QueriesAgreeWithBruteForce) {
  std::mt19937 random(13);
  for (int i = 0; i < 120; ++i) {
    const std::uint64_t a = kBase + random() % 2000, b = kBase + random() % 2000;
    switch (random() % 3) {
      case 0:
        memset(a, 4 * (1 + random() % 40));
        break;
      case 1:
        memcpy(a, b, 1 + random() % 300);
        break;
      default:
        kernel("mystery", {word(0, a), word(1, b)});
        break;
    }
  }
  const AccessTable table = build();
  ASSERT_GT(table.rows().size(), 120U);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t begin = kBase + random() % 2600, end = begin + random() % 200;
    std::vector<const Access*> expected;
    for (const Access& row : table.rows())
      if (begin < end && row.begin < end && row.end > begin) expected.push_back(&row);
    ASSERT_EQ(table.touching(begin, end), expected);
  }
  using Key = std::tuple<const Access*, const Access*>;
  std::set<Key> expected, pairwise, swept;
  for (const Access& a : table.rows())
    for (const Access& b : table.rows())
      if (a.node < b.node && a.begin < b.end && b.begin < a.end && (a.may_write() || b.may_write()))
        expected.insert({&a, &b});
  for (const ir::NodeId a : graph_->nodes())
    for (const ir::NodeId b : graph_->nodes())
      if (a < b)
        for (const AccessConflict& found : table.conflicts(a, b))
          pairwise.insert({found.first, found.second});
  EXPECT_TRUE(table.for_each_conflict([&](const AccessConflict& found) {
    return swept.insert({found.first, found.second}).second;
  }));
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(pairwise, expected);
  EXPECT_EQ(swept, expected);
  int visits = 0;
  EXPECT_FALSE(table.for_each_conflict([&](const AccessConflict&) { return ++visits < 3; }));
  EXPECT_EQ(visits, 3);
}

}  // namespace
}  // namespace cglint::analysis
