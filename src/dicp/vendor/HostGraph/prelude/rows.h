// Rows of a kernel on the threads of torch, and scratch that is too large for a stack.
INLINE void run_rows(const Run& run, void (*task)(void*, i64, i64), const void* arguments, i64 count, i64 grain) {
    if (count <= grain) {
        if (count > 0) task((void*)arguments, 0, count);
    } else {
        run.services->parallel(run.frame, task, (void*)arguments, count, grain);
    }
}
struct Scratch {
    char* memory;
    char* begin;
    Scratch(u64 bytes, const Run& run) : memory((char*)__builtin_malloc(bytes + 64)) {
        begin = memory ? memory + (64 - (u64)memory % 64) : nullptr;
        if (!memory) run.services->fail(run.frame, "out of memory: a compiled kernel needs scratch for a row");
    }
    ~Scratch() { __builtin_free(memory); }
    Scratch(const Scratch&) = delete;
};
