// cglint-record: starts a command with the recorder in it, and lints what was recorded if asked to. Needs no
// CUDA itself: the driver of the command loads the recorder.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capture/record_file.h"
#include "common/standard_output.h"
#include "list_lines.h"

namespace {

namespace record = cglint::record;

constexpr int kExitUsage = 2;

constexpr std::string_view kHelp =
    R"(Usage: cglint record [OPTIONS] [--lint [LINT OPTIONS]] -- COMMAND [ARGUMENTS]

Runs a command and records the CUDA graphs that it and the processes it starts instantiate: nodes, edges, kernel
arguments, capture streams, event records and waits, Python source lines, memory. Each process writes its own capture
file, with its process id (and rank) in the name; a graph is in the file when the call that instantiated it returns.

Options:
  -o, --output FILE|DIR
                       Where to write: a name, before whose suffix the process id goes, or a folder (existing, or
                       with a slash at its end). Default: <program>.<pid>.cgl.jsonl in the current folder
  --replays N          Trace the GPU's work too, and keep the first N launches of each graph (default 0: none).
                       Tracing slows the program down while it runs
  --no-python-stacks   Do not look for Python source lines
  --no-python-helper   Do not put a start-up hook on PYTHONPATH: it tells the state of PyTorch's caching allocator,
                       and notes source lines in code that torch.compile writes
  --no-allocator-history
                       Do not let PyTorch's allocator keep a list of its calls (the newest 50,000, without stacks):
                       memory that changes hands between two looks at the allocator is then not seen
  --no-native-stacks   Do not look for native frames (module, symbol)
  --no-eager           Do not keep kernel launches outside capture
  --detach-after N|Ns  Leave the process after N graph launches, or N seconds after the first capture: CUPTI is shut
                       down (CUDA 12.6 or later), graphs captured later are not recorded
  --flush-signal NAME  On this signal (USR1, USR2 or a number) each process writes what changed since its last
                       graph (frees, launches outside capture), at its next driver call; programs can call
                       cglint_record_flush() instead
  --redact[=names]     Leave out folders, host name and command line; with names, kernel and NVTX names become hashes
  --exec               Become the command instead of waiting for it: its process id is that of cglint record, and
                       nothing is said where nothing was recorded. Not with --lint
  --lint [OPTIONS]     Afterwards run cglint lint, with the options up to --, on the files. --lint --help lists them
  -h, --help           This text

An option that takes a value is given once, as '--replays 3' or '--replays=3'. The options, those of cglint lint too, and whether -o can be
written are checked before the command runs.

CUPTI allows one tool in a process: torch.profiler, nsys and others in the command do not work beside the recorder.
CGLINT_CUPTI names the CUPTI library to use where none is found.

Where nothing was recorded, a last line on stderr says why: no process initialised CUDA, or none instantiated a graph.

Exit codes: the command's (128 + n if signal n ended it, 127 if it cannot be run), also where nothing was recorded; with --lint that of cglint
lint, if the command did not fail, and 2 where there is nothing to lint; 2 for wrong usage and output that cannot be written, without running the command.
)";

// One line on stderr; returns the exit code for wrong usage.
int complain(const std::string& text) {
  const std::string line = "cglint record: " + text + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  return kExitUsage;
}

std::string own_folder() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return "";
  const std::string_view whole(path.data(), static_cast<std::size_t>(length));
  return std::string(whole.substr(0, whole.rfind('/')));
}

std::string absolute(const std::string& path) {
  if (!path.empty() && path[0] == '/') return path;
  std::array<char, PATH_MAX> folder;
  return getcwd(folder.data(), folder.size()) == nullptr ? path : std::string(folder.data()) + '/' + path;
}

struct Options {
  std::string out;
  bool out_is_folder = false;
  std::uint32_t replays = 0;
  bool python_stacks = true, python_helper = true, native_stacks = true, eager = true, allocator_history = true, exec = false, lint = false, help = false, lint_help = false;
  std::string detach, redact;
  int flush_signal = 0;
  std::vector<char*> lint_options, command;
};

bool parse_number(std::string_view text, std::uint32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// 0: unknown, or not to be caught.
int signal_number(std::string_view name) {
  if (name.starts_with("SIG")) name.remove_prefix(3);
  if (name == "USR1") return SIGUSR1;
  if (name == "USR2") return SIGUSR2;
  std::uint32_t number = 0;
  struct sigaction now = {};
  if (!parse_number(name, number) || number == SIGKILL || number == SIGSTOP || number > 64) return 0;
  return sigaction(static_cast<int>(number), nullptr, &now) == 0 ? static_cast<int>(number) : 0;  // some are the C library's
}

// Takes the value of the option `name`. Returns what is wrong, or "".
std::string take_value(std::string_view name, std::string_view value, Options& options) {
  if (name == "--output") {
    if (value.empty()) return "-o needs a name";
    options.out = value;
  } else if (name == "--detach-after") {
    std::uint32_t number = 0;
    const bool is_time = value.ends_with('s');
    if (!parse_number(value.substr(0, value.size() - (is_time ? 1 : 0)), number) || number == 0)
      return "--detach-after needs a number of graph launches, or of seconds (30s), not '" + std::string(value) + "'";
    options.detach = value;
  } else if (name == "--flush-signal") {
    options.flush_signal = signal_number(value);
    if (options.flush_signal == 0) return "--flush-signal needs a signal that can be caught, USR1, USR2 or a number, not '" + std::string(value) + "'";
  } else if (!parse_number(value, options.replays)) {
    return "--replays needs a number, not '" + std::string(value) + "'";
  }
  return "";
}

// Returns what is wrong, or "".
std::string parse(int argc, char** argv, Options& options) {
  std::set<std::string_view> given;  // options with a value
  int i = 1;
  for (; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") break;
    const std::size_t equals = argument.starts_with("--") ? argument.find('=') : std::string_view::npos;
    const std::string_view name = argument == "-o" ? "--output" : argument.substr(0, equals);
    if (options.lint) {
      options.lint_help = argument == "-h" || argument == "--help";
      if (options.lint_help) return "";
      options.lint_options.push_back(argv[i]);
    } else if (argument == "-h" || argument == "--help") {
      options.help = true;
      return "";
    } else if (name == "--output" || name == "--replays" || name == "--detach-after" || name == "--flush-signal") {
      if (equals == std::string_view::npos && i + 1 == argc) return std::string(argument) + " needs a value";
      if (!given.insert(name).second) return std::string(name) + " is given twice";
      const std::string_view value = equals == std::string_view::npos ? std::string_view(argv[++i]) : argument.substr(equals + 1);
      if (std::string problem = take_value(name, value, options); !problem.empty()) return problem;
    } else if (argument == "--no-python-stacks") {
      options.python_stacks = false;
    } else if (argument == "--no-python-helper") {
      options.python_helper = false;
    } else if (argument == "--no-allocator-history") {
      options.allocator_history = false;
    } else if (argument == "--no-native-stacks") {
      options.native_stacks = false;
    } else if (argument == "--no-eager") {
      options.eager = false;
    } else if (argument == "--redact" || argument == "--redact=names") {
      const std::string_view redact = argument == "--redact" ? "1" : "names";
      if (!options.redact.empty() && options.redact != redact) return "--redact is given twice, with and without names";
      options.redact = redact;
    } else if (argument == "--exec") {
      options.exec = true;
    } else if (argument == "--lint") {
      options.lint = true;
    } else if (argument.starts_with('-')) {
      return "unknown option " + std::string(argument);
    } else {
      break;  // the command, without --
    }
  }
  if (i < argc && std::string_view(argv[i]) == "--") ++i;
  for (; i < argc; ++i) options.command.push_back(argv[i]);
  if (options.lint && options.exec) return "--exec leaves nobody to lint: not with --lint";
  return options.command.empty() ? "no command to run: give it after --" : "";
}

pid_t child = 0;
// What the terminal sends on a key goes to the whole group: the command has it already.
void pass_on(int signal, siginfo_t* from, void*) {
  const bool is_key = (signal == SIGINT || signal == SIGQUIT) && from->si_code == SI_KERNEL;
  if (child > 0 && !is_key) kill(child, signal);
}

void add_line(const std::string& path, std::string_view text) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const std::string line = std::string(text) + '\n';
  [[maybe_unused]] const ssize_t written = write(descriptor, line.data(), line.size());
  close(descriptor);
}

// So that what the command closes is closed while it runs. Standard error stays: there is something to say.
void let_go_of_files() {
  if (const int nowhere = open("/dev/null", O_RDWR); nowhere >= 0) dup2(nowhere, STDIN_FILENO), dup2(nowhere, STDOUT_FILENO);
  closefrom(STDERR_FILENO + 1);
}

// Returns only where the command cannot be run: its exit code.
int become(std::vector<char*>& command) {
  execvp(command[0], command.data());
  complain(std::string("cannot run ") + command[0] + ": " + std::strerror(errno));
  return 127;
}

// Runs the command, passing signals on. Returns its wait status. `list` is told if it cannot be run; `flush_signal` is passed on too (0: none).
int run(std::vector<char*>& command, const std::string& list = "", int flush_signal = 0, bool lets_go = false) {
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM};
  if (flush_signal != 0) signals.push_back(flush_signal);
  sigset_t passed, before;
  sigemptyset(&passed);
  for (const int signal : signals) sigaddset(&passed, signal);
  sigprocmask(SIG_BLOCK, &passed, &before);  // none is lost before there is a child
  struct sigaction action = {}, children = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &action, &children);  // where it is ignored, nobody is told how a child ended
  const pid_t parent = getpid();
  child = fork();
  if (child < 0) {
    complain(std::string("cannot start a process: ") + std::strerror(errno));
    add_line(list, record::kListNotRun);
    return kExitUsage << 8;
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // who kills the recorder means the command
    if (getppid() != parent) _exit(127);
    sigaction(SIGCHLD, &children, nullptr);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    const int code = become(command);
    add_line(list, record::kListNotRun);
    _exit(code);
  }
  action.sa_sigaction = pass_on;
  action.sa_flags = SA_SIGINFO;
  for (const int signal : signals) sigaction(signal, &action, nullptr);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (lets_go) let_go_of_files();
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  child = 0;
  return status;
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Ends as the command ended: by its signal, without a core of our own.
int end_as(int status) {
  if (WIFSIGNALED(status)) {
    const struct rlimit none = {};
    setrlimit(RLIMIT_CORE, &none);
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  return exit_code_of(status);
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got = 0; descriptor >= 0 && (got = read(descriptor, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  if (descriptor >= 0) close(descriptor);
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

// What the command's processes told (list_lines.h).
struct Told {
  std::vector<std::string> files;
  bool is_loaded = false, is_off = false, is_not_run = false;
};

Told read_list(const std::string& path) {
  Told told;
  for (std::string& line : read_lines(path)) {
    if (line == record::kListLoaded) told.is_loaded = true;
    else if (line == record::kListOff) told.is_off = true;
    else if (line == record::kListNotRun) told.is_not_run = true;
    else told.files.push_back(std::move(line));
  }
  return told;
}

const char* reason_of_nothing(const Told& told) {
  if (told.is_off) return "recording failed, as was said above";
  if (told.is_loaded) return "CUDA was initialised, but no process was seen to instantiate a graph, or to fail to capture one";
  return "no process of the command was seen to initialise CUDA";
}

// Whether a process of the command could write its file: makes one, and leaves nothing of it. Returns what is wrong, or "".
std::string check_output(const std::string& out, bool is_folder) {
  const std::string path = cglint::capture::record_path(out, is_folder, "cglint", -1, getpid());
  struct stat facts = {};
  std::vector<std::string> made;  // folders that are not there yet, outermost first
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    if (stat(path.substr(0, slash).c_str(), &facts) != 0 && errno == ENOENT) made.push_back(path.substr(0, slash));
  cglint::capture::RecordFile file;
  std::string problem = lstat(path.c_str(), &facts) == 0 ? "" : file.open(path);  // of an earlier process with our id
  if (file.is_open()) unlink(path.c_str());
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) rmdir(folder->c_str());
  return problem;
}

// Whether cglint lint takes its options, which it says itself. Returns its exit code, 0 if it does. Signals stay as they are.
int check_lint_options(const std::string& folder, const Options& options) {
  std::string program = folder + "/cglint", verb = "lint", check = "--check-options";
  for (const std::string_view option : options.lint_options)
    if (option == check) return complain("--check-options reads no recording: it is no option of a lint after --lint");
  if (access(program.c_str(), X_OK) != 0) return complain("--lint needs cglint, which is not in " + folder + ", beside this program");
  std::vector<char*> arguments{program.data(), verb.data(), check.data()};  // not last: an option without its value would take it
  arguments.insert(arguments.end(), options.lint_options.begin(), options.lint_options.end());
  arguments.push_back(nullptr);
  struct sigaction plain = {}, before = {};
  plain.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &plain, &before);  // where it is ignored, nobody is told how a child ended
  const pid_t checker = fork();
  if (checker == 0) _exit(become(arguments));
  int status = 0, error = errno;
  while (checker > 0 && waitpid(checker, &status, 0) < 0 && errno == EINTR) {
  }
  sigaction(SIGCHLD, &before, nullptr);
  if (checker < 0) return complain(std::string("cannot start a process: ") + std::strerror(error));
  if (WIFSIGNALED(status)) return complain("cglint lint --check-options was ended by signal " + std::to_string(WTERMSIG(status)));
  return exit_code_of(status) == 127 ? kExitUsage : exit_code_of(status);
}

// Runs cglint lint on the files; returns its exit code.
int lint(const std::string& folder, Options& options, const std::vector<std::string>& files) {
  std::string program = folder + "/cglint", verb = "lint";
  std::vector<char*> arguments{program.data(), verb.data()};
  for (char* option : options.lint_options) arguments.push_back(option);
  for (const std::string& file : files) arguments.push_back(const_cast<char*>(file.c_str()));
  arguments.push_back(nullptr);
  return exit_code_of(run(arguments));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (const std::string problem = parse(argc, argv, options); !problem.empty())
    return complain(problem + " (--help lists the options)");
  if (options.help) {
    const std::string problem = cglint::write_standard_output(std::string(kHelp));
    return problem.empty() ? 0 : complain(problem);
  }
  const std::string folder = own_folder();
  if (options.lint_help) {
    std::string program = folder + "/cglint", verb = "lint", help = "--help";
    std::vector<char*> arguments{program.data(), verb.data(), help.data(), nullptr};
    return become(arguments);
  }
  const std::string library = folder + "/libcglint_record.so";
  if (access(library.c_str(), R_OK) != 0)
    return complain("libcglint_record.so is not in " + folder +
                    ", beside this program: a build without the CUDA toolkit has none; with the toolkit it is built by "
                    "'cmake --build BUILD --target cglint_record'");
  if (const char* other = std::getenv("CUDA_INJECTION64_PATH");
      other != nullptr && *other != '\0' && library != other && std::strcmp(other, "none") != 0)
    return complain(std::string("CUDA_INJECTION64_PATH is set already, to ") + other +
                    ": one library can be injected");
  struct stat facts = {};
  options.out_is_folder =
      !options.out.empty() &&
      (options.out.back() == '/' || (stat(options.out.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)));
  if (const std::string problem = check_output(absolute(options.out.empty() ? "./" : options.out), options.out_is_folder || options.out.empty()); !problem.empty()) return complain(problem);
  if (options.lint)
    if (const int code = check_lint_options(folder, options); code != 0) return code;
  setenv("CUDA_INJECTION64_PATH", library.c_str(), 1);
  if (!options.out.empty()) {
    setenv("CGLINT_RECORD_OUT", absolute(options.out).c_str(), 1);
  } else {
    setenv("CGLINT_RECORD_OUT", absolute("./").c_str(), 1);  // the program may change its folder
    options.out_is_folder = true;
  }
  setenv("CGLINT_RECORD_OUT_FOLDER", options.out_is_folder ? "1" : "0", 1);
  setenv("CGLINT_RECORD_PYTHON_STACKS", options.python_stacks ? "1" : "0", 1);
  setenv("CGLINT_RECORD_NATIVE_STACKS", options.native_stacks ? "1" : "0", 1);
  setenv("CGLINT_RECORD_EAGER", options.eager ? "1" : "0", 1);
  setenv("CGLINT_RECORD_ALLOCATOR_HISTORY", options.allocator_history ? "1" : "0", 1);
  // Nothing that was left over from elsewhere may count.
  const auto set_or_clear = [](const char* name, const std::string& value) {
    value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
  };
  set_or_clear("CGLINT_RECORD_DETACH", options.detach);
  set_or_clear("CGLINT_RECORD_REDACT", options.redact);
  set_or_clear("CGLINT_RECORD_FLUSH_SIGNAL", options.flush_signal == 0 ? "" : std::to_string(options.flush_signal));
  // Where nothing else was on PYTHONPATH, nothing else may come onto it: an empty entry is the current folder.
  if (const std::string hook = folder + "/cglint_python_helper"; options.python_helper && access(hook.c_str(), R_OK) == 0) {
    const char* const before = std::getenv("PYTHONPATH");
    setenv("PYTHONPATH", before == nullptr || *before == '\0' ? hook.c_str() : (hook + ':' + before).c_str(), 1);
  }
  // The library is an NVTX injection too.
  if (const char* other = std::getenv("NVTX_INJECTION64_PATH");
      other != nullptr && *other != '\0' && library != other) {
    complain(std::string("NVTX_INJECTION64_PATH is set already, to ") + other + ": NVTX ranges are not recorded");
  } else {
    setenv("NVTX_INJECTION64_PATH", library.c_str(), 1);
  }
  setenv("CGLINT_RECORD_REPLAYS", std::to_string(options.replays).c_str(), 1);
  unsetenv("CGLINT_RECORD_LIST");
  options.command.push_back(nullptr);
  if (options.exec) return become(options.command);
  const char* const temporary = std::getenv("TMPDIR");
  std::string list =
      std::string(temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary) + "/cglint-record-XXXXXX";
  const int descriptor = mkstemp(list.data());
  if (descriptor < 0) {
    complain("cannot create " + list + ": " + std::strerror(errno) + (options.lint ? "" : ": it will not be said whether anything was recorded"));
    return options.lint ? kExitUsage : become(options.command);
  }
  close(descriptor);
  setenv("CGLINT_RECORD_LIST", absolute(list).c_str(), 1);  // the program may change its folder
  const int status = run(options.command, list, options.flush_signal, !options.lint);
  const int code = exit_code_of(status);
  const Told told = read_list(list);
  unlink(list.c_str());
  if (told.files.empty() && !told.is_not_run)
    complain("nothing was written to " + (options.out.empty() ? "the current folder" : options.out) + ": " + reason_of_nothing(told) +
             (options.lint ? "; nothing to lint" : ""));
  if (!options.lint) return end_as(status);
  unsetenv("CUDA_INJECTION64_PATH");
  unsetenv("NVTX_INJECTION64_PATH");
  if (told.files.empty()) return code != 0 ? code : kExitUsage;
  // Also where the command failed: a capture that broke may be why.
  const int found = lint(folder, options, told.files);
  return code != 0 ? code : found;
}
