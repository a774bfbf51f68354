// Lines of the file $CGLINT_RECORD_LIST, to which the processes of a command add: the name of each capture
// file when it is opened (they are absolute), and what follows.
#pragma once

#include <string_view>

namespace cglint::record {

inline constexpr std::string_view kListLoaded =
    "loaded";  // a process has initialised CUDA, and the driver loaded the recorder
inline constexpr std::string_view kListOff = "off";  // recording failed there; a line on stderr says why
inline constexpr std::string_view kListNotRun =
    "not run";  // the command could not be started; a line on stderr says so

}  // namespace cglint::record
