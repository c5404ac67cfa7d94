// The boundary to Python: whatever a kernel throws becomes a number and a message, so that it never
// ends the process.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

namespace boundary {

// What a function gives in the place of its result; `regard_problem` has the message.
constexpr int64_t WRONG = INT64_MIN, NO_MEMORY = INT64_MIN + 1;
constexpr int TEXT = 240;  // bytes of a message

inline char* problem() {
  static thread_local char text[TEXT];
  return text;
}

// Arguments with which a kernel would read or write memory that is not its own.
struct Wrong : std::exception {
  char text[TEXT];
  const char* what() const noexcept override { return text; }
};

[[noreturn]] __attribute__((format(printf, 1, 2), noinline, cold)) inline void wrong(
    const char* format, ...) {
  Wrong found;
  va_list values;
  va_start(values, format);
  std::vsnprintf(found.text, TEXT, format, values);
  va_end(values);
  throw found;
}

inline int64_t told(int64_t number, const char* text) {
  std::snprintf(problem(), TEXT, "%s", text);
  return number;
}

// The result of f, a number that is not negative by much; or what became of it.
template <class F>
int64_t guarded(F f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return told(NO_MEMORY, "the compiled kernels got no memory");
  } catch (const std::length_error&) {
    return told(NO_MEMORY, "the compiled kernels would need more memory than there can be");
  } catch (const std::exception& error) {
    return told(WRONG, error.what());
  } catch (...) {
    return told(WRONG, "a kernel failed");
  }
}

// The same of what has no result: 0.
template <class F>
int64_t guarded_call(F f) {
  return guarded([&]() -> int64_t {
    f();
    return 0;
  });
}

// How many of some numbers are not from 0 to before `end`.
inline int64_t outside(const int64_t* numbers, int64_t count, int64_t end) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) found += numbers[i] < 0 || numbers[i] >= end;
  return found;
}

// Where parts begin that lie end to end, and the end: (parts + 1,) from 0, never falling, to no more
// than `end`.
inline void check_starts(const char* name, const int64_t* starts, int64_t parts, int64_t end) {
  if (parts < 0 || starts[0] != 0) wrong("`%s` must begin with 0", name);
  for (int64_t i = 0; i < parts; i++) {
    if (starts[i + 1] < starts[i]) {
      wrong("`%s` must not fall, but number %lld is below the one before", name, (long long)i + 1);
    }
  }
  if (starts[parts] > end) {
    wrong("`%s` must end at %lld at most, but ends at %lld", name, (long long)end,
          (long long)starts[parts]);
  }
}

}  // namespace boundary
