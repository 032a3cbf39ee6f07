// See trial.cpp.
#pragma once

#include "kernels/table.h"

namespace octavo {

// Whether a child process that multiplies with `kernels` lives and comes close to what `expected` gives.
bool passes_trial(const Kernels& kernels, const Kernels& expected);

}  // namespace octavo
