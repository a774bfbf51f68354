// A read-only SQLite database that is not trusted: tables only (a view or virtual table of a wanted name counts as
// missing), bounded values, no user functions, no writes.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "import/common/importer.h"

namespace cglint::import::nsys {

class Database;

// The rows of one query; columns by position.
class Rows {
 public:
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  Rows(Rows&& other) noexcept : database_(other.database_), statement_(other.statement_) { other.statement_ = nullptr; }
  ~Rows() { sqlite3_finalize(statement_); }

  // false at the end. ErrorCode::malformed for a damaged database.
  base::Result<bool> next();
  [[nodiscard]] bool is_null(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  [[nodiscard]] std::int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  // Valid until next().
  [[nodiscard]] std::string_view text(int column) const;
  void bind(int parameter, std::int64_t value) { sqlite3_bind_int64(statement_, parameter, value); }
  void reset() { sqlite3_reset(statement_); }

 private:
  friend class Database;
  Rows(Database& database, sqlite3_stmt* statement) : database_(&database), statement_(statement) {}
  Database* database_;
  sqlite3_stmt* statement_;
};

class Database {
 public:
  // From the source's file where there is one, else from its bytes.
  static base::Result<std::unique_ptr<Database>> open(Source& source, const Limits& limits);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { sqlite3_close(handle_); }

  // Names of the columns; empty if there is no such table.
  base::Result<std::vector<std::string>> columns(std::string_view table);
  base::Result<Rows> query(const std::string& sql);
  // Calls on_row(const Rows&), which returns a base::Result<void>, for every row of the query, up to the first error.
  template <typename OnRow>
  base::Result<void> each_row(const std::string& sql, OnRow&& on_row) {
    auto rows = query(sql);
    if (!rows) return std::move(rows).error();
    while (true) {
      auto more = rows->next();
      if (!more) return std::move(more).error();
      if (!*more) return {};
      CGLINT_TRY(on_row(std::as_const(*rows)));
    }
  }
  [[nodiscard]] base::Error error(std::string_view doing) const;

 private:
  Database() = default;
  sqlite3* handle_ = nullptr;
  std::string bytes_;
};

}  // namespace cglint::import::nsys
