#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#endif

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kArenaBytes = size_t{64} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Mapping::Mapping(size_t bytes) : mapped_(round_up(bytes, 4096) + kHugePage), bytes_(bytes) {
  if (mapped_ < bytes) throw std::bad_alloc();
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (base_ == MAP_FAILED) throw std::bad_alloc();
  data_ = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(base_), kHugePage));
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes, MADV_HUGEPAGE);  // advice: without huge pages it only runs slower
#endif
  ASAN_POISON_MEMORY_REGION(base_, mapped_);
  ASAN_UNPOISON_MEMORY_REGION(data_, bytes);
}

Mapping::~Mapping() {
  ASAN_UNPOISON_MEMORY_REGION(base_, mapped_);
  munmap(base_, mapped_);
}

Arena::Piece Arena::allocate(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t wanted = round_up(std::max<size_t>(bytes, 1), 64);
  std::shared_ptr<Mapping> mapping = current_.lock();
  if (!mapping || used_ + wanted > mapping->bytes()) {
    mapping = std::make_shared<Mapping>(std::max(wanted, kArenaBytes));
    current_ = mapping;
    used_ = 0;
    ASAN_POISON_MEMORY_REGION(mapping->data(), mapping->bytes());
  }
  char* data = mapping->data() + used_;
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  used_ += wanted;
  return {std::move(mapping), data};
}

void* Scratch::reserve(size_t bytes) {
  if (!mapping_ || mapping_->bytes() < bytes) {
    mapping_.reset();
    mapping_ = std::make_unique<Mapping>(round_up(bytes + bytes / 4, 4096));
  }
  ASAN_POISON_MEMORY_REGION(mapping_->data(), mapping_->bytes());
  ASAN_UNPOISON_MEMORY_REGION(mapping_->data(), bytes);
  return mapping_->data();
}

}  // namespace octavo
