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

// How many of a thread's own work items of a stage are taken, behind the number of the stage. Each
// thread has cache lines of its own, because writes of one core slow down reads by others.
struct alignas(128) Claims {
  std::atomic<uint64_t> taken{0};
};

// The work items that are done, of all stages so far, plus one for each stage that is complete; and
// the first exception of any thread.
struct alignas(128) Progress {
  std::atomic<int64_t> done{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;

  void fail() {
    if (!failed.exchange(true)) error = std::current_exception();
  }

  // After an exception the remaining work is skipped: its inputs may be missing.
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

// One of the threads that run a job. All pass the same stages, and none starts a stage before the
// one before it is complete. Nobody waits for a thread that took no work item: on a busy machine it
// may start late, when other threads have already done its items.
struct Worker {
  int thread, threads;
  Claims* claims = nullptr;
  Progress* progress = nullptr;
  uint64_t stage = 0;
  int64_t done_before = 0;  // before this stage

  // Runs work(i) for `count` items. `after` runs once, by the last thread, before any starts the
  // next stage. Without items there is an empty one, so that there is a last thread.
  template <class F, class After>
  void share(int64_t count, F work, After after) {
    const int64_t pieces = std::max<int64_t>(1, count);
    if (threads == 1) {
      for (int64_t i = 0; i < count; i++) work(i);
      after();
      return;
    }
    stage++;
    int64_t completed = 0;
    for (int i = 0; i < threads; i++) {  // first its own items, then those of others
      const int64_t owner = (thread + i) % threads;
      const int64_t begin = (pieces * owner + threads - 1) / threads;
      const int64_t end = (pieces * (owner + 1) + threads - 1) / threads;
      for (int64_t j; (j = take(claims[owner].taken, end - begin)) >= 0; completed++) {
        progress->attempt([&] {
          if (begin + j < count) work(begin + j);
        });
      }
    }
    std::atomic<int64_t>& done = progress->done;
    const int64_t all = done_before + pieces;
    if (completed > 0 &&
        done.fetch_add(completed, std::memory_order_acq_rel) + completed == all) {
      progress->attempt(after);
      done.store(all + 1, std::memory_order_release);
    }
    for (int i = 0; done.load(std::memory_order_acquire) <= all; i++) relax(i);
    done_before = all + 1;
  }

  template <class F>
  void share(int64_t pieces, F work) {
    share(pieces, work, [] {});
  }

  // The number of work items for a stage of `parts`, of which each item has at least `minimum`.
  int64_t pieces(int64_t parts, int64_t minimum) const {
    return threads == 1 ? 1 : std::max<int64_t>(1, std::min<int64_t>(4 * threads, parts / minimum));
  }

 private:
  // The next of `count` items, or -1.
  int64_t take(std::atomic<uint64_t>& taken, int64_t count) const {
    constexpr int INDEX_BITS = 36;  // of the item; the higher bits are the stage
    uint64_t old = taken.load(std::memory_order_relaxed);
    for (;;) {
      if (old >> INDEX_BITS > stage) return -1;
      const uint64_t next = old >> INDEX_BITS == stage ? old : stage << INDEX_BITS;
      const int64_t index = (int64_t)(next - (stage << INDEX_BITS));
      if (index >= count) return -1;
      if (taken.compare_exchange_weak(old, next + 1, std::memory_order_relaxed)) return index;
    }
  }
};

// Threads come from the OpenMP runtime that torch uses: its threads keep spinning for a while after
// each of torch's own operations, and would compete with others.
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
  Claims* claims;
  Progress* progress;
};

void enter(void* with) {
  Job& job = *(Job*)with;
  const int thread = runtime.number(), threads = runtime.size();
  if (threads > job.threads) return;
  job.progress->attempt([&] { job.run(job.data, {thread, threads, job.claims, job.progress}); });
}

void run(int64_t threads, void (*what)(void*, Worker), void* data) {
  if (threads > 1 && runtime.parallel) {
    std::vector<Claims> claims(threads);
    Progress progress;
    Job job{what, data, (int)threads, claims.data(), &progress};
    runtime.parallel(enter, &job, (unsigned)threads, 0);
    if (progress.failed) std::rethrow_exception(progress.error);
  } else {
    what(data, {0, 1});
  }
}

// The items of one work item of several, or from `begin` to before `end`.
struct Share {
  int64_t begin, end;
  Share(int64_t begin, int64_t end) : begin(begin), end(end) {}
  Share(int64_t count, int64_t piece, int64_t pieces)
      : begin(count * piece / pieces), end(count * (piece + 1) / pieces) {}
};

// Scratch memory of the calling thread; it never shrinks.
template <class T>
T* scratch(std::vector<T>& memory, int64_t count) {
  if ((int64_t)memory.size() < count) memory.resize(count);
  return memory.data();
}

}  // namespace
