// Preloaded: the allocation with this number on the armed thread fails, as if there were no memory.
#include <cstdlib>
#include <new>

static thread_local long left = -1;

extern "C" void fail_allocation(long number) { left = number; }
// True if the allocation was reached.
extern "C" int stop_failing() {
    const bool reached = left == -1;
    left = -1;
    return reached;
}

void* operator new(std::size_t size) {
    if (left >= 0 && left-- == 0) throw std::bad_alloc();
    if (void* memory = std::malloc(size ? size : 1)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
