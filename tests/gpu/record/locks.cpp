// For locks.py: a driver call made with a mutex held, as an allocator makes one.
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

namespace {

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

}  // namespace

extern "C" {

// Takes the mutex, waits until another thread had the time to want it, makes cuMemsetD8Async(destination, 0, 256,
// stream), and gives the mutex back. Returns the driver's result, or -1.
int memset_with_mutex(unsigned long long destination, void* stream, int wait_ms) {
  using Memset = int (*)(unsigned long long, unsigned char, unsigned long, void*);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto memset_async = driver == nullptr ? nullptr : reinterpret_cast<Memset>(dlsym(driver, "cuMemsetD8Async"));
  if (memset_async == nullptr) return -1;
  pthread_mutex_lock(&mutex);
  const timespec wait = {wait_ms / 1000, wait_ms % 1000 * 1000000L};
  nanosleep(&wait, nullptr);
  const int result = memset_async(destination, 0, 256, stream);
  pthread_mutex_unlock(&mutex);
  return result;
}

void take_and_give_mutex() {
  pthread_mutex_lock(&mutex);
  pthread_mutex_unlock(&mutex);
}

}
