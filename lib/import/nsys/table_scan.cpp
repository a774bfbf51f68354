#include "import/nsys/table_scan.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cglint::import::nsys {
namespace {

using base::ErrorCode;
using base::make_error;

constexpr std::size_t kMostWaiting = 4;  // batches, of a range and for each thread
constexpr unsigned kMostThreads = 8;

}  // namespace

// Reads ranges through one connection. The rows do not come out of the query one by one: a function in its condition takes their values,
// which costs less, and ends the step where a batch is full.
class TableScan::Reader {
 public:
  static base::Result<std::unique_ptr<Reader>> make(Database& database, const TableScan& scan) {
    std::unique_ptr<Reader> reader(new Reader(scan));
    const Columns& columns = scan.columns_;
    std::string take = "cglint_take(";
    for (std::size_t i = 0; i < columns.wanted().size(); ++i) {
      if (!columns.has(columns.wanted()[i])) continue;
      if (!reader->columns_.empty()) take += ", ";
      take += fmt::format("\"{}\"", columns.wanted()[i]);
      reader->columns_.push_back(i);
    }
    take += ")";
    if (!scan.where_.empty()) take = fmt::format("CASE WHEN {} THEN {} ELSE 0 END", scan.where_, take);
    CGLINT_TRY(database.define("cglint_take", static_cast<int>(reader->columns_.size()), reader.get(), &Reader::take));
    const std::string from = fmt::format(" FROM \"{}\" NOT INDEXED", columns.table());
    const std::string bounded = fmt::format("CASE WHEN _rowid_ >= ?2 THEN 1 ELSE {} END", take);
    for (const auto& [query, sql] : {std::pair{&reader->all_, fmt::format("SELECT NULL{} WHERE {}", from, take)},
                                     {&reader->first_, fmt::format("SELECT _rowid_{} WHERE {}", from, bounded)},
                                     {&reader->later_, fmt::format("SELECT _rowid_{} WHERE _rowid_ >= ?1 AND {}", from, bounded)},
                                     {&reader->seek_, fmt::format("SELECT _rowid_{} WHERE _rowid_ >= ?1 LIMIT 1", from)}}) {
      if (!scan.by_id_ && query != &reader->all_) continue;
      auto rows = database.query(sql);
      if (!rows) return std::move(rows).error();
      query->emplace(*std::move(rows));
    }
    return reader;
  }

  // Begins the range: `next` is the first id of the one after it; nothing: up to the end.
  base::Result<void> begin(Range& range, bool is_first, std::optional<std::int64_t> next) {
    range_ = &range;
    current_ = !scan_.by_id_ ? &*all_ : is_first ? &*first_ : &*later_;
    current_->reset();
    range.begun = true;
    if (!scan_.by_id_) return {};
    if (next) {
      current_->bind(2, *next);
    } else {
      current_->bind_null(2);
    }
    if (is_first) return {};
    current_->bind(1, range.first);
    seek_->reset();
    seek_->bind(1, range.first);
    auto found = seek_->next();
    if (!found) {
      range.begun = false;
      return std::move(found).error();
    }
    if (*found) range.begins_with = seek_->integer(0);
    return {};
  }

  // Adds rows to the batch until it is full; false: the range is at its end.
  base::Result<bool> fill(RowBatch& batch) {
    batch_ = &batch;
    batch.values.reserve(scan_.options_.rows_per_batch * scan_.columns_.wanted().size());
    batch.nulls.reserve(scan_.options_.rows_per_batch);
    batch.others.reserve(scan_.options_.rows_per_batch);
    auto more = current_->next();
    batch_ = nullptr;
    if (!more) {
      current_->reset();
      return std::move(more).error();
    }
    if (*more && batch.size() >= scan_.options_.rows_per_batch) return true;
    if (*more) range_->ends_before = current_->integer(0);
    current_->reset();
    return false;
  }

 private:
  explicit Reader(const TableScan& scan) : scan_(scan) {}
  static void take(sqlite3_context* context, int count, sqlite3_value** values) {
    auto& self = *static_cast<Reader*>(sqlite3_user_data(context));
    if (self.batch_ == nullptr) return sqlite3_result_error(context, "not in a scan", -1);
    RowBatch& batch = *self.batch_;
    const std::size_t width = self.scan_.columns_.wanted().size(), first = batch.values.size();
    batch.values.resize(first + width);  // reserved
    std::uint64_t others = 0, nulls = width == kMaxColumns ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const int type = sqlite3_value_type(values[i]);
      if (type == SQLITE_NULL) continue;
      const std::uint64_t bit = std::uint64_t{1} << self.columns_[i];
      nulls &= ~bit;
      if (type != SQLITE_INTEGER) others |= bit;
      batch.values[first + self.columns_[i]] = sqlite3_value_int64(values[i]);
    }
    batch.nulls.push_back(nulls);
    batch.others.push_back(others);
    sqlite3_result_int(context, batch.size() >= self.scan_.options_.rows_per_batch ? 1 : 0);
  }

  const TableScan& scan_;
  std::vector<std::size_t> columns_;  // of take()'s values
  std::optional<Rows> all_, first_, later_, seek_;
  Rows* current_ = nullptr;
  Range* range_ = nullptr;
  RowBatch* batch_ = nullptr;
};

TableScan::TableScan(Database& database, const Columns& columns, std::string_view where, const ScanOptions& options)
    : database_(database), columns_(columns), where_(where), options_(options) {
  CGLINT_CHECK(columns.wanted().size() <= kMaxColumns);
}

TableScan::~TableScan() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  taken_.notify_all();
  for (const auto& connection : connections_) connection->interrupt();
  for (std::thread& thread : threads_) thread.join();
}

base::Result<void> TableScan::find_ranges() {
  ranges_.resize(1);
  // A column may hide the row's id, and some tables have none.
  const auto hides = [](const std::string& column) { return ::strcasecmp(column.c_str(), "_rowid_") == 0; };
  if (std::any_of(columns_.present().begin(), columns_.present().end(), hides)) return {};
  std::int64_t ends[2] = {0, 0};
  for (const bool last : {false, true}) {
    auto rows = database_.query(
        fmt::format("SELECT _rowid_ FROM \"{}\" NOT INDEXED ORDER BY _rowid_{} LIMIT 1", columns_.table(), last ? " DESC" : ""));
    if (!rows) return {};
    auto found = rows->next();
    if (!found) return std::move(found).error();
    if (!*found) return {};
    ends[last ? 1 : 0] = rows->integer(0);
  }
  by_id_ = true;
  if (ends[1] <= ends[0]) return {};
  const std::uint64_t ids = static_cast<std::uint64_t>(ends[1]) - static_cast<std::uint64_t>(ends[0]);
  const std::uint64_t step = std::max<std::uint64_t>(static_cast<std::uint64_t>(options_.ids_per_range), ids / kMaxRanges + 1);
  ranges_.resize(static_cast<std::size_t>(ids / step) + 1);
  for (std::size_t i = 0; i < ranges_.size(); ++i) ranges_[i].first = static_cast<std::int64_t>(static_cast<std::uint64_t>(ends[0]) + i * step);
  return {};
}

base::Result<void> TableScan::begin() {
  CGLINT_CHECK(ranges_.empty());
  CGLINT_TRY(find_ranges());
  unsigned threads = options_.threads != 0 ? options_.threads : std::thread::hardware_concurrency();
  threads = static_cast<unsigned>(std::min<std::size_t>({threads, kMostThreads, ranges_.size()}));
  if (threads <= 1) {
    auto reader = Reader::make(database_, *this);
    if (!reader) return std::move(reader).error();
    reader_ = *std::move(reader);
    return reader_->begin(ranges_[0], true, ranges_.size() > 1 ? std::optional(ranges_[1].first) : std::nullopt);
  }
  for (unsigned i = 0; i < threads; ++i) {
    auto connection = database_.connect_again();
    if (!connection) return std::move(connection).error();
    connections_.push_back(*std::move(connection));
  }
  for (const auto& connection : connections_) threads_.emplace_back([this, &database = *connection] { work(database); });
  return {};
}

base::Result<const RowBatch*> TableScan::next() { return reader_ != nullptr ? next_here() : next_of_threads(); }

base::Result<void> TableScan::check_meets() const {
  if (current_ == 0 || !ranges_[current_].begun || ranges_[current_].begins_with == ranges_[current_ - 1].ends_before) return {};
  return make_error(ErrorCode::malformed,
                    fmt::format("the database cannot be read (reading rows): the rows of table {} are not in the order of their ids",
                                columns_.table()));
}

base::Result<const RowBatch*> TableScan::next_here() {
  while (current_ < ranges_.size()) {
    batch_->clear();
    Range& range = ranges_[current_];
    if (!range.done) {
      auto more = reader_->fill(*batch_);
      if (!more) {
        range.done = true;
        range.error = std::move(more).error();
      } else {
        range.done = !*more;
      }
      if (batch_->size() != 0) return counted();
      continue;
    }
    if (range.error) return *range.error;
    ++current_;
    if (current_ < ranges_.size()) {
      const auto next = current_ + 1 < ranges_.size() ? std::optional(ranges_[current_ + 1].first) : std::nullopt;
      CGLINT_TRY(reader_->begin(ranges_[current_], false, next));
      CGLINT_TRY(check_meets());
    }
  }
  return nullptr;
}

base::Result<const RowBatch*> TableScan::counted() {
  rows_ += batch_->size();
  if (rows_ > database_.max_rows()) return Database::circle_error();
  return batch_.get();
}

base::Result<const RowBatch*> TableScan::next_of_threads() {
  std::unique_lock lock(mutex_);
  if (batch_->size() != 0) {
    batch_->clear();
    spare_.push_back(std::move(batch_));
    batch_ = std::make_unique<RowBatch>();
  }
  while (current_ < ranges_.size()) {
    Range& range = ranges_[current_];
    handed_over_.wait(lock, [&] { return range.done || !range.ready.empty(); });
    CGLINT_TRY(check_meets());
    if (!range.ready.empty()) {
      batch_ = std::move(range.ready.front());
      range.ready.pop_front();
      --waiting_batches_;
      taken_.notify_all();
      return counted();
    }
    if (range.failure) std::rethrow_exception(range.failure);
    if (range.error) return *range.error;
    ++current_;
    taken_.notify_all();
  }
  return nullptr;
}

void TableScan::work(Database& database) {
  std::unique_ptr<Reader> reader;
  std::size_t number = 0;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_ || next_range_ == ranges_.size()) return;
      number = next_range_++;
    }
    std::optional<base::Error> error;
    std::exception_ptr failure;
    try {
      if (reader == nullptr) {
        auto new_reader = Reader::make(database, *this);
        if (new_reader) {
          reader = *std::move(new_reader);
        } else {
          error = std::move(new_reader).error();
        }
      }
      if (!error) {
        const auto next = number + 1 < ranges_.size() ? std::optional(ranges_[number + 1].first) : std::nullopt;
        Range range;
        range.first = ranges_[number].first;
        if (auto begun = reader->begin(range, number == 0, next); !begun) error = std::move(begun).error();
        {
          const std::lock_guard lock(mutex_);
          ranges_[number].begun = range.begun;
          ranges_[number].begins_with = range.begins_with;
        }
        bool more = !error;
        while (more) {
          std::unique_ptr<RowBatch> batch;
          {
            const std::lock_guard lock(mutex_);
            if (!spare_.empty()) {
              batch = std::move(spare_.back());
              spare_.pop_back();
            }
          }
          if (batch == nullptr) batch = std::make_unique<RowBatch>();
          auto filled = reader->fill(*batch);
          if (!filled) error = std::move(filled).error();
          more = !error && *filled;
          if (!hand_over(number, batch)) return;
        }
        const std::lock_guard lock(mutex_);
        ranges_[number].ends_before = range.ends_before;
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    ranges_[number].error = std::move(error);
    ranges_[number].failure = failure;
    ranges_[number].done = true;
    handed_over_.notify_one();
  }
}

bool TableScan::hand_over(std::size_t number, std::unique_ptr<RowBatch>& batch) {
  std::unique_lock lock(mutex_);
  if (batch->size() == 0) {
    spare_.push_back(std::move(batch));
    return !stop_;
  }
  // The range that is read next never waits for the others: they are begun in order.
  taken_.wait(lock, [&] {
    return stop_ || (number == current_ ? ranges_[number].ready.size() < kMostWaiting : waiting_batches_ < kMostWaiting * connections_.size());
  });
  if (stop_) return false;
  ranges_[number].ready.push_back(std::move(batch));
  ++waiting_batches_;
  handed_over_.notify_one();
  return true;
}

}  // namespace cglint::import::nsys
