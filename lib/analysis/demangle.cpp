// A demangler for the Itanium C++ ABI (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), written
// for names that come from files. The C++ runtime's own gives up on names over 1024 bytes, which CUTLASS
// kernels exceed, does not know newer codes (DF16b, template parameter declarations) and can be made to
// allocate gigabytes by a name of 200 bytes. This one builds at most kMaxWork bytes of text, nests at most
// kMaxDepth deep, and gives up on everything else: the name is then shown as recorded. The spelling is that
// of the C++ runtime's demangler.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "analysis/kernel_identity.h"

namespace cglint::analysis {
namespace {

constexpr std::size_t kMaxName = std::size_t{64} * 1024;
constexpr std::size_t kMaxWork = 8u << 20;
constexpr std::size_t kMaxText = std::size_t{256} * 1024;
constexpr int kMaxDepth = 200;

// A type or name as text around the place where a declarator goes: "void (" + "*" + ")(int)".
struct Text {
  Text() = default;
  Text(std::string left_text, std::string right_text)
      : left(std::move(left_text)), right(std::move(right_text)) {}
  std::string left, right;
  bool is_function = false, is_array = false;
  bool is_pack = false;  // elements are in `pack`
  std::vector<Text> pack;
  [[nodiscard]] std::string str() const { return left + right; }
};

struct Operator {
  std::string_view code, text;
  int operands;  // 1 prefix, 2 binary, 3 other; 0: name only
};
constexpr auto kOperators = std::to_array<Operator>({
    {"aN", "&=", 2}, {"aS", "=", 2},      {"aa", "&&", 2},  {"ad", "&", 1},     {"an", "&", 2},
    {"cl", "()", 3}, {"cm", ",", 2},      {"co", "~", 1},   {"dV", "/=", 2},    {"da", "delete[]", 0},
    {"de", "*", 1},  {"dl", "delete", 0}, {"dv", "/", 2},   {"eO", "^=", 2},    {"eo", "^", 2},
    {"eq", "==", 2}, {"ge", ">=", 2},     {"gt", ">", 2},   {"ix", "[]", 3},    {"lS", "<<=", 2},
    {"le", "<=", 2}, {"ls", "<<", 2},     {"lt", "<", 2},   {"mI", "-=", 2},    {"mL", "*=", 2},
    {"mi", "-", 2},  {"ml", "*", 2},      {"mm", "--", 0},  {"na", "new[]", 0}, {"ne", "!=", 2},
    {"ng", "-", 1},  {"nt", "!", 1},      {"nw", "new", 0}, {"oR", "|=", 2},    {"oo", "||", 2},
    {"or", "|", 2},  {"pL", "+=", 2},     {"pl", "+", 2},   {"pm", "->*", 2},   {"pp", "++", 0},
    {"ps", "+", 1},  {"pt", "->", 3},     {"qu", "?", 3},   {"rM", "%=", 2},    {"rS", ">>=", 2},
    {"rm", "%", 2},  {"rs", ">>", 2},     {"ss", "<=>", 2}, {"li", "\"\"", 0},  {"dt", ".", 3},
});

std::string_view builtin_type(char code) {
  switch (code) {
    case 'v':
      return "void";
    case 'w':
      return "wchar_t";
    case 'b':
      return "bool";
    case 'c':
      return "char";
    case 'a':
      return "signed char";
    case 'h':
      return "unsigned char";
    case 's':
      return "short";
    case 't':
      return "unsigned short";
    case 'i':
      return "int";
    case 'j':
      return "unsigned int";
    case 'l':
      return "long";
    case 'm':
      return "unsigned long";
    case 'x':
      return "long long";
    case 'y':
      return "unsigned long long";
    case 'n':
      return "__int128";
    case 'o':
      return "unsigned __int128";
    case 'f':
      return "float";
    case 'd':
      return "double";
    case 'e':
      return "long double";
    case 'g':
      return "__float128";
    case 'z':
      return "...";
    default:
      return {};
  }
}

class Demangler {
 public:
  explicit Demangler(std::string_view text) : text_(text) {}

  // The whole name, or "" on failure.
  std::string run() {
    if (!take("_Z")) return {};
    std::string result = encoding(true);
    if (failed_) return {};
    if (at_ < text_.size()) {
      if (text_[at_] != '.') return {};
      result += " [clone " + std::string(text_.substr(at_)) + "]";
    }
    return result;
  }

 private:
  struct DepthGuard {
    explicit DepthGuard(Demangler& d) : demangler(d) {
      if (++d.depth_ > kMaxDepth) d.fail();
    }
    ~DepthGuard() { --demangler.depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;
    Demangler& demangler;
  };

  // --- input ---
  [[nodiscard]] char look(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    advance(what.size());
    return true;
  }
  // Stays inside the text: after fail() the callers run on until they look at failed_.
  void advance(std::size_t bytes) { at_ = std::min(at_ + bytes, text_.size()); }
  void fail() {
    failed_ = true;
    at_ = text_.size();
  }
  // Counts text that was built; gives up beyond the budget.
  void charge(std::size_t bytes) {
    work_ += bytes;
    if (work_ > kMaxWork || bytes > kMaxText) fail();
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  std::size_t number() {
    if (!is_digit(look())) {
      fail();
      return 0;
    }
    std::size_t value = 0;
    while (is_digit(look())) {
      value = value * 10 + static_cast<std::size_t>(text_[at_++] - '0');
      if (value > 100'000'000) {
        fail();
        return 0;
      }
    }
    return value;
  }
  // "_" -> 0, "<n>_" -> n + 1, in base 10 or 36.
  std::size_t sequence_id(unsigned base) {
    if (take("_")) return 0;
    std::size_t value = 0;
    bool any = false;
    while (true) {
      const char c = look();
      unsigned digit;
      if (is_digit(c)) {
        digit = static_cast<unsigned>(c - '0');
      } else if (base == 36 && c >= 'A' && c <= 'Z') {
        digit = static_cast<unsigned>(c - 'A') + 10;
      } else {
        break;
      }
      any = true;
      advance(1);
      value = value * base + digit;
      if (value > 1'000'000) break;
    }
    if (!any || !take("_")) fail();
    return value + 1;
  }

  // --- names ---
  struct Name {
    std::string text;
    std::string qualifiers;  // of a member function: " const"
    bool ends_with_arguments = false;
    bool no_return = false;  // constructor, destructor, conversion
  };

  std::string encoding(bool with_return) {
    const DepthGuard guard(*this);
    if (failed_) return {};
    const std::vector<Text> saved = template_arguments_;
    const Name name = parse_name(true);
    std::string result = name.text;
    if (!failed_ && at_ < text_.size() && look() != 'E' && look() != '.') {
      Text return_type;
      if (name.ends_with_arguments && !name.no_return) return_type = type();
      std::string params = parameters();
      if (!name.ends_with_arguments || name.no_return || !with_return) {
        result += "(" + params + ")" + name.qualifiers;
      } else {
        result = return_type.left + (return_type.is_function ? "" : " ") + result + "(" + params + ")" +
                 name.qualifiers + return_type.right;
      }
    }
    template_arguments_ = saved;
    charge(result.size());
    return result;
  }

  std::string parameters() {
    std::string params;
    if (look() == 'v' && (at_ + 1 == text_.size() || look(1) == 'E' || look(1) == '.' || look(1) == 'Q')) {
      advance(1);
      return params;
    }
    bool first = true;
    while (!failed_ && at_ < text_.size() && look() != 'E' && look() != '.' && look() != 'Q') {
      const Text parsed = type();
      append_list(params, parsed, first);
    }
    if (look() == 'Q') fail();  // requires-clauses are not read
    return params;
  }

  void append_list(std::string& list, const Text& item, bool& first) {
    if (item.is_pack) {
      for (const Text& element : item.pack) append_list(list, element, first);
      return;
    }
    if (!first) list += ", ";
    first = false;
    list += item.str();
    if (list.size() > kMaxText) fail();
  }

  // `of_encoding`: template arguments become what T_ means.
  Name parse_name(bool of_encoding) {
    const DepthGuard guard(*this);
    Name name;
    if (failed_) return name;
    if (look() == 'N') return nested_name(of_encoding);
    if (look() == 'Z') return local_name(of_encoding);
    if (look() == 'S' && look(1) != 't') {
      name.text = substitution().str();
      if (look() != 'I') {
        fail();
        return name;
      }
      name.text += template_argument_list(of_encoding);
      name.ends_with_arguments = true;
      return name;
    }
    if (take("St")) name.text = "std::";
    take("L");
    name.text += unqualified_name(name, {});
    if (look() == 'I') {
      add_substitution({name.text, {}});
      name.text += template_argument_list(of_encoding);
      name.ends_with_arguments = true;
    }
    return name;
  }

  Name nested_name(bool of_encoding) {
    Name name;
    take("N");
    bool is_restrict = false, is_volatile = false, is_const = false;
    while (look() == 'r' || look() == 'V' || look() == 'K') {
      is_restrict |= look() == 'r';
      is_volatile |= look() == 'V';
      is_const |= look() == 'K';
      advance(1);
    }
    if (take("O")) {
      name.qualifiers = " &&";
    } else if (take("R")) {
      name.qualifiers = " &";
    }
    if (is_restrict) name.qualifiers = " __restrict" + name.qualifiers;
    if (is_volatile) name.qualifiers = " volatile" + name.qualifiers;
    if (is_const) name.qualifiers = " const" + name.qualifiers;
    std::string last;  // for constructors
    bool any = false, pushed = false;
    while (!failed_ && !take("E")) {
      name.ends_with_arguments = false;
      pushed = true;
      if (look() == 'T') {
        if (any) fail();
        name.text = template_parameter().str();
      } else if (look() == 'I') {
        if (!any) fail();
        name.text += template_argument_list(of_encoding);
        name.ends_with_arguments = true;
      } else if (look() == 'D' && (look(1) == 't' || look(1) == 'T')) {
        if (any) fail();
        name.text = decltype_type();
      } else if (look() == 'S') {
        if (any) fail();
        if (take("St")) {
          name.text = "std";
        } else {
          name.text = substitution().str();
        }
        any = true;
        pushed = false;
        last = name.text;
        continue;
      } else {
        take("L");
        name.no_return = false;
        const std::string part = unqualified_name(name, last);
        last = part;
        if (any) name.text += "::";
        name.text += part;
      }
      any = true;
      charge(name.text.size());
      add_substitution({name.text, {}});
      take("M");
    }
    if (!any || !pushed) {
      if (!any) fail();
      return name;
    }
    if (!frozen_ && !substitutions_.empty()) substitutions_.pop_back();
    return name;
  }

  Name local_name(bool of_encoding) {
    Name name;
    take("Z");
    const std::string scope = encoding(false);
    if (!take("E")) {
      fail();
      return name;
    }
    if (take("s")) {
      discriminator();
      name.text = scope + "::string literal";
      return name;
    }
    std::string default_argument;
    if (take("d")) {
      const std::size_t index = sequence_id(10);
      default_argument = "{default arg#" + std::to_string(index + 1) + "}::";
    }
    name = parse_name(of_encoding);
    discriminator();
    name.text = scope + "::" + default_argument + name.text;
    charge(name.text.size());
    return name;
  }

  void discriminator() {
    if (look() != '_') return;
    if (look(1) == '_') {
      std::size_t end = at_ + 2;
      while (end < text_.size() && is_digit(text_[end])) ++end;
      if (end > at_ + 2 && end < text_.size() && text_[end] == '_') at_ = end + 1;
    } else if (is_digit(look(1))) {
      advance(2);
    }
  }

  std::string source_name() {
    const std::size_t length = number();
    if (failed_ || length == 0 || length > text_.size() - at_) {
      fail();
      return {};
    }
    const std::string_view name = text_.substr(at_, length);
    advance(length);
    if (name.starts_with("_GLOBAL_") && name.size() >= 10 &&
        (name[8] == '_' || name[8] == '.' || name[8] == '$') && name[9] == 'N')
      return "(anonymous namespace)";
    return std::string(name);
  }

  std::string unqualified_name(Name& name, std::string_view scope) {
    std::string result;
    if (is_digit(look())) {
      result = source_name();
    } else if (look() == 'U') {
      result = unnamed_type();
    } else if (look() == 'C' && (is_digit(look(1)) || look(1) == 'I')) {
      advance(look(1) == 'I' ? 3 : 2);
      name.no_return = true;
      result = std::string(last_identifier(scope));
    } else if (look() == 'D' && is_digit(look(1))) {
      advance(2);
      name.no_return = true;
      result = "~" + std::string(last_identifier(scope));
    } else {
      result = operator_name(name);
    }
    while (look() == 'B') {
      advance(1);
      result += "[abi:" + source_name() + "]";
    }
    return result;
  }

  static std::string_view last_identifier(std::string_view scope) {
    const std::size_t arguments = scope.find('<');
    scope = scope.substr(0, arguments);
    const std::size_t colon = scope.rfind("::");
    return colon == std::string_view::npos ? scope : scope.substr(colon + 2);
  }

  std::string unnamed_type() {
    if (take("Ut")) return "{unnamed type#" + std::to_string(sequence_id(10) + 1) + "}";
    if (!take("Ul")) {
      fail();
      return {};
    }
    // A generic lambda declares its parameters (Ty, Tn) and T_ means them; older mangling has T_ alone:
    // "auto:1".
    const bool saved = in_lambda_;
    in_lambda_ = true;
    while (look() == 'T' && (look(1) == 'y' || look(1) == 'n' || look(1) == 't' || look(1) == 'p')) {
      advance(1);
      if (look() == 'p') advance(1);
      if (take("n")) {
        type();
      } else if (!take("y")) {
        fail();
      }
    }
    std::string params;
    if (take("v")) {
      if (look() != 'E') fail();
    } else {
      bool first = true;
      while (!failed_ && look() != 'E') append_list(params, type(), first);
    }
    in_lambda_ = saved;
    if (!take("E")) fail();
    return "{lambda(" + params + ")#" + std::to_string(sequence_id(10) + 1) + "}";
  }

  std::string operator_name(Name& name) {
    if (take("cv")) {
      name.no_return = true;
      return "operator " + type().str();
    }
    const std::string_view code = text_.substr(at_, 2);
    for (const Operator& op : kOperators)
      if (op.code == code) {
        advance(2);
        if (code == "li") return "operator\"\" " + source_name();
        const bool word = op.text[0] >= 'a' && op.text[0] <= 'z';
        return std::string("operator") + (word ? " " : "") + std::string(op.text);
      }
    fail();
    return {};
  }

  // --- substitutions and template parameters ---
  // A type that mentions a template parameter is read again where it is substituted: compilers refer to the
  // "T0_" of one function for that of another. `begin` is where its text starts; kNotDependent for all else.
  static constexpr std::size_t kNotDependent = ~std::size_t{0};
  struct Substitution {
    Text text;
    std::size_t begin = kNotDependent;
  };
  void add_substitution(Text text, std::size_t begin = kNotDependent) {
    charge(text.left.size() + text.right.size());
    if (!failed_ && !frozen_) substitutions_.push_back({std::move(text), begin});
  }

  Text substitution() {
    take("S");
    switch (look()) {
      case 'a':
        advance(1);
        return {"std::allocator", {}};
      case 'b':
        advance(1);
        return {"std::basic_string", {}};
      case 's':
        advance(1);
        return {"std::string", {}};
      case 'i':
        advance(1);
        return {"std::istream", {}};
      case 'o':
        advance(1);
        return {"std::ostream", {}};
      case 'd':
        advance(1);
        return {"std::iostream", {}};
      default:
        break;
    }
    const std::size_t index = sequence_id(36);
    if (failed_ || index >= substitutions_.size()) {
      fail();
      return {};
    }
    const Substitution& known = substitutions_[index];
    if (known.begin == kNotDependent) {
      charge(known.text.left.size() + known.text.right.size());
      return known.text;
    }
    const std::size_t here = std::exchange(at_, known.begin);
    const bool frozen = std::exchange(frozen_, true);
    charge(16);
    ++parameter_uses_;
    Text text = type();
    frozen_ = frozen;
    if (!failed_) at_ = here;
    return text;
  }

  Text template_parameter() {
    take("T");
    if (take("L")) {  // of an outer template parameter list
      number();
      if (!take("_")) fail();
    }
    const std::size_t index = sequence_id(10);
    if (in_lambda_) return {"auto:" + std::to_string(index + 1), {}};
    ++parameter_uses_;
    if (failed_ || index >= template_arguments_.size()) {
      fail();
      return {};
    }
    const Text& argument = template_arguments_[index];
    if (argument.is_pack && expanding_) {
      pack_size_ = std::max(pack_size_, argument.pack.size());
      saw_pack_ = true;
      if (pack_index_ < argument.pack.size()) return argument.pack[pack_index_];
      return {};
    }
    charge(argument.left.size() + argument.right.size());
    return argument;
  }

  // "<...>" with the space that closes "> >".
  std::string template_argument_list(bool sets_parameters) {
    const DepthGuard guard(*this);
    if (failed_ || !take("I")) {
      fail();
      return {};
    }
    std::vector<Text> outer;
    if (sets_parameters) {
      template_arguments_.clear();
    } else {
      outer = template_arguments_;
    }
    std::string list = "<";
    bool first = true;
    while (!failed_ && !take("E")) {
      Text argument = template_argument();
      append_list(list, argument, first);
      if (sets_parameters) template_arguments_.push_back(std::move(argument));
    }
    if (!sets_parameters) template_arguments_ = std::move(outer);
    if (list.back() == '>') list += ' ';
    list += '>';
    charge(list.size());
    return list;
  }

  Text template_argument() {
    const DepthGuard guard(*this);
    if (failed_) return {};
    // Arguments are parsed with the enclosing meaning of T_ intact: names inside them are types, not
    // encodings.
    switch (look()) {
      case 'X': {
        advance(1);
        Text result{expression(), {}};
        if (!take("E")) fail();
        return result;
      }
      case 'J': {
        advance(1);
        Text pack;
        pack.is_pack = true;
        while (!failed_ && !take("E")) pack.pack.push_back(template_argument());
        return pack;
      }
      case 'L':
        return {primary(), {}};
      case 'T':
        if (look(1) == 'n') {  // a parameter declaration in front of its argument
          advance(2);
          type();
          return template_argument();
        }
        if (look(1) == 'y') {
          advance(2);
          return template_argument();
        }
        if (look(1) == 't' || look(1) == 'p' || look(1) == 'k') {
          fail();
          return {};
        }
        return type();
      default:
        return type();
    }
  }

  // --- types ---
  static Text qualified(Text inner, std::string_view word) {
    inner.left += word;
    return inner;
  }
  static Text pointer_like(Text inner, std::string_view mark) {
    if (inner.is_function || inner.is_array) {
      inner.left += inner.is_array ? " (" : "(";
      inner.left += mark;
      inner.right = ")" + inner.right;
      inner.is_function = inner.is_array = false;
      return inner;
    }
    // Reference collapsing.
    if (mark == "&" && inner.left.ends_with("&&")) {
      inner.left.pop_back();
      return inner;
    }
    if (mark[0] == '&' && inner.left.ends_with("&")) return inner;
    inner.left += mark;
    return inner;
  }

  // Applies `change` to a type or to each element of a pack.
  template <typename Change>
  static Text map_pack(Text text, Change change) {
    if (!text.is_pack) return change(std::move(text));
    for (Text& element : text.pack) element = map_pack(std::move(element), change);
    return text;
  }

  Text type() {
    const DepthGuard guard(*this);
    if (failed_) return {};
    const std::size_t begin = at_;
    const std::size_t uses = parameter_uses_;
    const char c = look();
    if (const std::string_view builtin = builtin_type(c); !builtin.empty()) {
      advance(1);
      return {std::string(builtin), {}};
    }
    Text result;
    switch (c) {
      case 'r':
      case 'V':
      case 'K': {
        std::string words;
        bool is_const = false, is_volatile = false, is_restrict = false;
        while (look() == 'r' || look() == 'V' || look() == 'K') {
          is_restrict |= look() == 'r';
          is_volatile |= look() == 'V';
          is_const |= look() == 'K';
          advance(1);
        }
        if (is_const) words += " const";
        if (is_volatile) words += " volatile";
        if (is_restrict) words += " __restrict";
        result = map_pack(type(), [&](Text inner) {
          if (!inner.is_function && !inner.left.ends_with(words)) return qualified(std::move(inner), words);
          return inner;
        });
        break;
      }
      case 'P':
        advance(1);
        result = map_pack(type(), [](Text inner) { return pointer_like(std::move(inner), "*"); });
        break;
      case 'R':
        advance(1);
        result = map_pack(type(), [](Text inner) { return pointer_like(std::move(inner), "&"); });
        break;
      case 'O':
        advance(1);
        result = map_pack(type(), [](Text inner) { return pointer_like(std::move(inner), "&&"); });
        break;
      case 'C':
        advance(1);
        result = map_pack(type(), [](Text inner) { return qualified(std::move(inner), " _Complex"); });
        break;
      case 'G':
        advance(1);
        result = map_pack(type(), [](Text inner) { return qualified(std::move(inner), " _Imaginary"); });
        break;
      case 'F':
        result = function_type();
        break;
      case 'A':
        result = array_type();
        break;
      case 'M': {
        advance(1);
        const std::string owner = type().str();
        Text member = type();
        const bool spaced = !member.is_function && !member.is_array;
        result = pointer_like(std::move(member), (spaced ? " " : "") + owner + "::*");
        break;
      }
      case 'U': {
        advance(1);
        const std::string qualifier = source_name();
        if (look() == 'I') template_argument_list(false);
        result = qualified(type(), " " + qualifier);
        break;
      }
      case 'u': {
        advance(1);
        result.left = source_name();
        if (look() == 'I') result.left += template_argument_list(false);
        break;
      }
      case 'T':
        if (look(1) == 's' || look(1) == 'u' || look(1) == 'e') {
          advance(2);
          result = class_type();
          break;
        }
        result = template_parameter();
        if (look() == 'I' && !result.is_pack) {
          add_substitution(result);
          result.left += template_argument_list(false);
        }
        break;
      case 'D':
        if (!d_type(result)) return result;
        break;
      case 'S':
        if (look(1) != 't') {
          result = substitution();
          if (look() != 'I') return result;
          result.left += template_argument_list(false);
          break;
        }
        result = class_type();
        break;
      default:
        result = class_type();
        break;
    }
    add_substitution(result, parameter_uses_ != uses ? begin : kNotDependent);
    return result;
  }

  Text class_type() {
    if (!is_digit(look()) && look() != 'N' && look() != 'Z' && look() != 'S' && look() != 'U' &&
        look() != 'L') {
      fail();
      return {};
    }
    return {parse_name(false).text, {}};
  }

  // False: a builtin, which is no substitution candidate.
  bool d_type(Text& result) {
    switch (look(1)) {
      case 'd':
        advance(2);
        result.left = "decimal64";
        return false;
      case 'e':
        advance(2);
        result.left = "decimal128";
        return false;
      case 'f':
        advance(2);
        result.left = "decimal32";
        return false;
      case 'h':
        advance(2);
        result.left = "half";
        return false;
      case 'i':
        advance(2);
        result.left = "char32_t";
        return false;
      case 's':
        advance(2);
        result.left = "char16_t";
        return false;
      case 'u':
        advance(2);
        result.left = "char8_t";
        return false;
      case 'a':
        advance(2);
        result.left = "auto";
        return false;
      case 'c':
        advance(2);
        result.left = "decltype(auto)";
        return false;
      case 'n':
        advance(2);
        result.left = "decltype(nullptr)";
        return false;
      case 'F': {
        advance(2);
        const std::size_t bits = number();
        if (take("b")) {
          result.left = "std::bfloat16_t";
        } else if (take("x")) {
          result.left = "_Float" + std::to_string(bits) + "x";
        } else if (take("_")) {
          result.left = "_Float" + std::to_string(bits);
        } else {
          fail();
        }
        return false;
      }
      case 'B':
      case 'U': {
        const bool is_unsigned = look(1) == 'U';
        advance(2);
        const std::size_t bits = number();
        if (!take("_")) fail();
        result.left = std::string(is_unsigned ? "unsigned " : "") + "_BitInt(" + std::to_string(bits) + ")";
        return false;
      }
      case 'p': {
        advance(2);
        result = pack_expansion();
        return true;
      }
      case 't':
      case 'T':
        result.left = decltype_type();
        return true;
      case 'v': {
        advance(2);
        std::string size;
        if (take("_")) {
          size = expression();
        } else {
          size = std::to_string(number());
        }
        if (!take("_")) fail();
        Text inner = type();
        inner.left += " __vector(" + size + ")";
        result = std::move(inner);
        return true;
      }
      case 'o':
      case 'O':
      case 'w':
      case 'x':
        result = function_type();
        return true;
      default:
        fail();
        return false;
    }
  }

  Text pack_expansion() {
    const std::size_t begin = at_;
    const std::size_t base = substitutions_.size();
    const bool saved_expanding = expanding_, saved_saw = saw_pack_;
    const std::size_t saved_index = pack_index_, saved_size = pack_size_;
    expanding_ = true;
    saw_pack_ = false;
    pack_size_ = pack_index_ = 0;
    Text first = type();
    const std::size_t end = at_;
    Text result;
    if (saw_pack_) {
      result.is_pack = true;
      const std::size_t size = pack_size_;
      const std::vector<Substitution> added(
          substitutions_.begin() + static_cast<std::ptrdiff_t>(std::min(base, substitutions_.size())),
          substitutions_.end());
      if (size > 0) result.pack.push_back(std::move(first));
      for (std::size_t i = 1; i < size && !failed_; ++i) {
        at_ = begin;
        if (!frozen_) substitutions_.resize(base);
        pack_index_ = i;
        result.pack.push_back(type());
      }
      if (!failed_) {
        at_ = end;
        if (!frozen_) {
          substitutions_.resize(base);
          substitutions_.insert(substitutions_.end(), added.begin(), added.end());
        }
      }
    } else {
      result = std::move(first);
      if (!result.is_pack) result.left += "...";
    }
    expanding_ = saved_expanding;
    saw_pack_ = saved_saw;
    pack_index_ = saved_index;
    pack_size_ = saved_size;
    return result;
  }

  Text function_type() {
    std::string suffix;
    if (take("Do")) suffix = " noexcept";
    if (!take("F")) {
      fail();
      return {};
    }
    take("Y");
    Text returned = type();
    std::string params;
    if (look() == 'v' && look(1) == 'E') {
      advance(1);
    } else {
      bool first = true;
      while (!failed_ && look() != 'E' && !(look() == 'R' && look(1) == 'E') &&
             !(look() == 'O' && look(1) == 'E'))
        append_list(params, type(), first);
    }
    if (take("R")) suffix += " &";
    if (take("O")) suffix += " &&";
    if (!take("E")) fail();
    Text result;
    result.left = returned.left + " ";
    result.right = "(" + params + ")" + suffix + returned.right;
    result.is_function = true;
    return result;
  }

  Text array_type() {
    take("A");
    std::string size;
    if (is_digit(look())) {
      size = std::to_string(number());
    } else if (look() != '_') {
      size = expression();
    }
    if (!take("_")) fail();
    Text element = type();
    const std::string inner = element.is_array ? element.right.substr(1) : element.right;
    element.right = " [" + size + "]" + inner;
    element.is_array = true;
    return element;
  }

  std::string decltype_type() {
    advance(2);
    std::string result = "decltype (" + expression() + ")";
    if (!take("E")) fail();
    return result;
  }

  // --- expressions ---
  std::string primary() {
    const DepthGuard guard(*this);
    if (failed_ || !take("L")) {
      fail();
      return {};
    }
    if (take("_Z") || look() == 'Z') {
      take("Z");
      std::string result = encoding(true);
      if (!take("E")) fail();
      return result;
    }
    const char code = look();
    if (code == 'b' && (look(1) == '0' || look(1) == '1') && look(2) == 'E') {
      const bool value = look(1) == '1';
      advance(3);
      return value ? "true" : "false";
    }
    const std::string type_text = type().str();
    if (take("E")) return code == 'D' ? "nullptr" : "(" + type_text + ")0";
    std::string value;
    if (take("n")) value = "-";
    const std::size_t begin = at_;
    while (at_ < text_.size() && look() != 'E' && look() != '_') advance(1);
    value += text_.substr(begin, at_ - begin);
    if (look() == '_' || !take("E")) {  // complex constants are not read
      fail();
      return {};
    }
    switch (code) {
      case 'i':
        return value;
      case 'j':
        return value + "u";
      case 'l':
        return value + "l";
      case 'm':
        return value + "ul";
      case 'x':
        return value + "ll";
      case 'y':
        return value + "ull";
      case 'f':
      case 'd':
      case 'e':
      case 'g':
        return "(" + type_text + ")[" + value + "]";
      default:
        return "(" + type_text + ")" + value;
    }
  }

  std::string expression() {
    const DepthGuard guard(*this);
    if (failed_) return {};
    std::string result = expression_inner();
    charge(result.size());
    return result;
  }

  std::string operand() {
    const char c = look();
    std::string inner = expression();
    return c == 'L' || c == 'T' || c == 'f' ? inner : "(" + inner + ")";
  }

  std::string list_until_end() {
    std::string list;
    bool first = true;
    while (!failed_ && !take("E")) append_list(list, {expression(), {}}, first);
    return list;
  }

  std::string expression_inner() {
    const char c = look();
    if (c == 'L') return primary();
    if (c == 'T') return template_parameter().str();
    if (c == 'f' && (look(1) == 'p' || look(1) == 'L')) {
      if (look(1) == 'L') {
        advance(2);
        number();
        if (!take("p")) fail();
      } else {
        advance(2);
      }
      while (look() == 'r' || look() == 'V' || look() == 'K') advance(1);
      if (take("T")) return "this";
      return "{parm#" + std::to_string(sequence_id(10) + 1) + "}";
    }
    take("gs");
    if (is_digit(look()) || (look() == 'o' && look(1) == 'n')) return unresolved_name();
    if (take("sr")) {
      if (is_digit(look())) {  // qualifier levels up to 'E'
        std::string result = unresolved_name();
        while (!failed_ && !take("E")) result += "::" + unresolved_name();
        return result + "::" + unresolved_name();
      }
      const bool several = take("N");
      std::string result = type().str();
      if (look() == 'I') result += template_argument_list(false);
      while (several && !failed_ && !take("E")) {
        result += "::" + source_name();
        if (look() == 'I') result += template_argument_list(false);
      }
      return result + "::" + unresolved_name();
    }
    if (take("st")) return "sizeof (" + type().str() + ")";
    if (take("sz")) return "sizeof (" + expression() + ")";
    if (take("at")) return "alignof (" + type().str() + ")";
    if (take("az")) return "alignof (" + expression() + ")";
    if (take("nx")) return "noexcept (" + expression() + ")";
    if (take("sp")) return expression() + "...";
    if (take("sZ")) {
      if (look() == 'T') {
        const Text pack = template_parameter();
        return pack.is_pack ? std::to_string(pack.pack.size()) : "sizeof...(" + pack.str() + ")";
      }
      return "sizeof...(" + expression() + ")";
    }
    if (take("cv")) {
      const std::string to = type().str();
      if (take("_")) return "(" + to + ")(" + list_until_end() + ")";
      return "(" + to + ")(" + expression() + ")";
    }
    for (const auto& [code, word] : {std::pair<std::string_view, std::string_view>{"sc", "static_cast"},
                                     {"dc", "dynamic_cast"},
                                     {"rc", "reinterpret_cast"},
                                     {"cc", "const_cast"}})
      if (take(code)) {
        const std::string to = type().str();
        return std::string(word) + "<" + to + ">(" + expression() + ")";
      }
    if (take("tl")) {
      const std::string of = type().str();
      return of + "{" + list_until_end() + "}";
    }
    if (take("il")) return "{" + list_until_end() + "}";
    if (take("cl")) {
      const std::string callee = expression();
      return callee + "(" + list_until_end() + ")";
    }
    if (take("dt")) {
      const std::string object = operand();
      return object + "." + unresolved_name();
    }
    if (take("pt")) {
      const std::string object = operand();
      return object + "->" + unresolved_name();
    }
    if (take("ix")) {
      const std::string array = operand();
      return array + "[" + expression() + "]";
    }
    if (take("qu")) {
      const std::string condition = operand();
      const std::string yes = operand();
      return condition + " ? " + yes + " : " + operand();
    }
    const std::string_view code = text_.substr(at_, 2);
    for (const Operator& op : kOperators) {
      if (op.code != code || op.operands == 0 || op.operands == 3) continue;
      advance(2);
      if (op.operands == 1) return std::string(op.text) + "(" + expression() + ")";
      std::string text = operand();
      text += op.text;
      text += operand();
      return op.text == ">" ? "(" + text + ")" : text;
    }
    fail();
    return {};
  }

  std::string unresolved_name() {
    std::string result;
    if (take("on")) {
      Name unused;
      result = operator_name(unused);
    } else {
      result = source_name();
    }
    if (look() == 'I') result += template_argument_list(false);
    return result;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
  int depth_ = 0;
  std::size_t work_ = 0;
  std::vector<Substitution> substitutions_;
  bool frozen_ = false;  // while a substituted type is read again
  std::size_t parameter_uses_ = 0;
  std::vector<Text> template_arguments_;
  bool in_lambda_ = false;
  bool expanding_ = false, saw_pack_ = false;
  std::size_t pack_index_ = 0, pack_size_ = 0;
};

}  // namespace

std::string demangle(std::string_view name) {
  if (name.size() > kMaxName || name.size() < 3) return std::string(name);
  std::string_view mangled = name;
  // Some recorders keep the extra underscore of a Mach-O symbol or a static kernel's prefix.
  if (mangled.starts_with("__Z")) mangled.remove_prefix(1);
  if (!mangled.starts_with("_Z")) return std::string(name);
  std::string text = Demangler(mangled).run();
  return text.empty() ? std::string(name) : text;
}

}  // namespace cglint::analysis
