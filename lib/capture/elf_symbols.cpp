#include "capture/elf_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace cglint::capture {
namespace {

constexpr std::size_t kMaxSymbols = 1 << 20;  // of larger modules nothing is read

// A struct of the file, or nothing where it does not lie in it.
template <typename T>
bool take(std::span<const unsigned char> file, std::uint64_t at, T& out) {
  if (at > file.size() || file.size() - at < sizeof out) return false;
  std::memcpy(&out, file.data() + at, sizeof out);
  return true;
}

std::span<const unsigned char> part(std::span<const unsigned char> file, std::uint64_t at, std::uint64_t size) {
  return at > file.size() || file.size() - at < size ? std::span<const unsigned char>() : file.subspan(at, size);
}

}  // namespace

ElfSymbols::ElfSymbols(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  struct stat facts = {};
  if (fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0) {
    void* const mapped = mmap(nullptr, static_cast<std::size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped != MAP_FAILED)
      file_ = {static_cast<const unsigned char*>(mapped), static_cast<std::size_t>(facts.st_size)};
  }
  close(descriptor);
  read();
}

ElfSymbols::~ElfSymbols() {
  if (!file_.empty()) munmap(const_cast<unsigned char*>(file_.data()), file_.size());
}

void ElfSymbols::read() {
  Elf64_Ehdr header;
  if (!take(file_, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_shentsize != sizeof(Elf64_Shdr))
    return;
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section, names;
    if (!take(file_, header.e_shoff + i * sizeof section, section) || section.sh_type != SHT_SYMTAB) continue;
    if (!take(file_, header.e_shoff + std::uint64_t{section.sh_link} * sizeof names, names)) return;
    const std::span symbols = part(file_, section.sh_offset, section.sh_size);
    names_ = part(file_, names.sh_offset, names.sh_size);
    const std::size_t count = symbols.size() / sizeof(Elf64_Sym);
    if (count > kMaxSymbols || names_.empty() || names_.back() != 0) return;
    for (std::size_t s = 0; s < count; ++s) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, symbols.data() + s * sizeof symbol, sizeof symbol);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF && symbol.st_size != 0 &&
          symbol.st_name < names_.size())
        functions_.push_back({symbol.st_value, symbol.st_size, symbol.st_name});
    }
    break;
  }
  std::sort(functions_.begin(), functions_.end(), [](const Function& a, const Function& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.size < b.size;
  });
}

std::string_view ElfSymbols::find(std::uint64_t address, std::uint64_t& offset) const {
  auto after = std::upper_bound(functions_.begin(), functions_.end(), address,
                                [](std::uint64_t value, const Function& f) { return value < f.begin; });
  if (after == functions_.begin()) return {};
  const Function& function = *std::prev(after);
  offset = address - function.begin;
  if (offset >= function.size) return {};
  return reinterpret_cast<const char*>(names_.data() + function.name);  // names_ ends with a zero
}

}  // namespace cglint::capture
