// Source lines of addresses, from a module's line tables (.debug_line, DWARF 2 to 5, not compressed). Nothing is
// kept: a call reads the tables once for all its addresses, which is quick for tables of some MiB only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cglint::capture {

struct SourceLine {
  std::uint64_t address = 0;  // in the file, before the module was placed
  std::string file{};         // out; empty: unknown
  std::uint32_t line = 0;
  // In: where the address's function begins, or 0. Out: of an address in a kernel's launch wrapper or stub that the compiler
  // put into that function, the line before it, which launches; 0: there is none, or the function is not known.
  std::uint64_t function = 0;
  std::string launch_file{};
  std::uint32_t launch_line = 0;
};

// A file that nvcc writes, with the stubs that hand kernels to the runtime.
bool is_stub_file(std::string_view path);

inline constexpr std::size_t kMaxLineTableBytes = std::size_t{4} << 20;  // of larger modules lines stay unknown

// `elf`: the bytes of the module. Bytes that are not what they should be end the search.
void find_lines(std::span<const unsigned char> elf, std::span<SourceLine> lines);

}  // namespace cglint::capture
