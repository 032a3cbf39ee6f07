// Recorded steps: the calls of this ABI that a forward pass makes, made again in one.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "context.h"

namespace octavo {
namespace {

template <class T>
T from_word(int64_t word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(static_cast<intptr_t>(word));
  } else if constexpr (std::is_same_v<T, float>) {
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  } else {
    return static_cast<T>(word);
  }
}

template <auto Function>
struct Invoke;

template <class... Arguments, int (*Function)(Arguments...)>
struct Invoke<Function> {
  static constexpr int64_t arity = sizeof...(Arguments);

  static int call(const int64_t* words) { return call(words, std::index_sequence_for<Arguments...>()); }

 private:
  template <std::size_t... I>
  static int call(const int64_t* words, std::index_sequence<I...>) {
    return Function(from_word<Arguments>(words[I])...);
  }
};

struct Recordable {
  const char* name;
  int64_t arity;
  int (*call)(const int64_t* words);
};

// Every function that a step may call; one that is not here cannot be recorded.
#define RECORDABLE(function) {#function, Invoke<function>::arity, Invoke<function>::call}
constexpr Recordable kRecordable[] = {
    RECORDABLE(octavo_linear),      RECORDABLE(octavo_embedding),         RECORDABLE(octavo_select_rows),
    RECORDABLE(octavo_rms_norm),    RECORDABLE(octavo_silu_and_multiply), RECORDABLE(octavo_rms_norm_columns),
    RECORDABLE(octavo_layer_norm),  RECORDABLE(octavo_soft_cap),
    RECORDABLE(octavo_cache_write), RECORDABLE(octavo_attention),         RECORDABLE(octavo_route),
    RECORDABLE(octavo_experts),     RECORDABLE(octavo_linear_heads),      RECORDABLE(octavo_copy_columns),
};
#undef RECORDABLE

}  // namespace
}  // namespace octavo

struct octavo_program {
  struct Call {
    int (*function)(const int64_t* words);
    int64_t first, count;  // of its arguments
  };
  std::vector<Call> calls;
  std::vector<octavo_argument> arguments;
  int64_t variables = 0;  // one more than the highest that an argument names
  int64_t longest = 0;    // arguments of a call
};

using namespace octavo;

octavo_program* octavo_program_new(void) {
  octavo_program* program = new (std::nothrow) octavo_program;
  if (program == nullptr) fail(OCTAVO_NO_MEMORY, "out of memory");
  return program;
}

void octavo_program_free(octavo_program* program) { delete program; }

int octavo_program_add(octavo_program* program, const char* function, const octavo_argument* arguments, int64_t count) {
  if (missing(program)) return closed();
  return guarded([&] {
    for (const Recordable& each : kRecordable) {
      if (std::strcmp(each.name, function) != 0) continue;
      if (each.arity != count)
        return fail(OCTAVO_INVALID, "%s takes %lld arguments, not %lld", function, number(each.arity), number(count));
      program->calls.push_back({each.call, static_cast<int64_t>(program->arguments.size()), count});
      program->arguments.insert(program->arguments.end(), arguments, arguments + count);
      for (int64_t i = 0; i < count; ++i) program->variables = std::max(program->variables, arguments[i].variable + 1);
      program->longest = std::max(program->longest, count);
      return static_cast<int>(OCTAVO_OK);
    }
    return fail(OCTAVO_INVALID, "%s cannot be recorded", function);
  });
}

int octavo_program_run(const octavo_program* program, const int64_t* variables, int64_t count) {
  if (missing(program)) return closed();
  if (count < program->variables)
    return fail(OCTAVO_INVALID, "the program has %lld variables, not %lld", number(program->variables), number(count));
  return guarded([&] {
    std::vector<int64_t> words(static_cast<size_t>(program->longest));
    for (const octavo_program::Call& call : program->calls) {
      for (int64_t i = 0; i < call.count; ++i) {
        const octavo_argument& argument = program->arguments[call.first + i];
        words[i] = argument.variable < 0 ? argument.value : argument.value * variables[argument.variable];
      }
      if (const int status = call.function(words.data()); status != OCTAVO_OK) return status;
    }
    return static_cast<int>(OCTAVO_OK);
  });
}
