// Memory from the operating system: zeroed lazily, in huge pages where it has them. In a build with the address sanitizer
// what nobody has asked for may not be touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace octavo {

// An anonymous mapping aligned to huge pages. Throws std::bad_alloc.
class Mapping {
 public:
  explicit Mapping(size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* base_ = nullptr;
  size_t mapped_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Weights one after the other in large mappings, so that small ones share huge pages. A mapping goes when nothing in it
// is left.
class Arena {
 public:
  struct Piece {
    std::shared_ptr<Mapping> mapping;
    char* data = nullptr;
  };

  Piece allocate(size_t bytes);  // zeroed, aligned to 64 bytes

 private:
  std::mutex mutex_;
  std::weak_ptr<Mapping> current_;  // alive as long as a piece of it is
  size_t used_ = 0;
};

// A buffer that grows and is never shrunk; its content does not survive growth.
class Scratch {
 public:
  void* reserve(size_t bytes);

 private:
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace octavo
