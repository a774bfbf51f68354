#include "analysis/pattern.h"

#include <algorithm>
#include <utility>

namespace cglint::analysis {
namespace {

constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::size_t kMaxInstructions = 20000;
constexpr int kMaxRepeat = 64;
constexpr int kMaxDepth = 40;
constexpr std::size_t kMaxRequired = 64;

using CharSet = std::array<std::uint64_t, 4>;

void add(CharSet& set, unsigned char c) {
  set[c >> 6] |= std::uint64_t{1} << (c & 63);
}
bool contains(const CharSet& set, unsigned char c) {
  return (set[c >> 6] >> (c & 63) & 1) != 0;
}
CharSet inverse(CharSet set) {
  for (std::uint64_t& word : set) word = ~word;
  return set;
}
CharSet unite(CharSet a, const CharSet& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] |= b[i];
  return a;
}
CharSet range(unsigned char first, unsigned char last) {
  CharSet set{};
  for (unsigned c = first; c <= last; ++c) add(set, static_cast<unsigned char>(c));
  return set;
}
bool is_word(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

// Parses to a tree, then emits the program: repetitions need their operand more than once.
class PatternCompiler {
 public:
  explicit PatternCompiler(std::string_view source) : source_(source) {}

  base::Result<Pattern> run() {
    if (source_.size() > kMaxPatternBytes)
      return base::make_error(base::ErrorCode::limit, "pattern is longer than 4096 bytes");
    const std::uint32_t root = parse_alternatives(0);
    if (!error_.empty()) return base::make_error(base::ErrorCode::malformed, error_, error_at_);
    if (at_ != source_.size()) return base::make_error(base::ErrorCode::malformed, "unmatched ')'", at_);
    Pattern pattern;
    pattern.source_ = std::string(source_);
    pattern_ = &pattern;
    emit(root);
    push({Pattern::Op::accept, 0, 0});
    if (too_large_) return base::make_error(base::ErrorCode::limit, "pattern is too large");
    pattern.required_ = required_literals(root);
    return pattern;
  }

 private:
  enum class Kind : std::uint8_t {
    empty,
    literal,
    set,
    sequence,
    alternatives,
    repeat,
    line_begin,
    line_end,
    boundary
  };
  struct Tree {
    Kind kind = Kind::empty;
    char literal = 0;
    CharSet set{};
    std::vector<std::uint32_t> children;
    int min = 0, max = -1;  // repeat; max -1: no limit
  };

  std::uint32_t make(Tree tree) {
    trees_.push_back(std::move(tree));
    return static_cast<std::uint32_t>(trees_.size() - 1);
  }
  std::uint32_t fail(std::string message) {
    if (error_.empty()) {
      error_ = std::move(message);
      error_at_ = at_;
    }
    at_ = source_.size();
    return make({});
  }
  [[nodiscard]] bool more() const { return at_ < source_.size(); }

  std::uint32_t parse_alternatives(int depth) {
    if (depth > kMaxDepth) return fail("groups are nested too deeply");
    Tree alternatives;
    alternatives.kind = Kind::alternatives;
    alternatives.children.push_back(parse_sequence(depth));
    while (more() && source_[at_] == '|') {
      ++at_;
      alternatives.children.push_back(parse_sequence(depth));
    }
    return alternatives.children.size() == 1 ? alternatives.children[0] : make(std::move(alternatives));
  }

  std::uint32_t parse_sequence(int depth) {
    Tree sequence;
    sequence.kind = Kind::sequence;
    while (more() && source_[at_] != '|' && source_[at_] != ')') {
      const std::uint32_t atom = parse_atom(depth);
      sequence.children.push_back(parse_repeat(atom));
    }
    return make(std::move(sequence));
  }

  std::uint32_t parse_repeat(std::uint32_t atom) {
    while (more()) {
      int min = 0, max = -1;
      const char c = source_[at_];
      if (c == '*') {
        ++at_;
      } else if (c == '+') {
        min = 1;
        ++at_;
      } else if (c == '?') {
        max = 1;
        ++at_;
      } else if (c == '{') {
        ++at_;
        min = parse_number();
        max = min;
        if (more() && source_[at_] == ',') {
          ++at_;
          max = more() && source_[at_] == '}' ? -1 : parse_number();
        }
        if (min < 0 || !more() || source_[at_] != '}' || (max >= 0 && max < min) || min > kMaxRepeat ||
            max > kMaxRepeat)
          return fail("bad repetition");
        ++at_;
      } else {
        break;
      }
      const Kind kind = trees_[atom].kind;
      if (kind == Kind::line_begin || kind == Kind::line_end || kind == Kind::boundary)
        return fail("nothing to repeat");
      if (more() && source_[at_] == '?') ++at_;  // lazy: the same for a yes/no answer
      Tree repeat;
      repeat.kind = Kind::repeat;
      repeat.children = {atom};
      repeat.min = min;
      repeat.max = max;
      atom = make(std::move(repeat));
    }
    return atom;
  }

  int parse_number() {
    int value = -1;
    while (more() && source_[at_] >= '0' && source_[at_] <= '9') {
      value = (value < 0 ? 0 : value) * 10 + (source_[at_] - '0');
      if (value > 1000) value = 1000;
      ++at_;
    }
    return value;
  }

  std::uint32_t parse_atom(int depth) {
    const char c = source_[at_];
    switch (c) {
      case '(': {
        ++at_;
        if (more() && source_[at_] == '?') {
          if (source_.substr(at_, 2) != "?:") return fail("look-around and named groups are not supported");
          at_ += 2;
        }
        const std::uint32_t inner = parse_alternatives(depth + 1);
        if (!more() || source_[at_] != ')') return fail("unmatched '('");
        ++at_;
        return inner;
      }
      case '[':
        return parse_class();
      case '*':
      case '+':
      case '?':
      case '{':
        return fail("nothing to repeat");
      case '.':
        ++at_;
        return make_set(inverse(CharSet{}));
      case '^':
        ++at_;
        return make_kind(Kind::line_begin);
      case '$':
        ++at_;
        return make_kind(Kind::line_end);
      case '\\': {
        ++at_;
        if (!more()) return fail("the pattern ends in '\\'");
        if (source_[at_] == 'b') {
          ++at_;
          return make_kind(Kind::boundary);
        }
        CharSet set{};
        char literal = 0;
        if (!parse_escape(set, literal)) return fail("unknown escape");
        return literal != 0 ? make_literal(literal) : make_set(set);
      }
      default:
        ++at_;
        return make_literal(c);
    }
  }

  // After the backslash. A class escape fills `set`, a character sets `literal`.
  bool parse_escape(CharSet& set, char& literal) {
    const char c = source_[at_++];
    const CharSet digits = range('0', '9');
    CharSet word = unite(unite(range('a', 'z'), range('A', 'Z')), digits);
    add(word, '_');
    CharSet space = range('\t', '\r');
    add(space, ' ');
    switch (c) {
      case 'd':
        set = digits;
        return true;
      case 'D':
        set = inverse(digits);
        return true;
      case 'w':
        set = word;
        return true;
      case 'W':
        set = inverse(word);
        return true;
      case 's':
        set = space;
        return true;
      case 'S':
        set = inverse(space);
        return true;
      case 't':
        literal = '\t';
        return true;
      case 'n':
        literal = '\n';
        return true;
      default:
        if (is_word(static_cast<unsigned char>(c))) return false;
        literal = c;
        return true;
    }
  }

  std::uint32_t parse_class() {
    ++at_;
    bool negated = false;
    if (more() && source_[at_] == '^') {
      negated = true;
      ++at_;
    }
    CharSet set{};
    bool closed = false;
    while (more()) {
      char c = source_[at_];
      if (c == ']') {
        ++at_;
        closed = true;
        break;
      }
      ++at_;
      if (c == '\\') {
        if (!more()) break;
        CharSet escaped{};
        char literal = 0;
        if (!parse_escape(escaped, literal)) return fail("unknown escape");
        if (literal == 0) {
          set = unite(set, escaped);
          continue;
        }
        c = literal;
      }
      if (at_ + 1 < source_.size() && source_[at_] == '-' && source_[at_ + 1] != ']') {
        const char last = source_[at_ + 1];
        if (last == '\\' || static_cast<unsigned char>(last) < static_cast<unsigned char>(c))
          return fail("bad range");
        at_ += 2;
        set = unite(set, range(static_cast<unsigned char>(c), static_cast<unsigned char>(last)));
      } else {
        add(set, static_cast<unsigned char>(c));
      }
    }
    if (!closed) return fail("unmatched '['");
    return make_set(negated ? inverse(set) : set);
  }

  std::uint32_t make_kind(Kind kind) {
    Tree tree;
    tree.kind = kind;
    return make(std::move(tree));
  }
  std::uint32_t make_literal(char c) {
    Tree tree;
    tree.kind = Kind::literal;
    tree.literal = c;
    add(tree.set, static_cast<unsigned char>(c));
    return make(std::move(tree));
  }
  std::uint32_t make_set(const CharSet& set) {
    Tree tree;
    tree.kind = Kind::set;
    tree.set = set;
    return make(std::move(tree));
  }

  std::uint32_t push(Pattern::Instruction instruction) {
    if (pattern_->program_.size() >= kMaxInstructions) {
      too_large_ = true;
      return 0;
    }
    pattern_->program_.push_back(instruction);
    return static_cast<std::uint32_t>(pattern_->program_.size() - 1);
  }
  [[nodiscard]] std::uint32_t here() const { return static_cast<std::uint32_t>(pattern_->program_.size()); }

  void emit_simple(Pattern::Op op) {
    const std::uint32_t at = push({op, 0, 0});
    pattern_->program_[at].a = here();
  }

  // Depth is bounded: groups by kMaxDepth, stacked repetitions by the pattern's length (each one is one byte
  // or more).
  void emit(std::uint32_t index) {
    if (++emitted_ > kMaxInstructions) too_large_ = true;  // also bounds repetitions of nothing
    if (too_large_) return;
    const Tree& tree = trees_[index];
    switch (tree.kind) {
      case Kind::empty:
        return;
      case Kind::literal:
      case Kind::set: {
        pattern_->sets_.push_back(tree.set);
        const std::uint32_t at =
            push({Pattern::Op::set, static_cast<std::uint32_t>(pattern_->sets_.size() - 1), 0});
        pattern_->program_[at].b = here();
        return;
      }
      case Kind::line_begin:
        emit_simple(Pattern::Op::line_begin);
        return;
      case Kind::line_end:
        emit_simple(Pattern::Op::line_end);
        return;
      case Kind::boundary:
        emit_simple(Pattern::Op::word_boundary);
        return;
      case Kind::sequence:
        for (const std::uint32_t child : tree.children) emit(child);
        return;
      case Kind::alternatives: {
        std::vector<std::uint32_t> jumps;
        for (std::size_t i = 0; i < tree.children.size(); ++i) {
          if (i + 1 < tree.children.size()) {
            const std::uint32_t split = push({Pattern::Op::split, 0, 0});
            pattern_->program_[split].a = here();
            emit(tree.children[i]);
            jumps.push_back(push({Pattern::Op::jump, 0, 0}));
            pattern_->program_[split].b = here();
          } else {
            emit(tree.children[i]);
          }
        }
        for (const std::uint32_t jump : jumps) pattern_->program_[jump].a = here();
        return;
      }
      case Kind::repeat: {
        const std::uint32_t child = tree.children[0];
        const int min = tree.min, max = tree.max;
        for (int i = 0; i < min; ++i) emit(child);
        if (max < 0) {
          const std::uint32_t split = push({Pattern::Op::split, 0, 0});
          pattern_->program_[split].a = here();
          emit(child);
          push({Pattern::Op::jump, split, 0});
          pattern_->program_[split].b = here();
        } else {
          std::vector<std::uint32_t> splits;
          for (int i = min; i < max && !too_large_; ++i) {
            const std::uint32_t split = push({Pattern::Op::split, 0, 0});
            pattern_->program_[split].a = here();
            splits.push_back(split);
            emit(child);
          }
          for (const std::uint32_t split : splits) pattern_->program_[split].b = here();
        }
        return;
      }
    }
  }

  // Literals of which every match contains at least one; empty if the pattern asks for none. Depth as in
  // emit().
  [[nodiscard]] std::vector<std::string> required_literals(std::uint32_t index) const {
    const Tree& tree = trees_[index];
    std::vector<std::string> best;
    const auto shortest = [](const std::vector<std::string>& literals) {
      std::size_t size = literals.empty() ? 0 : ~std::size_t{0};
      for (const std::string& literal : literals) size = std::min(size, literal.size());
      return size;
    };
    const auto offer = [&](std::vector<std::string> literals) {
      if (literals.size() <= kMaxRequired && shortest(literals) > shortest(best)) best = std::move(literals);
    };
    switch (tree.kind) {
      case Kind::literal:
        return {std::string(1, tree.literal)};
      case Kind::repeat:
        return tree.min > 0 ? required_literals(tree.children[0]) : best;
      case Kind::sequence: {
        std::string run;
        for (const std::uint32_t child : tree.children) {
          if (trees_[child].kind == Kind::literal) {
            run += trees_[child].literal;
            continue;
          }
          if (!run.empty()) offer({std::exchange(run, {})});
          offer(required_literals(child));
        }
        if (!run.empty()) offer({run});
        return best;
      }
      case Kind::alternatives:
        for (const std::uint32_t child : tree.children) {
          std::vector<std::string> literals = required_literals(child);
          if (literals.empty()) return {};
          best.insert(best.end(), literals.begin(), literals.end());
        }
        return best.size() <= kMaxRequired ? best : std::vector<std::string>();
      default:
        return best;
    }
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::string error_;
  std::size_t error_at_ = 0;
  bool too_large_ = false;
  std::size_t emitted_ = 0;
  std::vector<Tree> trees_;
  Pattern* pattern_ = nullptr;
};

base::Result<Pattern> Pattern::compile(std::string_view source) {
  return PatternCompiler(source).run();
}

bool Pattern::matches(std::string_view text) const {
  if (!required_.empty() && std::none_of(required_.begin(), required_.end(), [&](const std::string& literal) {
        return text.find(literal) != std::string_view::npos;
      }))
    return false;
  const std::size_t size = program_.size();
  std::vector<std::uint32_t> current, next, stack;
  std::vector<std::size_t> seen(size,
                                ~std::size_t{0});  // the position at which an instruction was last added
  current.reserve(size);
  next.reserve(size);
  for (std::size_t position = 0;; ++position) {
    // A match may start anywhere: the start joins the states that came from before.
    next.swap(current);
    current.clear();
    stack.assign(1, 0);
    stack.insert(stack.end(), next.rbegin(), next.rend());
    const bool at_end = position == text.size();
    while (!stack.empty()) {
      const std::uint32_t at = stack.back();
      stack.pop_back();
      if (seen[at] == position) continue;
      seen[at] = position;
      const Instruction& instruction = program_[at];
      switch (instruction.op) {
        case Op::accept:
          return true;
        case Op::set:
          current.push_back(at);
          break;
        case Op::jump:
          stack.push_back(instruction.a);
          break;
        case Op::split:
          stack.push_back(instruction.b);
          stack.push_back(instruction.a);
          break;
        case Op::line_begin:
          if (position == 0) stack.push_back(instruction.a);
          break;
        case Op::line_end:
          if (at_end) stack.push_back(instruction.a);
          break;
        case Op::word_boundary: {
          const bool before = position > 0 && is_word(static_cast<unsigned char>(text[position - 1]));
          const bool after = !at_end && is_word(static_cast<unsigned char>(text[position]));
          if (before != after) stack.push_back(instruction.a);
          break;
        }
      }
    }
    if (at_end) return false;
    const auto c = static_cast<unsigned char>(text[position]);
    next.clear();
    for (const std::uint32_t at : current)
      if (contains(sets_[program_[at].a], c)) next.push_back(program_[at].b);
    current.swap(next);
  }
}

}  // namespace cglint::analysis
