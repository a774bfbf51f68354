#include "capture/python_frames.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace cglint::capture {
namespace {

struct Python {
  int (*is_initialized)() = nullptr;
  int (*is_finalizing)() = nullptr;  // public from 3.13, underscored before; may be missing
  int (*gilstate_ensure)() = nullptr;
  void (*gilstate_release)(int) = nullptr;
  void* (*this_thread_state)() = nullptr;  // of the calling thread; needs no lock
  void* (*current_state)() = nullptr;      // equal to the above only while this thread holds the lock
  void* (*state_frame)(void*) = nullptr;   // new reference
  void* (*frame_back)(void*) = nullptr;    // new reference
  void* (*frame_code)(void*) = nullptr;    // new reference
  int (*frame_line)(void*) = nullptr;
  void* (*attribute)(void*, const char*) = nullptr;
  const char* (*utf8)(void*) = nullptr;
  void (*decref)(void*) = nullptr;
  void (*clear_error)() = nullptr;
  bool found = false;
  bool is_free_threaded = false;  // there is no lock that keeps other threads still
};

template <typename Function>
bool find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

Python load() {
  Python p;
  const char* (*version)() = nullptr;  // "3.13.0 experimental free-threading build (...)", "3.14.0 free-threading build (...)"
  p.is_free_threaded = find(version, "Py_GetVersion") && std::strstr(version(), "free-threading") != nullptr;
  if (!find(p.is_finalizing, "Py_IsFinalizing")) find(p.is_finalizing, "_Py_IsFinalizing");
  p.found = find(p.is_initialized, "Py_IsInitialized") && find(p.gilstate_ensure, "PyGILState_Ensure") &&
            find(p.gilstate_release, "PyGILState_Release") &&
            find(p.this_thread_state, "PyGILState_GetThisThreadState") &&
            (find(p.current_state, "PyThreadState_GetUnchecked") ||
             find(p.current_state, "_PyThreadState_UncheckedGet")) &&
            find(p.state_frame, "PyThreadState_GetFrame") && find(p.frame_back, "PyFrame_GetBack") &&
            find(p.frame_code, "PyFrame_GetCode") && find(p.frame_line, "PyFrame_GetLineNumber") &&
            find(p.attribute, "PyObject_GetAttrString") && find(p.utf8, "PyUnicode_AsUTF8") &&
            find(p.decref, "Py_DecRef") && find(p.clear_error, "PyErr_Clear");
  return p;
}

// The interpreter may be loaded after the first call: looked for until it is there.
const Python* python() {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static Python loaded;
  static bool ready = false;
  if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) return &loaded;
  pthread_mutex_lock(&mutex);
  if (!ready) {
    loaded = load();
    if (loaded.found) __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&mutex);
  return loaded.found ? &loaded : nullptr;
}

std::string text_attribute(const Python& p, void* object, const char* name) {
  void* const value = p.attribute(object, name);
  if (value == nullptr) {
    p.clear_error();
    return "";
  }
  const char* const text = p.utf8(value);
  std::string copy = text == nullptr ? "" : text;
  if (text == nullptr) p.clear_error();
  p.decref(value);
  return copy;
}

// With the interpreter lock held.
void walk(const Python& p, void* state, std::vector<FrameText>& frames) {
  void* frame = p.state_frame(state);
  for (int depth = 0; frame != nullptr && depth < kMaxFrames; ++depth) {
    FrameText text;
    if (void* const code = p.frame_code(frame); code != nullptr) {
      text.file = text_attribute(p, code, "co_filename");
      text.function = text_attribute(p, code, "co_name");
      p.decref(code);
    }
    const int line = p.frame_line(frame);
    text.line = line > 0 ? static_cast<std::uint32_t>(line) : 0;
    frames.push_back(std::move(text));
    void* const back = p.frame_back(frame);
    p.decref(frame);
    frame = back;
  }
  if (frame != nullptr) p.decref(frame);
}

// One request at a time; callers take turns. All under `mutex` but the walk itself, during which the caller
// waits.
struct Helper {
  pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
  enum class State { idle, asked, walking, finished } state = State::idle;
  void* thread_state = nullptr;
  std::vector<FrameText>* frames = nullptr;
  pid_t owner = 0;    // the process in which the thread runs
  bool busy = false;  // waiting for the interpreter lock, or holding it
};

// Never destroyed: the thread may outlive static destructors.
Helper*& helper() {
  static Helper* instance = new Helper;
  return instance;
}

void* help(void* argument) {
  Helper& h = *static_cast<Helper*>(argument);
  const Python& p = *python();
  pthread_mutex_lock(&h.mutex);
  for (;;) {
    while (h.state != Helper::State::asked) pthread_cond_wait(&h.wake, &h.mutex);
    h.busy = true;
    pthread_mutex_unlock(&h.mutex);
    const int gil = p.gilstate_ensure();
    pthread_mutex_lock(&h.mutex);
    if (h.state == Helper::State::asked) {
      // The caller now waits until the walk is done, so its frames stay as they are.
      h.state = Helper::State::walking;
      pthread_mutex_unlock(&h.mutex);
      walk(p, h.thread_state, *h.frames);
      pthread_mutex_lock(&h.mutex);
      h.state = Helper::State::finished;
      pthread_cond_signal(&h.done);
    }
    pthread_mutex_unlock(&h.mutex);
    p.gilstate_release(gil);
    pthread_mutex_lock(&h.mutex);
    h.busy = false;
    pthread_cond_signal(&h.done);
  }
}

bool start(Helper& h) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, help, &h) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started) {
    pthread_detach(thread);
    h.owner = getpid();
  }
  return started;
}

void deadline_in(int timeout_ms, timespec& deadline) {
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_nsec += static_cast<long>(timeout_ms) * 1'000'000;
  deadline.tv_sec += deadline.tv_nsec / 1'000'000'000;
  deadline.tv_nsec %= 1'000'000'000;
}

FramesResult ask(void* thread_state, std::vector<FrameText>& frames, int timeout_ms) {
  Helper*& instance = helper();
  // A fork's child has the memory but not the thread, and perhaps a locked mutex: it starts afresh.
  if (instance->owner != 0 && instance->owner != getpid()) instance = new Helper;
  Helper& h = *instance;
  timespec deadline;
  deadline_in(timeout_ms, deadline);
  if (pthread_mutex_timedlock(&h.turn, &deadline) != 0) return FramesResult::timed_out;
  FramesResult result = FramesResult::timed_out;
  pthread_mutex_lock(&h.mutex);
  // The helper gives the interpreter lock back after it answered; it may also still wait for it, for a
  // request that was given up.
  int error = 0;
  while (h.busy && error == 0) error = pthread_cond_timedwait(&h.done, &h.mutex, &deadline);
  if (!h.busy && (h.owner != 0 || start(h))) {
    h.thread_state = thread_state;
    h.frames = &frames;
    h.state = Helper::State::asked;
    pthread_cond_signal(&h.wake);
    error = 0;
    while (h.state == Helper::State::asked && error == 0)
      error = pthread_cond_timedwait(&h.done, &h.mutex, &deadline);
    while (h.state == Helper::State::walking) pthread_cond_wait(&h.done, &h.mutex);
    if (h.state == Helper::State::finished) result = FramesResult::ok;
    h.state = Helper::State::idle;
  }
  pthread_mutex_unlock(&h.mutex);
  pthread_mutex_unlock(&h.turn);
  return result;
}

}  // namespace

FramesResult python_frames(std::vector<FrameText>& frames, int timeout_ms) {
  frames.clear();
  const Python* const p = python();
  if (p == nullptr || p->is_initialized() == 0) return FramesResult::no_python;
  if (p->is_finalizing != nullptr && p->is_finalizing() != 0) return FramesResult::no_python;
  void* const state = p->this_thread_state();
  if (state == nullptr) return FramesResult::no_python;
  if (p->current_state() == state) {
    walk(*p, state, frames);
  } else if (p->is_free_threaded) {
    return FramesResult::no_python;
  } else {
    const FramesResult result = ask(state, frames, timeout_ms);
    if (result != FramesResult::ok) return result;
  }
  return frames.empty() ? FramesResult::no_python : FramesResult::ok;
}

}  // namespace cglint::capture
