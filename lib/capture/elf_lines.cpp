#include "capture/elf_lines.h"

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace cglint::capture {
namespace {

using Bytes = std::span<const unsigned char>;

// Reads forward; past the end everything is zero and `good` is false.
struct Cursor {
  Bytes bytes;
  std::size_t at = 0;
  bool good = true;

  [[nodiscard]] bool at_end() const { return at >= bytes.size(); }
  template <typename T>
  T fixed() {
    T value{};
    if (bytes.size() - at < sizeof value) {
      good = false;
      at = bytes.size();
      return value;
    }
    std::memcpy(&value, bytes.data() + at, sizeof value);
    at += sizeof value;
    return value;
  }
  std::uint64_t uleb() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; good; shift += 7) {
      const auto byte = fixed<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80) == 0) break;
    }
    return value;
  }
  std::int64_t sleb() {
    std::uint64_t value = 0;
    unsigned shift = 0;
    std::uint8_t byte = 0;
    do {
      byte = fixed<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fU} << shift;
      shift += 7;
    } while (good && (byte & 0x80) != 0);
    if (shift < 64 && (byte & 0x40) != 0) value |= ~std::uint64_t{0} << shift;
    return static_cast<std::int64_t>(value);
  }
  std::string_view text() {
    const std::size_t begin = at;
    while (at < bytes.size() && bytes[at] != 0) ++at;
    const std::string_view found(reinterpret_cast<const char*>(bytes.data()) + begin, at - begin);
    if (at == bytes.size()) {
      good = false;
    } else {
      ++at;
    }
    return found;
  }
  void skip(std::uint64_t count) {
    if (count > bytes.size() - at) {
      good = false;
      at = bytes.size();
    } else {
      at += count;
    }
  }
};

struct Sections {
  Bytes line, line_text, text;
};

Bytes part(Bytes file, std::uint64_t at, std::uint64_t size) {
  return at > file.size() || file.size() - at < size ? Bytes() : file.subspan(at, size);
}

Sections sections_of(Bytes file) {
  Sections sections;
  Elf64_Ehdr header;
  if (file.size() < sizeof header) return sections;
  std::memcpy(&header, file.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_shentsize != sizeof(Elf64_Shdr))
    return sections;
  const Bytes table = part(file, header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
  const auto section = [&](std::size_t i) {
    Elf64_Shdr read{};
    if ((i + 1) * sizeof read <= table.size()) std::memcpy(&read, table.data() + i * sizeof read, sizeof read);
    return read;
  };
  const Elf64_Shdr names_header = section(header.e_shstrndx);
  const Bytes names = part(file, names_header.sh_offset, names_header.sh_size);
  for (std::size_t i = 0; i < table.size() / sizeof(Elf64_Shdr); ++i) {
    const Elf64_Shdr each = section(i);
    if (each.sh_type == SHT_NOBITS || (each.sh_flags & SHF_COMPRESSED) != 0 || each.sh_name >= names.size()) continue;
    Cursor name{names, each.sh_name};
    const std::string_view text = name.text();
    const Bytes bytes = part(file, each.sh_offset, each.sh_size);
    if (text == ".debug_line") sections.line = bytes;
    if (text == ".debug_line_str") sections.line_text = bytes;
    if (text == ".debug_str") sections.text = bytes;
  }
  return sections;
}

struct File {
  std::string_view name;
  std::uint64_t folder = 0;
};

// The tables of folders and files of one unit.
struct Names {
  std::vector<std::string_view> folders;
  std::vector<File> files;
  bool from_zero = false;  // DWARF 5 numbers them from 0, and folder 0 is where the compiler ran

  [[nodiscard]] std::string path(std::uint64_t number) const {
    if (!from_zero) {
      if (number == 0) return "";
      --number;
    }
    if (number >= files.size()) return "";
    const File& file = files[number];
    if (file.name.starts_with('/')) return std::string(file.name);
    std::string_view folder;
    if (from_zero) {
      if (file.folder < folders.size()) folder = folders[file.folder];
    } else if (file.folder != 0 && file.folder <= folders.size()) {
      folder = folders[file.folder - 1];
    }
    std::string whole;
    if (from_zero && !folder.starts_with('/') && !folders.empty() && file.folder != 0)
      whole = std::string(folders[0]) + '/';
    whole += folder;
    if (!folder.empty()) whole += '/';
    whole += file.name;
    return whole;
  }
};

// One value of a DWARF 5 entry; texts in `text`, numbers in `number`.
bool read_form(Cursor& cursor, std::uint64_t form, bool is_64, const Sections& sections, std::string_view& text,
               std::uint64_t& number) {
  const auto offset = [&] { return is_64 ? cursor.fixed<std::uint64_t>() : cursor.fixed<std::uint32_t>(); };
  const auto string_at = [&](Bytes bytes, std::uint64_t at) {
    if (at >= bytes.size()) return std::string_view();
    Cursor there{bytes, at};
    return there.text();
  };
  switch (form) {
    case 0x08:  // string
      text = cursor.text();
      break;
    case 0x1f:  // line_strp
      text = string_at(sections.line_text, offset());
      break;
    case 0x0e:  // strp
      text = string_at(sections.text, offset());
      break;
    case 0x0f:  // udata
      number = cursor.uleb();
      break;
    case 0x0b:  // data1
      number = cursor.fixed<std::uint8_t>();
      break;
    case 0x05:  // data2
      number = cursor.fixed<std::uint16_t>();
      break;
    case 0x06:  // data4
      cursor.skip(4);
      break;
    case 0x07:  // data8
      cursor.skip(8);
      break;
    case 0x1e:  // data16
      cursor.skip(16);
      break;
    case 0x09:  // block
      cursor.skip(cursor.uleb());
      break;
    default:
      return false;
  }
  return cursor.good;
}

// Directories or files of a DWARF 5 header.
bool read_entries(Cursor& cursor, bool is_64, const Sections& sections, std::vector<File>& entries) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> formats(cursor.fixed<std::uint8_t>());
  for (auto& [content, form] : formats) content = cursor.uleb(), form = cursor.uleb();
  const std::uint64_t count = cursor.uleb();
  if (formats.empty() && count != 0) return false;
  for (std::uint64_t i = 0; i < count && cursor.good; ++i) {
    File file;
    for (const auto& [content, form] : formats) {
      std::string_view text;
      std::uint64_t number = 0;
      if (!read_form(cursor, form, is_64, sections, text, number)) return false;
      if (content == 1) file.name = text;
      if (content == 2) file.folder = number;
    }
    entries.push_back(file);
  }
  return cursor.good;
}

struct Row {
  std::uint64_t address = 0, file = 1;
  std::int64_t line = 1;
};

// One unit; `cursor` covers it and is past its length field.
void search_unit(Cursor cursor, bool is_64, const Sections& sections, std::span<SourceLine> lines) {
  const auto version = cursor.fixed<std::uint16_t>();
  if (version < 2 || version > 5) return;
  std::uint8_t address_bytes = 8;
  if (version >= 5) {
    address_bytes = cursor.fixed<std::uint8_t>();
    cursor.skip(1);
  }
  if (address_bytes != 8) return;
  const std::uint64_t header_bytes = is_64 ? cursor.fixed<std::uint64_t>() : cursor.fixed<std::uint32_t>();
  Cursor program = cursor;
  program.skip(header_bytes);
  const auto step = cursor.fixed<std::uint8_t>();
  if (version >= 4) cursor.skip(1);
  cursor.skip(1);  // default_is_stmt
  const auto line_base = cursor.fixed<std::int8_t>();
  const auto line_range = cursor.fixed<std::uint8_t>();
  const auto opcode_base = cursor.fixed<std::uint8_t>();
  if (!cursor.good || !program.good || line_range == 0 || opcode_base == 0) return;
  std::vector<std::uint8_t> operands(opcode_base);
  for (std::size_t i = 1; i < operands.size(); ++i) operands[i] = cursor.fixed<std::uint8_t>();

  Names names;
  bool has_names = false;
  // Read when an address was found here: most units have none.
  const auto read_names = [&] {
    if (has_names) return;
    has_names = true;
    if (version >= 5) {
      names.from_zero = true;
      std::vector<File> folders;
      if (!read_entries(cursor, is_64, sections, folders)) return;
      for (const File& folder : folders) names.folders.push_back(folder.name);
      if (!read_entries(cursor, is_64, sections, names.files)) names.files.clear();
      return;
    }
    for (std::string_view folder = cursor.text(); cursor.good && !folder.empty(); folder = cursor.text())
      names.folders.push_back(folder);
    for (std::string_view name = cursor.text(); cursor.good && !name.empty(); name = cursor.text()) {
      File file{name, cursor.uleb()};
      cursor.uleb(), cursor.uleb();  // time, length
      names.files.push_back(file);
    }
  };

  Row row, before;
  std::vector<Row> rows;  // of the sequence, up to `before`
  bool in_sequence = false;
  const auto number_of = [](const Row& each) {
    return each.line > 0 && each.line < 0x7fffffff ? static_cast<std::uint32_t>(each.line) : 0;
  };
  // A wrapper has the two lines of its kernel's head; what comes before these and the stub's is the launch.
  const auto find_launch = [&](SourceLine& wanted) {
    if (wanted.function == 0) return;
    auto each = rows.rbegin();
    const auto is_stub = [&] { return is_stub_file(names.path(each->file)); };
    while (each != rows.rend() && is_stub()) ++each;
    if (each == rows.rend()) return;
    const Row head = *each;
    while (each != rows.rend() && ((each->file == head.file && std::abs(each->line - head.line) <= 1) || is_stub())) ++each;
    if (each == rows.rend() || each->address < wanted.function) return;
    wanted.launch_file = names.path(each->file);
    wanted.launch_line = number_of(*each);
  };
  const auto emit = [&](bool ends) {
    // Functions that the linker dropped were left at address 0.
    if (in_sequence && before.address != 0 && before.address < row.address) {
      for (SourceLine& wanted : lines) {
        if (wanted.address < before.address || wanted.address >= row.address || !wanted.file.empty()) continue;
        read_names();
        wanted.file = names.path(before.file);
        wanted.line = number_of(before);
        find_launch(wanted);
      }
    }
    before = row;
    if (ends) rows.clear(); else rows.push_back(row);
    in_sequence = !ends;
    if (ends) row = {};
  };
  while (!program.at_end() && program.good) {
    const auto opcode = program.fixed<std::uint8_t>();
    if (opcode >= opcode_base) {
      const unsigned adjusted = opcode - opcode_base;
      row.address += std::uint64_t{step} * (adjusted / line_range);
      row.line += line_base + static_cast<std::int64_t>(adjusted % line_range);
      emit(false);
      continue;
    }
    switch (opcode) {
      case 0: {
        const std::uint64_t length = program.uleb();
        Cursor extended = program;
        program.skip(length);
        if (length == 0 || !program.good) break;
        const auto what = extended.fixed<std::uint8_t>();
        if (what == 1) emit(true);
        if (what == 2 && length == 9) row.address = extended.fixed<std::uint64_t>();
        break;
      }
      case 1:
        emit(false);
        break;
      case 2:
        row.address += step * program.uleb();
        break;
      case 3:
        row.line += program.sleb();
        break;
      case 4:
        row.file = program.uleb();
        break;
      case 8:
        row.address += std::uint64_t{step} * ((255U - opcode_base) / line_range);
        break;
      case 9:
        row.address += program.fixed<std::uint16_t>();
        break;
      default:
        for (std::uint8_t i = 0; i < operands[opcode]; ++i) program.uleb();
        break;
    }
  }
}

}  // namespace

bool is_stub_file(std::string_view path) {
  return path.ends_with(".cudafe1.stub.c");
}

void find_lines(Bytes elf, std::span<SourceLine> lines) {
  const Sections sections = sections_of(elf);
  if (sections.line.size() > kMaxLineTableBytes) return;
  Cursor cursor{sections.line};
  while (!cursor.at_end()) {
    std::uint64_t length = cursor.fixed<std::uint32_t>();
    const bool is_64 = length == 0xffffffff;
    if (is_64) length = cursor.fixed<std::uint64_t>();
    if (!cursor.good || length > sections.line.size() - cursor.at) return;
    search_unit({sections.line.subspan(cursor.at, length)}, is_64, sections, lines);
    cursor.skip(length);
  }
}

}  // namespace cglint::capture
