// The boundary to Python: an exception of a kernel becomes an error code and a message. No
// exception passes into Python's C code, where it would end the process.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

namespace boundary {

// The error codes that a function returns instead of its result; `regard_error_message` returns the
// message.
constexpr int64_t INVALID_ARGUMENT = INT64_MIN, NO_MEMORY = INT64_MIN + 1;
constexpr int MESSAGE_BYTES = 240;

inline char* error_message() {
  static thread_local char text[MESSAGE_BYTES];
  return text;
}

// Arguments with which a kernel would read or write outside its arrays.
struct InvalidArgument : std::exception {
  char text[MESSAGE_BYTES];
  const char* what() const noexcept override { return text; }
};

[[noreturn]] __attribute__((format(printf, 1, 2), noinline, cold)) inline void raise_error(
    const char* format, ...) {
  InvalidArgument found;
  va_list values;
  va_start(values, format);
  std::vsnprintf(found.text, MESSAGE_BYTES, format, values);
  va_end(values);
  throw found;
}

inline int64_t store_error(int64_t number, const char* text) {
  std::snprintf(error_message(), MESSAGE_BYTES, "%s", text);
  return number;
}

// The result of f, which is never one of the error codes; or the error code of what f throws.
template <class F>
int64_t guarded(F f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return store_error(NO_MEMORY, "there is not enough memory for the compiled kernels");
  } catch (const std::length_error&) {
    return store_error(NO_MEMORY, "the compiled kernels need more memory than can be addressed");
  } catch (const std::exception& error) {
    return store_error(INVALID_ARGUMENT, error.what());
  } catch (...) {
    return store_error(INVALID_ARGUMENT, "a compiled kernel failed with an unknown exception");
  }
}

// `guarded` for functions without a result: returns 0 or an error code.
template <class F>
int64_t guarded_call(F f) {
  return guarded([&]() -> int64_t {
    f();
    return 0;
  });
}

// How many of these numbers are not in the range [0, end).
inline int64_t count_outside(const int64_t* numbers, int64_t count, int64_t end) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) found += numbers[i] < 0 || numbers[i] >= end;
  return found;
}

// Checks the offsets of parts that are stored one after another: (parts + 1,) numbers from 0 to at
// most `end` that do not decrease.
inline void check_offsets(const char* name, const int64_t* starts, int64_t parts, int64_t end) {
  if (parts < 0 || starts[0] != 0) raise_error("`%s` must start with 0", name);
  for (int64_t i = 0; i < parts; i++) {
    if (starts[i + 1] < starts[i]) {
      raise_error("`%s` must not decrease, but item %lld is less than the one before it",
                  name, (long long)i + 1);
    }
  }
  if (starts[parts] > end) {
    raise_error("`%s` must end at %lld at most, but ends at %lld", name, (long long)end,
                (long long)starts[parts]);
  }
}

}  // namespace boundary
