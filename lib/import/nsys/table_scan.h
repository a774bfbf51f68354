// One pass over the integers of a big table. Ranges of its row ids are read by several threads, each with a connection of its own, and handed
// over in the order of the table: what comes out is the same for any number of threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "import/nsys/database.h"

namespace cglint::import::nsys {

struct ScanOptions {
  unsigned threads = 0;                   // as ReadOptions::threads
  std::int64_t ids_per_range = 1 << 18;   // at least; a table has at most kMaxRanges
  std::size_t rows_per_batch = 512;
};

// A row of wanted columns, by position. What is no integer is one as SQLite converts it.
class IntegerRow {
 public:
  IntegerRow(const std::int64_t* values, std::uint64_t nulls, std::uint64_t others) : values_(values), nulls_(nulls), others_(others) {}
  [[nodiscard]] bool is_null(int column) const { return ((nulls_ >> column) & 1) != 0; }
  // Neither NULL nor text, a real or bytes.
  [[nodiscard]] bool is_integer(int column) const { return (((nulls_ | others_) >> column) & 1) == 0; }
  [[nodiscard]] std::int64_t integer(int column) const { return values_[column]; }
  // Whether the columns [first, last] are all NULL or of 32 bits.
  [[nodiscard]] bool are_u32(int first, int last) const {
    std::uint64_t bits = 0;
    for (int column = first; column <= last; ++column) bits |= static_cast<std::uint64_t>(values_[column]);
    return bits >> 32 == 0 && (others_ >> first & ((std::uint64_t{2} << (last - first)) - 1)) == 0;
  }

 private:
  const std::int64_t* values_;
  std::uint64_t nulls_, others_;
};

// Some rows, one after another in memory.
struct RowBatch {
  std::vector<std::int64_t> values;
  std::vector<std::uint64_t> nulls;   // a bit a column
  std::vector<std::uint64_t> others;  // as nulls: what is neither NULL nor an integer
  [[nodiscard]] std::size_t size() const { return nulls.size(); }
  void clear() {
    values.clear();
    nulls.clear();
    others.clear();
  }
};

class TableScan {
 public:
  static constexpr std::size_t kMaxRanges = 1024, kMaxColumns = 64;

  // Rows for which `where` (SQL; empty: all) is true. The columns and the database must outlive the scan.
  TableScan(Database& database, const Columns& columns, std::string_view where, const ScanOptions& options);
  TableScan(const TableScan&) = delete;
  TableScan& operator=(const TableScan&) = delete;
  ~TableScan();

  // Calls on_row(const IntegerRow&), which returns a base::Result<void>, for each row, up to the first error. Once.
  template <typename OnRow>
  base::Result<void> each_row(OnRow&& on_row) {
    CGLINT_TRY(begin());
    const std::size_t width = columns_.wanted().size();
    while (true) {
      auto batch = next();
      if (!batch) return std::move(batch).error();
      if (*batch == nullptr) return {};
      for (std::size_t i = 0; i < (*batch)->size(); ++i)
        CGLINT_TRY(on_row(IntegerRow((*batch)->values.data() + i * width, (*batch)->nulls[i], (*batch)->others[i])));
    }
  }

 private:
  class Reader;
  // A run of row ids, from `first` up to those of the next range.
  struct Range {
    std::int64_t first = 0;
    // The ids of the row that it begins with and of the one that it ended in front of; nothing: the end of the table. A sound table's ranges
    // meet. (A damaged one may lead a search by id astray.)
    std::optional<std::int64_t> begins_with, ends_before;
    std::deque<std::unique_ptr<RowBatch>> ready;
    bool begun = false, done = false;
    std::optional<base::Error> error;   // after what is ready
    std::exception_ptr failure;         // memory ran out
  };

  base::Result<void> begin();
  base::Result<void> find_ranges();
  // Null at the end. Valid until the next call.
  base::Result<const RowBatch*> next();
  base::Result<const RowBatch*> next_of_threads();
  base::Result<const RowBatch*> next_here();
  // That the current range begins where the one before it ended.
  [[nodiscard]] base::Result<void> check_meets() const;
  base::Result<const RowBatch*> counted();
  void work(Database& database);
  bool hand_over(std::size_t number, std::unique_ptr<RowBatch>& batch);  // false: nobody wants it any more

  Database& database_;
  const Columns& columns_;
  std::string where_;
  ScanOptions options_;
  bool by_id_ = false;   // the table has row ids that can be asked for
  std::deque<Range> ranges_;
  std::size_t current_ = 0;  // the range that next() is in
  std::uint64_t rows_ = 0;   // handed out
  std::unique_ptr<RowBatch> batch_ = std::make_unique<RowBatch>();
  std::unique_ptr<Reader> reader_;  // without threads

  std::mutex mutex_;
  std::condition_variable handed_over_, taken_;
  std::vector<std::unique_ptr<RowBatch>> spare_;
  std::size_t next_range_ = 0, waiting_batches_ = 0;
  bool stop_ = false;
  std::vector<std::unique_ptr<Database>> connections_;
  std::vector<std::thread> threads_;
};

}  // namespace cglint::import::nsys
