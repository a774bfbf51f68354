// A read-only SQLite database that is not trusted: tables only (a view or virtual table of a wanted name counts as
// missing), bounded values, no user functions, no writes.
#pragma once

#include <sqlite3.h>

#include <algorithm>
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

// The columns of a table that a reader wants, in a fixed order; missing ones read as NULL.
class Columns {
 public:
  Columns(std::string_view table, std::vector<std::string> present, std::vector<std::string_view> wanted)
      : table_(table), present_(std::move(present)), wanted_(std::move(wanted)) {}
  [[nodiscard]] const std::string& table() const { return table_; }
  [[nodiscard]] const std::vector<std::string>& present() const { return present_; }
  [[nodiscard]] const std::vector<std::string_view>& wanted() const { return wanted_; }
  [[nodiscard]] bool has_table() const { return !present_.empty(); }
  [[nodiscard]] bool has(std::string_view column) const { return std::find(present_.begin(), present_.end(), column) != present_.end(); }
  // A query of all rows in the order of the table.
  [[nodiscard]] std::string select(std::string_view where = {}) const;

 private:
  std::string table_;
  std::vector<std::string> present_;
  std::vector<std::string_view> wanted_;
};

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
  [[nodiscard]] bool is_integer(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_INTEGER; }
  [[nodiscard]] std::int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  // Valid until next().
  [[nodiscard]] std::string_view text(int column) const;
  void bind(int parameter, std::int64_t value) { sqlite3_bind_int64(statement_, parameter, value); }
  void bind_null(int parameter) { sqlite3_bind_null(statement_, parameter); }
  void reset() {
    sqlite3_reset(statement_);
    count_ = 0;
  }

 private:
  friend class Database;
  Rows(Database& database, sqlite3_stmt* statement) : database_(&database), statement_(statement) {}
  Database* database_;
  sqlite3_stmt* statement_;
  std::uint64_t count_ = 0;
};

// SQLite keeps what a writer has not yet put into the database, or not yet taken out of it again, in files beside it. They are not read
// here (that may write to them), so that a database with one is not whole: an error.
base::Result<void> check_files_beside(const std::string& path);

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
    return each_row(*rows, on_row);
  }
  [[nodiscard]] base::Error error(std::string_view doing) const;
  // Another connection to the same file, or to the same bytes, which must outlive it. An error if the file is not the same any more.
  base::Result<std::unique_ptr<Database>> connect_again() const;
  // A function of SQL that a schema cannot call.
  base::Result<void> define(const char* name, int arguments, void* self, void (*function)(sqlite3_context*, int, sqlite3_value**));
  // Ends what another thread's query is doing.
  void interrupt() { sqlite3_interrupt(handle_); }
  // A sound file has no table with more rows.
  [[nodiscard]] std::uint64_t max_rows() const { return max_rows_; }
  static base::Error circle_error();

 private:
  friend class Rows;
  Database() = default;
  base::Result<void> connect();
  template <typename OnRow>
  static base::Result<void> each_row(Rows& rows, OnRow&& on_row) {
    while (true) {
      auto more = rows.next();
      if (!more) return std::move(more).error();
      if (!*more) return {};
      CGLINT_TRY(on_row(std::as_const(rows)));
    }
  }
  // Which file it is, and of when.
  struct Identity {
    std::uint64_t device = 0, inode = 0, bytes = 0;
    std::int64_t changed_s = 0, changed_ns = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  static Identity identity_of(const std::string& path);

  sqlite3* handle_ = nullptr;
  std::string path_;        // "": in memory
  Identity identity_;
  std::string owned_;       // the bytes that are in memory, where they are this object's
  std::string_view bytes_;
  std::uint64_t max_string_bytes_ = 0;
  // Rows of a query, and steps of SQLite's machine in all, that a sound file cannot need.
  static constexpr std::uint64_t kMostOtherRows = 65536;  // of a query that reads no table: columns, names
  std::uint64_t max_rows_ = kMostOtherRows, max_steps_ = 0, steps_ = 0;
};

}  // namespace cglint::import::nsys
