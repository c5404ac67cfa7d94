// Threads that run a job together, stage after stage.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
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

// One stage of a job: pieces that may be done at the same time.
struct alignas(64) Stage {
  std::atomic<int64_t> taken{0}, done{0};
};

// One of the threads that run a job. All go through the same stages, and none goes on before a
// stage is complete. Nobody waits for a thread that took no piece: on a busy machine it may come
// late, and finds everything done.
struct Worker {
  int thread, threads;
  Stage* stage;

  // `after` is done once, by whoever is last, before anybody goes on.
  template <class F, class After>
  void share(int64_t pieces, F work, After after) {
    if (threads == 1) {
      for (int64_t i = 0; i < pieces; i++) work(i);
      after();
      return;
    }
    for (int64_t i; (i = stage->taken.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      work(i);
      if (stage->done.fetch_add(1, std::memory_order_acq_rel) == pieces - 1) {
        after();
        stage->done.store(pieces + 1, std::memory_order_release);
      }
    }
    for (int i = 0; stage->done.load(std::memory_order_acquire) <= pieces; i++) relax(i);
    stage++;
  }

  template <class F>
  void share(int64_t pieces, F work) {
    share(pieces, work, [] {});
  }

  // Into how many pieces a stage should be cut that has so many parts.
  int64_t pieces(int64_t parts, int64_t least) const {
    return threads == 1 ? 1 : std::max<int64_t>(1, std::min<int64_t>(4 * threads, parts / least));
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
  Stage* stages;
};

void enter(void* with) {
  Job& job = *(Job*)with;
  const int thread = runtime.number();
  if (runtime.size() <= job.threads) job.run(job.data, {thread, runtime.size(), job.stages});
}

void run(int64_t threads, int64_t stages, void (*what)(void*, Worker), void* data) {
  if (threads > 1 && runtime.parallel) {
    std::vector<Stage> fresh(stages);
    Job job{what, data, (int)threads, fresh.data()};
    runtime.parallel(enter, &job, (unsigned)threads, 0);
  } else {
    what(data, {0, 1, nullptr});
  }
}

// The items of one piece.
struct Share {
  int64_t begin, end;
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
