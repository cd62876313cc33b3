// Wakes a thread when a message has come, without the interpreter and without a wait set, whose
// conditions are attached to the middleware and detached again at every wait.
//
// The middleware calls sparkrt_signal_raise from a thread of its own, as an rcl_event_callback_t.
//
// A C interface for ctypes; see sparkrt_ros/nodes/message_signal.py.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

class Signal {
public:
  void raise() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      raised_ = true;
    }
    changed_.notify_one();
  }

  bool lower() {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool was = raised_;
    raised_ = false;
    return was;
  }

  bool wait_until(Clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return raised_; });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
};

}  // namespace

extern "C" {

Signal * sparkrt_signal_create() { return new (std::nothrow) Signal; }

// Nobody may raise it or wait for it any more.
void sparkrt_signal_destroy(Signal * signal) { delete signal; }

void sparkrt_signal_raise(const void * signal, size_t /* number of messages */) {
  static_cast<Signal *>(const_cast<void *>(signal))->raise();
}

// Whether it was raised since the last time.
bool sparkrt_signal_lower(Signal * signal) { return signal->lower(); }

// Until it is raised, or `deadline_ns` of CLOCK_MONOTONIC: whether it is.
bool sparkrt_signal_wait(Signal * signal, int64_t deadline_ns) {
  return signal->wait_until(Clock::time_point(std::chrono::nanoseconds(deadline_ns)));
}

}  // extern "C"
