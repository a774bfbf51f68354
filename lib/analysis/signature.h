// Takes demangled kernel names apart: scope, template arguments, parameters. Understands the spellings of the
// C++ ABI demangler ("(anonymous namespace)", "{lambda(int)#1}", "T const*") and of NVIDIA's ("<unnamed>",
// "[lambda(int) (instance 1)]", "const T *"). Names come from files: anything unbalanced or cut off is taken
// apart as far as it goes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cglint::analysis {

// One "::"-separated part of a qualified name.
struct NameComponent {
  std::string_view base;  // without template arguments and parameters
  std::vector<std::string_view> template_arguments;
  bool has_parameters = false;  // a function's scope: "foo(int)::{lambda()#1}"
};

struct SplitName {
  std::vector<NameComponent> components;     // outermost first
  std::vector<std::string_view> parameters;  // types as written
  bool has_parameters = false;               // the name ends in a complete parameter list
};

// Views into `demangled`, which must outlive the result.
SplitName split_name(std::string_view demangled);

// A parameter type.
struct ParameterType {
  bool is_pointer = false;         // a data pointer passed by value
  bool points_to_const = false;    // what it points to is const
  bool points_to_pointer = false;  // "T**": what is behind the inner pointers is unknown
  bool is_scalar = false;          // built-in arithmetic type, enum cast or known 16/8-bit float: no address
  std::string_view pointee;        // element type without const; "" if not a pointer
};
ParameterType parse_parameter_type(std::string_view type);

// Size of a built-in or well-known element type (float, __half, c10::BFloat16, ...); 0 if unknown.
unsigned element_bytes(std::string_view type);

}  // namespace cglint::analysis
