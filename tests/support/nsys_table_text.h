// The rows of a database's tables as text, for tests that compare the two ways of reading them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "import/nsys/database.h"
#include "import/nsys/table_scan.h"

namespace cglint::testing {

// The wanted columns of a table as text, every row for which `where` is true, and the error where reading ended with one. `scan`: as TableScan
// reads them; nothing: as a query gives them.
inline std::string table_text(std::string_view bytes_or_path, bool is_path, const import::nsys::ScanOptions* scan, std::string_view table,
                              const std::vector<std::string_view>& wanted, std::string_view where = {}) {
  namespace nsys = import::nsys;
  std::string out;
  const auto failed = [&](const base::Error& error) { return out += "error: " + error.message + "\n"; };
  const import::Limits limits;
  std::unique_ptr<import::Source> source;
  if (is_path) {
    auto opened = import::Source::open(std::string(bytes_or_path), limits);
    if (!opened) return failed(opened.error());
    source = *std::move(opened);
  } else {
    source = import::Source::from_memory(bytes_or_path, "test", limits);
  }
  auto database = nsys::Database::open(*source, limits);
  if (!database) return failed(database.error());
  auto present = (*database)->columns(table);
  if (!present) return failed(present.error());
  const nsys::Columns columns(table, *std::move(present), wanted);
  if (!columns.has_table()) return out;
  const auto add = [&](const auto& row) -> base::Result<void> {
    for (int i = 0; i < static_cast<int>(wanted.size()); ++i)
      out += row.is_null(i) ? std::string("- ") : fmt::format("{}{} ", row.integer(i), row.is_integer(i) ? "" : "?");
    out += '\n';
    return {};
  };
  base::Result<void> done;
  if (scan == nullptr) {
    done = (*database)->each_row(columns.select(where), add);
  } else {
    nsys::TableScan reading(**database, columns, where, *scan);
    done = reading.each_row(add);
  }
  if (!done) return failed(done.error());
  return out;
}

}  // namespace cglint::testing
