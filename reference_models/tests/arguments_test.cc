// Kernel arguments one by one and packed.
#include "runner/arguments.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <array>

namespace cglint::models {
namespace {

TEST(ArgumentOf, OneByOne) {
  std::uint64_t address = 5;
  std::uint32_t number = 7;
  std::array<void*, 2> params = {&address, &number};
  EXPECT_EQ(argument_of(params.data(), nullptr, 0, 0, 8), reinterpret_cast<std::uint8_t*>(&address));
  EXPECT_EQ(argument_of(params.data(), nullptr, 1, 8, 4), reinterpret_cast<std::uint8_t*>(&number));
  EXPECT_EQ(argument_of(nullptr, nullptr, 0, 0, 8), nullptr);
}

TEST(ArgumentOf, PackedUpToTheBuffersEnd) {
  std::array<std::uint8_t, 16> buffer{};
  std::size_t size = 12;
  std::array<void*, 5> extra = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), CU_LAUNCH_PARAM_END};
  EXPECT_EQ(argument_of(nullptr, extra.data(), 0, 0, 8), buffer.data());
  EXPECT_EQ(argument_of(nullptr, extra.data(), 1, 8, 4), buffer.data() + 8);
  size = 11;
  EXPECT_EQ(argument_of(nullptr, extra.data(), 0, 0, 8), buffer.data());
  EXPECT_EQ(argument_of(nullptr, extra.data(), 1, 8, 4), nullptr) << "one byte short";
  size = 0;
  EXPECT_EQ(argument_of(nullptr, extra.data(), 0, 0, 8), nullptr);
}

TEST(ArgumentOf, EntriesThatAreMissingOrNotKnown) {
  std::array<std::uint8_t, 16> buffer{};
  std::size_t size = 12;
  std::array<void*, 3> no_size = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), CU_LAUNCH_PARAM_END};
  EXPECT_EQ(argument_of(nullptr, no_size.data(), 0, 0, 8), nullptr);
  std::array<void*, 3> no_buffer = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  EXPECT_EQ(argument_of(nullptr, no_buffer.data(), 0, 0, 8), nullptr);
  std::array<void*, 7> more = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), reinterpret_cast<void*>(0x17), buffer.data(),
                               CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  EXPECT_EQ(argument_of(nullptr, more.data(), 0, 0, 8), nullptr);
}

}  // namespace
}  // namespace cglint::models
