// Function names of a module's own symbol table (.symtab): those that the dynamic table, and so the loader, does
// not know, like the static functions of a program. Any file may be given; one that is no 64-bit ELF has no symbols.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cglint::capture {

class ElfSymbols {
 public:
  explicit ElfSymbols(const std::string& path);
  ElfSymbols(const ElfSymbols&) = delete;
  ElfSymbols& operator=(const ElfSymbols&) = delete;
  ~ElfSymbols();

  // The function that contains the address (as in the file, before the module was placed), and how far into it.
  // Empty: none. Valid as long as this object.
  [[nodiscard]] std::string_view find(std::uint64_t address, std::uint64_t& offset) const;
  [[nodiscard]] std::size_t size() const { return functions_.size(); }
  // The module's bytes; empty where it could not be read.
  [[nodiscard]] std::span<const unsigned char> file() const { return file_; }

 private:
  struct Function {
    std::uint64_t begin, size;
    std::uint32_t name;  // into names_
  };
  void read();

  std::span<const unsigned char> file_;  // mapped
  std::span<const unsigned char> names_;
  std::vector<Function> functions_;      // by address
};

}  // namespace cglint::capture
