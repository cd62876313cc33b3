// Sends commands at the very moment they are due, whatever the interpreter is doing.
//
// The control thread works commands out some milliseconds ahead and loads their serialized messages
// here. Threads that need no interpreter and next to no processor time sleep until the next is due;
// the first of them that the kernel lets run publishes it. Loads are sent in the order in which they
// came, each once or not at all.
//
// There are two, so that each can keep to processors of its own: where one has to wait for somebody
// else's turn to end, the other seldom has to as well.
//
// The function that publishes is rcl_publish_serialized_message of the librcl that rclpy uses; its
// address comes from Python, so that building this needs neither rcl nor a middleware.
//
// A C interface for ctypes; see sparkrt_ros/nodes/command_sender.py. Times are those of
// CLOCK_MONOTONIC in nanoseconds. What fails returns -1 and leaves an error to read.

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "rcutils/error_handling.h"
#include "rcutils/types/uint8_array.h"

namespace {

using Clock = std::chrono::steady_clock;

using Publish =
  int32_t (*)(const void * publisher, const rcutils_uint8_array_t * message, void * allocation);

struct Item {
  const void * publisher = nullptr;
  std::vector<uint8_t> content;  // keeps its capacity from one load to the next
};

struct Load {
  Clock::time_point due;
  size_t count = 0;
  std::vector<Item> items;  // never shrinks; the first `count` are meant
};

// When something was to be sent, and when it was.
struct Sent {
  int64_t due_ns;
  int64_t at_ns;
};

// A moment to sleep until. To set it wakes nobody, which costs more than anything else here.
class Alarm {
public:
  Alarm() : file_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
    if (file_ < 0) {
      throw std::system_error(errno, std::generic_category(), "timerfd_create");
    }
  }

  ~Alarm() { close(file_); }

  Alarm(const Alarm &) = delete;
  Alarm & operator=(const Alarm &) = delete;

  void set(int64_t due_ns) {
    itimerspec moment{};
    if (due_ns <= 0) {
      due_ns = 1;  // a past moment; 0 would be none
    }
    moment.it_value = {due_ns / 1'000'000'000, due_ns % 1'000'000'000};
    if (timerfd_settime(file_, TFD_TIMER_ABSTIME, &moment, nullptr) != 0) {
      throw std::system_error(errno, std::generic_category(), "timerfd_settime");
    }
  }

  void wait() {
    uint64_t count = 0;
    while (read(file_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }

private:
  const int file_;
};

class Sender {
public:
  static constexpr size_t kThreads = 2;
  static constexpr size_t kLoads = 8;

  explicit Sender(Publish publish) : publish_(publish) {
    try {
      for (std::thread & thread : threads_) {
        thread = std::thread(&Sender::run, this);
      }
    } catch (...) {
      end();  // the one that did start, without which this would be the end of the process
      throw;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    started_.wait(lock, [this] { return started_count_ == kThreads; });
  }

  ~Sender() { end(); }

  Sender(const Sender &) = delete;
  Sender & operator=(const Sender &) = delete;

  int thread_id(size_t index) const { return index < kThreads ? thread_ids_[index] : 0; }

  // Throws std::length_error where kLoads wait already.
  void load(
    int64_t due_ns, size_t count, const void * const * publishers,
    const uint8_t * const * contents, const size_t * sizes)
  {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (waiting_ == kLoads) {
        throw std::length_error(std::to_string(kLoads) + " loads are waiting already");
      }
      Load & load = loads_[(first_ + waiting_) % kLoads];
      load.due = Clock::time_point(std::chrono::nanoseconds(due_ns));
      load.count = count;
      load.items.resize(std::max(count, load.items.size()));
      for (size_t i = 0; i < count; ++i) {
        load.items[i].publisher = publishers[i];
        load.items[i].content.assign(contents[i], contents[i] + sizes[i]);
      }
      if (waiting_++ != 0) {
        return;  // whoever sends the one before sets the alarm
      }
    }
    // Not under the lock: who is woken at once takes this thread's processor, would have to wait
    // for the lock, and the next to run need not be this thread.
    alarm_.set(due_ns);
  }

  size_t cancel() {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t prevented = waiting_;
    waiting_ = 0;
    return prevented;
  }

  // Throws std::runtime_error where something could not be sent since the last call.
  size_t settle(int64_t * due_ns, int64_t * at_ns, size_t room) {
    std::lock_guard<std::mutex> lock(mutex_);
    publish_due();
    if (!error_.empty()) {
      std::string error;
      error.swap(error_);
      throw std::runtime_error(error);
    }
    return take_locked(due_ns, at_ns, room);
  }

  size_t take(int64_t * due_ns, int64_t * at_ns, size_t room) {
    std::lock_guard<std::mutex> lock(mutex_);
    return take_locked(due_ns, at_ns, room);
  }

private:
  size_t take_locked(int64_t * due_ns, int64_t * at_ns, size_t room) {
    const size_t count = std::min(room, sent_count_);
    for (size_t i = 0; i < count; ++i) {
      due_ns[i] = sent_[i].due_ns;
      at_ns[i] = sent_[i].at_ns;
    }
    drop(count);
    return count;
  }

  void end() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_ = 0;
      ending_ = true;
    }
    alarm_.set(0);
    for (std::thread & thread : threads_) {
      if (thread.joinable()) {
        thread.join();
      }
    }
  }

  void run() {
    pthread_setname_np(pthread_self(), "sender");
    std::unique_lock<std::mutex> lock(mutex_);
    thread_ids_[started_count_++] = static_cast<int>(syscall(SYS_gettid));
    started_.notify_all();
    while (!ending_) {
      lock.unlock();
      alarm_.wait();
      lock.lock();
      publish_due();
    }
    lock.unlock();
    alarm_.set(0);  // the other thread may not have seen the first
  }

  // Under the lock, as what it calls: who cancels knows that nothing is on its way any more.
  // There may be nothing to send: it may have been sent or cancelled, and another loaded for later.
  void publish_due() {
    bool any = false;
    while (waiting_ != 0 && Clock::now() >= loads_[first_].due) {
      Load & load = loads_[first_];
      first_ = (first_ + 1) % kLoads;
      --waiting_;
      any = true;
      publish(load);
    }
    if (any && waiting_ != 0) {
      alarm_.set(loads_[first_].due.time_since_epoch().count());
    }
  }

  // The oldest records of what was sent.
  void drop(size_t count) {
    std::move(sent_.begin() + count, sent_.begin() + sent_count_, sent_.begin());
    sent_count_ -= count;
  }

  void publish(Load & load) {
    if (sent_count_ == sent_.size()) {
      drop(1);
    }
    sent_[sent_count_++] = {
      load.due.time_since_epoch().count(), Clock::now().time_since_epoch().count()};
    for (size_t i = 0; i < load.count; ++i) {
      Item & item = load.items[i];
      rcutils_uint8_array_t message = rcutils_get_zero_initialized_uint8_array();
      message.buffer = item.content.data();
      message.buffer_length = message.buffer_capacity = item.content.size();
      const int32_t code = publish_(item.publisher, &message, nullptr);
      if (code == RCUTILS_RET_OK) {
        continue;
      }
      if (error_.empty()) {
        error_ = "code " + std::to_string(code) + ": " + rcutils_get_error_string().str;
      }
      rcutils_reset_error();
    }
  }

  const Publish publish_;
  std::mutex mutex_;
  std::condition_variable started_;
  Alarm alarm_;
  std::array<Load, kLoads> loads_;  // a ring
  size_t first_ = 0;
  size_t waiting_ = 0;
  std::array<Sent, 2 * kLoads> sent_{};  // and not taken yet, oldest first
  size_t sent_count_ = 0;
  bool ending_ = false;
  size_t started_count_ = 0;
  std::array<int, kThreads> thread_ids_{};
  std::string error_;
  std::array<std::thread, kThreads> threads_;  // last: they use all the others
};

thread_local std::string last_error;

template<typename Act>
auto guarded(Act act) -> decltype(act()) {
  try {
    return act();
  } catch (const std::exception & error) {
    last_error = error.what();
    return -1;
  }
}

}  // namespace

extern "C" {

Sender * sparkrt_sender_create(Publish publish) {
  Sender * made = nullptr;
  guarded([&] { made = new Sender(publish); return 0; });
  return made;
}

void sparkrt_sender_destroy(Sender * sender) { delete sender; }

// Of thread 0 and of thread 1; 0 beyond.
int sparkrt_sender_thread_id(const Sender * sender, size_t index) {
  return sender->thread_id(index);
}

// Behind what is loaded. Everything is copied but the publishers, which must live until the load
// was sent or cancelled.
int sparkrt_sender_load(
  Sender * sender, int64_t due_ns, size_t count, const void * const * publishers,
  const uint8_t * const * contents, const size_t * sizes)
{
  return guarded([&] { sender->load(due_ns, count, publishers, contents, sizes); return 0; });
}

// When this returns, all loads have been sent or never will be. How many those are.
size_t sparkrt_sender_cancel(Sender * sender) { return sender->cancel(); }

// When this returns, every load that is due has been sent. The oldest loads that were sent and not
// yet taken: when they were due, and when they were sent. How many, at most `room`; -1, and none
// taken, where something could not be sent since the last call.
int sparkrt_sender_settle(Sender * sender, int64_t * due_ns, int64_t * at_ns, size_t room) {
  return guarded([&] { return static_cast<int>(sender->settle(due_ns, at_ns, room)); });
}

// The same without sending anything, and whatever could not be sent.
int sparkrt_sender_take(Sender * sender, int64_t * due_ns, int64_t * at_ns, size_t room) {
  return guarded([&] { return static_cast<int>(sender->take(due_ns, at_ns, room)); });
}

// Of the calling thread; valid until its next call.
const char * sparkrt_sender_error() { return last_error.c_str(); }

}  // extern "C"
