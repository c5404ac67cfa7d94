// Threads that run a job together, stage after stage.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace {

inline void relax(int turn) {
  if (turn < 2000) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  } else {
    std::this_thread::yield();  // the others may need this core
  }
}

// What a thread has taken of its own pieces of a stage: the stage's number, then how many. What one
// core has written comes late to another, so that all threads have lines of their own.
struct alignas(128) Seat {
  std::atomic<uint64_t> taken{0};
};

// Pieces that are done, of all stages so far, and one for each stage that is complete; and the first
// exception of any thread.
struct alignas(128) Progress {
  std::atomic<int64_t> done{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;

  void fail() {
    if (!failed.exchange(true)) error = std::current_exception();
  }

  // After an exception all that remains is left out: it would read what was never made.
  template <class F>
  void attempt(F f) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      f();
    } catch (...) {
      fail();
    }
  }
};

// One of the threads that run a job. All go through the same stages, and none goes on before a
// stage is complete. Nobody waits for a thread that took no piece: on a busy machine it may come
// late, and finds that others have done its pieces.
struct Worker {
  int thread, threads;
  Seat* seats = nullptr;
  Progress* progress = nullptr;
  uint64_t stage = 0;
  int64_t before = 0;  // what was done before this stage

  // `after` is done once, by the last thread, before any goes on. Without pieces there is one empty
  // piece, so that there is a last thread.
  template <class F, class After>
  void share(int64_t count, F work, After after) {
    const int64_t pieces = std::max<int64_t>(1, count);
    if (threads == 1) {
      for (int64_t i = 0; i < count; i++) work(i);
      after();
      return;
    }
    stage++;
    int64_t mine = 0;
    for (int i = 0; i < threads; i++) {  // at first what is its own, then what others left
      const int64_t owner = (thread + i) % threads;
      const int64_t begin = (pieces * owner + threads - 1) / threads;
      const int64_t end = (pieces * (owner + 1) + threads - 1) / threads;
      for (int64_t j; (j = take(seats[owner].taken, end - begin)) >= 0; mine++) {
        progress->attempt([&] {
          if (begin + j < count) work(begin + j);
        });
      }
    }
    std::atomic<int64_t>& done = progress->done;
    const int64_t all = before + pieces;
    if (mine > 0 && done.fetch_add(mine, std::memory_order_acq_rel) + mine == all) {
      progress->attempt(after);
      done.store(all + 1, std::memory_order_release);
    }
    for (int i = 0; done.load(std::memory_order_acquire) <= all; i++) relax(i);
    before = all + 1;
  }

  template <class F>
  void share(int64_t pieces, F work) {
    share(pieces, work, [] {});
  }

  // Into how many pieces a stage should be cut that has so many parts.
  int64_t pieces(int64_t parts, int64_t least) const {
    return threads == 1 ? 1 : std::max<int64_t>(1, std::min<int64_t>(4 * threads, parts / least));
  }

 private:
  // The next of so many pieces, or -1.
  int64_t take(std::atomic<uint64_t>& taken, int64_t count) const {
    constexpr int PLACES = 36;  // bits of a piece's number; the others are of the stage's
    uint64_t old = taken.load(std::memory_order_relaxed);
    for (;;) {
      if (old >> PLACES > stage) return -1;
      const uint64_t next = old >> PLACES == stage ? old : stage << PLACES;
      const int64_t place = (int64_t)(next - (stage << PLACES));
      if (place >= count) return -1;
      if (taken.compare_exchange_weak(old, next + 1, std::memory_order_relaxed)) return place;
    }
  }
};

// Threads come from the OpenMP runtime that torch uses: its threads stay awake for a while after
// each of torch's own operations, and would be in the way of others.
struct Runtime {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags);
  int (*number)();
  int (*size)();
};

Runtime runtime = {};

struct Job {
  void (*run)(void* data, Worker worker);
  void* data;
  int threads;
  Seat* seats;
  Progress* progress;
};

void enter(void* with) {
  Job& job = *(Job*)with;
  const int thread = runtime.number(), threads = runtime.size();
  if (threads > job.threads) return;
  job.progress->attempt([&] { job.run(job.data, {thread, threads, job.seats, job.progress}); });
}

void run(int64_t threads, void (*what)(void*, Worker), void* data) {
  if (threads > 1 && runtime.parallel) {
    std::vector<Seat> seats(threads);
    Progress progress;
    Job job{what, data, (int)threads, seats.data(), &progress};
    runtime.parallel(enter, &job, (unsigned)threads, 0);
    if (progress.failed) std::rethrow_exception(progress.error);
  } else {
    what(data, {0, 1});
  }
}

// The items of one piece, or from one to before another.
struct Share {
  int64_t begin, end;
  Share(int64_t begin, int64_t end) : begin(begin), end(end) {}
  Share(int64_t count, int64_t piece, int64_t pieces)
      : begin(count * piece / pieces), end(count * (piece + 1) / pieces) {}
};

// Scratch memory of the calling thread: as large as it ever was.
template <class T>
T* scratch(std::vector<T>& kept, int64_t count) {
  if ((int64_t)kept.size() < count) kept.resize(count);
  return kept.data();
}

}  // namespace
